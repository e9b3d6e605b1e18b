"""Imbalanced CIFAR-10 and CIFAR-100 of the paper's Table 1, from the published binary archives."""

from __future__ import annotations

from dataclasses import dataclass
from os import PathLike
from pathlib import Path

import numpy as np
import numpy.typing as npt

from apmax import validation
from apmax.data.archives import read_npz, read_tar_members
from apmax.data.download import data_directory, fetch
from apmax.data.images.augmentation import CIFAR, SMALL_IMAGES
from apmax.data.images.dataset import ImageDataset, Pixels
from apmax.data.images.reading import ImageParts
from apmax.data.splits import RowNumbers
from apmax.folders import file_checksum

AUTHORS_FILE = "cifar10/cifar10_imbalanced.npz"
PAPERS_KEEP = 0.02
SELECTIONS = ("auto", "authors", "seeded")
Classes = npt.NDArray[np.uint8]
_HOME = "https://www.cs.toronto.edu/~kriz/"
_PIXELS = 32 * 32 * 3
_MOST_IMAGES = 50_000


@dataclass(frozen=True)
class CifarArchive:
    """One of the two published archives, binary version.

    Attributes:
        name: The beginning of the archive's name.
        num_classes: The number of classes.
        folder: The folder that it unpacks to.
        train: The training files.
        test: The test file.
        label_bytes: Bytes before an image, the last of which is its class.
        sha256: SHA-256 of the .tar.gz file.
    """

    name: str
    num_classes: int
    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int
    sha256: str

    @property
    def file(self) -> str:
        """The name of the archive."""
        return f"{self.name}-binary.tar.gz"

    @property
    def url(self) -> str:
        """The public address of the archive."""
        return f"{_HOME}{self.file}"

    @property
    def record_bytes(self) -> int:
        """Bytes of an image with its label."""
        return self.label_bytes + _PIXELS

    def verify(self, path: Path) -> None:
        """Raise unless the file is the published archive, byte by byte.

        Raises:
            ValueError: Its SHA-256 differs.
        """
        found = file_checksum(path).sha256
        if found != self.sha256:
            raise ValueError(f"{self.url} is not the published archive: its SHA-256 is {found}")


