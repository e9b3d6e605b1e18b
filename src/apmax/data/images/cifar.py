"""Imbalanced CIFAR-10 and CIFAR-100, as in the paper's Table 1."""

from __future__ import annotations

from os import PathLike
from pathlib import Path

import numpy as np

from apmax import validation
from apmax.data.download import data_directory, fetch
from apmax.data.images.archives import CIFAR10, CIFAR100, Archive, find_archive, read_archive
from apmax.data.images.augment import CIFAR, SMALL_IMAGES
from apmax.data.images.dataset import ImageDataset
from apmax.data.images.imbalance import PAPERS_KEEP, imbalanced_rows
from apmax.data.images.parts import ImageParts

AUTHORS_FILE = "cifar10/cifar10_imbalanced.npz"
SELECTIONS = ("auto", "authors", "seeded")


def cifar10(
    data_dir: str | PathLike[str] | None = None,
    *,
    keep: float = PAPERS_KEEP,
    selection: str = "auto",
    split_seed: int = 0,
    seed: int = 0,
    download: bool = False,
) -> ImageParts:
    """Return imbalanced CIFAR-10: classes 5 to 9 positive, the test set left balanced.

    20,400 / 5,100 / 10,000 images with 400 / 100 / 5,000 positives, if a share of 0.02 is kept.

    Args:
        data_dir: The folder of data sets; by default `APMAX_DATA`. The archive, or the folder it unpacks to, is
            looked for there and in its folder `cifar10`.
        keep: The share of the positives that is kept for training and validation.
        selection: "authors" takes the rows that the paper's authors took, from `cifar10/cifar10_imbalanced.npz`;
            "seeded" our own choice by `split_seed`, which has the same counts; "auto" the first where its file is
            there and `keep` is the paper's, else the second.
        split_seed: Of the choice of rows.
        seed: Of the augmentation.
        download: Fetch the archive if it is not there. It is refused if its checksum differs.

    Raises:
        FileNotFoundError: The data are not there.
        ValueError: A damaged archive, or an argument out of range.
    """
    validation.choice("selection", selection, SELECTIONS)
    folder = data_directory(data_dir)
    authors = folder / AUTHORS_FILE if folder is not None else Path(AUTHORS_FILE)
    if selection == "authors" and keep != PAPERS_KEEP:
        raise ValueError(f"selection='authors' keeps a share of {PAPERS_KEEP} of the positives, got keep={keep}")
    if selection == "authors" or (selection == "auto" and keep == PAPERS_KEEP and authors.exists()):
        return _authors(authors, seed)
    return _seeded(CIFAR10, "cifar10", folder, keep=keep, split_seed=split_seed, seed=seed, download=download)


def cifar100(
    data_dir: str | PathLike[str] | None = None,
    *,
    keep: float = PAPERS_KEEP,
    split_seed: int = 0,
    seed: int = 0,
    download: bool = False,
) -> ImageParts:
    """Return imbalanced CIFAR-100: classes 50 to 99 positive; otherwise as `cifar10` with its own choice of rows."""
    folder = data_directory(data_dir)
    return _seeded(CIFAR100, "cifar100", folder, keep=keep, split_seed=split_seed, seed=seed, download=download)


def _authors(path: Path, seed: int) -> ImageParts:
    if not path.exists():
        raise FileNotFoundError(f"there is no {path} with the authors' rows; selection='seeded' does without")
    with np.load(path, allow_pickle=False) as file:
        parts = {name: (file[f"x_{name}"], file[f"y_{name}"]) for name in ("train", "valid", "test")}
    return ImageParts(
        train=ImageDataset(*parts["train"], augment=SMALL_IMAGES, normalise=CIFAR, seed=seed),
        valid=ImageDataset(*parts["valid"], normalise=CIFAR),
        test=ImageDataset(*parts["test"], normalise=CIFAR),
    )


def _seeded(
    archive: Archive, own: str, folder: Path | None, *, keep: float, split_seed: int, seed: int, download: bool
) -> ImageParts:
    if folder is None:
        raise FileNotFoundError(f"{archive.name}: set APMAX_DATA, or data_dir, to the folder of data sets")
    path = find_archive(archive, [folder, folder / own])
    if path is None and not download:
        raise FileNotFoundError(
            f"there is no {archive.python[0]}, {archive.binary[0]} or their .tar.gz in {folder} or {folder / own}; "
            f"download=True fetches {archive.url}"
        )
    if path is None:
        path = folder / own / f"{archive.name}-binary.tar.gz"
        fetch(archive.url, path, verify=archive.verify)
    pixels, classes, test_pixels, test_classes = read_archive(archive, path)
    half = archive.num_classes // 2
    train, valid = imbalanced_rows(classes, archive.num_classes, keep=keep, seed=split_seed)
    # Copies, so that the positives that are left out do not stay in memory.
    return ImageParts(
        train=ImageDataset(pixels[train], classes[train] >= half, augment=SMALL_IMAGES, normalise=CIFAR, seed=seed),
        valid=ImageDataset(pixels[valid], classes[valid] >= half, normalise=CIFAR),
        test=ImageDataset(test_pixels, test_classes >= half, normalise=CIFAR),
    )
