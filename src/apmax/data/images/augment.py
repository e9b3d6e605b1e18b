"""Augmentation of whole batches, each image by its own draws."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from apmax import validation

Draws = npt.NDArray[np.float64]
# Every purpose has its column, so that switching one on or off leaves the others' draws as they were.
_TOP, _LEFT, _FLIP, _UPSIDE, _AREA, _ASPECT, _BRIGHTNESS, _CONTRAST, _SATURATION = range(9)
DRAWS = 9
_GREY = (0.299, 0.587, 0.114)


@dataclass(frozen=True)
class Augment:
    """What is done to a training image at random.

    Args:
        pad: Pad by that many black pixels on each side and crop to the old size.
        flip: Mirror left and right, half of the time.
        upside_down: Mirror top and bottom, half of the time; for images that have no upright, as of skin.
        area: Crop a rectangle of a share of the area between these, and resize it to the old size.
        aspect: The rectangle's width / height lies between these, relative to the image's.
        brightness: The image is multiplied by a factor between 1 ± this.
        contrast: It is blended with its mean grey by such a factor.
        saturation: It is blended with its own grey by such a factor.

    Raises:
        ValueError: An argument out of range, or both `pad` and `area`.

    >>> Augment(pad=4).geometry(torch.zeros(2, 32, 32, 3, dtype=torch.uint8), np.full((2, DRAWS), 0.5)).shape
    torch.Size([2, 3, 32, 32])
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
        """Return crops and mirror images of uint8 images (B, H, W, channels) as uint8 (B, channels, H, W)."""
        if self.area is not None:
            moved = self._resized(images, draws)
        elif self.pad:
            moved = self._shifted(images, draws)
        else:
            moved = images.permute(0, 3, 1, 2)
        if self.flip:
            moved = _mirrored(moved, 3, draws[:, _FLIP])
        return _mirrored(moved, 2, draws[:, _UPSIDE]) if self.upside_down else moved

    def colour(self, images: Tensor, draws: Draws) -> None:
        """Change brightness, contrast and saturation of floating images (B, channels, H, W) of 0 to 255, in place.

        Only operations that round each element on its own, and sums by one thread, so that a process with more
        threads computes the same bits.

        Raises:
            ValueError: Contrast or saturation of images that have not three channels.
        """
        if not (self.brightness or self.contrast or self.saturation):
            return
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
        padded = images.new_zeros(count, height + 2 * pad, width + 2 * pad, channels)
        padded[:, pad : pad + height, pad : pad + width] = images
        windows = padded.unfold(1, height, 1).unfold(2, width, 1)
        top, left = (torch.from_numpy((draws[:, column] * places).astype(np.int64)) for column in (_TOP, _LEFT))
        return windows[torch.arange(count), top, left]

    def _resized(self, images: Tensor, draws: Draws) -> Tensor:
        assert self.area is not None
        count, height, width, channels = images.shape
        share = self.area[0] + (self.area[1] - self.area[0]) * draws[:, _AREA]
        low, high = (math.log(end) for end in self.aspect)
        aspect = np.exp(low + (high - low) * draws[:, _ASPECT])
        rows = np.clip(np.rint(height * np.sqrt(share / aspect)), 1, height).astype(np.int64)
        columns = np.clip(np.rint(width * np.sqrt(share * aspect)), 1, width).astype(np.int64)
        tops = (draws[:, _TOP] * (height - rows + 1)).astype(np.int64)
        lefts = (draws[:, _LEFT] * (width - columns + 1)).astype(np.int64)
        result = images.new_empty(count, height, width, channels).permute(0, 3, 1, 2)
        # Rectangles of different sizes: each is resized on its own, in 8 bits.
        for number, (top, left, tall, wide) in enumerate(zip(tops, lefts, rows, columns, strict=True)):
            part = images[number, top : top + tall, left : left + wide].permute(2, 0, 1)[None]
            # torch resizes 8-bit images that keep a pixel's channels together twice as fast.
            dense = part.contiguous(memory_format=torch.channels_last)
            result[number] = nn.functional.interpolate(dense, (height, width), mode="bilinear", antialias=True)[0]
        return result


@dataclass(frozen=True)
class Normalise:
    """From 0 … 255 to (value / 255 − mean) / std, per channel.

    >>> Normalise((0.5,), (0.25,))(torch.tensor([[[[0.0, 255.0]]]]))
    tensor([[[[-2.,  2.]]]])
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.mean) != len(self.std) or not all(value > 0 for value in self.std):
            raise ValueError(f"mean and std must be one number per channel, std positive, got {self.mean}, {self.std}")

    def __call__(self, images: Tensor) -> Tensor:
        """Normalise floating images (B, channels, H, W) of 0 to 255 in place, and return them."""
        if images.shape[1] != len(self.mean):
            raise ValueError(f"mean has {len(self.mean)} channels, the images have {images.shape[1]}")
        mean, std = (images.new_tensor(values).mul_(255)[:, None, None] for values in (self.mean, self.std))
        return images.sub_(mean).div_(std)


def _range(name: str, ends: Any, most: float) -> None:
    good = len(ends) == 2 and 0 < ends[0] <= ends[1] <= most
    if not good:
        raise ValueError(f"{name} must be two numbers, 0 < low <= high{' <= 1' if most == 1 else ''}, got {ends}")


def _mirrored(images: Tensor, axis: int, draws: Draws) -> Tensor:
    chosen = torch.from_numpy(draws < 0.5)
    return torch.where(chosen[:, None, None, None], images.flip(axis), images)


CIFAR = Normalise((0.5071, 0.4867, 0.4408), (0.2675, 0.2565, 0.2761))
"""The paper's."""
IMAGENET = Normalise((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""What networks pre-trained on ImageNet expect."""
SMALL_IMAGES = Augment(pad=4)
"""The paper's at 32×32: a crop after padding by 4, and a mirror image."""
LARGE_IMAGES = Augment(area=(0.5, 1.0), brightness=0.2, contrast=0.2, saturation=0.2)
"""A crop of at least half of the image, a mirror image, and somewhat other colours."""
