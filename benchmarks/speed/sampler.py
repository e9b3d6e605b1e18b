"""The sampler against torch's RandomSampler: building it and draining one epoch, single thread, one run."""

from __future__ import annotations

from functools import partial

import numpy as np
from torch.utils.data import RandomSampler

from apmax.samplers import PositiveBatchSampler
from benchmarks.timing import Row, ratio

ROWS = 10_000_000
POSITIVE_SHARE = 0.01
SIZES = ((64, 4), (1024, 64), (64, 32))
TARGET = 1.0


def drain_random(count: int) -> None:
    """Draw `count` of the rows one by one, as torch does for a shuffled loader."""
    for _ in RandomSampler(range(ROWS), num_samples=count):
        pass


def drain(labels: np.ndarray, batch_size: int, num_pos: int) -> int:
    """Build the sampler and return the number of indices in its first epoch."""
    return sum(map(len, PositiveBatchSampler(labels, batch_size, num_pos=num_pos)))


def run() -> list[Row]:
    """Return (what, ratio to RandomSampler draining as many indices, target) for each batch size."""
    labels = np.zeros(ROWS, dtype=np.int64)
    labels[np.random.default_rng(0).choice(ROWS, int(ROWS * POSITIVE_SHARE), replace=False)] = 1
    found = []
    for batch_size, num_pos in SIZES:
        count = drain(labels, batch_size, num_pos)
        measured = ratio(partial(drain, labels, batch_size, num_pos), partial(drain_random, count), seconds=0)
        what = f"sampler n=1e7, batch {batch_size} with {num_pos} positives / RandomSampler"
        found.append((what, measured, TARGET))
    return found
