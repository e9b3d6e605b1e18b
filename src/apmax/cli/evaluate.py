"""`apmax evaluate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from apmax.cli import _options
from apmax.cli.report import write_evaluation_report

EXAMPLES = """[bold]Examples[/]

apmax evaluate runs/churn next_month.csv

apmax evaluate runs/churn next_month.csv --json | jq .ap.estimate

apmax evaluate runs/active confirmed.csv --smiles canonical_smiles

apmax evaluate runs/skin next_year/"""


def evaluate_command(
    directory: _options.DirectoryOption,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="csv, csv.gz or parquet with the target, or a folder per class.")
    ],
    smiles: _options.OtherSmilesOption = None,
    path: _options.OtherPathOption = None,
    root: _options.OtherRootOption = None,
    ending: _options.OtherEndingOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    report: Annotated[
        bool,
        typer.Option(
            "--report/--no-report", help="Write DIR/report-DATA.html, a page about the ranking; not with --json."
        ),
    ] = True,
    member: _options.MemberOption = None,
    model: _options.OtherModelOption = None,
) -> None:
    """Measure a model on labelled rows: AP, AUPRC and AUROC with intervals, the no-skill AP, precision at k."""
    from apmax import workflows
    from apmax.cli import _console

    _options.allow_local_import(model)
    saved, source = (
        workflows.load_model(directory, model=model)
        .with_member(member)
        .open(data, smiles=smiles, path=path, root=root, ending=ending)
    )
    results, warnings = workflows.evaluate_source(saved, source)
    _console.show_warnings([*workflows.ignored_files_warning(source), *warnings])
    if as_json:
        sys.stdout.write(json.dumps(results.to_table(), indent=2) + "\n")
        return
    console = _console.output()
    console.print(_console.metrics_table({"": results}))
    console.print()
    for name, result in results.each.items():
        values = "  ".join(f"{k:,}: {value:.3f}" for k, value in result.precision_at.items())
        console.print(f"precision at  {values}{f'  ({name})' if results.several else ''}", soft_wrap=True)
    if report:
        options = {"smiles": smiles, "path": path, "root": root, "ending": ending}
        page = write_evaluation_report(directory, data, member=member, model=model, **options)
        if page is not None:
            console.print(f"Report: {page}", soft_wrap=True)
