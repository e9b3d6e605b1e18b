"""Folders of trained models: atomic files, the lock of a training, and the manifest with the checksum of every file.

`manifest.json` is written last. It lists the files that are needed to load what the folder holds, each with its size
and SHA-256. A reader verifies them before it parses any: a file that has changed or is missing is an error.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path, PurePosixPath
from typing import Any, BinaryIO, NamedTuple

from apmax import __version__, extras

LOCK_FILE, MANIFEST_FILE, STUDY_FILE = ".lock", "manifest.json", "study.db"
FOLDER_FORMAT = "apmax folder"
FOLDER_VERSION = 1
_LARGEST_MANIFEST = 2**24
_BLOCK = 2**20


class FolderError(ValueError):
    """A folder is damaged, was not written by apmax, or was written by a newer apmax."""


class FileChecksum(NamedTuple):
    """Size in bytes and SHA-256 of a file."""

    size: int
    sha256: str


@dataclass(frozen=True)
class Manifest:
    """The list of the files of a folder.

    Args:
        folder: The folder.
        kind: What it holds, such as "model".
        complete: Whether all files are written; False while a training is under way.
        files: Checksums by the path below the folder, with forward slashes.
    """

    folder: Path
    kind: str
    complete: bool
    files: Mapping[str, FileChecksum]

    def verify(self, names: Iterable[str] | None = None) -> None:
        """Compare files with their checksums.

        Args:
            names: The files; by default all.

        Raises:
            FolderError: A file is missing or has changed.
        """
        for name in self.files if names is None else names:
            expected = self._expected(name)
            digest = hashlib.sha256()
            with self._opened(name) as file:
                if os.fstat(file.fileno()).st_size != expected.size:
                    raise self._changed(name)
                while block := file.read(_BLOCK):
                    digest.update(block)
            if digest.hexdigest() != expected.sha256:
                raise self._changed(name)

    def read(self, name: str) -> bytes:
        """Return the content of a file, after its comparison with the checksum.

        Raises:
            FolderError: The file is not listed, is missing or has changed.
        """
        expected = self._expected(name)
        with self._opened(name) as file:
            content = file.read(expected.size + 1)
        if len(content) != expected.size or hashlib.sha256(content).hexdigest() != expected.sha256:
            raise self._changed(name)
        return content

    def _expected(self, name: str) -> FileChecksum:
        if name not in self.files:
            raise FolderError(f"{self.folder} is damaged: {MANIFEST_FILE} does not list {name}")
        return self.files[name]

    def _opened(self, name: str) -> BinaryIO:
        path = self.folder / name
        if not path.is_file():
            raise FolderError(f"{self.folder} is damaged: {name} is missing")
        return path.open("rb")

    def _changed(self, name: str) -> FolderError:
        return FolderError(f"{self.folder} is damaged: {name} has changed since it was written (its checksum differs)")


def write_manifest(folder: Path, names: Iterable[str], *, kind: str, complete: bool = True) -> None:
    """Write the manifest of files that are in the folder.

    Args:
        folder: The folder.
        names: Paths below it, with forward slashes.
        kind: What the folder holds, such as "model".
        complete: Whether all files are written.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.txt").write_text("one")
    >>> write_manifest(folder, ["a.txt"], kind="model")
    >>> read_manifest(folder, kind="model").read("a.txt")
    b'one'
    >>> _ = (folder / "a.txt").write_text("two")
    >>> read_manifest(folder, kind="model").read("a.txt")  # doctest: +ELLIPSIS
    Traceback (most recent call last):
    ...
    apmax.folders.FolderError: ... is damaged: a.txt has changed since it was written (its checksum differs)
    """
    _write(Manifest(folder, kind, complete, {name: file_checksum(folder / name) for name in names}))


def add_file(manifest: Manifest, name: str, content: bytes) -> None:
    """Write a file into a folder whose manifest is known, and list it; it may replace an earlier one.

    While it is written the manifest does not list it: if that is interrupted, the folder is as if it never had it. The
    other files keep their checksums, so that one which is damaged remains so.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> write_manifest(folder, [], kind="model")
    >>> add_file(read_manifest(folder, kind="model"), "a.txt", b"one")
    >>> read_manifest(folder, kind="model").read("a.txt")
    b'one'
    """
    others = {each: checksum for each, checksum in manifest.files.items() if each != name}
    if name in manifest.files:
        _write(replace(manifest, files=others))
    write_atomic(manifest.folder / name, content)
    checksum = FileChecksum(len(content), hashlib.sha256(content).hexdigest())
    _write(replace(manifest, files={**others, name: checksum}))


def _write(manifest: Manifest) -> None:
    content = {
        "format": FOLDER_FORMAT,
        "version": FOLDER_VERSION,
        "apmax": __version__,
        "kind": manifest.kind,
        "complete": manifest.complete,
        "files": {name: checksum._asdict() for name, checksum in sorted(manifest.files.items())},
    }
    write_atomic(manifest.folder / MANIFEST_FILE, _render(content))


def read_manifest(folder: str | os.PathLike[str], *, kind: str) -> Manifest:
    """Return the manifest of a folder; its files are not compared yet.

    Args:
        folder: The folder.
        kind: What it must hold.

    Raises:
        FileNotFoundError: There is none.
        FolderError: It is damaged, of another program, of a newer apmax, or of another kind.
    """
    place = Path(folder)
    try:
        with (place / MANIFEST_FILE).open("rb") as file:
            content = file.read(_LARGEST_MANIFEST)
    except (FileNotFoundError, NotADirectoryError):
        if not place.is_dir():
            found = "is a file and no folder" if place.exists() else "does not exist"
            raise FileNotFoundError(f"{folder} {found}: name the folder of a {kind}") from None
        raise FileNotFoundError(f"{folder} holds no {kind} of apmax: there is no {MANIFEST_FILE}") from None
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        raise FolderError(f"{folder} is damaged: {MANIFEST_FILE} cannot be read") from None
    if not isinstance(table, dict) or table.get("format") != FOLDER_FORMAT or not _is_whole(table.get("version")):
        raise FolderError(f"{folder} was not written by apmax: its {MANIFEST_FILE} lacks the mark {FOLDER_FORMAT!r}")
    if table["version"] > FOLDER_VERSION:
        raise FolderError(
            f"{folder} was written by apmax {table.get('apmax')} (format {table['version']}), which is newer than "
            f"this apmax {__version__} (format {FOLDER_VERSION}): upgrade apmax to read it"
        )
    table.pop("checksum", None)
    if content != _render(table):
        raise FolderError(f"{folder} is damaged: {MANIFEST_FILE} has changed since it was written")
    files, complete = table.get("files"), table.get("complete")
    if not isinstance(files, dict) or not isinstance(complete, bool):
        raise FolderError(f"{folder} was not written by apmax: its {MANIFEST_FILE} lists no files")
    if table.get("kind") != kind:
        raise FolderError(f"{folder} holds no {kind}: its {MANIFEST_FILE} says {table.get('kind')!r}")
    return Manifest(place, kind, complete, {name: _parse_entry(place, name, each) for name, each in files.items()})


def _parse_entry(folder: Path, name: str, entry: Any) -> FileChecksum:
    path = PurePosixPath(name)
    inside = bool(path.parts) and not path.is_absolute() and ".." not in path.parts and "\\" not in name
    if not inside or ":" in name or "\0" in name:
        raise FolderError(f"{folder} was not written by apmax: its {MANIFEST_FILE} lists {name!r}")
    if not isinstance(entry, dict) or not _is_whole(entry.get("size")) or not isinstance(entry.get("sha256"), str):
        raise FolderError(f"{folder} was not written by apmax: its {MANIFEST_FILE} has no checksum of {name}")
    return FileChecksum(entry["size"], entry["sha256"])


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _render(table: Mapping[str, Any]) -> bytes:
    """Return the only text of a manifest: any changed byte gives another table, or no text that is written so."""
    checksum = hashlib.sha256(json.dumps(table, sort_keys=True).encode()).hexdigest()
    return (json.dumps({**table, "checksum": checksum}, indent=1) + "\n").encode()


def file_checksum(path: Path) -> FileChecksum:
    """Return size and SHA-256 of a file."""
    digest, size = hashlib.sha256(), 0
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            digest.update(block)
            size += len(block)
    return FileChecksum(size, digest.hexdigest())


def check_free(
    folder: str | os.PathLike[str], remedy: str = "continue with resume=True, or choose another folder"
) -> None:
    """Raise unless a folder is missing or empty; the lock file of an earlier training does not count.

    Raises:
        FileExistsError: It holds something (the message ends with the remedy), or is a file.
    """
    path = Path(folder)
    _refuse_file(path)
    if path.is_dir() and any(each.name != LOCK_FILE for each in path.iterdir()):
        raise FileExistsError(f"{folder} is not empty: {remedy}")


def _refuse_file(folder: Path) -> None:
    """Raise `FileExistsError` if the path of a folder, or of one above it, is that of a file."""
    for path in (folder, *folder.parents):
        if path.exists() and not path.is_dir():
            raise FileExistsError(f"{path} is a file and no folder: choose another")


@contextmanager
def lock_folder(folder: str | os.PathLike[str]) -> Iterator[None]:
    """Hold the lock of a folder, which is created if it is missing; if it stays empty, it is removed at the end.

    The lock belongs to the process: the operating system releases it when the process ends in any way.

    Raises:
        FileExistsError: Another training holds the lock, or it is a file.
    """
    filelock = extras.load("filelock", "train")
    path = Path(folder)
    _refuse_file(path)
    lock_file = path / LOCK_FILE
    lock = filelock.FileLock(lock_file)
    missing = [each for each in (path, *path.parents) if not each.exists()]
    new = not lock_file.exists()
    path.mkdir(parents=True, exist_ok=True)
    try:
        lock.acquire(timeout=0)
    except filelock.Timeout:
        raise FileExistsError(
            f"another training is running in {folder}: wait for it, or choose another folder"
        ) from None
    try:
        yield
    finally:
        if new and [each.name for each in path.iterdir()] in ([], [LOCK_FILE]):
            with suppress(OSError):  # where an open file cannot be removed
                lock_file.unlink(missing_ok=True)
        lock.release()
        with suppress(OSError):  # something is in it
            for each in missing:
                each.rmdir()


def folder_bytes(folder: str | os.PathLike[str]) -> int:
    """Return the size of all files in a folder and below it.

    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> (folder / "inner").mkdir()
    >>> (folder / "a.txt").write_text("one"), (folder / "inner" / "b.txt").write_text("four")
    (3, 4)
    >>> folder_bytes(folder)
    7
    """
    return sum(path.stat().st_size for path in Path(folder).rglob("*") if path.is_file())


def is_first_process() -> bool:
    """Return whether this is the only process, or the first of those that Fabric or torchrun started."""
    return all(os.environ.get(name, "0") == "0" for name in ("RANK", "LOCAL_RANK", "NODE_RANK"))


def started_processes() -> int:
    """Return the number of processes that torchrun started, on all machines; 1 without it.

    >>> started_processes()
    1
    """
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def write_atomic(path: Path, content: bytes | memoryview) -> None:
    """Replace the file at `path` by `content`, completely or not at all."""
    write_beside(path, content).replace(path)
    sync_directory(path.parent)


def write_json(path: Path, value: Any, *, indent: int = 1) -> None:
    """Replace the file at `path` by plain values as JSON, completely or not at all."""
    write_atomic(path, (json.dumps(value, indent=indent) + "\n").encode())


def write_beside(path: Path, content: bytes | memoryview) -> Path:
    """Write and sync `content` to a file beside `path` and return its path; after an error there is none.

    Raises:
        OSError: It cannot be written; the error names `path`.
    """
    beside = path.with_name(path.name + ".writing")
    try:
        with beside.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
    except OSError as error:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        if error.errno is None:
            raise
        raise OSError(error.errno, error.strerror, str(path)) from None  # writes do not name the file: a full disk
    return beside


def sync_directory(directory: Path) -> None:
    """Wait until the directory's renames are on the disk, where the operating system supports that."""
    if os.name == "nt":  # directories cannot be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
