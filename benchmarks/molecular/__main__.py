"""Compare committees with other methods on molecules.

    APMAX_DATA=... python -m benchmarks.molecular run
    python -m benchmarks.molecular report

APMAX_DATA names the folder of the sets. Both commands can be stopped and started again: finished lines stay.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from benchmarks.molecular.methods import MOLECULE_SUITE
from benchmarks.molecular.problems import PROBLEMS, MoleculeSplit
from benchmarks.molecular.ranks import save_ranks
from benchmarks.molecular.report import ranks_path, write_molecule_report
from benchmarks.tabular.runner import RunOptions, read_lines, run


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--out", type=Path, default=Path("results/committee"), help="folder of the lines and the report"
    )
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run methods that have no line yet")
    runs.add_argument("--problems", nargs="+", default=list(PROBLEMS), choices=PROBLEMS)
    runs.add_argument("--resplits", nargs="+", type=int, help="some of the splits, by number; default all")
    runs.add_argument("--methods", nargs="+", default=list(MOLECULE_SUITE.methods), choices=MOLECULE_SUITE.methods)
    runs.add_argument("--cores", type=int, default=1, help="cores of every method")
    commands.add_parser("report", help="write the report of all finished lines")
    options = parser.parse_args()
    path = options.out / "molecules.jsonl"

    def keep(problem: str, resplit: int, split: MoleculeSplit, method: str, scores: NDArray[np.float64]) -> None:
        save_ranks(ranks_path(options.out, problem, resplit), split, method, scores)

    if options.command == "run":
        if options.cores < len(os.sched_getaffinity(0)):
            os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[-options.cores :])
        torch.set_num_threads(options.cores)
        os.environ["OMP_NUM_THREADS"] = str(options.cores)
        for name in options.problems:
            chosen = [k for k in PROBLEMS[name].resplits if options.resplits is None or k in options.resplits]
            run(RunOptions([name], chosen, options.methods, path, keep=keep), MOLECULE_SUITE)
        return
    text = write_molecule_report(read_lines(path), options.out)
    (options.out / "molecules.md").write_text(text, encoding="utf-8")
    print(options.out / "molecules.md")


if __name__ == "__main__":
    main()
