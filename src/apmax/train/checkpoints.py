"""Checkpoints: their format, atomic writing, the background writer and the schedule.

A checkpoint is one file that `torch.load(path, weights_only=True)` reads without executing code. It holds tensors,
numbers, strings and None in nested dicts, lists and tuples. `load_checkpoint` verifies the CRC-32 of every record of
the archive before it reads anything, because torch itself does not.
"""

from __future__ import annotations

import io
import os
import time
import warnings
import zipfile
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from apmax import __version__
from apmax.folders import sync_directory, write_beside
from apmax.train.config import Checkpoints
from apmax.train.errors import CheckpointError, NotWrittenError
from apmax.validation import first_line

CHECKPOINT_FORMAT = "apmax checkpoint"
CHECKPOINT_VERSION = 1
_PLAIN_TYPES = frozenset((bool, int, float, str, type(None)))
_TENSOR_TYPES = frozenset((Tensor, torch.nn.Parameter))


def save_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write `state` to `path`; after a crash at any moment, `path` or the previous checkpoint is intact.

    The checkpoint that was at `path` is kept as `previous_checkpoint(path)`.

    Raises:
        CheckpointError: `state` holds an object that could not be read back without executing code.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "checkpoint.pt"
    >>> save_checkpoint(file, {"step": 3})
    >>> load_checkpoint(file)["step"]
    3
    """
    write_checkpoint(Path(path), encode_checkpoint(state))


def encode_checkpoint(state: Mapping[str, Any]) -> memoryview:
    """Return the bytes of a checkpoint of `state`, independent of later changes of its tensors.

    Raises:
        CheckpointError: `state` is no mapping, or holds an object that could not be read back without executing code.
    """
    if not isinstance(state, Mapping):
        raise CheckpointError(f"state must be a mapping of names to values, got a {type(state).__name__}")
    content = {
        "format": CHECKPOINT_FORMAT,
        "version": CHECKPOINT_VERSION,
        "apmax": __version__,
        "state": _plain_state(state, "state", {}),
    }
    buffer = io.BytesIO()
    torch.save(content, buffer)
    return buffer.getbuffer()


def _plain_state(value: Any, place: str, tensors: dict[int, tuple[Any, Tensor]]) -> Any:
    """Return `value` with mappings as dicts and tensors detached on the CPU; `tensors` maps ids to those converted."""
    kind = type(value)
    if kind in _PLAIN_TYPES:
        return value
    if kind in _TENSOR_TYPES:
        if id(value) not in tensors:
            # The original is kept too, so that its id is not reused.
            tensors[id(value)] = value, _compact(value.detach())
        return tensors[id(value)][1]
    if isinstance(value, Mapping):
        return {
            _plain_state(key, f"{place}'s key {key!r}", tensors): _plain_state(item, f"{place}.{key}", tensors)
            for key, item in value.items()
        }
    if isinstance(value, (list, tuple)):
        items = [_plain_state(item, f"{place}[{position}]", tensors) for position, item in enumerate(value)]
        return items if isinstance(value, list) else tuple(items)
    name = kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
    raise CheckpointError(
        f"{place} is a {name}, which cannot be read back without executing code; "
        "keep tensors, numbers and strings in state_dict"
    )


def _compact(value: Tensor) -> Tensor:
    """Return the tensor on the CPU; a view of a larger storage is copied, because torch would save all of it."""
    value = value.cpu()
    dense = value.layout == torch.strided and not value.is_quantized and not value.is_nested
    if dense and value.untyped_storage().nbytes() > value.numel() * value.element_size():
        return value.clone()
    return value


def load_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """Return the state saved at `path`, with all tensors on the CPU.

    If there is no file at `path`, the previous checkpoint is read.

    Raises:
        FileNotFoundError: There is neither.
        OSError: The file cannot be read.
        CheckpointError: The file is truncated, damaged, not written by apmax, or written by a newer apmax.
    """
    path = Path(path)
    previous = previous_checkpoint(path)
    if not path.exists() and previous.exists():
        path = previous
    if not path.exists():
        raise FileNotFoundError(f"no checkpoint at {path}")
    try:
        with path.open("rb") as file:
            _verify_archive(file)
            file.seek(0)
            return _read_state(file)
    except CheckpointError as error:
        previous = previous_checkpoint(path)
        hint = f"; the previous checkpoint is {previous}" if previous.exists() else ""
        raise CheckpointError(f"{path} {error}{hint}") from None


def _verify_archive(file: IO[bytes]) -> None:
    """Raise `CheckpointError` unless every record of the archive is intact."""
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
            irregular = [entry.filename for entry in archive.infolist() if not _is_regular(entry)]
    except Exception as error:
        # A damaged directory of the archive can make Python's reader fail in any way.
        raise CheckpointError(f"is truncated or not a checkpoint ({first_line(error)})") from None
    if damaged is not None or irregular:
        raise CheckpointError(f"is damaged: the record {damaged or irregular[0]} has changed since it was written")


def _is_regular(entry: zipfile.ZipInfo) -> bool:
    """Return whether a record has the attributes that torch writes; torch skips one that is marked as a directory."""
    return entry.compress_type == zipfile.ZIP_STORED and not entry.external_attr and not entry.flag_bits & 1


def _read_state(file: IO[bytes]) -> dict[str, Any]:
    """Return the state in an intact archive."""
    try:
        content = torch.load(file, map_location="cpu", weights_only=True)
    except (MemoryError, OSError):
        raise
    except Exception as error:
        # Whatever torch's restricted reader fails at, apmax did not write the file, and nothing was executed.
        raise CheckpointError(f"was not written by apmax ({first_line(error)})") from None
    if not isinstance(content, dict) or content.get("format") != CHECKPOINT_FORMAT:
        raise CheckpointError(f"was not written by apmax: it lacks the mark {CHECKPOINT_FORMAT!r}")
    version, state = content.get("version"), content.get("state")
    if not isinstance(version, int):
        raise CheckpointError(f"was not written by apmax: it has the mark {CHECKPOINT_FORMAT!r} but no version")
    if version > CHECKPOINT_VERSION:
        raise CheckpointError(
            f"was written by apmax {content.get('apmax')} (format {version}), which is newer than "
            f"this apmax {__version__} (format {CHECKPOINT_VERSION}): upgrade apmax to read it"
        )
    if not isinstance(state, dict):
        raise CheckpointError(f"was not written by apmax: it has the mark {CHECKPOINT_FORMAT!r} but no state")
    return state


def previous_checkpoint(path: str | os.PathLike[str]) -> Path:
    """Return the path of the checkpoint before the one at `path`.

    >>> previous_checkpoint("run/checkpoint.pt").name
    'checkpoint.previous.pt'
    """
    path = Path(path)
    return path.with_name(f"{path.stem}.previous{path.suffix}")


def write_checkpoint(path: Path, content: bytes | memoryview) -> None:
    """Write `content` to `path` and keep the file that was there as `previous_checkpoint(path)`.

    After a crash at any moment, `path` or `previous_checkpoint(path)` is intact if one of them was. The exception is
    a file system without hard links on which the file at `path` was damaged before.
    """
    written = write_beside(path, content)
    former = _link_former(path) if path.exists() else None
    written.replace(path)
    if former is not None:
        former.replace(previous_checkpoint(path))
    sync_directory(path.parent)


def _link_former(path: Path) -> Path | None:
    """Give the file at `path` a second name and return that; without hard links, rename it to the previous one."""
    former = path.with_name(path.name + ".former")
    former.unlink(missing_ok=True)
    try:
        os.link(path, former)
    except OSError:
        path.replace(previous_checkpoint(path))
        return None
    return former


class CheckpointWriter:
    """A thread that writes one checkpoint at a time to `path`; the next call of `collect` raises its errors.

    The thread starts with the first checkpoint. A program that ends during a write waits for it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.thread: ThreadPoolExecutor | None = None
        self.current: Future[float] | None = None

    @property
    def busy(self) -> bool:
        """Whether a checkpoint is being written."""
        return self.current is not None and not self.current.done()

    def submit(self, content: memoryview) -> None:
        """Start to write a checkpoint; requires `collect(wait=True)` before."""
        assert self.current is None, "one checkpoint at a time"
        self.thread = self.thread or ThreadPoolExecutor(max_workers=1, thread_name_prefix="checkpoint")
        self.current = self.thread.submit(_timed_write, self.path, content)

    def collect(self, *, wait: bool = False) -> float:
        """Return the seconds it took to write the checkpoint that has finished since the last call; 0 if none has.

        Args:
            wait: Wait for the checkpoint that is being written.

        Raises:
            NotWrittenError: The checkpoint could not be written.
        """
        if self.current is None or not (wait or self.current.done()):
            return 0.0
        error = self.current.exception()
        finished, self.current = self.current, None
        if error is not None:
            raise NotWrittenError(self.path, error) from error
        return finished.result()

    def close(self) -> None:
        """Wait for the last checkpoint and end the thread; an error that was not collected becomes a warning.

        Another checkpoint starts a new thread.
        """
        if self.thread is not None:
            self.thread.shutdown(wait=True)
            self.thread = None
        try:
            self.collect()
        except NotWrittenError as error:
            # Another exception is being raised, and the caller must see that one.
            warnings.warn(str(error), RuntimeWarning, stacklevel=2)


