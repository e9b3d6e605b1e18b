"""Parallel work: the number of processes, their results in order, and a progress bar."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from typing import TypeVar

from apmax import extras

In = TypeVar("In")
Out = TypeVar("Out")


def worker_processes() -> int:
    """Return the number of processes for parallel work: one for each core that this one may use, at most 8."""
    return min(available_cores(), 8)


def available_cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def ordered(function: Callable[[In], Out], items: Iterable[In], *, workers: int = 1) -> Iterator[Out]:
    """Yield `function(item)` for every item in order, computed by `workers` processes, or by this one if that is 1.

    A process that dies (out of memory, killed, a crash in a decoder) raises an error here.

    >>> list(ordered(str, [1, 2, 3]))
    ['1', '2', '3']
    """
    if workers <= 1:
        yield from map(function, items)
        return
    waiting: deque[Future[Out]] = deque()
    with ProcessPoolExecutor(workers) as pool:
        try:
            for item in items:
                waiting.append(pool.submit(function, item))
                if len(waiting) > 2 * workers:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            pool.shutdown(wait=True, cancel_futures=True)


def with_progress(
    chunks: Iterable[Out], total: int, *, label: str, size: Callable[[Out], int], progress: bool | None, extra: str
) -> Iterator[Out]:
    """Yield the chunks, and show a progress bar.

    Args:
        chunks: The chunks.
        total: The sum of their sizes.
        label: The text before the bar.
        size: Returns the size of a chunk.
        progress: Whether to show the bar; by default if the error stream is a terminal.
        extra: The extra that installs `rich`.
    """
    if not (sys.stderr.isatty() if progress is None else progress):
        yield from chunks
        return
    console = extras.load("rich.console", extra).Console(stderr=True)
    with extras.load("rich.progress", extra).Progress(console=console, transient=True) as bar:
        task = bar.add_task(label, total=total)
        for chunk in chunks:
            bar.advance(task, size(chunk))
            yield chunk
