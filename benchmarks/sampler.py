"""The sampler against torch's RandomSampler: building it and draining one epoch, single thread, one run."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import torch
from torch.utils.data import RandomSampler

from apmax.samplers import PositiveBatchSampler

ROWS = 10_000_000
POSITIVE_SHARE = 0.01
SIZES = ((64, 4), (1024, 64), (64, 32))
REPEATS = 3
TARGET = 1.0


def seconds(action: Callable[[], object]) -> float:
    """Return the shortest of a few runs: the noise of a shared machine only ever adds."""
    best = float("inf")
    for _ in range(REPEATS):
        start = time.perf_counter()
        action()
        best = min(best, time.perf_counter() - start)
    return best


def drain_random(count: int) -> None:
    """Draw `count` of the rows one by one, as torch does for a shuffled loader."""
    for _ in RandomSampler(range(ROWS), num_samples=count):
        pass


def drain(labels: np.ndarray, batch_size: int, num_pos: int) -> int:
    """Build the sampler and return the number of indices in its first epoch."""
    return sum(map(len, PositiveBatchSampler(labels, batch_size, num_pos=num_pos)))


def run() -> list[tuple[str, float, float]]:
    """Return (what, ratio to RandomSampler draining as many indices, target) for each batch size."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    labels = np.zeros(ROWS, dtype=np.int64)
    labels[np.random.default_rng(0).choice(ROWS, int(ROWS * POSITIVE_SHARE), replace=False)] = 1
    found = []
    for batch_size, num_pos in SIZES:
        count = drain(labels, batch_size, num_pos)
        ours = seconds(lambda b=batch_size, p=num_pos: drain(labels, b, p))
        theirs = seconds(lambda c=count: drain_random(c))
        what = f"sampler n=1e7, batch {batch_size} with {num_pos} positives / RandomSampler"
        found.append((what, ours / theirs, TARGET))
    torch.set_num_threads(threads)
    return found


if __name__ == "__main__":
    for what, ratio, target in run():
        print(f"{what}: {ratio:.2f}x (target {target:g}x)")
