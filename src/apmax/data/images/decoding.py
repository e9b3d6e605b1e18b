"""From a file to pixels of one size, with Pillow; by several processes."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from apmax import extras
from apmax.data.caching import ordered
from apmax.data.images.store import Pixels
from apmax.data.reading import UnreadableRow

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
FITS = ("stretch", "crop")
CHUNK = 32
"""Files that a process decodes at a time."""


@dataclass(frozen=True)
class Decoder:
    """How a file becomes pixels.

    Args:
        size: Height and width of the result.
        fit: "stretch" resizes the whole image to the square; "crop" keeps its proportions and takes the middle.
    """

    size: int
    fit: str = "stretch"

    def __call__(self, path: str | Path) -> Pixels:
        """Return the image, (size, size, 3), upright as its camera says.

        Raises:
            OSError, ValueError: The file is missing, damaged, or of a kind that does not fit 8 bits.
        """
        module = extras.load("PIL.Image", "images")
        operations = extras.load("PIL.ImageOps", "images")
        with warnings.catch_warnings():
            # Pillow warns of odd metadata; what it cannot decode it raises.
            warnings.simplefilter("ignore")
            with module.open(path) as image:
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


def _eight_bits(image: Any, module: Any) -> Any:
    if image.mode == "F":
        raise ValueError("its pixels are floating numbers of unknown range; save it with 8 or 16 bits")
    if image.mode.startswith("I"):
        # Pillow's own conversion would cut everything above 255 off.
        deep = np.asarray(image).astype(np.int64)
        return module.fromarray((np.clip(deep, 0, 65535) // (256 if deep.max() > 255 else 1)).astype(np.uint8))
    return image


Part = tuple[int, Sequence[str]]
"""The row of the first file, and the files."""


def decoded(decoder: Decoder, part: Part) -> Iterator[tuple[int, Pixels | UnreadableRow]]:
    """Yield the row of each file with its pixels, or with why it has none."""
    first, paths = part
    for row, path in enumerate(paths, start=first):
        yield row, _pixels_of(decoder, row, path)


def _pixels_of(decoder: Decoder, row: int, path: str) -> Pixels | UnreadableRow:
    try:
        return decoder(path)
    except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
        return UnreadableRow(row, path, _reason(error, path))


@dataclass(frozen=True)
class WriteChunk:
    """Decodes some files and writes them to their places in a .npy file that is already as long as it will be."""

    decoder: Decoder
    file: Path
    offset: int

    def __call__(self, part: Part) -> tuple[int, list[UnreadableRow]]:
        """Return how many files there were, and those that could not be read; their places stay black."""
        failed = []
        each = self.decoder.size**2 * 3
        with self.file.open("r+b") as file:
            for row, found in decoded(self.decoder, part):
                if isinstance(found, UnreadableRow):
                    failed.append(found)
                    continue
                file.seek(self.offset + row * each)
                file.write(found.tobytes())
        return len(part[1]), failed


@dataclass(frozen=True)
class Images:
    """Some decoded files: how many there were, the rows that could be read, their pixels, and the others."""

    total: int
    rows: list[int]
    pixels: list[Pixels]
    unreadable: list[UnreadableRow]

    def __add__(self, other: Images) -> Images:
        return Images(
            self.total + other.total,
            self.rows + other.rows,
            self.pixels + other.pixels,
            self.unreadable + other.unreadable,
        )


@dataclass(frozen=True)
class DecodeChunk:
    """Decodes some files to arrays."""

    decoder: Decoder

    def __call__(self, part: Part) -> Images:
        """Return what could be read and what could not."""
        found = list(decoded(self.decoder, part))
        good = [(row, pixels) for row, pixels in found if not isinstance(pixels, UnreadableRow)]
        bad = [item for _, item in found if isinstance(item, UnreadableRow)]
        return Images(len(part[1]), [row for row, _ in good], [pixels for _, pixels in good], bad)


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


def decode_stream(decoder: Decoder, paths: Sequence[str], *, most: int, workers: int = 1) -> Iterator[Images]:
    """Yield the images of the files in order, at most about `most` at a time; nothing is kept.

    The next ones are decoded by `workers` processes while the caller looks at these.
    """
    gathered = Images(0, [], [], [])
    for chunk in ordered(DecodeChunk(decoder), _parts(paths), workers=_processes(paths, workers)):
        gathered = gathered + chunk
        if gathered.total + CHUNK > most:
            yield gathered
            gathered = Images(0, [], [], [])
    if gathered.total:
        yield gathered


def _parts(paths: Sequence[str]) -> Iterator[Part]:
    return ((first, paths[first : first + CHUNK]) for first in range(0, len(paths), CHUNK))


def _processes(paths: Sequence[str], workers: int) -> int:
    return workers if len(paths) > CHUNK else 1


def shape_of(path: str | Path) -> tuple[int, int] | None:
    """Return width and height as the file's head has them, without decoding it; None where it has none."""
    try:
        with extras.load("PIL.Image", "images").open(path) as image:
            width, height = image.size
            return width, height
    except ModuleNotFoundError:
        raise
    except Exception:  # as above: a damaged head may raise anything, and is reported when it is decoded
        return None
