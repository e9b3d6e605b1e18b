"""Command of a suite of methods on named problems: run what has no line yet, and write the report."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from apmax.reproduce.results import read_lines
from benchmarks.committees.methods import use_cores
from benchmarks.committees.problem_report import ProblemPage, write_problem_report
from benchmarks.committees.ranks import save_ranks
from benchmarks.committees.runner import RunOptions, Suite, run


def run_suite_command(description: str | None, suite: Suite, page: ProblemPage) -> None:
    """Parse the command line and run one of its commands.

    Args:
        description: Of the command.
        suite: The methods.
        page: The problems, and what the report says about them.
    """
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("results/committee"), help="folder of the lines and the report"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run methods that have no line yet")
    runs.add_argument("--problems", nargs="+", default=list(page.problems), choices=page.problems)
    runs.add_argument("--resplits", nargs="+", type=int, help="some of the splits, by number; default all")
    runs.add_argument("--methods", nargs="+", default=list(suite.methods), choices=suite.methods)
    runs.add_argument("--cores", type=int, default=1, help="cores of every method")
    commands.add_parser("report", help="write the report of all finished lines")
    options = parser.parse_args()
    path = page.lines_path(options.out)
    if options.command == "run":

        def keep(problem: str, resplit: int, split: Any, method: str, scores: Any) -> None:
            save_ranks(page.ranks_path(options.out, problem, resplit), split, method, scores)

        use_cores(options.cores)
        for problem in options.problems:
            chosen = [k for k in page.resplits[problem] if options.resplits is None or k in options.resplits]
            run(RunOptions([problem], chosen, options.methods, path, keep=keep), suite)
        return
    target = path.with_suffix(".md")
    target.write_text(write_problem_report(page, read_lines(path), options.out), encoding="utf-8")
    print(target)
