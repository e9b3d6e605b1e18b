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

apmax evaluate runs/churn next_month.csv --json | jq .ap.estimate"""


def evaluate(
    directory: options.Directory,
    data: Annotated[Path, typer.Argument(metavar="DATA", help="csv, csv.gz or parquet, with the target.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> None:
    """Measure a model on labelled rows: AP, AUPRC and AUROC with intervals, the no-skill line, precision at k."""
    import numpy as np

    from apmax import jobs
    from apmax.cli import terminal
    from apmax.data.tables import Report, Source
    from apmax.jobs.rows import has_column

    model, source, report = jobs.load(directory), Source(data), Report()
    has_column(source, model.target.name, "target")
    scores, labels = [], []
    for chunk, chunk_scores in model.scored(source, report):
        scores.append(chunk_scores)
        labels.append(model.target.labels(chunk.column(model.target.name)))
    if not scores:
        raise ValueError(f"{data} has no rows")
    truth = np.concatenate(labels)
    known = ~np.isnan(truth)
    if not (truth == 1).any():
        raise ValueError(f"{data} has no row whose {model.target.name!r} is {model.target.positive!r}: AP is undefined")
    result = jobs.evaluate(np.concatenate(scores)[known], truth[known])
    unlabelled = int((~known).sum())
    terminal.warn([*report.lines(), *([f"{unlabelled:,} rows without a target are left out"] if unlabelled else [])])
    if as_json:
        sys.stdout.write(json.dumps(result.to_table(), indent=2) + "\n")
        return
    console = terminal.output()
    console.print(terminal.evaluations({"": result}))
    console.print()
    tops = "  ".join(f"{k:,}: {value:.3f}" for k, value in result.precision_at.items())
    console.print(f"precision at  {tops}", soft_wrap=True)
