"""Run the study of when AP training pays, or write its page.

`python -m benchmarks.when_ap_pays --hours 1` runs what is missing in results/map/map.jsonl and continues where it
stopped; `--write` writes figure and tables of docs/explanation/when-ap-pays.md from the results.
"""

from __future__ import annotations

import argparse
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from benchmarks.origin import benchmark_commit
from benchmarks.when_ap_pays.page import LINES, write_page
from benchmarks.when_ap_pays.study import run_study


def main() -> None:
    """Run what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=LINES.parent, help="folder of map.jsonl")
    parser.add_argument("--hours", type=float, default=1.0, help="stop after this time; finished results are kept")
    parser.add_argument("--workers", type=int, default=1, help="processes, each with its share of the runs")
    parser.add_argument("--write", action="store_true", help="run nothing: write figure and page in this repository")
    options = parser.parse_args()
    if options.write:
        write_page(Path.cwd())
        return
    options.out.mkdir(parents=True, exist_ok=True)
    path, seconds = options.out / LINES.name, 3600 * options.hours
    run = partial(
        run_study, path, seconds=seconds, origin={"commit": benchmark_commit()}, report=partial(print, flush=True)
    )
    context = get_context("spawn")
    others = [
        context.Process(target=run, kwargs={"share": (number, options.workers)}, daemon=True)
        for number in range(1, options.workers)
    ]
    for process in others:
        process.start()
    run(share=(0, options.workers))
    for process in others:
        process.join()
    if any(process.exitcode for process in others):
        raise SystemExit("a process of the study failed; its messages are above")


if __name__ == "__main__":
    main()