CIFAR10 = CifarArchive(
    name="cifar-10",
    num_classes=10,
    folder="cifar-10-batches-bin",
    train=tuple(f"data_batch_{number}.bin" for number in range(1, 6)),
    test="test_batch.bin",
    label_bytes=1,
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR100 = CifarArchive(
    name="cifar-100",
    num_classes=100,
    folder="cifar-100-binary",
    train=("train.bin",),
    test="test.bin",
    label_bytes=2,
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)


def find_archive(archive: CifarArchive, folders: list[Path]) -> Path | None:
    """Return the first unpacked folder or .tar.gz file of the set in these folders, or None."""
    names = (archive.folder, archive.file)
    return next((folder / name for folder in folders for name in names if (folder / name).exists()), None)


def read_archive(archive: CifarArchive, path: Path) -> tuple[Pixels, Classes, Pixels, Classes]:
    """Return training images and classes, then test images and classes; images are (n, 32, 32, 3).

    Raises:
        ValueError: A file is missing, damaged, larger than published, or holds classes out of range.
    """
    names = (*archive.train, archive.test)
    contents = _read_files(archive, path, names)
    parts = [_decode_records(archive, contents[name], f"{path.name}/{name}") for name in names]
    pixels, classes = (np.concatenate([part[side] for part in parts[:-1]]) for side in (0, 1))
    return pixels, classes, *parts[-1]


def _read_files(archive: CifarArchive, path: Path, names: tuple[str, ...]) -> dict[str, bytes]:
    most = _MOST_IMAGES * archive.record_bytes

    found: dict[str, bytes] = {}
    if path.is_dir():
        for name in names:
            if (path / name).is_file():
                size = (path / name).stat().st_size
                if size > most:
                    raise ValueError(f"{path}: {name} must have at most {most} bytes, got {size}")
                found[name] = (path / name).read_bytes()
    else:
        # A fifth more than the training images: the test images.
        found = read_tar_members(path, dict.fromkeys(names, most), total=most * 6 // 5)
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} has no file {missing[0]}")
    return found


def _decode_records(archive: CifarArchive, content: bytes, name: str) -> tuple[Pixels, Classes]:
    size = archive.record_bytes
    if len(content) == 0 or len(content) % size:
        raise ValueError(f"{name} must hold records of {size} bytes, got {len(content)} bytes: is it cut off?")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    classes = records[:, archive.label_bytes - 1]
    if classes.max() >= archive.num_classes:
        raise ValueError(f"{name} must hold classes below {archive.num_classes}, got {classes.max()}")
    planes = records[:, archive.label_bytes :].reshape(-1, 3, 32, 32)
    return np.ascontiguousarray(planes.transpose(0, 2, 3, 1)), classes


def imbalanced_rows(
    classes: npt.ArrayLike, num_classes: int, *, keep: float = PAPERS_KEEP, valid: float = 0.2, seed: int = 0
) -> tuple[RowNumbers, RowNumbers]:
    """Return the training and validation rows of an imbalanced set: all negatives, a share `keep` of the positives.

    Every class has its share of both parts (±1), and the totals are those shares of all rows, rounded.

    Args:
        classes: The class of every row, from 0; those of the second half are positive.
        num_classes: The number of classes.
        keep: The share of positives to keep.
        valid: The share of the kept rows for validation.
        seed: Seed of the selection.

    Raises:
        ValueError: A class out of range, or a part without positives.

    >>> train, valid = imbalanced_rows(np.arange(50_000) % 10, 10)
    >>> len(train), len(valid), int((train % 10 >= 5).sum()), int((valid % 10 >= 5).sum())
    (20400, 5100, 400, 100)
    """
    table = np.asarray(classes)
    validation.interval("keep", keep, 0, 1, closed="right")
    validation.interval("valid", valid, 0, 1, closed="neither")
    if table.ndim != 1 or len(table) == 0 or table.min() < 0 or table.max() >= num_classes:
        raise ValueError(f"classes must be numbers from 0 to {num_classes - 1}, one per row")
    generator = np.random.default_rng(seed)
    half = num_classes // 2
    train: list[RowNumbers] = []
    held_out: list[RowNumbers] = []
    for share, group in ((1.0, range(half)), (keep, range(half, num_classes))):
        rows = [generator.permutation(np.flatnonzero(table == label)) for label in group]
        kept = _rounded_shares([len(some) for some in rows], share)
        for some, count, later in zip(rows, kept, _rounded_shares(kept, valid), strict=True):
            held_out.append(some[:later])
            train.append(some[later:count])
    parts = np.sort(np.concatenate(train)), np.sort(np.concatenate(held_out))
    for name, part in zip(("training", "validation"), parts, strict=True):
        if not (table[part] >= half).any():
            raise ValueError(f"keep={keep} leaves no positive for {name}")
    return parts


def _rounded_shares(counts: list[int], share: float) -> list[int]:
    """Return a share of every count, such that the cumulative sums are right to the rounding."""
    ends = np.rint(np.cumsum([0, *counts]) * share)
    return [int(count) for count in np.diff(ends)]


def cifar10(
    data_dir: str | PathLike[str] | None = None,
    *,
    keep: float = PAPERS_KEEP,
    selection: str = "auto",
    split_seed: int = 0,
    seed: int = 0,
    download: bool = False,
) -> ImageParts:
    """Return imbalanced CIFAR-10: classes 5 to 9 positive, the test set balanced.

    20,400 / 5,100 / 10,000 images with 400 / 100 / 5,000 positives, for the share of 0.02.

    Args:
        data_dir: The folder of data sets; by default `APMAX_DATA`. `cifar-10-binary.tar.gz`, or the folder that it
            unpacks to, is looked for there and in the folder `cifar10` in it.
        keep: The share of the positives to keep for training and validation.
        selection: "authors" takes the rows of the paper's authors, from `cifar10/cifar10_imbalanced.npz`; "seeded"
            our own selection by `split_seed`, which has the same counts; "auto" the first if its file is there and
            `keep` is the paper's, else the second.
        split_seed: Seed of the selection of rows.
        seed: Seed of the augmentation.
        download: Download the archive if it is not there, and check its SHA-256.

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
        return _authors_parts(authors, seed)
    return _seeded_parts(CIFAR10, "cifar10", folder, keep=keep, split_seed=split_seed, seed=seed, download=download)


def cifar100(
    data_dir: str | PathLike[str] | None = None,
    *,
    keep: float = PAPERS_KEEP,
    split_seed: int = 0,
    seed: int = 0,
    download: bool = False,
) -> ImageParts:
    """Return imbalanced CIFAR-100: classes 50 to 99 positive; otherwise as `cifar10` with a seeded selection."""
    folder = data_directory(data_dir)
    return _seeded_parts(CIFAR100, "cifar100", folder, keep=keep, split_seed=split_seed, seed=seed, download=download)


def _authors_parts(path: Path, seed: int) -> ImageParts:
    if not path.exists():
        raise FileNotFoundError(f"there is no {path} with the authors' rows; selection='seeded' does without")
    names = ("train", "valid", "test")
    arrays = read_npz(path, [f"{side}_{name}" for side in "xy" for name in names])
    parts = {name: (arrays[f"x_{name}"], arrays[f"y_{name}"]) for name in names}
    return ImageParts(
        train=ImageDataset(*parts["train"], augment=SMALL_IMAGES, normalise=CIFAR, seed=seed),
        valid=ImageDataset(*parts["valid"], normalise=CIFAR),
        test=ImageDataset(*parts["test"], normalise=CIFAR),
    )


def _seeded_parts(
    archive: CifarArchive, name: str, folder: Path | None, *, keep: float, split_seed: int, seed: int, download: bool
) -> ImageParts:
    if folder is None:
        raise FileNotFoundError(f"{archive.name}: set APMAX_DATA, or data_dir, to the folder of data sets")
    path = find_archive(archive, [folder, folder / name])
    if path is None and not download:
        raise FileNotFoundError(
            f"there is no {archive.file} or {archive.folder} in {folder} or {folder / name}; "
            f"download=True fetches {archive.url}"
        )
    if path is None:
        path = folder / name / archive.file
        fetch(archive.url, path, verify=archive.verify)
    pixels, classes, test_pixels, test_classes = read_archive(archive, path)
    half = archive.num_classes // 2
    train, valid = imbalanced_rows(classes, archive.num_classes, keep=keep, seed=split_seed)
    # Copies, so that the other positives do not stay in memory.
    return ImageParts(
        train=ImageDataset(pixels[train], classes[train] >= half, augment=SMALL_IMAGES, normalise=CIFAR, seed=seed),
        valid=ImageDataset(pixels[valid], classes[valid] >= half, normalise=CIFAR),
        test=ImageDataset(test_pixels, test_classes >= half, normalise=CIFAR),
    )
