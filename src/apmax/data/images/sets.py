"""The sets of images by name."""

from __future__ import annotations

from collections.abc import Callable

from apmax.data.images.cifar import cifar10, cifar100
from apmax.data.images.parts import ImageParts
from apmax.data.images.skin import ham10000, melanoma

IMAGE_SETS: dict[str, Callable[..., ImageParts]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "melanoma": melanoma,
    "ham10000": ham10000,
}
"""Read as `IMAGE_SETS[name](data_dir, seed=...)`."""
