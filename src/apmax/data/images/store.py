"""Pixels of many images of one size: an array in memory, or a file that is mapped into it."""

from __future__ import annotations

import mmap
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

Pixels = npt.NDArray[np.uint8]
_RESIDENT = 256 << 20


class ImageStore:
    """Images (n, H, W, channels) of 8 bits.

    A mapped store goes to other processes as its path, so that workers share its pages and copy nothing.

    Args:
        pixels: The array; not copied.
        path: The .npy file that it is a map of, if it is one.

    Raises:
        ValueError: Not an array of that shape and type.

    >>> ImageStore(np.zeros((2, 32, 32, 3), np.uint8)).shape
    (32, 32, 3)
    """

    def __init__(self, pixels: Any, *, path: Path | None = None) -> None:
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 4:
            found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
            raise ValueError(f"pixels must be a uint8 array of shape (n, H, W, channels), got {found}")
        self.pixels: Pixels = pixels
        self.path = path
        self._touched = 0

    @classmethod
    def open(cls, path: str | PathLike[str]) -> ImageStore:
        """Return the images of an .npy file, mapped and not read."""
        file = Path(path).absolute()
        return cls(np.load(file, mmap_mode="r", allow_pickle=False), path=file)

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        height, width, channels = self.pixels.shape[1:]
        return height, width, channels

    def take(self, places: Any) -> Pixels:
        """Return a copy of these images, (B, H, W, channels)."""
        images = np.asarray(self.pixels[np.asarray(places, dtype=np.int64)])
        if self.path is not None:
            self._touched += images.nbytes
            if self._touched > _RESIDENT:
                self._let_go()
        return images

    def _let_go(self) -> None:
        """Unmap what was read, which stays in the system's cache but no longer counts as this process's memory."""
        self._touched = 0
        mapping = getattr(self.pixels, "_mmap", None)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is not None:
            return ImageStore.open, (self.path,)
        return ImageStore, (self.pixels,)
