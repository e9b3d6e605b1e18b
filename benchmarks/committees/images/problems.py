"""Sets of images with their splits: training rows are the training and validation parts together."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apmax.data import split_by_group
from apmax.data.archives import read_npz
from apmax.data.download import locate
from apmax.data.images import ImageParts, cifar10, ham10000
from apmax.data.images.sets import HAM10000_FILE
from benchmarks.data_folder import data_folder

TEST_SHARE = 0.2
"""Share of the images that a resplit by lesion holds out."""


class _Images(NamedTuple):
    """All images of a set, the group of each (None without groups), and which are of its test part."""

    pixels: NDArray[np.uint8]
    labels: NDArray[np.float64]
    groups: NDArray[np.int64] | None
    tested: NDArray[np.bool_]


@dataclass(frozen=True)
class Problem:
    """How the images are read; they are tested on their own test part, or on so many drawn ones of whole groups."""

    read: Callable[[], _Images]
    drawn: int = 0

    @property
    def resplits(self) -> Sequence[int]:
        """The numbers of the splits."""
        return range(self.drawn or 1)

    @property
    def unit(self) -> str:
        """What the numbers of the splits stand for."""
        return "resplits by lesion" if self.drawn else "split"


@dataclass(frozen=True)
class ImageSplit:
    """Training and test images, each a row of 8-bit values of three channels (n, 3 · size²).

    `test_units` are the groups of the test images, or without groups their numbers in the set.
    """

    train: NDArray[np.uint8]
    train_labels: NDArray[np.float64]
    train_groups: NDArray[np.int64] | None
    test: NDArray[np.uint8]
    test_labels: NDArray[np.float64]
    test_units: NDArray[np.int64]

    @property
    def size(self) -> int:
        """Height and width of the images."""
        return round((self.train.shape[1] / 3) ** 0.5)


def _all_images(parts: ImageParts, groups: Mapping[str, int] | None = None) -> _Images:
    each = (parts.train, parts.valid, parts.test)
    pixels = np.concatenate([part.store.take(part.places) for part in each])
    labels = np.concatenate([part.labels.numpy().astype(np.float64) for part in each])
    known = None if groups is None else np.array([groups[name] for part in each for name in part.names or ()])
    tested = np.arange(len(labels)) >= len(parts.train) + len(parts.valid)
    return _Images(pixels.reshape(len(pixels), -1), labels.reshape(-1), known, tested)


@lru_cache(1)
def _read_cifar10() -> _Images:
    return _all_images(cifar10(selection="authors"))


@lru_cache(1)
def _read_ham10000(target: str) -> _Images:
    arrays = read_npz(locate(HAM10000_FILE), ("image_id", "lesion"))
    lesions = dict(zip(arrays["image_id"].tolist(), arrays["lesion"].tolist(), strict=True))
    return _all_images(ham10000(targets=target), lesions)


PROBLEMS: Mapping[str, Problem] = {
    "cifar10": Problem(_read_cifar10),
    "ham10000_df": Problem(partial(_read_ham10000, "df")),
    "ham10000_df_resplit": Problem(partial(_read_ham10000, "df"), drawn=5),
}
"""Problems by name: the paper authors' selection of CIFAR-10, and the rarest diagnosis of HAM10000 by lesion.

The test part of "ham10000_df" has 14 positives of 9 lesions; a resplit holds out a fifth of all lesions.
"""


def load_image_split(problem: str, resplit: int) -> ImageSplit:
    """Return a split of a problem.

    Raises:
        SystemExit: APMAX_DATA is not set.
    """
    data_folder()  # where the sets are looked for
    entry = PROBLEMS[problem]
    images = entry.read()
    train, test = np.flatnonzero(~images.tested), np.flatnonzero(images.tested)
    if entry.drawn:
        assert images.groups is not None
        train, test = split_by_group(images.labels, images.groups, TEST_SHARE, seed=resplit)
    groups = None if images.groups is None else images.groups[train]
    return ImageSplit(
        images.pixels[train],
        images.labels[train],
        groups,
        images.pixels[test],
        images.labels[test],
        test if images.groups is None else images.groups[test],
    )
