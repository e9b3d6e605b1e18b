"""Command of a suite of methods on named problems: run what has no line yet, and write the report."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.tabular.methods import use_cores
from benchmarks.tabular.report import write_report
from benchmarks.tabular.runner import RunOptions, Suite, read_lines, run

Report = Callable[[Sequence[Mapping[str, Any]], Path], str]
"""From finished lines and the folder of the results to the text of the report."""
Keep = Callable[[Path, str, int, Any, str, Any], None]
"""Called with the folder of the results, problem, resplit, split, method and test scores of every finished method."""


def run_suite_command(
    description: str | None,
    name: str,
    suite: Suite,
    resplits: Mapping[str, Sequence[int]],
    *,
    report: Report | None = None,
    keep: Keep | None = None,
) -> None:
    """Parse the command line and run one of its commands.

    Args:
        description: Of the command.
        name: Of the data, and of the files that are written.
        suite: The methods.
        resplits: The numbers of the splits of each problem.
        report: Writes the report; None for that of tables.
        keep: Keeps test scores.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("results/committee"), help="folder of the lines and the report"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run methods that have no line yet")
    runs.add_argument("--problems", nargs="+", default=list(resplits), choices=resplits)
    runs.add_argument("--resplits", nargs="+", type=int, help="some of the splits, by number; default all")
    runs.add_argument("--methods", nargs="+", default=list(suite.methods), choices=suite.methods)
    runs.add_argument("--cores", type=int, default=1, help="cores of every method")
    commands.add_parser("report", help="write the report of all finished lines")
    options = parser.parse_args()
    path = options.out / f"{name}.jsonl"
    if options.command == "run":
        use_cores(options.cores)
        for problem in options.problems:
            chosen = [k for k in resplits[problem] if options.resplits is None or k in options.resplits]
            kept = None if keep is None else partial(keep, options.out)
            run(RunOptions([problem], chosen, options.methods, path, keep=kept), suite)
        return
    lines = read_lines(path)
    if report is None:
        text = write_report(f"Committees on {name}", lines, list(resplits), resplits)
    else:
        text = report(lines, options.out)
    (options.out / f"{name}.md").write_text(text, encoding="utf-8")
    print(options.out / f"{name}.md")
