"""Measurement of ratios: both sides in turn, in one process, the shortest of many times."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

Row = tuple[str, float, float]
"""A claim of a benchmark: what is compared with what, the measured ratio, and the largest that meets the target."""
_BLOCK = 0.005


@contextlib.contextmanager
def threads(count: int) -> Iterator[None]:
    """Compute with so many threads of torch within the context."""
    import torch  # not at the top: `__main__` sets the threads of other libraries before any is loaded

    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


class Timed(NamedTuple):
    """The seconds of wall-clock and of processor time that a job took, and its result."""

    wall: float
    processor: float
    result: Any


def timed(job: Callable[[], Any]) -> Timed:
    """Run a job once and time it."""
    wall, processor = time.perf_counter(), time.process_time()
    result = job()
    return Timed(time.perf_counter() - wall, time.process_time() - processor, result)


def best_times(
    *jobs: Callable[[], object],
    seconds: float = 2.0,
    least: int = 3,
    clock: Callable[[], float] = time.perf_counter,
) -> list[float]:
    """Return each job's shortest time in seconds, by `clock`: `time.process_time` leaves out other programs.

    The jobs take turns, so that slow phases of the machine affect all of them; a short job is repeated within its
    turn, so that each is measured warm.
    """
    repeats = []
    for job in jobs:
        job()
        begin = time.perf_counter()
        job()
        repeats.append(max(1, round(_BLOCK / max(time.perf_counter() - begin, 1e-9))))
    best = [float("inf")] * len(jobs)
    start, rounds = time.perf_counter(), 0
    while rounds < least or time.perf_counter() - start < seconds:
        for number, job in enumerate(jobs):
            begin = clock()
            for _ in range(repeats[number]):
                job()
            best[number] = min(best[number], (clock() - begin) / repeats[number])
        rounds += 1
    return best


def ratio(ours: Callable[[], object], other: Callable[[], object], *, seconds: float = 2.0, least: int = 3) -> float:
    """Return how many times as long `ours` takes as `other`."""
    own, base = best_times(ours, other, seconds=seconds, least=least)
    return own / base
