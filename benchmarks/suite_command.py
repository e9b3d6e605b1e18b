"""Command of a suite of methods on named problems: run what has no line yet, and write the report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Mapping, Sequence
from pathlib import Path

import torch

from benchmarks.tabular.report import write_report
from benchmarks.tabular.runner import RunOptions, Suite, read_lines, run


def run_suite_command(description: str | None, name: str, suite: Suite, resplits: Mapping[str, Sequence[int]]) -> None:
    """Parse the command line and run one of its commands.

    Args:
        description: Of the command.
        name: Of the data, and of the files that are written.
        suite: The methods.
        resplits: The numbers of the splits of each problem.
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
        if options.cores < len(os.sched_getaffinity(0)):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
        torch.set_num_threads(options.cores)
        os.environ["OMP_NUM_THREADS"] = str(options.cores)
        for problem in options.problems:
            chosen = [k for k in resplits[problem] if options.resplits is None or k in options.resplits]
            run(RunOptions([problem], chosen, options.methods, path), suite)
        return
    text = write_report(f"Committees on {name}", read_lines(path), list(resplits), resplits)
    (options.out / f"{name}.md").write_text(text, encoding="utf-8")
    print(options.out / f"{name}.md")
