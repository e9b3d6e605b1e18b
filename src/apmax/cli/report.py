"""`apmax report`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from apmax.cli import _options

if TYPE_CHECKING:
    from apmax.cli._console import Notes
    from apmax.workflows import JobResult

ENDINGS = (".html", ".htm")
EXAMPLES = """[bold]Examples[/]

apmax report runs/churn

apmax report runs/churn --by city --by age

apmax report runs/churn --data next_month.csv --by city --out next_month.html

apmax report runs/churn --data next_month.csv --against runs/churn_2024 --out both.html

apmax report runs/active --data confirmed.csv --smiles canonical_smiles --out confirmed.html"""


def report_command(
    directory: _options.DirectoryOption,
    data: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Other labelled rows to report on: a file, or a folder of images."),
    ] = None,
    by: Annotated[
        list[str] | None, typer.Option(metavar="COLUMN", help="AP by subgroup of this column. May be repeated.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(metavar="FOLDER", help="Draw another model's curve on the rows of --data beside.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE.html", help="The page (DIR/report.html, or report-FILE.html beside it with --data)."
        ),
    ] = None,
    smiles: _options.OtherSmilesOption = None,
    path: _options.OtherPathOption = None,
    root: _options.OtherRootOption = None,
    ending: _options.OtherEndingOption = None,
    model: _options.OtherModelOption = None,
    against_model: _options.AgainstModelOption = None,
) -> None:
    """Write a page about a model: one HTML file that opens without a network, light or dark, and can be printed.

    It has the verdict, AP against no skill and each member, precision–recall curves, a threshold explorer, calibration,
    scores by class, learning curves, what drives the ranking, examples, subgroups, warnings and the configuration.
    """
    if out is not None and out.suffix.lower() not in ENDINGS:
        remedy = "; print the page in a browser to get a PDF" if out.suffix.lower() == ".pdf" else ""
        raise ValueError(f"out must end in .html, got {out}{remedy}")

    from apmax import report
    from apmax.cli import _console

    _options.allow_local_import(model, against_model)
    content = report.report_folder(
        directory,
        data=data,
        by=by or (),
        against=against,
        against_model=against_model,
        model=model,
        smiles=smiles,
        path=path,
        root=root,
        ending=ending,
    )
    if data is None and by:
        report.save_report(content, directory / report.REPORT_FILE)
    page = out or (directory / report.REPORT_PAGE if data is None else directory / report.page_name(data))
    report.write_report(content, page)
    console = _console.output()
    for target in content.targets:
        name = f"{target.name}: " if len(content.targets) > 1 else ""
        console.print(f"{name}{target.verdict[0]}", soft_wrap=True)
    console.print(f"Report: {page}", soft_wrap=True)


def write_training_report(result: JobResult, notes: Notes) -> Path | None:
    """Write the report of a training into its folder; the training is done, so that what fails here is a warning."""
    from apmax import report
    from apmax.cli import _console

    try:
        content = report.report_training(result, facts=notes.facts, warnings=notes.warnings)
        return report.store_report(result.folder, content)
    except (ValueError, OSError, ModuleNotFoundError) as error:
        _console.show_lack_of_report(error)
        return None
