"""Published sets of images by name: CIFAR, and skin lesions (the paper's melanoma set, HAM10000)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from os import PathLike
from typing import Any

import numpy as np

from apmax import validation
from apmax.data.archives import read_npz
from apmax.data.download import locate
from apmax.data.images.augmentation import IMAGENET, SMALL_IMAGES
from apmax.data.images.cifar import cifar10, cifar100
from apmax.data.images.dataset import ImageDataset
from apmax.data.images.reading import ImageParts, augment_for, read_csv
from apmax.data.splits import Split

HAM10000_FILE = "ham10000/ham10000_32.npz"
MELANOMA_TABLE = "melanoma/train.csv"
_MELANOMA_FOLDERS = ("jpeg/train", "train", ".")
_MELANOMA_ENDINGS = (".jpg", ".jpeg", ".png")


def ham10000(
    data_dir: str | PathLike[str] | None = None, *, targets: str | Sequence[str] = "mel", seed: int = 0
) -> ImageParts:
    """Return HAM10000 at 32×32, split such that no lesion is in two parts.

    The images may not be used commercially, and are not part of this package.

    Args:
        data_dir: The folder of data sets; by default `APMAX_DATA`. The file is `ham10000/ham10000_32.npz`.
        targets: The positive class (akiec, bcc, bkl, df, mel, nv, vasc), or several, each a task.
        seed: Seed of the augmentation.

    Raises:
        FileNotFoundError: The file is not there.
        ValueError: No such class.
    """
    path = locate(HAM10000_FILE, data_dir)
    arrays = read_npz(path, ("x", "y", "class_names", "split", "image_id"))
    pixels, classes, names, split = (arrays[name] for name in ("x", "y", "class_names", "split"))
    images = [str(name) for name in arrays["image_id"]]
    wanted = [targets] if isinstance(targets, str) else list(targets)
    numbers = [names.tolist().index(validation.choice("targets", name, names.tolist())) for name in wanted]
    data = ImageDataset(pixels, classes[:, None] == np.array(numbers), normalise=IMAGENET, seed=seed, names=images)
    # A lesion has no upright direction.
    augment = replace(SMALL_IMAGES, upside_down=True)
    train, valid, test = (np.flatnonzero(split == part) for part in range(3))
    return ImageParts(data.subset(train, augment=augment), data.subset(valid), data.subset(test))


def melanoma(
    data_dir: str | PathLike[str] | None = None,
    *,
    size: int = 384,
    split_seed: int = 0,
    seed: int = 0,
    **options: Any,
) -> ImageParts:
    """Return the training images of Kaggle's SIIM-ISIC 2020 challenge in a stratified random split of 80/10/10.

    33,126 images with 584 positives, if the set is complete. Some patients have images in several parts, as in the
    paper.

    Args:
        data_dir: The folder of data sets; by default `APMAX_DATA`. The table is `melanoma/train.csv`, with the columns
            `image_name` and `target`; the images are beside it in `jpeg/train` or `train`.
        size: Height and width that images are resized to.
        split_seed: Seed of the split.
        seed: Seed of the augmentation.
        **options: Options of `decode_all`: `fit`, `cache`, `on_error`, `workers`, `progress`.

    Raises:
        FileNotFoundError: The table is not there.
        ValueError: An image cannot be read (unless `on_error="skip"`).
    """
    table = locate(MELANOMA_TABLE, data_dir)
    folders = [table.parent / name for name in _MELANOMA_FOLDERS]
    found = next(
        ((folder, ending) for folder in folders for ending in _MELANOMA_ENDINGS if any(folder.glob(f"*{ending}"))),
        None,
    )
    if found is None:
        raise FileNotFoundError(f"there are no JPEG or PNG images in {', '.join(str(folder) for folder in folders)}")
    root, ending = found
    data, report = read_csv(table, "target", column="image_name", root=root, ending=ending, size=size, **options)
    data.seed = seed
    split = Split.stratified(data.labels, seed=split_seed)
    augment = replace(augment_for(size), upside_down=True)
    train = data.subset(split.train, augment=augment)
    return ImageParts(train, data.subset(split.valid), data.subset(split.test), report)


IMAGE_SETS: dict[str, Callable[..., ImageParts]] = {
    "cifar10": cifar10,
    "cifar100": cifar100,
    "melanoma": melanoma,
    "ham10000": ham10000,
}
"""Functions that read a set, called as `IMAGE_SETS[name](data_dir, seed=...)`."""
