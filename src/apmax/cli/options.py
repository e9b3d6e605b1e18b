"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

DATA, HOLD_OUT, TRAINING = "Data", "Rows to choose by", "Training"

Source = Annotated[str, typer.Argument(metavar="DATA|RUN.TOML", help="csv, csv.gz or parquet, or a job as TOML.")]
Directory = Annotated[Path, typer.Argument(metavar="DIR", help="The --out of `apmax train`.")]
Target = Annotated[
    list[str] | None,
    typer.Option(
        metavar="COLUMN", help="The column to be predicted. May be repeated for molecules.", rich_help_panel=DATA
    ),
]
Smiles = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="The column of molecules; makes the kind molecules.", rich_help_panel=DATA),
]
OtherSmiles = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column of molecules, if not called as in training.")
]
OnError = Annotated[
    str | None,
    typer.Option(
        metavar="skip|raise", help="Leave out molecules that cannot be read (default), or stop.", rich_help_panel=DATA
    ),
]
Positive = Annotated[
    str | None,
    typer.Option(metavar="VALUE", help="Which of its values is the positive, if not plain.", rich_help_panel=DATA),
]
Column = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=TYPE",
        help="What a column is: number, category, date or drop. May be repeated.",
        rich_help_panel=DATA,
    ),
]
Kind = Annotated[
    str | None, typer.Option(metavar="NAME", help="Kind of data: table or molecules.", rich_help_panel=DATA)
]
DataDir = Annotated[
    Path | None,
    typer.Option(metavar="DIR", envvar="APMAX_DATA", help="Where else to look for files.", rich_help_panel=DATA),
]
Valid = Annotated[
    str | None,
    typer.Option(metavar="FILE", help="Choose by these rows, not a part of DATA.", rich_help_panel=HOLD_OUT),
]
Group = Annotated[
    str | None,
    typer.Option(metavar="COLUMN", help="Hold out whole groups, such as patients.", rich_help_panel=HOLD_OUT),
]
Time = Annotated[str | None, typer.Option(metavar="COLUMN", help="Hold out the latest rows.", rich_help_panel=HOLD_OUT)]
Split = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="stratified (default), random, scaffold.", rich_help_panel=HOLD_OUT),
]
Share = Annotated[float | None, typer.Option(metavar="X", help="How much of DATA (0.2).", rich_help_panel=HOLD_OUT)]
Model = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="mlp (default), linear; of molecules gine (default), mpnn, ml-mpnn.",
        rich_help_panel=TRAINING,
    ),
]
LossName = Annotated[
    str | None,
    typer.Option(
        metavar="NAME",
        help="The last stage's, after one of cross-entropy: ap+ce (default), ap, focal, … ; or ce alone. "
        "`apmax methods` lists them.",
        rich_help_panel=TRAINING,
    ),
]
Epochs = Annotated[int | None, typer.Option(min=1, metavar="N", help="Of the last stage.", rich_help_panel=TRAINING)]
Seed = Annotated[
    int | None, typer.Option(min=0, metavar="N", help="Of everything random (0).", rich_help_panel=TRAINING)
]
Change = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="PATH=VALUE",
        help="Any other setting, such as stages.1.lr=1e-4. May be repeated.",
        rich_help_panel=TRAINING,
    ),
]


def job_table(
    source: str, model: str | None, columns: list[str] | None, *, target: list[str] | None, **data: Any
) -> dict[str, Any]:
    """Return a job as plain tables: that of a TOML file, or one of the data file, with what the options say."""
    from apmax.jobs.toml import parse

    table = parse(Path(source).read_text(encoding="utf-8")) if is_job(source) else {"data": {"train": source}}
    own = {**data, "columns": roles(columns) or None, "target": list(target) if target else None}
    table["data"] = {**table.get("data", {}), **{name: value for name, value in own.items() if value is not None}}
    if model is not None:
        table["model"] = {**table.get("model", {}), "name": model}
    return table


def places(source: str, data_dir: Path | None) -> tuple[Path, ...]:
    """Return where files are looked for, besides the current folder: the data's folder, that of the job's file."""
    return tuple(([] if data_dir is None else [data_dir]) + ([Path(source).parent] if is_job(source) else []))


def is_job(source: str) -> bool:
    """Tell a job's file from data."""
    return source.lower().endswith(".toml")


def roles(columns: list[str] | None) -> dict[str, str]:
    """Return what columns were said to be."""
    pairs = [text.rpartition("=") for text in columns or ()]
    for (name, _, kind), text in zip(pairs, columns or (), strict=True):
        if not name or not kind:
            raise typer.BadParameter(f"--column is written NAME=TYPE, got {text!r}")
    return {name: kind for name, _, kind in pairs}
