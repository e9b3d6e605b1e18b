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

ENDINGS = (".jpg", ".jpeg", ".png", ".bmp", ".gif", ".tif", ".tiff", ".webp")
FITS = ("stretch", "crop")
CHUNK = 32
"""Files that a process decodes at a time."""


@dataclass(frozen=True)
class Unreadable:
    """A file that could not be decoded, and why."""

    row: int
    name: str
    reason: str


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


@dataclass(frozen=True)
class WriteChunk:
    """Decodes some files and writes them to their places in a .npy file that is already as long as it will be."""

    decoder: Decoder
    file: Path
    offset: int

    def __call__(self, part: tuple[int, Sequence[str]]) -> tuple[int, list[Unreadable]]:
        """Return how many files there were, and those that could not be read; their places stay black."""
        first, paths = part
        failed = []
        each = self.decoder.size**2 * 3
        with self.file.open("r+b") as file:
            for row, path in enumerate(paths, start=first):
                try:
                    pixels = self.decoder(path)
                except Exception as error:  # Pillow's decoders raise whatever a damaged file leads them to
                    failed.append(Unreadable(row, path, _reason(error, path)))
                    continue
                file.seek(self.offset + row * each)
                file.write(pixels.tobytes())
        return len(paths), failed


def _reason(error: Exception, path: str) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    text = str(error).replace(path, "").replace(" ''", "").strip()
    return text.splitlines()[0] if text else type(error).__name__


def write_chunks(
    write: WriteChunk, paths: Sequence[str], *, workers: int = 1
) -> Iterator[tuple[int, list[Unreadable]]]:
    """Yield what `write` returns for every chunk, in order, computed by `workers` processes.

    A process that dies (out of memory, killed, a crash in a decoder) is an error here and not a hang.
    """
    parts = ((first, paths[first : first + CHUNK]) for first in range(0, len(paths), CHUNK))
    return ordered(write, parts, workers=workers if len(paths) > CHUNK else 1)
