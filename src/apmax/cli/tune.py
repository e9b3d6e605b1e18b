"""`apmax tune`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apmax.cli._options import DATA, JobOptions, with_job_options
from apmax.folders import STUDY_FILE, check_free

if TYPE_CHECKING:
    from rich.table import Table

    from apmax.workflows.prepare import PreparedData
    from apmax.workflows.tuning import SearchPlan, SearchResult

EXAMPLES = """[bold]Examples[/]

apmax tune clients.csv --target churn --trials 40 --out tuned

apmax train tuned/run.toml --out runs/tuned

apmax tune clients.csv --target churn --loss focal --processes 2 --timeout 600 --out tuned

apmax tune molecules.csv --smiles smiles --target active --split scaffold --out tuned

apmax tune runs/tuned/run.toml --space stages.1.lr=1e-4,3e-4,1e-3 --space model.dropout=0,0.3 --out finer"""

SEARCH = "Search"
SHOWN_TRIALS = 8


@with_job_options
def tune_command(
    options: JobOptions,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for the study and the best job.", rich_help_panel=DATA),
    ],
    trials: Annotated[
        int,
        typer.Option(
            min=1, metavar="N", help="Number of trials, those of resumed searches included.", rich_help_panel=SEARCH
        ),
    ] = 30,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Begin no trial after this time.", rich_help_panel=SEARCH),
    ] = None,
    processes: Annotated[
        int, typer.Option(min=1, metavar="N", help="Processes that search at a time.", rich_help_panel=SEARCH)
    ] = 1,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=V,V,…",
            help="Values to search instead of the paper's grids for the last stage. May be repeated.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the study in --out.")] = False,
) -> None:
    """Search for good settings by validation AP (of several targets its mean), and write the best as a job.

    Trials that fall behind the median are stopped early. The study is an SQLite file: it can be resumed, and other
    processes, on other machines too, can join by the same command with --resume.
    """
    if not resume:
        check_free(out)
    elif not (out / STUDY_FILE).exists():
        check_free(out, "it holds no search to continue; choose another folder")

    from apmax import workflows
    from apmax.cli import _console
    from apmax.validation import plural
    from apmax.workflows import tuning
    from apmax.workflows.job import require_network
    from apmax.workflows.prepare import prepare_data
    from apmax.workflows.training import check_model

    searched = tuning.parse_space(space) if space else None
    table, overrides = options.job_table(), options.overrides()
    require_network(table, "tune", options.data, overrides)
    job = workflows.plan_job(table, overrides, options.folders)
    check_model(job)
    data_type = workflows.DATA_TYPES[job.data.kind]
    _console.set_threads(data_type)
    prepared = prepare_data(job.data, seed=job.seed)
    if searched is None:
        resolved = job.resolve(prepared.config, rows=prepared.train_rows, positives=prepared.train_positives)
        searched = tuning.default_space(resolved.run)
    file = out.resolve() / STUDY_FILE
    plan = tuning.SearchPlan(job, searched, file, trials, timeout, threads=data_type.threads)
    plan.check(prepared)
    _console.show_notes(prepared.facts, prepared.warnings)
    out.mkdir(parents=True, exist_ok=True)
    _run_processes(plan, prepared, processes)
    result = tuning.search_result(tuning.open_study(file), searched)
    tuning.write_best_job(plan, prepared, result, out / "run.toml")
    tuning.draw_search(out / "study.png", result, searched)
    console = _console.output()
    console.print()
    _console.show_table(_trials_table(result), console)
    console.print(
        f"\n{plural(len(result.trials), 'trial')} finished, {result.pruned} stopped early, {result.failed} diverged. "
        f"Picture: {out / 'study.png'}",
        soft_wrap=True,
    )
    best = shlex.quote(str(out / "run.toml"))
    console.print(f"To train the best: apmax train {best} --out DIR", soft_wrap=True)


def _run_processes(plan: SearchPlan, prepared: PreparedData, processes: int) -> None:
    """Search in this process, which shows the progress, and in `processes - 1` others."""
    import multiprocessing

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from apmax.cli import _console
    from apmax.workflows import tuning

    study = tuning.open_study(plan.file)
    tuning.claim_space(study, plan.space)
    tuning.claim_rows(study, plan, prepared)
    context = multiprocessing.get_context("spawn")
    others = [context.Process(target=tuning.run_search, args=(plan,), daemon=True) for _ in range(1, processes)]
    for other in others:
        other.start()
    columns = (BarColumn(), MofNCompleteColumn(), "best AP {task.fields[best]}", TimeRemainingColumn())
    console = _console.output()
    bars = Progress("Searching", *columns, console=console, transient=True, disable=not console.is_terminal)
    with bars as progress:
        bar = progress.add_task("", total=plan.trials, best="–", completed=tuning.finished_trials(study))

        def update(current: Any, _: Any) -> None:
            values = [trial.value for trial in current.get_trials(deepcopy=False) if trial.value is not None]
            finished = tuning.finished_trials(current)
            best = f"{max(values):.4f}" if values else "–"
            progress.update(bar, completed=finished, best=best)
            if not console.is_terminal:
                console.print(f"{finished:,} of {plan.trials:,} trials, best AP {best}", soft_wrap=True)

        tuning.run_search(plan, prepared, callback=update)
    for other in others:
        other.join()
        if other.exitcode:
            raise RuntimeError(f"a process of the search ended with code {other.exitcode}")


def _trials_table(result: SearchResult) -> Table:
    """Return the best trials with their settings, and a last row of the settings' importance."""
    from rich.text import Text

    from apmax.cli import _console
    from apmax.workflows.tuning import short_path

    table = _console.plain_table()
    paths = list(result.trials[0][2])
    for name in ("trial", "valid AP", *map(short_path, paths)):
        table.add_column(name, justify="right", no_wrap=True)
    for number, value, settings in result.trials[:SHOWN_TRIALS]:
        table.add_row(str(number), f"{value:.4f}", *(str(settings[path]) for path in paths))
    if result.importance:
        shares = (Text(f"{result.importance.get(path, 0):.0%}", "dim") for path in paths)
        table.add_row("", Text("importance", "dim"), *shares)
    return table
