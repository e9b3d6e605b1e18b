"""`apmax predict`."""

from __future__ import annotations

import signal
import sys
from pathlib import Path
from typing import Annotated

import typer

from apmax.cli import _options

EXAMPLES = """[bold]Examples[/]

apmax predict runs/churn clients.csv --out scored.csv

apmax predict runs/churn clients.parquet --top 500 --out call_these.csv

apmax predict runs/churn clients.csv --probability --name risk --out scored.csv

apmax predict runs/active library.smi --top 1000 --out ranked.csv

apmax predict runs/tox library.csv --smiles SMILES --by NR-AhR --top 1000 --out ranked.csv

apmax predict runs/skin more_images/ --top 500 --out ranked.csv --contact-sheet top.png

apmax predict runs/own clients.csv --model my_networks:build --out scored.csv"""


def predict_command(
    directory: _options.DirectoryOption,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="csv, csv.gz, parquet, .smi, .sdf (molecules) or a folder (images).")
    ],
    out: Annotated[Path, typer.Option(metavar="FILE", help="csv, csv.gz or parquet, by its ending.")],
    sort: Annotated[bool, typer.Option("--sort", help="Best first; else in the order of DATA.")] = False,
    top: Annotated[int | None, typer.Option(min=1, metavar="K", help="Only the K best, best first.")] = None,
    name: Annotated[str, typer.Option(metavar="COLUMN", help="Name of the new column.")] = "score",
    probability: Annotated[
        bool, typer.Option("--probability", help="Add a column of probabilities, calibrated on held-out rows.")
    ] = False,
    by: Annotated[str | None, typer.Option(metavar="TARGET", help="Which of several targets to sort by.")] = None,
    smiles: _options.OtherSmilesOption = None,
    path: _options.OtherPathOption = None,
    root: _options.OtherRootOption = None,
    ending: _options.OtherEndingOption = None,
    contact_sheet: Annotated[
        Path | None, typer.Option(metavar="FILE.png", help="Draw the best-ranked images, true and false ones marked.")
    ] = None,
    on_error: Annotated[
        str, typer.Option(metavar="skip|raise", help="Leave out molecules and images that cannot be read, or stop.")
    ] = "skip",
    member: _options.MemberOption = None,
    model: _options.OtherModelOption = None,
) -> None:
    """Add a score to every row of a file; higher means more likely positive.

    All columns are kept, and all rows that can be read. A score is made for ranking and is not a probability, which
    --probability adds. Files larger than memory are read and written in pieces, images one batch at a time. Molecules
    and images that cannot be read go to a file of their own, ranked.errors.csv beside ranked.csv, with their row
    (from 0) and the reason. A score that is not finite is an error, and nothing is written.
    """
    from apmax import workflows
    from apmax.cli import _console
    from apmax.validation import plural
    from apmax.workflows.prediction import added_columns, errors_file

    _options.allow_local_import(model)
    saved, source = (
        workflows.load_model(directory, model=model)
        .with_member(member)
        .open(data, smiles=smiles, path=path, root=root, ending=ending)
    )
    _console.set_threads(saved.data_type)
    # With the shell's code for it, and so that no temporary files are left.
    with _console.sigterm_handled(lambda *_: sys.exit(128 + signal.SIGTERM)):
        report = workflows.write_predictions(
            saved,
            source,
            out,
            sort=sort,
            top=top,
            name=name,
            by=by,
            probability=probability,
            on_error=on_error,
            contact_sheet=contact_sheet,
        )
    none = [] if report.rows else [f"{data} has no rows: {out} has only the names of its columns"]
    _console.show_warnings([*none, *workflows.ignored_files_warning(source), *report.lines()])
    unreadable = len(report.unreadable_rows)
    rows = report.rows - unreadable
    rows = rows if top is None else min(top, rows)
    console = _console.output()
    console.print(report.timing(), soft_wrap=True)
    *others, last = map(repr, added_columns(saved, name, probability=probability))
    names = f"{', '.join(others)} and {last}" if others else last
    console.print(f"{plural(rows, 'row')} with {names} in {out}", soft_wrap=True)
    if unreadable:
        console.print(f"{unreadable:,} that cannot be read in {errors_file(out)}", soft_wrap=True)
    if contact_sheet is not None and rows:
        console.print(f"The best-ranked images: {contact_sheet}", soft_wrap=True)
