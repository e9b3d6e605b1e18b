"""`apmax train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apmax.cli import options
from apmax.cli.asking import Asked, asked

EXAMPLES = """[bold]Examples[/]

apmax train clients.csv --target churn --out runs/churn

apmax train visits.parquet --target readmitted --group patient --test next_year.parquet --out runs/visits

apmax train clients.csv --target churn --loss ce --ensemble 4 --set model.hidden=\\[128,64] --out runs/ce

apmax train runs/churn/run.toml --out runs/again --set stages.1.lr=1e-4

apmax train clients.csv --target churn --out runs/churn --resume

apmax train molecules.csv --smiles smiles --target active --split scaffold --test-share 0.1 --out runs/active

apmax train tox21.csv --smiles smiles --target NR-AR --target NR-AhR --model mpnn --out runs/tox

apmax train images/ --target malignant --test-share 0.1 --out runs/skin

apmax train lesions.csv --path file --target malignant --group patient --pretrained resnet18.pth --out runs/skin"""


@asked
def train(
    job: Asked,
    out: Annotated[
        Path,
        typer.Option(metavar="DIR", help="Directory for the model and all about it.", rich_help_panel=options.DATA),
    ],
    test: Annotated[
        str | None, typer.Option(metavar="FILE", help="Scored once, after the choice.", rich_help_panel=options.DATA)
    ] = None,
    test_share: Annotated[
        float | None,
        typer.Option(metavar="X", help="Hold out this much too, as the test.", rich_help_panel=options.HOLD_OUT),
    ] = None,
    num_pos: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Positives per step.", rich_help_panel=options.TRAINING)
    ] = None,
    lr: Annotated[
        float | None,
        typer.Option(
            metavar="X", help="Of the first stage; later ones keep their ratio to it.", rich_help_panel=options.TRAINING
        ),
    ] = None,
    ensemble: Annotated[
        int | None, typer.Option(min=1, metavar="K", help="Average K models.", rich_help_panel=options.TRAINING)
    ] = None,
    devices: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes or GPUs.", rich_help_panel=options.TRAINING)
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what stands in --out.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the final table.")] = False,
) -> None:
    """Train a model on a table, on molecules or on images; validation AP chooses its epoch.

    Columns are understood by themselves, rows to choose by are held out, and everything needed to go on, to score
    new rows and to do it again is kept in the directory.
    """
    from apmax import workflows as jobs
    from apmax.cli import terminal
    from apmax.train import is_first_process

    table = job.table(test=test, test_share=test_share)
    wishes = job.wishes(num_pos=num_pos, lr=lr, ensemble=ensemble, devices=devices)
    data = jobs.data_spec(table, wishes, job.places)
    terminal.use_threads(data.kind)
    tell = (lambda _, warnings: terminal.warn(warnings)) if quiet else terminal.notes
    outcome = jobs.train(table, wishes, out=out, resume=resume, progress=not quiet, places=job.places, tell=tell)
    if not is_first_process():
        return
    terminal.warn(outcome.warnings)
    console = terminal.output()
    console.print()
    parts = {"validation": outcome.valid} | ({} if outcome.test is None else {"test": outcome.test})
    console.print(terminal.evaluations(parts))
    if not quiet:
        console.print(f"\nChosen by validation AP: {chosen(outcome)}.", soft_wrap=True)
        for sheet in outcome.sheets:
            console.print(f"The best-ranked images: {sheet}", soft_wrap=True)
        how = f"--by {data.targets[0]} --sort" if len(data.targets) > 1 else "--sort"
        console.print(f"To rank new rows: apmax predict {out} DATA {how} --out ranked.csv", soft_wrap=True)


def chosen(outcome: object) -> str:
    """Return in words which epochs the chosen weights are of."""
    records, picks = outcome.records, outcome.chosen  # type: ignore[attr-defined]
    names = {record.stage_number: record.stage for record in records}
    texts = [f"epoch {pick['epoch']} of stage {pick['stage'] + 1} ({names.get(pick['stage'], '')})" for pick in picks]
    return texts[0] if len(texts) == 1 else "; ".join(f"for model {k + 1} {text}" for k, text in enumerate(texts))
