"""`apmax train`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

EXAMPLES = """[bold]Examples[/]

apmax train clients.csv --target churn --out runs/churn

apmax train visits.parquet --target readmitted --group patient --test next_year.parquet --out runs/visits

apmax train clients.csv --target churn --loss ce --ensemble 4 --set model.hidden=\\[128,64] --out runs/ce

apmax train runs/churn/run.toml --out runs/again --set stages.1.lr=1e-4

apmax train clients.csv --target churn --out runs/churn --resume"""

DATA, HOLD_OUT, TRAINING = "Data", "Rows to choose by", "Training"


def train(
    data: Annotated[str, typer.Argument(metavar="DATA|RUN.TOML", help="csv, csv.gz or parquet, or a job as TOML.")],
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Directory for the model and all about it.", rich_help_panel=DATA)
    ],
    target: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="The column to be predicted.", rich_help_panel=DATA)
    ] = None,
    positive: Annotated[
        str | None,
        typer.Option(metavar="VALUE", help="Which of its values is the positive, if not plain.", rich_help_panel=DATA),
    ] = None,
    test: Annotated[
        str | None, typer.Option(metavar="FILE", help="Scored once, after the choice.", rich_help_panel=DATA)
    ] = None,
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TYPE",
            help="What a column is: number, category, date or drop. May be repeated.",
            rich_help_panel=DATA,
        ),
    ] = None,
    kind: Annotated[str | None, typer.Option(metavar="NAME", help="Kind of data: table.", rich_help_panel=DATA)] = None,
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", envvar="APMAX_DATA", help="Where else to look for files.", rich_help_panel=DATA),
    ] = None,
    valid: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Choose by these rows, not a part of DATA.", rich_help_panel=HOLD_OUT),
    ] = None,
    group: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Hold out whole groups, such as patients.", rich_help_panel=HOLD_OUT),
    ] = None,
    time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Hold out the latest rows.", rich_help_panel=HOLD_OUT)
    ] = None,
    share: Annotated[
        float | None, typer.Option(metavar="X", help="How much of DATA (0.2).", rich_help_panel=HOLD_OUT)
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME", help="mlp (default) or linear.", rich_help_panel=TRAINING)
    ] = None,
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="The last stage's, after one of cross-entropy: ap+ce (default), ap, focal, … ; or ce alone. "
            "`apmax methods` lists them.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Of the last stage.", rich_help_panel=TRAINING)
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Rows per step.", rich_help_panel=TRAINING)
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
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Of everything random (0).", rich_help_panel=TRAINING)
    ] = None,
    change: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Any other setting, such as stages.1.lr=1e-4. May be repeated.",
            rich_help_panel=TRAINING,
        ),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with what stands in --out.")] = False,
    devices: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Processes or GPUs.", rich_help_panel=TRAINING)
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only the final table.")] = False,
) -> None:
    """Train a model on a table; validation AP chooses its epoch.

    Columns are understood by themselves, rows to choose by are held out, and everything needed to go on, to score
    new rows and to do it again is kept in the directory.
    """
    from apmax import jobs
    from apmax.cli import terminal
    from apmax.jobs.toml import parse
    from apmax.jobs.training import is_first_process

    table = {}
    places = [] if data_dir is None else [data_dir]
    if data.lower().endswith(".toml"):
        table = parse(Path(data).read_text(encoding="utf-8"))
        places.append(Path(data).parent)
    options = {"target": target, "positive": positive, "valid": valid, "test": test, "group": group, "time": time}
    own = {**options, "share": share, "kind": kind, "columns": roles(column) or None}
    if not table:
        own["train"] = data
    table["data"] = {**table.get("data", {}), **{name: value for name, value in own.items() if value is not None}}
    if model is not None:
        table["model"] = {**table.get("model", {}), "name": model}
    wishes = jobs.Wishes(
        loss=loss,
        epochs=epochs,
        batch_size=batch_size,
        num_pos=num_pos,
        lr=lr,
        ensemble=ensemble,
        seed=seed,
        devices=devices,
        changes=tuple(change or ()),
    )
    terminal.use_threads(table["data"].get("kind"))
    tell = (lambda _, warnings: terminal.warn(warnings)) if quiet else terminal.notes
    outcome = jobs.train(table, wishes, out=out, resume=resume, progress=not quiet, places=tuple(places), tell=tell)
    if not is_first_process():
        return
    terminal.warn(outcome.warnings)
    console = terminal.output()
    console.print()
    parts = {"validation": outcome.valid} | ({} if outcome.test is None else {"test": outcome.test})
    console.print(terminal.evaluations(parts))
    if not quiet:
        console.print(f"\nChosen by validation AP: {chosen(outcome)}.", soft_wrap=True)
        console.print(f"To rank new rows: apmax predict {out} DATA --sort --out ranked.csv", soft_wrap=True)


def roles(columns: list[str] | None) -> dict[str, str]:
    """Return what columns were said to be."""
    pairs = [text.rpartition("=") for text in columns or ()]
    for (name, _, kind), text in zip(pairs, columns or (), strict=True):
        if not name or not kind:
            raise typer.BadParameter(f"--column is written NAME=TYPE, got {text!r}")
    return {name: kind for name, _, kind in pairs}


def chosen(outcome: object) -> str:
    """Return in words which epochs the chosen weights are of."""
    records, picks = outcome.records, outcome.chosen  # type: ignore[attr-defined]
    names = {record.stage_number: record.stage for record in records}
    texts = [f"epoch {pick['epoch']} of stage {pick['stage'] + 1} ({names.get(pick['stage'], '')})" for pick in picks]
    return texts[0] if len(texts) == 1 else "; ".join(f"for model {k + 1} {text}" for k, text in enumerate(texts))
