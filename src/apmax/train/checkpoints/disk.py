"""Files that are whole or not there: written beside their place, synced and renamed."""

from __future__ import annotations

import os
from pathlib import Path

Content = bytes | memoryview


def write(path: Path, content: Content) -> None:
    """Write `content` to `path` and keep what stood there as `previous(path)`.

    Whenever a crash comes, `path` or `previous(path)` is whole if one of them was; `kept` has the exception.
    """
    beside = written_beside(path, content)
    former = kept(path) if path.exists() else None
    beside.replace(path)
    if former is not None:
        former.replace(previous(path))
    sync_directory(path.parent)


def kept(path: Path) -> Path | None:
    """Give the file at `path` a second name and return it; where the system has none, move it out of the way.

    Moved, it takes the place of the one before at once: if it is damaged, a crash right then leaves neither.
    """
    former = path.with_name(path.name + ".former")
    former.unlink(missing_ok=True)
    try:
        os.link(path, former)
    except OSError:
        path.replace(previous(path))
        return None
    return former


def write_atomic(path: Path, content: Content) -> None:
    """Replace the file at `path` by `content`, whole or not at all."""
    written_beside(path, content).replace(path)
    sync_directory(path.parent)


def previous(path: str | os.PathLike[str]) -> Path:
    """Return where the file before the one at `path` is kept.

    >>> previous("run/checkpoint.pt").name
    'checkpoint.previous.pt'
    """
    path = Path(path)
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def written_beside(path: Path, content: Content) -> Path:
    """Bring `content` to the disk beside `path` and return where."""
    beside = path.with_name(path.name + ".writing")
    with beside.open("wb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return beside


def sync_directory(directory: Path) -> None:
    """Wait until the directory's renames are on the disk, where the system can do that."""
    if os.name == "nt":  # directories cannot be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
