"""Folders that are made once: whole or not at all, by however many processes at a time, with a bar to look at."""

from __future__ import annotations

import os
import shutil
import sys
import tempfile
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from apmax import extras

In = TypeVar("In")
Out = TypeVar("Out")


def cache_directory() -> Path:
    """Return where caches are kept: `APMAX_CACHE`, or the user's cache folder."""
    given = os.environ.get("APMAX_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apmax"


@contextmanager
def filled_beside(place: Path) -> Iterator[Path]:
    """Give a folder to fill that becomes `place` by one rename; another that made the same discards its own."""
    place.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        yield beside
        try:
            beside.rename(place)
        except OSError:
            if not place.exists():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def ordered(function: Callable[[In], Out], items: Iterable[In], *, workers: int = 1) -> Iterator[Out]:
    """Yield `function` of every item in their order, computed by `workers` processes; by this one if that is 1.

    A process that dies (out of memory, killed, a crash in a decoder) is an error here and not a hang.

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
    """Yield the chunks while a bar shows how much of `total` they make up.

    Args:
        chunks: What is worked off.
        total: The sum of their sizes.
        label: What stands before the bar.
        size: The size of a chunk.
        progress: Whether to show it; None: where the error stream is a terminal.
        extra: The extra that brings the bar.
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
