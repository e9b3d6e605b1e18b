"""Checkpoints that survive a crash, say what they are, and never execute code when read.

A checkpoint is one file that `torch.load(path, weights_only=True)` can read: a dict of tensors, numbers, strings,
lists and dicts. It is written beside its place, synced and renamed; the one before it is kept. The archive's CRC-32
of every record is verified before anything is read, because torch itself does not look at it.
"""

from __future__ import annotations

import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from apmax import __version__

FORMAT = "apmax-checkpoint"
VERSION = 2
"""1: the records were a list of tables; now they are lines of JSON. Both are read."""
_ATOMS = frozenset((bool, int, float, str, bytes, type(None)))
_TENSORS = frozenset((torch.Tensor, torch.nn.Parameter))
# A small checkpoint is then written by one call: from a thread, every call waits for the interpreter anew.
_BUFFER = 2**20


class CheckpointError(ValueError):
    """A file that is not a whole checkpoint of this version."""


def save(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write `state` to `path`: after a crash at any moment `path` or the one before it is whole.

    The checkpoint that stood at `path` is kept as `previous(path)`.

    Raises:
        CheckpointError: `state` holds an object that could not be read back without executing code.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "checkpoint.pt"
    >>> save(file, {"step": 3})
    >>> load(file)["step"]
    3
    """
    check_plain(state)
    write(Path(path), state)


def write(path: Path, state: Mapping[str, Any]) -> None:
    """Do what `save` does with a `state` that is known to be plain."""
    beside = path.with_name(path.name + ".writing")
    with beside.open("wb", buffering=_BUFFER) as file:
        torch.save({"format": FORMAT, "version": VERSION, "apmax": __version__, "state": dict(state)}, file)
        sync(file)
    if path.exists():
        path.replace(previous(path))
    beside.replace(path)
    sync_directory(path.parent)


def load(path: str | os.PathLike[str], *, map_location: Any = "cpu") -> dict[str, Any]:
    """Return the state saved at `path`.

    If a crash came between the two renames of `save`, the checkpoint before stands in for the missing one.

    Raises:
        FileNotFoundError: There is none.
        CheckpointError: Truncated, damaged, not written by apmax, or written by a newer apmax.
    """
    path = Path(path)
    if not path.exists() and previous(path).exists():
        path = previous(path)
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}")
    hint = f"; the one before it is {previous(path)}" if previous(path).exists() else ""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        raise CheckpointError(f"{path} is truncated or not a checkpoint ({error}){hint}") from None
    if damaged is not None:
        raise CheckpointError(f"{path} is damaged: the checksum of {damaged} does not match{hint}")
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        # Whatever torch's restricted reader trips over, the file is not one of ours, and nothing was executed.
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise CheckpointError(f"{path} was not written by apmax ({reason}){hint}") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"{path} was not written by apmax: it lacks the mark {FORMAT!r}{hint}")
    if content["version"] > VERSION:
        raise CheckpointError(
            f"{path} was written by apmax {content['apmax']} (format {content['version']}), which is newer than "
            f"this apmax {__version__} (format {VERSION}): upgrade apmax to read it{hint}"
        )
    state: dict[str, Any] = content["state"]
    return state


def previous(path: str | os.PathLike[str]) -> Path:
    """Return where the checkpoint before the one at `path` is kept.

    >>> previous("run/checkpoint.pt").name
    'checkpoint.previous.pt'
    """
    path = Path(path)
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def frozen(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return a copy of `state` for another thread to write, with all tensors on the CPU.

    Raises:
        CheckpointError: `state` holds an object that could not be read back without executing code.

    >>> weights = torch.zeros(2)
    >>> copy = frozen({"weights": weights})
    >>> _ = weights.add_(1)
    >>> copy["weights"]
    tensor([0., 0.])
    """
    copies: dict[int, torch.Tensor] = {}

    def copy(value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS:
            return value
        if kind in _TENSORS:
            # Tied weights stay one tensor.
            if id(value) not in copies:
                copies[id(value)] = value.detach().to("cpu", copy=True)
            return copies[id(value)]
        if isinstance(value, Mapping):
            return {copy(key): copy(part) for key, part in value.items()}
        if isinstance(value, (list, tuple)):
            return (tuple if isinstance(value, tuple) else list)(map(copy, value))
        check_plain(state)
        raise AssertionError("what is not plain was refused above")

    return {key: copy(value) for key, value in state.items()}


def check_plain(value: Any, where: str = "state") -> None:
    """Raise unless `value` is made of tensors, numbers, strings, None, lists, tuples and dicts only."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_plain(key, f"{where}'s key {key!r}")
            check_plain(part, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for position, part in enumerate(value):
            check_plain(part, f"{where}[{position}]")
    elif type(value) not in _ATOMS | _TENSORS:
        raise CheckpointError(
            f"{where} is a {type(value).__name__}, which cannot be read back without executing code; "
            "keep tensors, numbers and strings in state_dict"
        )


def write_atomic(path: Path, content: bytes) -> None:
    """Replace the file at `path` by `content`, whole or not at all."""
    beside = path.with_name(path.name + ".writing")
    with beside.open("wb") as file:
        file.write(content)
        sync(file)
    beside.replace(path)
    sync_directory(path.parent)


def sync(file: IO[bytes]) -> None:
    """Wait until what was written to `file` is on the disk."""
    file.flush()
    os.fsync(file.fileno())


def sync_directory(directory: Path) -> None:
    """Wait until the directory's renames are on the disk, where the system can do that."""
    if os.name == "nt":  # directories cannot be opened there
        return
    descriptor = os.open(directory, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
