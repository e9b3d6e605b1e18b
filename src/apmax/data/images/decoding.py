"""Image files decoded with Pillow to pixels of one size, by several processes, and their cache on disk."""

from __future__ import annotations

import errno
import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

import numpy as np

from apmax import extras, validation
from apmax.data.caching import cached_folder
from apmax.data.images.dataset import ImageStore, Pixels
from apmax.data.parallel import ordered, with_progress
from apmax.data.reading import ON_ERROR, UnreadableRow, describe_unreadable

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
FITS = ("stretch", "crop")
DECODER_VERSION = 2
"""Version of the pixels that a file gives: to be raised with every change of `Decoder`."""
IMAGES_PER_CHUNK = 32
"""Files that a process decodes at a time."""


@dataclass(frozen=True)
class Decoder:
    """Decoding of image files to square pixels.

    Args:
        size: Height and width of the result.
        fit: "stretch" resizes the whole image to the square; "crop" keeps its proportions and takes the middle.
    """

    size: int
    fit: str = "stretch"

    def __call__(self, path: str | Path) -> Pixels:
        """Return the image, (size, size, 3), rotated as its EXIF orientation says.

        Raises:
            OSError, ValueError: The file is missing, damaged, of a kind that does not fit 8 bits, or larger than
                Pillow's `Image.MAX_IMAGE_PIXELS` (89,478,485 pixels) by its header, before anything is decoded.
        """
        module = extras.load("PIL.Image", "images")
        operations = extras.load("PIL.ImageOps", "images")
        with warnings.catch_warnings():
            # Pillow warns of odd metadata; what it cannot decode it raises.
            warnings.simplefilter("ignore")
            with _open_image(path, module) as image:
                # A JPEG is decoded at 1/2, 1/4 or 1/8 of its size where that still leaves twice ours.
                image.draft("RGB", (2 * self.size, 2 * self.size))
                upright = operations.exif_transpose(_eight_bits(image, module)).convert("RGB")
        target = (self.size, self.size)
        if upright.size != target:
            sampling = module.Resampling.BILINEAR
            upright = (
                operations.fit(upright, target, sampling) if self.fit == "crop" else upright.resize(target, sampling)
            )
        return np.asarray(upright)


def _open_image(path: str | Path, module: Any) -> Any:
    """Return the image with its header read.

    Raises:
        ValueError: It has more than Pillow's largest number of pixels.
    """
    try:
        image = module.open(path)
    except module.DecompressionBombError as error:  # from twice the limit on
        numbers = re.findall(r"\d+", str(error))
        raise ValueError(_too_large(int(numbers[0]) if numbers else None, module)) from None
    pixels, limit = image.size[0] * image.size[1], module.MAX_IMAGE_PIXELS
    if limit is not None and pixels > limit:
        image.close()
        raise ValueError(_too_large(pixels, module))
    return image


def _too_large(pixels: int | None, module: Any) -> str:
    found = "too many pixels" if pixels is None else f"{pixels:,} pixels"
    return f"{found}, more than {module.MAX_IMAGE_PIXELS:,} (Pillow's MAX_IMAGE_PIXELS): make it smaller"


