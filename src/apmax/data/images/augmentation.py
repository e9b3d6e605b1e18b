"""Seeded augmentation and normalisation of batches of images.

The random numbers of an image are a function of (seed, epoch, row): the same in every process and after a resume.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from apmax import validation

Draws = npt.NDArray[np.float64]
# Every operation has its column, so that switching one on or off does not change the draws of the others.
_TOP, _LEFT, _FLIP, _UPSIDE, _AREA, _ASPECT, _BRIGHTNESS, _CONTRAST, _SATURATION = range(9)
DRAWS = 9
_GREY = (0.299, 0.587, 0.114)
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(seed: int, epoch: int, rows: npt.ArrayLike, count: int) -> Draws:
    """Return `count` random numbers in [0, 1) for each row, (rows, count), by the chained finaliser of splitmix64.

    Column k of a row depends on (seed, epoch, row, k) only, not on the other rows and not on `count`.

    >>> uniforms(0, 1, [5, 6], 2).round(3).tolist() == uniforms(0, 1, [6, 5], 3)[::-1, :2].round(3).tolist()
    True
    """
    mask = (1 << 64) - 1
    state = _mix(_GOLDEN ^ np.array([seed & mask], dtype=np.uint64))
    state = _mix(state ^ np.array([epoch & mask], dtype=np.uint64))
    state = _mix(state ^ np.asarray(rows, dtype=np.int64).astype(np.uint64))
    table = _mix(state[:, None] ^ np.arange(count, dtype=np.uint64))
    # A double holds 53 bits.
    numbers: Draws = (table >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _mix(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed


@dataclass(frozen=True)
class Augment:
    """Random changes of training images.

    Args:
        pad: Pad by that many black pixels on each side and crop to the old size.
        flip: Mirror left and right, half of the time.
        upside_down: Mirror top and bottom, half of the time; for images without an upright direction, such as of skin.
        area: Crop a rectangle of a share of the area between these, and resize it to the old size.
        aspect: The rectangle's width / height lies between these, relative to the image's.
        brightness: The image is multiplied by a factor between 1 ± this.
        contrast: It is blended with its mean grey by such a factor.
        saturation: It is blended with its own grey by such a factor.

    Raises:
        ValueError: An argument out of range, or both `pad` and `area`.

    >>> Augment(pad=4).geometry(torch.zeros(2, 32, 32, 3, dtype=torch.uint8), np.full((2, DRAWS), 0.5)).shape
    torch.Size([2, 32, 32, 3])
    """

    pad: int = 0
    flip: bool = True
    upside_down: bool = False
    area: tuple[float, float] | None = None
    aspect: tuple[float, float] = (3 / 4, 4 / 3)
    brightness: float = 0.0
    contrast: float = 0.0
    saturation: float = 0.0

    def __post_init__(self) -> None:
        validation.whole("pad", self.pad)
        for name in ("brightness", "contrast", "saturation"):
            validation.interval(name, getattr(self, name), 0, 1)
        _range("aspect", self.aspect, math.inf)
        if self.area is not None:
            _range("area", self.area, 1.0)
            if self.pad:
                raise ValueError("pad and area are two ways to crop: give one of them")

    def geometry(self, images: Tensor, draws: Draws) -> Tensor:
        """Crop and mirror uint8 images (B, H, W, channels); return a new tensor of that shape."""
        if self.area is not None:
            moved = self._resized(images, draws)
        else:
            moved = self._shifted(images, draws) if self.pad else images.clone()
        if self.flip:
            _mirror(moved, 2, draws[:, _FLIP])
        if self.upside_down:
            _mirror(moved, 1, draws[:, _UPSIDE])
        return moved

    @property
    def recolours(self) -> bool:
        """Whether `colour` does anything."""
        return bool(self.brightness or self.contrast or self.saturation)

    def colour(self, images: Tensor, draws: Draws) -> None:
        """Change brightness, contrast and saturation of floating images (B, channels, H, W) of 0 to 255, in place.

        Only operations that round each element on its own, and sums by one thread, so that a process with more
        threads computes the same bits.

        Raises:
            ValueError: Contrast or saturation of images that have not three channels.
        """
        if (self.contrast or self.saturation) and images.shape[1] != 3:
            raise ValueError(f"contrast and saturation need images of 3 channels, got {images.shape[1]}")
        spreads = np.array([self.brightness, self.contrast, self.saturation])
        factors = 1 + spreads * (2 * draws[:, _BRIGHTNESS : _SATURATION + 1] - 1)
        for image, (brightness, contrast, saturation) in zip(images, factors.tolist(), strict=True):
            if self.brightness:
                image.mul_(brightness).clamp_(max=255)
            if self.contrast:
                means = image.numpy().mean((1, 2), dtype=np.float64)
                image.mul_(contrast).add_((1 - contrast) * float(means @ _GREY)).clamp_(0, 255)
            if self.saturation:
                red, green, blue = (channel * weight for channel, weight in zip(image, _GREY, strict=True))
                image.mul_(saturation).add_(red.add_(green).add_(blue).mul_(1 - saturation)).clamp_(0, 255)

    def _shifted(self, images: Tensor, draws: Draws) -> Tensor:
        count, height, width, channels = images.shape
        pad, places = self.pad, 2 * self.pad + 1
        padded = np.zeros((count, height + 2 * pad, width + 2 * pad, channels), np.uint8)
        padded[:, pad : pad + height, pad : pad + width] = images.numpy()
        top, left = ((draws[:, column] * places).astype(np.int64) for column in (_TOP, _LEFT))
        # A line of a crop is a run of bytes of the padded lines; all runs are gathered at once.
        line = np.arange(count)[:, None] * (height + 2 * pad) + top[:, None] + np.arange(height)
        starts = (line * (width + 2 * pad) + left[:, None]) * channels
        runs = np.lib.stride_tricks.sliding_window_view(padded.reshape(-1), width * channels)
        return torch.from_numpy(runs[starts].reshape(images.shape))

    def _resized(self, images: Tensor, draws: Draws) -> Tensor:
        assert self.area is not None
        _, height, width, _ = images.shape
        share = self.area[0] + (self.area[1] - self.area[0]) * draws[:, _AREA]
        low, high = (math.log(end) for end in self.aspect)
        aspect = np.exp(low + (high - low) * draws[:, _ASPECT])
        rows = np.clip(np.rint(height * np.sqrt(share / aspect)), 1, height).astype(np.int64)
        columns = np.clip(np.rint(width * np.sqrt(share * aspect)), 1, width).astype(np.int64)
        tops = (draws[:, _TOP] * (height - rows + 1)).astype(np.int64)
        lefts = (draws[:, _LEFT] * (width - columns + 1)).astype(np.int64)
        result = torch.empty_like(images)
        # Rectangles of different sizes: each is resized on its own, in 8 bits.
        for number, (top, left, tall, wide) in enumerate(zip(tops, lefts, rows, columns, strict=True)):
            # torch resizes 8-bit images that keep a pixel's channels together twice as fast.
            part = images[number, top : top + tall, left : left + wide].contiguous().permute(2, 0, 1)[None]
            resized = nn.functional.interpolate(part, (height, width), mode="bilinear", antialias=True)
            result[number] = resized[0].permute(1, 2, 0)
        return result


@dataclass(frozen=True)
class Normalise:
    """Normalisation per channel: (value / 255 − mean) / std of values of 0 to 255.

    >>> Normalise((0.5,), (0.25,))(torch.tensor([[[[0.0], [255.0]]]])).flatten()
    tensor([-2.,  2.])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(f"mean and std must be one number per channel, std positive, got {self.mean}, {self.std}")

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise floating, contiguous images (B, H, W, channels) of 0 to 255 in place, and return them."""
        _, _, width, channels = images.shape
        if channels != len(self.mean):
            raise ValueError(f"mean has {len(self.mean)} channels, the images have {channels}")
        # By whole lines, as runs of three are too short to be fast.
        factor, summand = _line(self, width)
        images.view(-1, width * channels).mul_(factor).add_(summand)
        return images


def _range(name: str, ends: Any, most: float) -> None:
    good = len(ends) == 2 and 0 < ends[0] <= ends[1] <= most
    if not good:
        raise ValueError(f"{name} must be two numbers, 0 < low <= high{' <= 1' if most == 1 else ''}, got {ends}")


def _mirror(images: Tensor, axis: int, draws: Draws) -> None:
    chosen = np.flatnonzero(draws < 0.5)
    pixels = images.numpy()
    # As (B, channels, H, W), for which torch has a fast way to mirror 8-bit images.
    planes = torch.from_numpy(pixels[chosen]).permute(0, 3, 1, 2).flip(axis + 1)
    pixels[chosen] = planes.permute(0, 2, 3, 1).numpy()


@lru_cache(maxsize=32)
def _line(normalise: Normalise, width: int) -> tuple[Tensor, Tensor]:
    """Return factor and summand for each number of a line of `width` pixels."""
    mean, std = (torch.tensor(values, dtype=torch.float64) for values in (normalise.mean, normalise.std))
    return (1 / (255 * std)).float().repeat(width), (-mean / std).float().repeat(width)


CIFAR = Normalise((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
"""Mean and deviation of the paper's experiments."""
IMAGENET = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation for networks pre-trained on ImageNet."""
SMALL_IMAGES = Augment(pad=4)
"""The paper's augmentation at 32×32: a crop after padding by 4, and mirror images."""
LARGE_IMAGES = Augment(area=(0.5, 1.0), brightness=0.2, contrast=0.2, saturation=0.2)
"""Crops of at least half of the image, mirror images, and changes of colour."""
