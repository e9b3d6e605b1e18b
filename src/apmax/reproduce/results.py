"""The results file: one line of JSON per finished run, appended by any number of processes."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from os import PathLike
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout

RESULTS_FILE, HISTORIES_FILE, TEST_SCORES_FILE = "results.jsonl", "histories.jsonl", "test-scores.jsonl"
_POLL_SECONDS = 0.01


class Results:
    """The results in a folder, by the keys of their trials."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)
        self.lines: dict[str, dict[str, Any]] = {}
        self._position = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the lines that any process has added since; an incomplete last line is left for the next time."""
        path = self.folder / RESULTS_FILE
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self._position)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                self._position += len(raw)
                if raw.strip():
                    line = json.loads(raw)
                    self.lines[line["key"]] = line

    def get(self, key: str) -> dict[str, Any] | None:
        """Return the result of a run, or None."""
        return self.lines.get(key)

    def add(
        self, line: dict[str, Any], history: dict[str, Any] | None = None, scores: dict[str, Any] | None = None
    ) -> None:
        """Append a result, and the history of its epochs and its test scores if given.

        All are on the disk when this returns.
        """
        self.folder.mkdir(parents=True, exist_ok=True)
        for name, more in ((HISTORIES_FILE, history), (TEST_SCORES_FILE, scores)):
            if more is not None:
                append_line(self.folder / name, more)
        append_line(self.folder / RESULTS_FILE, line)
        self.refresh()

    def histories(self) -> dict[str, dict[str, Any]]:
        """Return the histories of epochs by key, for the runs that have one."""
        return _by_key(read_lines(self.folder / HISTORIES_FILE))

    def test_scores(self) -> dict[str, dict[str, Any]]:
        """Return the lines of test scores by key, for the runs that have one."""
        return _by_key(read_lines(self.folder / TEST_SCORES_FILE))


def _by_key(lines: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """Return lines by their keys; of several with one key the last."""
    return {line["key"]: line for line in lines}


def read_lines(path: Path) -> list[dict[str, Any]]:
    r"""Return the lines of a file of JSON lines, none if it is missing; an incomplete last line is left out.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     path = Path(folder) / "lines.jsonl"
    ...     _ = path.write_text('{"ap": 0.5}\n{"ap": 0.')
    ...     read_lines(path)
    [{'ap': 0.5}]
    """
    if not path.exists():
        return []
    with path.open("rb") as file:
        return [json.loads(raw) for raw in file if raw.endswith(b"\n") and raw.strip()]


def append_line(path: Path, line: dict[str, Any]) -> None:
    """Append one line of JSON under a lock, after removing an incomplete last line."""
    with locked(path.with_name(f".{path.name}.lock")), path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                content = file.read()
                file.truncate(content.rfind(b"\n") + 1)
        file.write((json.dumps(line) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock at `path`, waiting until it is free."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with FileLock(path).acquire(poll_interval=_POLL_SECONDS):
        yield


@contextmanager
def claimed(path: Path) -> Iterator[bool]:
    """Yield whether this process got the lock at `path`, without waiting.

    The operating system releases the lock when its holder ends, by `kill -9` too: no claim outlives its run.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(path)
    try:
        lock.acquire(blocking=False)
    except Timeout:
        yield False
        return
    try:
        yield True
    finally:
        lock.release()
