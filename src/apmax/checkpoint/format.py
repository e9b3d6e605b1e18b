"""How a state becomes the content of a checkpoint, and how that is read.

A checkpoint is one file that `torch.load(path, weights_only=True)` can read: tensors, numbers, strings, lists and
dicts. The archive's CRC-32 of every record is verified before anything is read, because torch itself does not look
at it.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from apmax import __version__
from apmax.checkpoint.disk import previous, write
from apmax.checkpoint.failures import CheckpointError
from apmax.checkpoint.packing import packed, unpacked

FORMAT = "apmax-checkpoint"
VERSION = 3
"""1: records were a list of tables. 2: they are lines of JSON. 3: small tensors lie together. All three are read."""


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
    write(Path(path), encoded(state))


def encoded(state: Mapping[str, Any]) -> memoryview:
    """Return the content of the checkpoint of `state`, for another thread to write.

    Raises:
        CheckpointError: `state` holds an object that could not be read back without executing code.
    """
    outline, vectors = packed(state)
    content = {"format": FORMAT, "version": VERSION, "apmax": __version__, "state": outline, "vectors": vectors}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getbuffer()


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
    try:
        check_whole(path)
        return read(path, map_location)
    except CheckpointError as error:
        hint = f"; the one before it is {previous(path)}" if previous(path).exists() else ""
        raise CheckpointError(f"{path} {error}{hint}") from None


def check_whole(path: Path) -> None:
    """Raise unless every record of the archive is what was written."""
    try:
        with zipfile.ZipFile(path) as archive:
            damaged = archive.testzip()
    except (zipfile.BadZipFile, EOFError, OSError, NotImplementedError) as error:
        raise CheckpointError(f"is truncated or not a checkpoint ({error})") from None
    if damaged is not None:
        raise CheckpointError(f"is damaged: the checksum of {damaged} does not match")


def read(path: Path, map_location: Any) -> dict[str, Any]:
    """Return the state in a whole file, if this apmax or an older one wrote it."""
    try:
        content = torch.load(path, map_location=map_location, weights_only=True)
    except Exception as error:
        # Whatever torch's restricted reader trips over, the file is not one of ours, and nothing was executed.
        raise CheckpointError(f"was not written by apmax ({first_line(error)})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"was not written by apmax: it lacks the mark {FORMAT!r}")
    if content["version"] > VERSION:
        raise CheckpointError(
            f"was written by apmax {content['apmax']} (format {content['version']}), which is newer than "
            f"this apmax {__version__} (format {VERSION}): upgrade apmax to read it"
        )
    if content["version"] < 3:  # every tensor stood in its place
        state: dict[str, Any] = content["state"]
        return state
    try:
        return unpacked(content["state"], content["vectors"])
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"was not written by apmax ({first_line(error)})") from None


def first_line(error: Exception) -> str:
    """Return what an error says, or what it is, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
