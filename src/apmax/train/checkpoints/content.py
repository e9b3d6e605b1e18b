"""How a state becomes the content of a checkpoint, and how that is read.

A checkpoint is one file of what `torch.load(path, weights_only=True)` reads without executing code: a dict with an
outline of the state, in which marks stand for small tensors, and the vectors in which these lie; `load` puts them
together. The archive's CRC-32 of every record is verified before anything is read, because torch itself does not look
at it.
"""

from __future__ import annotations

import io
import os
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import torch

from apmax import __version__
from apmax.train.checkpoints.disk import previous, write
from apmax.train.checkpoints.failures import CheckpointError
from apmax.train.checkpoints.packing import packed, unpacked

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
        CheckpointError: `state` is no mapping, or holds an object that could not be read back without executing code.
    """
    if not isinstance(state, Mapping):
        raise CheckpointError(f"state must be a mapping of names to values, got a {type(state).__name__}")
    outline, vectors = packed(state)
    content = {"format": FORMAT, "version": VERSION, "apmax": __version__, "state": outline, "vectors": vectors}
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getbuffer()


def load(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state saved at `path`, with all tensors on the CPU.

    If there is none but the one before is, that stands in for it.

    Raises:
        FileNotFoundError: There is none.
        OSError: It cannot be read.
        CheckpointError: Truncated, damaged, not written by apmax, or written by a newer apmax.
    """
    path = Path(path)
    if not path.exists() and previous(path).exists():
        path = previous(path)
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        with path.open("rb") as file:
            check_whole(file)
            file.seek(0)
            return read(file)
    except CheckpointError as error:
        hint = f"; the one before it is {previous(path)}" if previous(path).exists() else ""
        raise CheckpointError(f"{path} {error}{hint}") from None


def check_whole(file: IO[bytes]) -> None:
    """Raise unless every record of the archive is what was written."""
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
            odd = [entry.filename for entry in archive.infolist() if not is_plain_record(entry)]
    except Exception as error:
        # A damaged directory of the archive can make Python's reader fail in any way.
        raise CheckpointError(f"is truncated or not a checkpoint ({first_line(error)})") from None
    if damaged is not None or odd:
        raise CheckpointError(f"is damaged: {damaged or odd[0]} is not as it was written")


def is_plain_record(entry: zipfile.ZipInfo) -> bool:
    """Tell whether a record has the attributes that torch gives it; it would skip what is marked as a directory."""
    return entry.compress_type == zipfile.ZIP_STORED and not entry.external_attr and not entry.flag_bits & 1


def read(file: IO[bytes]) -> dict[str, Any]:
    """Return the state in a whole file, if this apmax or an older one wrote it."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (MemoryError, OSError):
        raise
    except Exception as error:
        # Whatever torch's restricted reader trips over, the file is not one of ours, and nothing was executed.
        raise CheckpointError(f"was not written by apmax ({first_line(error)})") from None
    if not isinstance(content, dict) or content.get("format") != FORMAT:
        raise CheckpointError(f"was not written by apmax: it lacks the mark {FORMAT!r}")
    version, state = content.get("version"), content.get("state")
    if not isinstance(version, int) or not isinstance(state, dict):
        raise CheckpointError(f"was not written by apmax: it has the mark {FORMAT!r} but no version and state")
    if version > VERSION:
        raise CheckpointError(
            f"was written by apmax {content.get('apmax')} (format {version}), which is newer than "
            f"this apmax {__version__} (format {VERSION}): upgrade apmax to read it"
        )
    if version < 3:  # every tensor stood in its place
        return state
    try:
        return unpacked(state, content["vectors"])
    except (AttributeError, LookupError, RuntimeError, TypeError, ValueError) as error:
        raise CheckpointError(f"was not written by apmax ({first_line(error)})") from None


def first_line(error: Exception) -> str:
    """Return what an error says, or what it is, in one line."""
    return str(error).splitlines()[0] if str(error) else type(error).__name__
