"""`apmax predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apmax.cli import options

EXAMPLES = """[bold]Examples[/]

apmax predict runs/churn clients.csv --out scored.csv

apmax predict runs/churn clients.parquet --top 500 --out call_these.csv

apmax predict runs/active library.smi --top 1000 --out ranked.csv

apmax predict runs/tox library.csv --smiles SMILES --by NR-AhR --top 1000 --out ranked.csv"""


def predict(
    directory: options.Directory,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="csv, csv.gz, parquet or (molecules) .smi.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="csv, csv.gz or parquet, by its ending.")],
    sort: Annotated[bool, typer.Option("--sort", help="Best first; else in the order of DATA.")] = False,
    top: Annotated[int | None, typer.Option(min=1, metavar="K", help="Only the K best, best first.")] = None,
    name: Annotated[str, typer.Option(metavar="COLUMN", help="What to call the new column.")] = "score",
    by: Annotated[str | None, typer.Option(metavar="TARGET", help="Which of several targets to sort by.")] = None,
    smiles: options.OtherSmiles = None,
    on_error: Annotated[
        str, typer.Option(metavar="skip|raise", help="Leave out molecules that cannot be read, or stop.")
    ] = "skip",
) -> None:
    """Add a score to every row of a file; higher means more likely positive.

    Every column and row is kept as it is. A score is made for ranking: it is not a probability. Files larger than
    memory are read and written in pieces. Molecules that cannot be read go to a file of their own, ranked.errors.csv
    beside ranked.csv, with their row (from 0) and the reason.
    """
    from apmax import jobs
    from apmax.cli import terminal
    from apmax.jobs.ranking import errors_file

    model = jobs.load(directory).reading(smiles)
    source = jobs.open_source(data, smiles=model.encoder.names[0])
    report = jobs.rank(model, source, out, sort=sort, top=top, name=name, by=by, on_error=on_error)
    terminal.warn(report.lines())
    rows = report.rows - len(report.refused)
    rows = rows if top is None else min(top, rows)
    terminal.output().print(f"{rows:,} rows with {name!r} in {out}", soft_wrap=True)
    if report.refused:
        beside = errors_file(out)
        terminal.output().print(f"{len(report.refused):,} that cannot be read in {beside}", soft_wrap=True)
