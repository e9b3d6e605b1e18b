"""Run the study of when AP training pays, or write its page.

`python -m benchmarks.when_ap_pays --hours 1` runs what is missing in results/map/map.jsonl and continues where it
stopped; `--write` writes figure and tables of docs/explanation/when-ap-pays.md from the results.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from apmax.reproduce import code_origin
from benchmarks.when_ap_pays.page import LINES, write_page
from benchmarks.when_ap_pays.study import run_study


def main() -> None:
    """Run what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=LINES.parent, help="folder of map.jsonl")
    parser.add_argument("--hours", type=float, default=1.0, help="stop after this time; finished results are kept")
    parser.add_argument("--write", action="store_true", help="run nothing: write figure and page in this repository")
    options = parser.parse_args()
    if options.write:
        write_page(Path.cwd())
        return
    options.out.mkdir(parents=True, exist_ok=True)
    origin = {key: value for key, value in code_origin().items() if key == "commit"}
    path, seconds = options.out / LINES.name, 3600 * options.hours
    run_study(path, seconds=seconds, origin=origin, report=lambda text: print(text, flush=True))


if __name__ == "__main__":
    main()
