"""Who runs what: a claim that one process holds, and that ends with the process however it ends."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from apmax import extras


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Yield whether this process now holds the claim at `path`; nobody waits.

    The system lets go of it when the holder ends, also by `kill -9`, so that no claim outlives its run.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        yield lock(file.fileno())


@contextmanager
def waiting(path: Path) -> Iterator[None]:
    """Hold the claim at `path`, waiting for whoever has it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("a") as file:
        lock(file.fileno(), wait=True)
        yield


def lock(descriptor: int, *, wait: bool = False) -> bool:
    """Lock an open file for this process; return False where another has it and `wait` is not set."""
    if os.name == "nt":  # pragma: no cover - there is no such machine among the tested ones
        msvcrt = extras.load("msvcrt", "train")
        try:
            msvcrt.locking(descriptor, msvcrt.LK_LOCK if wait else msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
    fcntl = extras.load("fcntl", "train")
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
    except BlockingIOError:
        return False
    return True
