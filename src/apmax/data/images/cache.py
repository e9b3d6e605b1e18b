"""Decoded images on disk: made once per files and size, whole or not at all, by however many processes at a time."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

import numpy as np

from apmax import extras, validation
from apmax.data.caching import cache_directory, filled_beside, with_progress
from apmax.data.images.decoding import FITS, Decoder, WriteChunk, write_chunks
from apmax.data.images.store import ImageStore
from apmax.data.reading import ON_ERROR, UnreadableRow, describe_unreadable

DECODER_VERSION = 1
"""Of how files become pixels: to be raised with every change of `Decoder`."""
_PIXELS, _UNREADABLE = "pixels.npy", "unreadable.json"


@dataclass(frozen=True)
class Decoded:
    """All images, black where a file could not be read, and those files."""

    store: ImageStore
    unreadable: list[UnreadableRow]


def content_key(paths: Sequence[str], decoder: Decoder) -> str:
    """Return the name of the cache of these files: another path, length, time of change or size, another name."""
    pillow = extras.load("PIL", "images").__version__
    digest = blake2b(f"{DECODER_VERSION} {pillow} {decoder.size} {decoder.fit}".encode(), digest_size=16)
    for path in paths:
        try:
            state = Path(path).stat()
            mark = f"{state.st_size} {state.st_mtime_ns}"
        except OSError:
            mark = "missing"
        digest.update(f"\n{os.path.abspath(path)}\0{mark}".encode(errors="surrogateescape"))  # noqa: PTH100 - no I/O
    return digest.hexdigest()


def decode_all(
    paths: Sequence[str],
    size: int,
    *,
    fit: str = "stretch",
    cache: str | os.PathLike[str] | None = None,
    on_error: str = "raise",
    workers: int = 2,
    progress: bool | None = None,
) -> Decoded:
    """Return the images of these files, from the cache if they were decoded before.

    The first to finish puts its directory in place by one rename; another that made the same discards its own.
    Memory does not grow with the number of images: they are written to the disk one by one, and mapped.

    Args:
        paths: One file per row.
        size: Height and width in pixels.
        fit: "stretch" or "crop", as in `Decoder`.
        cache: The folder of caches; by default `cache_directory()`.
        on_error: "raise" refuses if any file cannot be read; "skip" reports it and leaves its place black.
        workers: Processes that decode.
        progress: Show a progress bar; by default where the error stream is a terminal.

    Raises:
        ValueError: No file could be read, or any could not with `on_error="raise"`; with names and reasons.
        OSError: The disk is full.
    """
    validation.choice("on_error", on_error, ON_ERROR)
    validation.whole("workers", workers, 1)
    decoder = Decoder(validation.whole("size", size, 1), validation.choice("fit", fit, FITS))
    if len(paths) == 0:
        raise ValueError("paths must name at least one image, got none")
    folder = Path(cache) if cache is not None else cache_directory()
    place = folder / f"images-{content_key(paths, decoder)}"
    if not place.exists():
        _write(place, paths, decoder, workers=workers, progress=progress)
    entries = json.loads((place / _UNREADABLE).read_text(encoding="utf-8"))
    unreadable = [UnreadableRow(*entry.values()) for entry in entries]
    if unreadable and (on_error == "raise" or len(unreadable) == len(paths)):
        hint = "; on_error='skip' leaves them out" if len(unreadable) < len(paths) else ""
        raise ValueError(describe_unreadable(unreadable, len(paths), "images") + hint)
    return Decoded(ImageStore.open(place / _PIXELS), unreadable)


def _write(place: Path, paths: Sequence[str], decoder: Decoder, *, workers: int, progress: bool | None) -> None:
    def size(chunk: tuple[int, list[UnreadableRow]]) -> int:
        return chunk[0]

    with filled_beside(place) as beside:
        file = beside / _PIXELS
        offset = _reserve(file, len(paths), decoder.size)
        chunks = write_chunks(WriteChunk(decoder, file, offset), paths, workers=workers)
        shown = with_progress(chunks, len(paths), label="decoding images", size=size, progress=progress, extra="images")
        unreadable = [item for _, failed in shown for item in failed]
        with file.open("r+b") as stream:
            os.fsync(stream.fileno())
        text = json.dumps([asdict(item) for item in unreadable])
        (beside / _UNREADABLE).write_text(text, encoding="utf-8")


def _reserve(file: Path, count: int, size: int) -> int:
    """Make an .npy file of that many black images, and return where its pixels begin."""
    shape = (count, size, size, 3)
    with file.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "|u1", "fortran_order": False, "shape": shape})
        offset = stream.tell()
        total = count * size * size * 3
        stream.truncate(offset + total)
        if hasattr(os, "posix_fallocate"):
            try:
                # A full disk is found now and not after an hour.
                os.posix_fallocate(stream.fileno(), offset, total)
            except OSError as error:
                if error.errno == errno.ENOSPC:
                    raise OSError(errno.ENOSPC, f"{total / 1e9:.1f} GB are needed for decoded images", file) from None
    return offset
