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

apmax predict runs/tox library.csv --smiles SMILES --by NR-AhR --top 1000 --out ranked.csv

apmax predict runs/skin more_images/ --top 500 --out ranked.csv --contact-sheet top.png"""


def predict(
    directory: options.Directory,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="csv, csv.gz, parquet, .smi (molecules) or a folder (images).")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="csv, csv.gz or parquet, by its ending.")],
    sort: Annotated[bool, typer.Option("--sort", help="Best first; else in the order of DATA.")] = False,
    top: Annotated[int | None, typer.Option(min=1, metavar="K", help="Only the K best, best first.")] = None,
    name: Annotated[str, typer.Option(metavar="COLUMN", help="What to call the new column.")] = "score",
    by: Annotated[str | None, typer.Option(metavar="TARGET", help="Which of several targets to sort by.")] = None,
    smiles: options.OtherSmiles = None,
    path: options.OtherPath = None,
    root: options.OtherRoot = None,
    ending: options.OtherEnding = None,
    contact_sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the best-ranked images, true and false ones marked.")
    ] = None,
    on_error: Annotated[
        str, typer.Option(metavar="skip|raise", help="Leave out molecules and images that cannot be read, or stop.")
    ] = "skip",
) -> None:
    """Add a score to every row of a file; higher means more likely positive.

    Every column and row is kept as it is. A score is made for ranking: it is not a probability. Files larger than
    memory are read and written in pieces, images one batch at a time. Molecules and images that cannot be read go to a
    file of their own, ranked.errors.csv beside ranked.csv, with their row (from 0) and the reason.
    """
    from apmax import workflows as jobs
    from apmax.cli import terminal
    from apmax.workflows.ranking import score_names
    from apmax.workflows.refusals import errors_file
    from apmax.workflows.sources import remarks

    given = {"smiles": smiles, "path": path, "root": root, "ending": ending}
    model, source = jobs.load(directory).open(data, given)
    terminal.use_threads(model.job.data.kind)
    report = jobs.rank(model, source, out, sort=sort, top=top, name=name, by=by, on_error=on_error, sheet=contact_sheet)
    terminal.warn([*remarks(source), *report.lines()])
    rows = report.rows - len(report.refused)
    rows = rows if top is None else min(top, rows)
    console = terminal.output()
    console.print(report.pace(), soft_wrap=True)
    names = " and ".join(map(repr, score_names(model, name)))
    console.print(f"{rows:,} rows with {names} in {out}", soft_wrap=True)
    if report.refused:
        console.print(f"{len(report.refused):,} that cannot be read in {errors_file(out)}", soft_wrap=True)
    if contact_sheet is not None and rows:
        console.print(f"The best-ranked images: {contact_sheet}", soft_wrap=True)
