"""Folders of cached data: written once, whole or not at all, by one of the processes that want the same."""

from __future__ import annotations

import atexit
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from apmax import extras

if TYPE_CHECKING:
    from apmax.data.reading import UnreadableRow

_UNREADABLE = "unreadable.json"


def cache_directory() -> Path:
    """Return the folder of caches: the environment variable `APMAX_CACHE`, or the user's cache folder."""
    given = os.environ.get("APMAX_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apmax"


def cache_folder(name: str, cache: str | os.PathLike[str] | None = None) -> Path:
    """Return the path of the folder `name` in a folder of caches, by default `cache_directory()`."""
    return (Path(cache) if cache is not None else cache_directory()) / name


def cached_folder(
    name: str,
    write: Callable[[Path], Sequence[UnreadableRow]],
    cache: str | os.PathLike[str] | None = None,
    *,
    lasts: Callable[[Sequence[UnreadableRow]], bool] | None = None,
) -> tuple[Path, list[UnreadableRow]]:
    """Return the folder `name` of the cache, and the unreadable rows of its content; write it if it is not there.

    A process that finds another one writing the same folder waits for it.

    Args:
        name: The folder's name, which depends on all that its content depends on.
        write: Writes the content into a new folder, and returns the unreadable rows.
        cache: The folder of caches; by default `cache_directory()`.
        lasts: Tells from the unreadable rows whether the content may be used again; if not, it is in a folder that no
            other call finds, and deleted at the end of this process. By default it always may.
    """
    folder = cache_folder(name, cache)
    if not folder.exists():
        with _one_writer(folder), folder_beside(folder) as beside:
            if not folder.exists():  # another process may have written it meanwhile
                found = list(write(beside))
                (beside / _UNREADABLE).write_text(json.dumps([asdict(item) for item in found]), encoding="utf-8")
                if lasts is not None and not lasts(found):
                    return _until_exit(beside), found
                _publish(beside, folder)
    entries = json.loads((folder / _UNREADABLE).read_text(encoding="utf-8"))
    if not entries:
        return folder, []
    from apmax.data.reading import UnreadableRow  # needs pyarrow, which a cache of tensors does not

    return folder, [UnreadableRow(*entry.values()) for entry in entries]


@contextmanager
def _one_writer(folder: Path) -> Iterator[None]:
    """Hold the lock of a folder of the cache, after any other process has released it."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock_file = folder.with_name(f".{folder.name}.lock")
    lock = extras.load("filelock", "train").FileLock(lock_file)
    # A file system without locks, or the lock file of another user: several may write, and one folder is kept.
    with suppress(NotImplementedError, OSError):
        lock.acquire()
    try:
        yield
    finally:
        if lock.is_locked:
            # Those that wait find the folder; if writing failed, two of them may write, as without locks.
            with suppress(OSError):
                lock_file.unlink(missing_ok=True)
            lock.release()


@contextmanager
def folder_beside(folder: Path) -> Iterator[Path]:
    """Give a folder to fill beside `folder`, which is deleted at the end unless it was renamed."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    beside = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", dir=folder.parent))
    try:
        yield beside
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _publish(beside: Path, folder: Path) -> None:
    """Make a filled folder `folder` by one rename; a second writer of the same discards its own."""
    try:
        beside.rename(folder)
    except OSError:
        if not folder.exists():
            raise


def _until_exit(beside: Path) -> Path:
    """Return a filled folder under another name, which is deleted when this process ends."""
    kept = beside.rename(beside.with_name(f"{beside.name}-kept"))
    owner = os.getpid()

    def delete() -> None:
        # Not by a process that was forked from this one.
        if os.getpid() == owner:
            shutil.rmtree(kept, ignore_errors=True)

    atexit.register(delete)
    return kept
