"""Run the study: `python -m benchmarks.when_ap_pays run --out results/map`; run it again to continue."""

from __future__ import annotations

import argparse
from pathlib import Path

from apmax.reproduce.workers import code_origin
from benchmarks.when_ap_pays.study import run_study


def main() -> None:
    """Run what is missing, or write the page."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=Path("results", "map"), help="folder of map.jsonl")
    parser.add_argument("--hours", type=float, default=1.0, help="stop after this time; finished results are kept")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    origin = {key: value for key, value in code_origin().items() if key == "commit"}
    run_study(
        options.out / "map.jsonl",
        seconds=3600 * options.hours,
        origin=origin,
        report=lambda text: print(text, flush=True),
    )


if __name__ == "__main__":
    main()
