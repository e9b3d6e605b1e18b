"""The test AUPRC of cross-entropy at the epoch that validation chose, at the last, and at the best by the test part.

A check of the distance to the paper's numbers, not a result: the paper may print the last of the three. Cross-entropy
as in the paper's first stage, the test part scored after every epoch.

    APMAX_DATA=... python -m benchmarks.best_test_epoch --data hiv

Runs that the file has are not repeated, and interrupted ones are continued. `make results` writes the table.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from multiprocessing import get_context
from pathlib import Path
from typing import Any

import torch

from apmax.data.parallel import available_cores
from apmax.reproduce import Trial, Workspace, code_origin, load_grid, plan_searches
from apmax.reproduce.results import append_line, claimed, read_lines
from apmax.reproduce.run import read_trace, run_trial
from benchmarks.data_folder import data_folder

LINES = Path("results", "best-test-epoch.jsonl")
# Not that of `apmax reproduce`: its runs are the same, but their epochs have no test scores.
WORK = Path("out", "best-test-epoch")
CELLS = (
    *((data, model) for data in ("aicures", "aicures-random") for model in ("gine", "mpnn")),
    *(("hiv", model) for model in ("gine", "mpnn", "ml-mpnn")),
)
"""The cells of the check, by data set and network."""


def planned_trials(data: Sequence[str] | None = None) -> list[Trial]:
    """Return all runs of cross-entropy in the cells, or in those of some data sets."""
    cells = [cell for cell in CELLS if data is None or cell[0] in data]
    searches = plan_searches(load_grid(), cells, ["ce"])
    return [search.trial(seed, search.tuning[0].settings, 0) for search in searches for seed in search.seeds]


def measure(trial: Trial, workspace: Workspace) -> dict[str, Any]:
    """Train one run from its last checkpoint and return its test AUPRC at the three epochs."""
    line = run_trial(trial, workspace, trace=True)
    trace = read_trace(workspace.run_folder(trial))
    return {
        **trial.coordinates,
        "positives": line["test"]["positives"],
        "chosen": {
            "epoch": line["chosen"]["epoch"],
            "auprc": line["test"]["auprc"],
            "valid_auprc": line["valid"]["auprc"],
        },
        **epochs_of_trace(trace),
        **workspace.origin,
    }


def epochs_of_trace(trace: dict[int, float]) -> dict[str, dict[str, float]]:
    """Return the best epoch by the test part, the first of equal ones, and the last, with their test AUPRC.

    >>> epochs_of_trace({1: 0.25, 2: 0.5, 3: 0.5, 4: 0.125})
    {'best': {'epoch': 2, 'auprc': 0.5}, 'last': {'epoch': 4, 'auprc': 0.125}}
    """
    best, last = max(trace, key=trace.__getitem__), max(trace)
    return {name: {"epoch": epoch, "auprc": trace[epoch]} for name, epoch in (("best", best), ("last", last))}


def run_missing(trials: Sequence[Trial], path: Path, work: Path) -> None:
    """Run what the file lacks, except what another process has claimed."""
    workspace = Workspace(work, data_folder(), code_origin())
    for trial in trials:
        with claimed(work / "claims" / trial.key) as ours:
            if not ours or run_position(trial.coordinates) in map(run_position, read_lines(path)):
                continue
            append_line(path, measure(trial, workspace))
        print(trial.label, flush=True)


def _run_process(trials: Sequence[Trial], path: Path, work: Path) -> None:
    """Run what the file lacks in a process of its own, which computes as those of `apmax reproduce` do."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    run_missing(trials, path, work)


def run_position(line: dict[str, Any]) -> tuple[Any, ...]:
    """Return what tells the runs of the check apart."""
    return tuple(line[name] for name in ("data", "model", "split", "seed"))


def main() -> None:
    """Run what is missing."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", nargs="+", choices=sorted({data for data, _ in CELLS}), help="only these data sets")
    parser.add_argument("--workers", type=int, default=available_cores(), help="processes, each with runs of its own")
    options = parser.parse_args()
    data_folder()  # a missing one ends the command before its first process
    # Leaving by an exception ends the processes, which then write their checkpoints.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    arguments = (planned_trials(options.data), LINES, WORK)
    processes = [get_context("spawn").Process(target=_run_process, args=arguments) for _ in range(options.workers)]
    try:
        for process in processes:
            process.start()
        for process in processes:
            process.join()
    finally:
        for process in processes:
            process.terminate()
    if any(process.exitcode for process in processes):
        raise SystemExit("a process failed; its messages are above")


if __name__ == "__main__":
    main()
