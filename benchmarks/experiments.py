"""What the harness of the paper's experiments costs over the training itself, single thread."""

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

from apmax.reproduce import Place, Results, grid, searches
from apmax.reproduce.parts import network_of, parts_of
from apmax.reproduce.running import run_of
from apmax.reproduce.trial import Trial
from apmax.reproduce.working import Progress, run_claimed
from apmax.train import Record, epochs
from apmax.train.checkpoints import CheckpointWriter

BLOCK = 20
"""Epochs after which the two runs take turns."""
ROUNDS = 7


class Alternating:
    """Runs a trial in the harness and bare, some epochs of one and then as many of the other, on two clocks.

    A slow spell of the machine meets both. At the end of its turn the harness waits for its checkpoint, on its own
    clock, so that nothing is written during the other's.
    """

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.writer: CheckpointWriter | None = None
        self.bare: Iterator[Record] = iter(())
        self.bare_seconds, self.harness_seconds, self.since, self.done = 0.0, 0.0, 0.0, 0

    def ratio(self) -> float:
        """Return the harness's time over the other's, of a run each from its beginning to its end."""
        self.harness_seconds, self.done = 0.0, 0
        handler = signal.getsignal(signal.SIGTERM)
        parts = parts_of(self.trial)
        started = time.perf_counter()
        self.bare = epochs(network_of(self.trial), (parts.train, parts.valid), run_of(self.trial))
        self.bare_seconds = time.perf_counter() - started
        write = CheckpointWriter.submit

        def remembered(writer: CheckpointWriter, content: memoryview) -> None:
            self.writer = writer
            write(writer, content)

        with tempfile.TemporaryDirectory() as name, patch.object(CheckpointWriter, "submit", remembered):
            results, place = Results(Path(name) / "results"), Place(Path(name) / "work", None, {})
            self.since = time.perf_counter()
            run_claimed(self.trial, results, place, say=self.take_turns)
            self.harness_seconds += time.perf_counter() - self.since
            assert self.done == results.lines[self.trial.key]["epochs"], "both ran the same epochs"
        self.advance()
        signal.signal(signal.SIGTERM, handler)
        return self.harness_seconds / self.bare_seconds

    def take_turns(self, news: Progress) -> None:
        """After a block of the harness's epochs stop its clock and run as many bare ones."""
        if news.epoch == self.done or news.epoch % BLOCK:
            return
        if self.writer is not None and self.writer.current is not None:
            wait([self.writer.current])
        self.harness_seconds += time.perf_counter() - self.since
        self.advance(news.epoch - self.done)
        self.done = news.epoch
        self.since = time.perf_counter()

    def advance(self, count: int | None = None) -> None:
        """Run so many bare epochs, or all that are left."""
        started = time.perf_counter()
        while count != 0 and next(self.bare, None) is not None:
            count = None if count is None else count - 1
        self.bare_seconds += time.perf_counter() - started


def overhead() -> float:
    """Return the time of a run in the harness over that of its epochs: AICURES, GINE, 100 epochs of cross-entropy.

    Claim, a checkpoint each epoch, the scores of validation and test part and the result are counted. No run of the
    paper has shorter epochs, so that none has a larger share of these.
    """
    alternating = Alternating(searches(grid(), [("aicures", "gine")], ["ce"])[0].tuning[0])
    alternating.ratio()  # warm
    return statistics.median(alternating.ratio() for _ in range(ROUNDS))


def run() -> list[tuple[str, float, float]]:
    """Return (what, ratio, target); nothing where the data are not there."""
    if "APMAX_DATA" not in os.environ:
        return []
    return [("a run of the paper's harness / its epochs bare (AICURES, GINE, 100 epochs of CE)", overhead(), 1.03)]
