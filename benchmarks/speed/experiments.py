"""Overhead of the paper's harness over the training itself, single thread."""

from __future__ import annotations

import os
import signal
import statistics
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import wait
from pathlib import Path
from unittest.mock import patch

from apmax.reproduce import Results, Trial, Workspace, load_grid, plan_searches
from apmax.reproduce.run import build_trial_network, load_trial_data, trial_run_config
from apmax.reproduce.workers import WorkerProgress, run_claimed
from apmax.train import Record, epochs
from apmax.train.checkpoints import CheckpointWriter
from benchmarks.timing import Row

BLOCK = 20
"""The number of epochs after which the two runs take turns."""
ROUNDS = 7


class Alternating:
    """Two runs of a trial, in the harness and by `epochs` alone, in alternating blocks of epochs with separate clocks.

    A slow phase of the machine affects both. At the end of its block the harness waits for its checkpoint, on its own
    clock, so that nothing is written during the other's block.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.writer: CheckpointWriter | None = None
        self.bare: Iterator[Record] = iter(())
        self.bare_seconds, self.harness_seconds, self.since, self.done = 0.0, 0.0, 0.0, 0

    def ratio(self) -> float:
        """Return the time of a whole run in the harness over that of its epochs alone."""
        self.harness_seconds, self.done = 0.0, 0
        handler = signal.getsignal(signal.SIGTERM)
        data = load_trial_data(self.trial)
        started = time.perf_counter()
        self.bare = epochs(build_trial_network(self.trial), (data.train, data.valid), trial_run_config(self.trial))
        self.bare_seconds = time.perf_counter() - started
        submit = CheckpointWriter.submit

        def remember(writer: CheckpointWriter, content: memoryview) -> None:
            self.writer = writer
            submit(writer, content)

        with tempfile.TemporaryDirectory() as name, patch.object(CheckpointWriter, "submit", remember):
            results, workspace = Results(Path(name) / "results"), Workspace(Path(name) / "work", None, {})
            self.since = time.perf_counter()
            run_claimed(self.trial, results, workspace, report=self.take_turns)
            self.harness_seconds += time.perf_counter() - self.since
            assert self.done == results.lines[self.trial.key]["epochs"], "both ran the same epochs"
        self.advance()
        signal.signal(signal.SIGTERM, handler)
        return self.harness_seconds / self.bare_seconds

    def take_turns(self, progress: WorkerProgress) -> None:
        """Stop the harness's clock after a block of its epochs, and run as many epochs alone."""
        if progress.epoch == self.done or progress.epoch % BLOCK:
            return
        if self.writer is not None and self.writer.current is not None:
            wait([self.writer.current])
        self.harness_seconds += time.perf_counter() - self.since
        self.advance(progress.epoch - self.done)
        self.done = progress.epoch
        self.since = time.perf_counter()

    def advance(self, count: int | None = None) -> None:
        """Run `count` epochs alone, or all that are left."""
        started = time.perf_counter()
        while count != 0 and next(self.bare, None) is not None:
            count = None if count is None else count - 1
        self.bare_seconds += time.perf_counter() - started


def overhead() -> float:
    """Return the time of a run in the harness over that of its epochs: AICURES, GINE, 100 epochs of cross-entropy.

    It includes the claim, a checkpoint per epoch, the scores of the validation and test part, and the result. No run of
    the paper has shorter epochs, so that none has a larger overhead.
    """
    alternating = Alternating(plan_searches(load_grid(), [("aicures", "gine")], ["ce"])[0].tuning[0])
    alternating.ratio()  # warm
    return statistics.median(alternating.ratio() for _ in range(ROUNDS))


def run() -> list[Row]:
    """Return (description, ratio, target); nothing where the data are missing."""
    if "APMAX_DATA" not in os.environ:
        return []
    return [("a run of the paper's harness / its epochs bare (AICURES, GINE, 100 epochs of CE)", overhead(), 1.03)]
