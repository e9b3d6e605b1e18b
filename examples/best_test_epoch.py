"""The test value of the epoch that validation chose, and the best test value of all epochs.

A check of the distance to the paper's numbers, not a result: the paper may print the second. Cross-entropy as in the
paper's first stage, the test part scored after every epoch.

    APMAX_DATA=FOLDER OMP_NUM_THREADS=1 python examples/best_test_epoch.py results/best-test-epoch.jsonl
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections import defaultdict
from pathlib import Path
from statistics import mean
from typing import Any

import torch

from apmax.reproduce import Trial, Workspace, code_origin, load_grid, load_paper_tables, plan_searches
from apmax.reproduce.results import append_line, read_lines
from apmax.reproduce.run import read_trace, run_trial

CELLS = [(data, model) for data in ("aicures", "aicures-random") for model in ("gine", "mpnn")]


def measure(job: tuple[Trial, Path]) -> dict[str, Any]:
    """Train one run and return its test AUPRC at the chosen epoch and at the best."""
    trial, work = job
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    workspace = Workspace(work, None, code_origin())
    line = run_trial(trial, workspace, trace=True)
    trace = read_trace(workspace.run_folder(trial))
    best = max(trace, key=trace.__getitem__)
    return {
        **trial.coordinates,
        "positives": line["test"]["positives"],
        "chosen": {"epoch": line["chosen"]["epoch"], "auprc": line["test"]["auprc"]},
        "best": {"epoch": best, "auprc": trace[best]},
        **code_origin(),
    }


def main() -> None:
    """Run the trials that the file lacks, and print the means beside the paper's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path, help="one line of JSON per run; runs that it has are not repeated")
    parser.add_argument("--work", type=Path, default=Path("out", "best-test-epoch"), help="checkpoints")
    parser.add_argument("--workers", type=int, default=2)
    options = parser.parse_args()
    lines = read_lines(options.file)
    known = {(line["data"], line["model"], line["split"]) for line in lines}
    trials = [search.tuning[0] for search in plan_searches(load_grid(), CELLS, ["ce"])]
    jobs = [(trial, options.work) for trial in trials if (trial.data, trial.model, trial.split) not in known]
    with multiprocessing.get_context("spawn").Pool(options.workers) as pool:
        for number, line in enumerate(pool.imap_unordered(measure, jobs), 1):
            append_line(options.file, line)
            lines.append(line)
            print(f"{number} of {len(jobs)}: {line['data']} {line['model']} {line['split']}", flush=True)
    cells = defaultdict(list)
    for line in lines:
        cells[line["data"], line["model"]].append(line)
    grid, printed = load_grid(), load_paper_tables()["aicures_full"].values
    print("\n| data | network | runs | chosen epoch | best test epoch | paper |\n|---|---|---:|---:|---:|---:|")
    for (data, model), found in sorted(cells.items()):
        chosen, best = (mean(line[name]["auprc"] for line in found) for name in ("chosen", "best"))
        value = printed[data, model, "ce"]
        print(
            f"| {grid.data[data].label} | {grid.models[model].label} | {len(found)} | {chosen:.3f} | {best:.3f} "
            f"| {value.mean:.3f} ± {value.std:.3f} |"
        )


if __name__ == "__main__":
    main()