def _timed_write(path: Path, content: memoryview) -> float:
    """Write the checkpoint and return the seconds it took."""
    started = time.monotonic()
    write_checkpoint(path, content)
    return time.monotonic() - started


class CheckpointSchedule:
    """Decides when the next checkpoint is due."""

    def __init__(self, config: Checkpoints) -> None:
        self.config = config
        self.epoch, self.step, self.time, self.started = 0, 0, time.monotonic(), time.monotonic()
        self.spent = self.latest = 0.0
        # The cost of the first checkpoint is unknown; this is a cautious guess for a small model.
        self.cost = 0.05

    def due(self, step: int, *, epoch: int = 0, writing: bool = False) -> bool:
        """Return whether a checkpoint is due: by epochs, steps, seconds, or the share of time.

        While one is being written (`writing`), training would have to wait for it. Fixed numbers of epochs or steps
        are due nevertheless; the others are postponed.
        """
        now, config = time.monotonic(), self.config
        counts = ((config.every_epochs, epoch - self.epoch), (config.every_steps, step - self.step))
        if any(every is not None and passed >= every for every, passed in counts):
            return True
        if writing or (config.every_seconds is None and any(every is not None for every, _ in counts)):
            return False
        if config.every_seconds is not None:
            return now - self.time >= config.every_seconds
        return self.spent + self.cost <= config.share * (now - self.started)

    def saved(self, step: int, cost: float, *, epoch: int = 0) -> None:
        """Record a checkpoint and the seconds for which training waited for it."""
        self.epoch, self.step, self.time, self.latest = epoch, step, time.monotonic(), 0.0
        self.charge(cost)

    def charge(self, seconds: float) -> None:
        """Add further seconds to the cost of the latest checkpoint; the next is expected to cost the maximum so far.

        Seconds of background writing count in full: on a machine whose cores are all busy they delay training.
        """
        self.spent += seconds
        self.latest += seconds
        self.cost = max(self.cost, self.latest)
