"""`apmax tune`."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apmax.cli import options
from apmax.cli.asking import Asked, asked

if TYPE_CHECKING:
    from rich.table import Table

    from apmax.workflows.tuning import Best

EXAMPLES = """[bold]Examples[/]

apmax tune clients.csv --target churn --trials 40 --out tuned

apmax train tuned/run.toml --out runs/tuned

apmax tune clients.csv --target churn --loss focal --processes 2 --timeout 600 --out tuned

apmax tune molecules.csv --smiles smiles --target active --split scaffold --out tuned

apmax tune runs/churn/run.toml --space stages.1.lr=1e-4,3e-4,1e-3 --space model.dropout=0,0.3 --out tuned"""

SEARCH = "Search"
SHOWN = 8


@asked
def tune(
    job: Asked,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Directory for the study and the best job.", rich_help_panel=options.DATA),
    ],
    trials: Annotated[
        int, typer.Option(min=1, metavar="N", help="In all, those of before included.", rich_help_panel=SEARCH)
    ] = 30,
    timeout: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", help="Begin no trial after so long.", rich_help_panel=SEARCH),
    ] = None,
    processes: Annotated[int, typer.Option(min=1, metavar="N", help="At a time.", rich_help_panel=SEARCH)] = 1,
    space: Annotated[
        list[str] | None,
        typer.Option(
            metavar="PATH=V,V,…",
            help="Values to search instead of the paper's grids for the last stage. May be repeated.",
            rich_help_panel=SEARCH,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the study in --out.")] = False,
) -> None:
    """Search for good settings by validation AP (of several targets its mean), and write the best as a job.

    Trials that fall behind the median are stopped early. The study is an SQLite file: it can be gone on with, and other
    processes, on other machines too, can join by the same command with --resume.
    """
    from apmax import workflows as jobs
    from apmax.cli import terminal
    from apmax.workflows import tuning
    from apmax.workflows.data_types import KINDS
    from apmax.workflows.rows import prepare
    from apmax.workflows.spec import located
    from apmax.workflows.training import draft

    if out.exists() and any(out.iterdir()) and not resume:
        raise FileExistsError(f"{out} is not empty: go on with --resume, or choose another directory")
    table, wishes = job.table(), job.wishes()
    spec = located(jobs.data_spec(table, wishes, job.places), job.places)
    terminal.use_threads(spec.kind)
    run = draft(table, wishes, spec).run
    prepared = prepare(spec, seed=run.seed)
    searched = tuning.read_space(space) if space else tuning.space_for(run)
    if run.seed != (wishes.seed or 0):
        wishes = dataclasses.replace(wishes, seed=run.seed)
    plan = tuning.Plan(
        table, wishes, spec, searched, out.resolve() / "study.db", trials, timeout, threads=KINDS[spec.kind].threads
    )
    # A mistaken path or value comes out now, and not in the middle of the night.
    for path, values in searched.items():
        for index in range(len(values)):
            plan.job(prepared, {path: index})
    terminal.notes(prepared.facts, prepared.warnings)
    out.mkdir(parents=True, exist_ok=True)
    run_all(plan, prepared, processes)
    best = tuning.best_of(tuning.open_study(plan.file), searched)
    tuning.write_best(plan, prepared, best, out / "run.toml")
    tuning.draw(out / "study.png", best, searched)
    console = terminal.output()
    console.print()
    console.print(best_table(best))
    console.print(
        f"\n{len(best.trials)} trials finished, {best.pruned} were stopped early, {best.failed} diverged. "
        f"Picture: {out / 'study.png'}",
        soft_wrap=True,
    )
    console.print(f"To train the best: apmax train {out / 'run.toml'} --out DIR", soft_wrap=True)


def run_all(plan: Any, prepared: Any, processes: int) -> None:
    """Search in this process and in as many others as are asked for."""
    import multiprocessing

    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    from apmax.cli import terminal
    from apmax.workflows import tuning

    study = tuning.open_study(plan.file)
    context = multiprocessing.get_context("spawn")
    others = [
        context.Process(target=tuning.search, args=(plan,), kwargs={"worker": number}, daemon=True)
        for number in range(1, processes)
    ]
    for other in others:
        other.start()
    columns = (BarColumn(), MofNCompleteColumn(), "best AP {task.fields[best]}", TimeRemainingColumn())
    with Progress("Searching", *columns, console=terminal.output(), transient=True) as progress:
        bar = progress.add_task("", total=plan.trials, best="–", completed=len(study.trials))

        def tell(current: Any, _: Any) -> None:
            done = [trial.value for trial in current.get_trials(deepcopy=False) if trial.value is not None]
            finished = sum(trial.state.is_finished() for trial in current.get_trials(deepcopy=False))
            progress.update(bar, completed=finished, best=f"{max(done):.4f}" if done else "–")

        tuning.search(plan, prepared, tell=tell)
    for other in others:
        other.join()
        if other.exitcode:
            raise RuntimeError(f"a process of the search ended with code {other.exitcode}")


def best_table(best: Best) -> Table:
    """Return the best trials with their settings, and a last row of how much each setting mattered."""
    from rich.table import Table

    from apmax.workflows.tuning.figures import short

    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    paths = list(best.trials[0][2])
    for name in ("trial", "valid AP", *map(short, paths)):
        table.add_column(name, justify="right")
    for number, value, settings in best.trials[:SHOWN]:
        table.add_row(str(number), f"{value:.4f}", *(str(settings[path]) for path in paths))
    if best.importance:
        table.add_row("", "[dim]mattered[/]", *(f"[dim]{best.importance.get(path, 0):.0%}[/]" for path in paths))
    return table
