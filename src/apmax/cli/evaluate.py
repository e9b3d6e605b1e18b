"""`apmax evaluate`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from apmax.cli import options

EXAMPLES = """[bold]Examples[/]

apmax evaluate runs/churn next_month.csv

apmax evaluate runs/churn next_month.csv --json | jq .ap.estimate

apmax evaluate runs/active confirmed.csv --smiles canonical_smiles

apmax evaluate runs/skin next_year/"""


def evaluate(
    directory: options.Directory,
    data: Annotated[
        Path, typer.Argument(metavar="DATA", help="csv, csv.gz or parquet with the target, or a folder per class.")
    ],
    smiles: options.OtherSmiles = None,
    path: options.OtherPath = None,
    root: options.OtherRoot = None,
    ending: options.OtherEnding = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a model on labelled rows: AP, AUPRC and AUROC with intervals, the no-skill line, precision at k."""
    import numpy as np

    from apmax import workflows as jobs
    from apmax.cli import terminal
    from apmax.data import any_known
    from apmax.workflows.data_types import RowReport
    from apmax.workflows.sources import remarks

    given = {"smiles": smiles, "path": path, "root": root, "ending": ending}
    model, source = jobs.load(directory).open(data, given)
    report = RowReport()
    model.target.check_columns(source)
    scores, labels = [], []
    for chunk, chunk_scores in model.scored(source, report):
        scores.append(chunk_scores)
        labels.append(model.target.labels(chunk))
    if not scores:
        raise ValueError(f"{data} has no rows")
    truth = np.concatenate(labels)
    for target, column in zip(model.target.each, truth.reshape(len(truth), -1).T, strict=True):
        if len(model.target.each) == 1 and not (column == 1).any():
            raise ValueError(f"{data} has no row whose {target.name!r} is {target.positive!r}: AP is undefined")
    results = jobs.evaluate_targets(np.concatenate(scores), truth, model.target.names)
    unlabelled = int((~any_known(truth)).sum())
    without = [name for name in model.target.names if name not in results.each]
    terminal.warn(
        [
            *remarks(source),
            *report.lines(),
            *([f"{unlabelled:,} rows without a target are left out"] if unlabelled else []),
            *(f"{name!r} has no positive or no negative row here: its AP is undefined" for name in without),
        ]
    )
    if as_json:
        sys.stdout.write(json.dumps(results.to_table(), indent=2) + "\n")
        return
    console = terminal.output()
    console.print(terminal.evaluations({"": results}))
    console.print()
    for name, result in results.each.items():
        tops = "  ".join(f"{k:,}: {value:.3f}" for k, value in result.precision_at.items())
        console.print(f"precision at  {tops}{f'  ({name})' if results.several else ''}", soft_wrap=True)