def _eight_bits(image: Any, module: Any) -> Any:
    if image.mode == "F":
        raise ValueError("its pixels are floating numbers of unknown range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        # Pillow's own conversion would cut everything above 255 off.
        deep = np.asarray(image)
        # 16-bit grey (in a PNG "I" for older versions of Pillow) is scaled alike in all images, dark or light. 32-bit
        # grey may hold 8-bit values, which only the values themselves can show.
        is_16_bit = image.mode.startswith("I;16") or image.format == "PNG"
        divisor = 256 if is_16_bit or deep.max() > 255 else 1
        return module.fromarray((np.clip(deep, 0, 65535) // divisor).astype(np.uint8))
    return image


_LASTING_ERRORS = (errno.ENOENT, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG)
"""Errors of the system that come again as long as the same is at the path; if that changes, so does the cache's key."""


class _PassingFailure(UnreadableRow):
    """A row that may be readable later, with the same key, as when too many files were open."""


Part = tuple[int, Sequence[str]]
"""The row of the first file, and the files."""


def _decode_files(decoder: Decoder, part: Part) -> Iterator[tuple[int, Pixels | UnreadableRow]]:
    """Yield the row of each file with its pixels, or the unreadable row."""
    first, paths = part
    for row, path in enumerate(paths, start=first):
        yield row, _pixels_of(decoder, row, path)


def _pixels_of(decoder: Decoder, row: int, path: str) -> Pixels | UnreadableRow:
    try:
        return decoder(path)
    except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
        number = error.errno if isinstance(error, OSError) else None  # Pillow's own errors have no number
        passing = number is not None and number not in _LASTING_ERRORS
        return (_PassingFailure if passing else UnreadableRow)(row, path, _reason(error, path))


@dataclass(frozen=True)
class WriteChunk:
    """Decodes files and writes their pixels to their places in an .npy file of the final length."""

    decoder: Decoder
    file: Path
    offset: int

    def __call__(self, part: Part) -> tuple[int, list[UnreadableRow]]:
        """Return the number of files and the unreadable ones, whose places stay black."""
        failed = []
        each = self.decoder.size**2 * 3
        with self.file.open("r+b") as file:
            for row, found in _decode_files(self.decoder, part):
                if isinstance(found, UnreadableRow):
                    failed.append(found)
                    continue
                file.seek(self.offset + row * each)
                file.write(found.tobytes())
        return len(part[1]), failed


@dataclass(frozen=True)
class DecodedImages:
    """A chunk of files: their number, the rows that could be decoded, their pixels, and the unreadable rows."""

    total: int
    rows: list[int]
    pixels: list[Pixels]
    unreadable: list[UnreadableRow]

    def __add__(self, other: DecodedImages) -> DecodedImages:
        return DecodedImages(
            self.total + other.total,
            self.rows + other.rows,
            self.pixels + other.pixels,
            self.unreadable + other.unreadable,
        )


@dataclass(frozen=True)
class DecodeChunk:
    """Decodes some files to arrays."""

    decoder: Decoder

    def __call__(self, part: Part) -> DecodedImages:
        """Return the decoded images and the unreadable rows."""
        found = list(_decode_files(self.decoder, part))
        good = [(row, pixels) for row, pixels in found if not isinstance(pixels, UnreadableRow)]
        bad = [_plain(item) for _, item in found if isinstance(item, UnreadableRow)]
        return DecodedImages(len(part[1]), [row for row, _ in good], [pixels for _, pixels in good], bad)


def _plain(item: UnreadableRow) -> UnreadableRow:
    return UnreadableRow(item.row, item.value, item.reason)


def _reason(error: Exception, path: str) -> str:
    if not path:
        return "no path: the cell is empty"
    if isinstance(error, FileNotFoundError):
        return "no such file"
    if isinstance(error, IsADirectoryError):
        return "a folder, not a file"
    text = str(error).replace(path, "").replace(" ''", "").strip()
    return text.splitlines()[0] if text else type(error).__name__


def write_chunks(
    write: WriteChunk, paths: Sequence[str], *, workers: int = 1
) -> Iterator[tuple[int, list[UnreadableRow]]]:
    """Yield what `write` returns for every chunk, in order, computed by `workers` processes.

    A process that dies (out of memory, killed, a crash in a decoder) is an error here and not a hang.
    """
    return ordered(write, _parts(paths), workers=_processes(paths, workers))


def decode_stream(decoder: Decoder, paths: Sequence[str], *, most: int, workers: int = 1) -> Iterator[DecodedImages]:
    """Yield the images of the files in order, at most about `most` at a time; nothing is kept.

    `workers` processes decode the next ones meanwhile.
    """
    gathered = DecodedImages(0, [], [], [])
    for chunk in ordered(DecodeChunk(decoder), _parts(paths), workers=_processes(paths, workers)):
        gathered = gathered + chunk
        if gathered.total + IMAGES_PER_CHUNK > most:
            yield gathered
            gathered = DecodedImages(0, [], [], [])
    if gathered.total:
        yield gathered


def _parts(paths: Sequence[str]) -> Iterator[Part]:
    return ((first, paths[first : first + IMAGES_PER_CHUNK]) for first in range(0, len(paths), IMAGES_PER_CHUNK))


def _processes(paths: Sequence[str], workers: int) -> int:
    return workers if len(paths) > IMAGES_PER_CHUNK else 1


def shape_of(path: str | Path) -> tuple[int, int] | None:
    """Return width and height from the header of a file, without decoding it; None if it cannot be read."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # one of too many pixels is refused when it is decoded
            with extras.load("PIL.Image", "images").open(path) as image:
                width, height = image.size
                return width, height
    except ModuleNotFoundError:
        raise
    except Exception:  # as above: a damaged head may raise anything, and is reported when it is decoded
        return None


_PIXELS = "pixels.npy"


@dataclass(frozen=True)
class Decoded:
    """All images, black where a file cannot be read, and the unreadable rows."""

    store: ImageStore
    unreadable: list[UnreadableRow]


def image_cache_key(paths: Sequence[str], decoder: Decoder) -> str:
    """Return the key of the cache of these files, which depends on their paths, sizes and times of change.

    Pillow's version is part of it, and its settings that decide which files can be read.
    """
    pillow = extras.load("PIL", "images").__version__
    limit = extras.load("PIL.Image", "images").MAX_IMAGE_PIXELS
    truncated = extras.load("PIL.ImageFile", "images").LOAD_TRUNCATED_IMAGES
    settings = f"{DECODER_VERSION} {pillow} {limit} {bool(truncated)} {decoder.size} {decoder.fit}"
    digest = blake2b(settings.encode(), digest_size=16)
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

    They are decoded again if the system failed to read one (access denied, an error of the disk, too many open files).
    Memory does not grow with the number of images: they are written to the disk one by one, and memory-mapped.

    Args:
        paths: One file per row.
        size: Height and width in pixels.
        fit: "stretch" or "crop", as in `Decoder`.
        cache: The folder of caches; by default `cache_directory()`.
        on_error: "raise", or "skip" to report files that cannot be read and leave their places black.
        workers: The number of processes that decode.
        progress: Show a progress bar; by default where the error stream is a terminal.

    Raises:
        ValueError: No file can be read, or any cannot with `on_error="raise"`.
        OSError: The disk is full.
    """
    validation.choice("on_error", on_error, ON_ERROR)
    validation.whole("workers", workers, 1)
    decoder = Decoder(validation.whole("size", size, 1), validation.choice("fit", fit, FITS))
    if len(paths) == 0:
        raise ValueError("paths must name at least one image, got none")

    def write(folder: Path) -> list[UnreadableRow]:
        unreadable = _write_pixels(folder, paths, decoder, workers=workers, progress=progress)
        if not _lasts(unreadable):
            # Before pixels are kept that nobody will read.
            _check_readable(unreadable, len(paths), on_error)
        return unreadable

    folder, unreadable = cached_folder(f"images-{image_cache_key(paths, decoder)}", write, cache, lasts=_lasts)
    _check_readable(unreadable, len(paths), on_error)
    return Decoded(ImageStore.open(folder / _PIXELS), [_plain(item) for item in unreadable])


def _lasts(unreadable: Sequence[UnreadableRow]) -> bool:
    return not any(isinstance(item, _PassingFailure) for item in unreadable)


def _check_readable(unreadable: Sequence[UnreadableRow], total: int, on_error: str) -> None:
    if unreadable and (on_error == "raise" or len(unreadable) == total):
        hint = "; on_error='skip' leaves them out" if len(unreadable) < total else ""
        raise ValueError(describe_unreadable(unreadable, total, "images") + hint)


def _write_pixels(
    folder: Path, paths: Sequence[str], decoder: Decoder, *, workers: int, progress: bool | None
) -> list[UnreadableRow]:
    file = folder / _PIXELS
    offset = _reserve(file, len(paths), decoder.size)
    chunks = write_chunks(WriteChunk(decoder, file, offset), paths, workers=workers)
    shown = with_progress(
        chunks, len(paths), label="decoding images", size=lambda chunk: chunk[0], progress=progress, extra="images"
    )
    unreadable = [item for _, failed in shown for item in failed]
    with file.open("r+b") as stream:
        os.fsync(stream.fileno())
    return unreadable


def _reserve(file: Path, count: int, size: int) -> int:
    """Make an .npy file of black images, and return the offset of its pixels."""
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
