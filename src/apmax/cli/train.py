"""`apmax train`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apmax.cli._options import (
    COMMITTEE,
    DATA,
    SPLITTING,
    TRAINING,
    JobOptions,
    allow_local_import,
    parse_duration,
    with_job_options,
)
from apmax.cli.report import write_training_report
from apmax.folders import check_free, is_first_process, started_processes

if TYPE_CHECKING:
    from apmax.workflows import CommitteeJob, JobPlan

EXAMPLES = """[bold]Examples[/]

apmax train clients.csv --target churn --out runs/churn

apmax train visits.parquet --target readmitted --group patient --test next_year.parquet --out runs/visits

apmax train clients.csv --target churn --effort quick --out runs/first

apmax train clients.csv --target churn --time-limit 10m --weight amount --out runs/churn

apmax train clients.csv --target churn --model mlp --out runs/network

apmax train clients.csv --target churn --loss ce --ensemble 4 --set model.hidden=\\[128,64] --out runs/ce

apmax train runs/network/run.toml --out runs/again --set stages.1.lr=1e-4

apmax train clients.csv --target churn --out runs/churn --resume

apmax train clients.csv --target churn --model my_networks:build --out runs/own

apmax train molecules.csv --smiles smiles --target active --test-share 0.1 --out runs/active

apmax train molecules.csv --smiles smiles --target active --model gine --split scaffold --out runs/network

apmax train tox21.csv --smiles smiles --target NR-AR --target NR-AhR --model mpnn --out runs/tox

apmax train images/ --target malignant --test-share 0.1 --out runs/skin

apmax train images/ --target malignant --backbone my_networks:build --out runs/own

apmax train images/ --target malignant --model resnet18 --width 16 --out runs/network

apmax train images/ --target malignant --pretrained resnet18.pth --frozen --out runs/heads

apmax train lesions.csv --path file --target malignant --group patient --pretrained resnet18.pth --out runs/skin"""


@with_job_options
def train_command(
    options: JobOptions,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for the model and everything about it.", rich_help_panel=DATA),
    ],
    test: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Test rows: scored once, after all choices.", rich_help_panel=DATA),
    ] = None,
    test_share: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Share of DATA for the test, held out in the same way.", rich_help_panel=SPLITTING
        ),
    ] = None,
    effort: Annotated[
        str | None,
        typer.Option(
            metavar="quick|standard|best",
            help="quick: gradient boosting (images: the network) alone. standard (default): all members on up to 5 "
            "folds (images: 4 or 3). best: up to 10 folds (images: 5), with more trees and seeds.",
            rich_help_panel=COMMITTEE,
        ),
    ] = None,
    member: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="Only these members: gbdt, forest, trees; of tables also linear, mlp, linear_ce, mlp_ce, mlp_mined; "
            "of molecules gine, gine_ce, gine_mined; of images network, network_ce, head, network_mined. Without names "
            "the _mined ones are fitted with --effort best only. May be repeated.",
            rich_help_panel=COMMITTEE,
        ),
    ] = None,
    backbone: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="For images, the network of all members: resnet18, resnet34, resnet10, timm:NAME or your own as "
            "package.module:callable (default: by the images).",
            rich_help_panel=COMMITTEE,
        ),
    ] = None,
    frozen: Annotated[
        bool,
        typer.Option(
            "--frozen",
            help="For images: keep the network, with the weights of --pretrained or your own --backbone, as it is; "
            "the members linear, linear_ce and gbdt read its embeddings, which are computed once.",
            rich_help_panel=COMMITTEE,
        ),
    ] = False,
    time_limit: Annotated[
        str | None,
        typer.Option(
            metavar="TIME",
            help="Plan less work if it would take longer, such as 90s, 10m or 2h.",
            rich_help_panel=COMMITTEE,
        ),
    ] = None,
    num_pos: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Positives per step.", rich_help_panel=TRAINING)
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            metavar="X",
            help="Learning rate of the first stage; later ones keep their ratio to it.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    ensemble: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Average K models.", rich_help_panel=TRAINING)
    ] = None,
    head: Annotated[
        str | None,
        typer.Option(
            metavar="exact|only",
            help="Re-train the last layer by the exact objective: at the end, or as the only training.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes or GPUs.", rich_help_panel=TRAINING)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Continue the training in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the final table.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show a line per epoch; DIR/log.txt has them.")] = False,
    report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write DIR/report.html, a page about the ranking.")
    ] = True,
) -> None:
    """Learn to rank a table, molecules or images.

    A committee of different models is trained by default: their cross-fitted scores weigh them, and a leaderboard
    shows what each is worth. Options of one network, such as --model, --loss and --epochs, ask for it instead of a
    committee; validation AP chooses its epoch. The types of columns are inferred, and the folder keeps everything
    that is needed to continue the training, to score new rows and to repeat it.
    """
    if not resume and is_first_process() and started_processes() == 1:
        check_free(out)  # before anything heavy is imported

    from apmax import workflows
    from apmax.cli import _console
    from apmax.train.processes import join_processes, shared_errors

    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other")
    overrides = options.overrides(num_pos=num_pos, lr=lr, ensemble=ensemble, head=head, devices=devices)
    committee = {
        "effort": effort,
        "members": member,
        "time_limit": parse_duration(time_limit),
        "backbone": backbone,
        "frozen": frozen or None,
    }
    with shared_errors(join_processes()):  # a machine may lack the files
        job = options.job_table(test=test, test_share=test_share)
        committee_file = options.data if "committee" in job else None
        _add_committee(job, {name: value for name, value in committee.items() if value is not None}, options.data)
        allow_local_import(backbone)
        plan = workflows.plan_training(job, overrides, options.folders, committee_file=committee_file)
    _console.set_threads(workflows.DATA_TYPES[plan.data.kind])
    notes = _console.Notes(quiet=quiet)
    result = workflows.train_job(
        plan, out=out, resume=resume, progress="epochs" if verbose else not quiet, notify=notes.show
    )
    if not is_first_process():
        return
    _console.show_warnings(result.warnings)
    console = _console.output()
    _console.show_training(result, console, quiet=quiet)
    page = write_training_report(result, notes) if report else None
    if not quiet:
        if page is not None:
            console.print(f"Report: {page}", soft_wrap=True)
        console.print(f"To rank new rows: {_predict_command(plan, out)}", soft_wrap=True)


def _predict_command(plan: CommitteeJob | JobPlan, out: Path) -> str:
    """Return the command that ranks new rows by the model in a folder."""
    targets = plan.data.targets
    sorting = f"--by {shlex.quote(targets[0])} --sort" if len(targets) > 1 else "--sort"
    own = "" if plan.own_network is None else f" --model {plan.own_network}"
    return f"apmax predict {shlex.quote(str(out))} DATA{own} {sorting} --out ranked.csv"


def _add_committee(job: dict[str, Any], given: dict[str, Any], source: str) -> None:
    """Add the options of a committee to a job, in place.

    Raises:
        ValueError: The job is that of one network.
    """
    if given and "stage" in job:  # which no option sets: it is of a file
        raise ValueError(
            f"{next(iter(given))} is for a committee, and {source} is the job of one network: name its data, "
            f"{job['data'].get('train')}, instead"
        )
    if given:
        job["committee"] = {**job.get("committee", {}), **given}
