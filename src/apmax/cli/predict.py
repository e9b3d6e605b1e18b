"""`apmax predict`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from apmax.cli import options

EXAMPLES = """[bold]Examples[/]

apmax predict runs/churn clients.csv --out scored.csv

apmax predict runs/churn clients.parquet --top 500 --out call_these.csv"""


def predict(
    directory: options.Directory,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="csv, csv.gz or parquet.")],
    out: Annotated[Path, typer.Option(metavar="FILE", help="csv, csv.gz or parquet, by its ending.")],
    sort: Annotated[bool, typer.Option("--sort", help="Best first; else in the order of DATA.")] = False,
    top: Annotated[int | None, typer.Option(min=1, metavar="K", help="Only the K best, best first.")] = None,
    name: Annotated[str, typer.Option(metavar="COLUMN", help="What to call the new column.")] = "score",
) -> None:
    """Add a score to every row of a file; higher means more likely positive.

    Every column and row is kept as it is. A score is made for ranking: it is not a probability. Files larger than
    memory are read and written in pieces.
    """
    from apmax import jobs
    from apmax.cli import terminal
    from apmax.data.tables import Source

    model = jobs.load(directory)
    report = jobs.rank(model, Source(data), out, sort=sort, top=top, name=name)
    terminal.warn(report.lines())
    rows = report.rows if top is None else min(top, report.rows)
    terminal.output().print(f"{rows:,} rows with {name!r} in {out}", soft_wrap=True)
