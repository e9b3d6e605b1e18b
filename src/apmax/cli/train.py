"""`apmax train`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apmax.cli._options import DATA, SPLITTING, TRAINING, JobOptions, with_job_options
from apmax.folders import check_free, is_first_process

if TYPE_CHECKING:
    from apmax.workflows import JobResult

EXAMPLES = """[bold]Examples[/]

apmax train clients.csv --target churn --out runs/churn

apmax train visits.parquet --target readmitted --group patient --test next_year.parquet --out runs/visits

apmax train clients.csv --target churn --loss ce --ensemble 4 --set model.hidden=\\[128,64] --out runs/ce

apmax train runs/churn/run.toml --out runs/again --set stages.1.lr=1e-4

apmax train clients.csv --target churn --out runs/churn --resume

apmax train clients.csv --target churn --model my_networks:build --out runs/own

apmax train molecules.csv --smiles smiles --target active --split scaffold --test-share 0.1 --out runs/active

apmax train tox21.csv --smiles smiles --target NR-AR --target NR-AhR --model mpnn --out runs/tox

apmax train images/ --target malignant --test-share 0.1 --out runs/skin

apmax train lesions.csv --path file --target malignant --group patient --pretrained resnet18.pth --out runs/skin"""


@with_job_options
def train_command(
    options: JobOptions,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Folder for the model and everything about it.", rich_help_panel=DATA),
    ],
    test: Annotated[
        str | None, typer.Option(metavar="FILE", help="Scored once, after the choice.", rich_help_panel=DATA)
    ] = None,
    test_share: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Share of DATA for the test, held out in the same way.", rich_help_panel=SPLITTING
        ),
    ] = None,
    num_pos: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Positives per step.", rich_help_panel=TRAINING)
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Of the first stage; later ones keep their ratio to it.", rich_help_panel=TRAINING
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
) -> None:
    """Train a model on a table, on molecules or on images; validation AP chooses its epoch.

    The types of columns are inferred, validation rows are held out, and the folder keeps everything that is needed to
    continue the training, to score new rows and to repeat it.
    """
    if not resume and is_first_process():
        check_free(out)  # before anything heavy is imported

    from apmax import workflows
    from apmax.cli import _console

    if quiet and verbose:
        raise typer.BadParameter("--quiet and --verbose exclude each other")
    overrides = options.overrides(num_pos=num_pos, lr=lr, ensemble=ensemble, head=head, devices=devices)
    plan = workflows.plan_job(options.job_table(test=test, test_share=test_share), overrides, options.folders)
    _console.set_threads(workflows.DATA_TYPES[plan.data.kind])
    notify = (lambda _, warnings: _console.show_warnings(warnings)) if quiet else _console.show_notes
    result = workflows.train_job(
        plan, out=out, resume=resume, progress="epochs" if verbose else not quiet, notify=notify
    )
    if not is_first_process():
        return
    _console.show_warnings(result.warnings)
    console = _console.output()
    console.print()
    parts = {"validation": result.valid} | ({} if result.test is None else {"test": result.test})
    console.print(_console.metrics_table(parts))
    if not quiet:
        console.print(f"\nChosen by validation AP: {_chosen_epochs(result)}.", soft_wrap=True)
        for sheet in result.contact_sheets:
            console.print(f"The best-ranked images: {sheet}", soft_wrap=True)
        targets = plan.data.targets
        sorting = f"--by {targets[0]} --sort" if len(targets) > 1 else "--sort"
        console.print(f"To rank new rows: apmax predict {out} DATA {sorting} --out ranked.csv", soft_wrap=True)


def _chosen_epochs(result: JobResult) -> str:
    names = {record.stage_number: record.stage for record in result.records}
    texts = [
        f"epoch {chosen['epoch']} of stage {chosen['stage'] + 1} ({names.get(chosen['stage'], '')})"
        for chosen in result.chosen
    ]
    return texts[0] if len(texts) == 1 else "; ".join(f"for model {k + 1} {text}" for k, text in enumerate(texts))
