"""Run the benchmarks and print measured ratios beside their targets.

Examples: `python -m benchmarks`, `python -m benchmarks exact loss`, `python -m benchmarks --markdown FILE`.
"""

from __future__ import annotations

import argparse
import importlib
import os
import platform
from collections.abc import Sequence
from pathlib import Path

from benchmarks.markdown import markdown_table
from benchmarks.timing import Row, threads

SPEED = (
    "exact",
    "metrics",
    "loss",
    "sampler",
    "train",
    "estimator",
    "committee",
    "cli",
    "molecules",
    "images",
    "experiments",
)
"""Modules of `benchmarks.speed`."""
STATISTICS = ("coverage", "decisions")
"""Modules beside it: simulated error rates of intervals and decisions."""
MODULES = {name: f"benchmarks.speed.{name}" for name in SPEED} | {name: f"benchmarks.{name}" for name in STATISTICS}


def main() -> None:
    """Print one line for every claim; exit with 1 if any target is missed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(MODULES)}")
    parser.add_argument("--markdown", type=Path, help="write the table to this file, too")
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in MODULES]
    if unknown:
        parser.error(f"NAME must be some of {', '.join(MODULES)}, got {', '.join(unknown)}")
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    found: list[Row] = []
    with threads(1):
        for name in options.names or MODULES:
            for what, measured, target in importlib.import_module(MODULES[name]).run():
                verdict = "ok" if measured <= target else "MISSED"
                print(f"{what:<100} {measured:8.3g}  target {target:g}  {verdict}", flush=True)
                found.append((what, measured, target))
    if options.markdown:
        options.markdown.write_text(_page(found))
    raise SystemExit(1 if any(measured > target for _, measured, target in found) else 0)


def _page(found: Sequence[Row]) -> str:
    import torch

    head = (
        "# Benchmarks\n\n"
        "Each number is a ratio measured in one run, smaller is better; the speed of the machine cancels out. Written "
        "by\n"
        "`python -m benchmarks --markdown docs/results/benchmarks.md`, single thread, "
        f"Python {platform.python_version()}, torch {torch.__version__}.\n\n"
    )
    rows = [["what, against what", "ratio", "target", "met"]]
    for what, measured, target in found:
        rows.append([what, f"{measured:.3g}", f"{target:g}", "yes" if measured <= target else "**no**"])
    return head + markdown_table(rows) + "\n"


if __name__ == "__main__":
    main()
