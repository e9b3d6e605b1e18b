"""Compare committees with other methods on imbalanced tables.

    APMAX_DATA=... python -m benchmarks.committees.tables run --autogluon ENVIRONMENT/bin/python
    APMAX_DATA=... python -m benchmarks.committees.tables run --held-back --autogluon ENVIRONMENT/bin/python
    python -m benchmarks.committees.tables report
    APMAX_DATA=... python -m benchmarks.committees.tables study --work FOLDER

APMAX_DATA names the folder of tabular/*.npz. Every command can be stopped and started again: finished lines stay.
`--held-back` runs the tables that choose nothing, once, when all settings are final.
"""

from __future__ import annotations

import argparse
import os
from pathlib import Path

import torch

from apmax.reproduce.results import read_lines
from benchmarks.committees.methods import use_cores
from benchmarks.committees.report import RESPLITS
from benchmarks.committees.runner import RunOptions, run
from benchmarks.committees.tables.methods import TABLE_SUITE
from benchmarks.committees.tables.problems import DEVELOPMENT, HELD_BACK

PARTS = {"development": DEVELOPMENT, "held_back": HELD_BACK}


def main() -> None:
    """Run one of the commands."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("results/committee"), help="folder of the lines and reports")
    commands = parser.add_subparsers(dest="command", required=True)
    runs = commands.add_parser("run", help="run methods that have no line yet")
    runs.add_argument("--tables", nargs="+", help="some of the tables")
    runs.add_argument("--resplits", nargs="+", type=int, default=list(RESPLITS), choices=RESPLITS)
    runs.add_argument("--methods", nargs="+", default=list(TABLE_SUITE.methods), choices=TABLE_SUITE.methods)
    runs.add_argument("--held-back", action="store_true", help="run the held-back tables instead")
    runs.add_argument("--cores", type=int, default=1, help="cores of every method")
    runs.add_argument("--autogluon", help="Python of an environment that has autogluon.tabular")
    commands.add_parser("report", help="write the reports of all finished lines")
    study = commands.add_parser("study", help="run the studies of settings on the development tables")
    study.add_argument("names", nargs="*", help="some of the studies; default all")
    study.add_argument("--work", type=Path, required=True, help="folder of raw scores, outside of the repository")
    study.add_argument("--resplits", nargs="+", type=int, default=list(RESPLITS), choices=RESPLITS)
    study.add_argument("--tables", nargs="+", choices=DEVELOPMENT, default=list(DEVELOPMENT))
    options = parser.parse_args()
    if options.command == "run":
        use_cores(options.cores)
        _run(options)
    elif options.command == "report":
        _report(options.out)
    else:
        from benchmarks.committees.tables.studies import run_studies

        torch.set_num_threads(1)
        os.environ["OMP_NUM_THREADS"] = "1"

        run_studies(options.out, options.work, options.names, options.tables, options.resplits)


def _run(options: argparse.Namespace) -> None:
    part = "held_back" if options.held_back else "development"
    unknown = [name for name in options.tables or () if name not in PARTS[part]]
    if unknown:
        raise SystemExit(f"--tables: {', '.join(unknown)} not among the {part} tables, {', '.join(PARTS[part])}")
    tables = options.tables or PARTS[part]
    path = options.out / f"{part}.jsonl"
    run(RunOptions(tables, options.resplits, options.methods, path, options.autogluon), TABLE_SUITE)


def _report(folder: Path) -> None:
    from benchmarks.committees.report import write_report

    for part, tables in PARTS.items():
        lines = read_lines(folder / f"{part}.jsonl")
        if lines:
            title = f"Committees on tables: {part.replace('_', ' ')}"
            run = {(line["table"], line["resplit"]) for line in lines if line["method"] == TABLE_SUITE.methods[-1]}
            whole = [resplit for resplit in RESPLITS if all((table, resplit) in run for table in tables)] or RESPLITS
            kept = [line for line in lines if line["resplit"] in whole]
            report = write_report(title, kept, tables, dict.fromkeys(tables, whole))
            (folder / f"{part}.md").write_text(report, encoding="utf-8")
            print(folder / f"{part}.md")


if __name__ == "__main__":
    main()
