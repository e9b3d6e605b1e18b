"""Image files of a folder or a table as a data set, with a report of unreadable and ignored files."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from apmax.data import parsing
from apmax.data.images.augmentation import IMAGENET, LARGE_IMAGES, SMALL_IMAGES, Augment, Normalise
from apmax.data.images.dataset import ImageDataset
from apmax.data.images.decoding import decode_all
from apmax.data.images.folder import ImageFolder
from apmax.data.reading import UnreadableRow, describe_unreadable, open_table
from apmax.data.splits import Labels
from apmax.data.targets import Targets, read_labelled

_LARGE = 64
_MIRRORED = 32
_DARK = 32
"""Images whose pixels are all below this value are called nearly black: 12-bit values in 16-bit files end at 15."""
_LOOKED_AT = 64
"""Images, spread over all, in which the largest pixel is looked for."""


@dataclass(frozen=True)
class ImageReport:
    """Findings of reading images.

    Attributes:
        total: The number of labelled images.
        unreadable: Those that cannot be decoded.
        unmeasured: Rows without a label, left out.
        ignored: Files of a folder whose ending is not that of an image.
        targets: The meaning of the labels, where they were read from a table.
        brightest: The largest pixel, 0 to 255, of up to 64 images that are spread over all.
    """

    total: int
    unreadable: list[UnreadableRow] = field(default_factory=list)
    unmeasured: int = 0
    ignored: list[str] = field(default_factory=list)
    targets: Targets | None = None
    brightest: int = 255

    def lines(self) -> list[str]:
        """Return one line per finding, none if there are none."""
        lines = [describe_unreadable(self.unreadable, self.total, "images")] if self.unreadable else []
        if self.unmeasured:
            lines.append(
                f"{self.unmeasured} {'image has' if self.unmeasured == 1 else 'images have'} no label: left out"
            )
        if self.ignored:
            lines.append(describe_ignored(self.ignored))
        if self.brightest < _DARK:
            lines.append(
                f"images are nearly black: the brightest pixel that was found has {self.brightest} of 255, as in "
                "16-bit files of 12-bit values; spread these over the whole range first (× 16)"
            )
        return lines


@dataclass(frozen=True)
class ImageParts:
    """The three parts of a set of images; only the training part is augmented.

    Attributes:
        report: The report, where images were decoded.
    """

    train: ImageDataset
    valid: ImageDataset
    test: ImageDataset
    report: ImageReport | None = None


def describe_ignored(files: Sequence[str]) -> str:
    """Return one line that counts the ignored files of a folder and shows their endings.

    >>> describe_ignored(["a/1.dcm", "a/2.dcm", "a/README"])
    '3 files are no images by their name (.dcm, README) and are passed over, such as a/1.dcm'
    """
    kinds = list(dict.fromkeys(Path(file).suffix.lower() or Path(file).name for file in files))
    shown = ", ".join(kinds[:5]) + (", …" if len(kinds) > 5 else "")
    what = "file is no image by its" if len(files) == 1 else "files are no images by their"
    verb = "is" if len(files) == 1 else "are"
    return f"{len(files):,} {what} name ({shown}) and {verb} passed over, such as {files[0]}"


def augment_for(size: int) -> Augment:
    """Return the default augmentation of images of that size.

    `LARGE_IMAGES` above 64 pixels, `SMALL_IMAGES` above 31, and below a shift of an eighth of the size without mirror
    images: the smallest images are often of letters and digits, which a mirror changes.

    >>> augment_for(8) == Augment(pad=1, flip=False), augment_for(28) == Augment(pad=3, flip=False)
    (True, True)
    """
    if size > _LARGE:
        return LARGE_IMAGES
    return SMALL_IMAGES if size >= _MIRRORED else Augment(pad=max(1, size // 8), flip=False)


def read_folder(
    path: str | PathLike[str],
    targets: str | Sequence[str],
    *,
    size: int = 224,
    normalise: Normalise = IMAGENET,
    **options: Any,
) -> tuple[ImageDataset, ImageReport]:
    """Read the images of a folder with one folder per class.

    Args:
        path: The folder; images are found in the folders of the classes at any depth. Those in none of them have no
            label; they are left out and counted.
        targets: The positive class; or several, each of which becomes a task against all others.
        size: Height and width that images are resized to.
        normalise: Mean and deviation per channel.
        **options: `transform` as in `ImageDataset`; options of `decode_all`: `fit`, `cache`, `on_error`, `workers`,
            `progress`.

    Returns:
        The data set, in the order of names and not augmented (see `ImageDataset.subset`), and a report.

    Raises:
        ValueError: No such class, no images, or an image that cannot be read (unless `on_error="skip"`).
        FileNotFoundError: No such folder.
    """
    wanted = [targets] if isinstance(targets, str) else list(targets)
    folder = ImageFolder(path, wanted)
    for name in wanted:
        folder.check_column(name, "target")
    labelled = [(file, own) for file, own in zip(folder.files, folder.class_of, strict=True) if own is not None]
    labels = np.array([[float(own == target) for target in wanted] for _, own in labelled], dtype=np.float32)
    return image_dataset(
        [file for file, _ in labelled],
        labels,
        size=size,
        normalise=normalise,
        unmeasured=len(folder) - len(labelled),
        ignored=folder.ignored,
        **options,
    )


def read_csv(
    path: str | PathLike[str],
    targets: str | Sequence[str] | Targets,
    *,
    positive: str | None = None,
    column: str = "path",
    root: str | PathLike[str] | None = None,
    ending: str = "",
    size: int = 224,
    normalise: Normalise = IMAGENET,
    **options: Any,
) -> tuple[ImageDataset, ImageReport]:
    """Read the images that a csv, csv.gz or parquet file lists.

    Args:
        path: The table.
        targets: One target column or several: two values each, empty where not measured (see `Target`); or the
            `targets` of another file's report. Rows without any label are left out.
        positive: The value of the positives; may be None for such as 0/1, no/yes, inactive/active.
        column: The column of paths.
        root: The folder of relative paths; by default the table's.
        ending: Added to every path, such as ".jpg" for bare names.
        size: Height and width that images are resized to.
        normalise: Mean and deviation per channel.
        **options: `transform` as in `ImageDataset`; options of `decode_all`: `fit`, `cache`, `on_error`, `workers`,
            `progress`.

    Returns:
        The data set, in the order of the table and not augmented (see `ImageDataset.subset`), and a report.

    Raises:
        ValueError: A column is missing, a target has not two values, or an image cannot be read (unless
            `on_error="skip"`).
        FileNotFoundError: No such table.
    """
    given = [targets] if isinstance(targets, str) else targets
    if not isinstance(given, Targets) and not given:
        raise ValueError("targets must name at least one column of labels")
    source = open_table(path)
    source.check_column(column, "column")
    table, labels, fitted = read_labelled(source, given, [column], positive=positive)
    folder = Path(path).parent if root is None else Path(root)
    known = np.asarray(~np.isnan(labels).all(axis=1))
    names = parsing.cells(table.column(column))
    files = [str(folder / f"{name}{ending}") if name else "" for name, has in zip(names, known, strict=True) if has]
    if not files:
        raise ValueError(f"{path} has no row with a label in {', '.join(fitted.names)}")
    data, report = image_dataset(files, labels[known], size=size, normalise=normalise, **options)
    return data, replace(report, unmeasured=int((~known).sum()), targets=fitted)


def image_dataset(
    files: Sequence[str],
    labels: Labels | None = None,
    *,
    size: int = 224,
    normalise: Normalise = IMAGENET,
    unmeasured: int = 0,
    ignored: Sequence[str] = (),
    transform: Callable[[Any], Any] | None = None,
    **options: Any,
) -> tuple[ImageDataset, ImageReport]:
    """Return the data set of image files with labels (n, tasks) or without, and a report.

    Args:
        files: The files.
        labels: Their labels, NaN where not measured.
        size: Height and width that images are resized to.
        normalise: Mean and deviation per channel.
        unmeasured: Rows without a label that were left out before, for the report.
        ignored: Ignored files, for the report.
        transform: As in `ImageDataset`, in place of `normalise`.
        **options: Options of `decode_all`: `fit`, `cache`, `on_error`, `workers`, `progress`.

    >>> image_dataset([], size=32)
    Traceback (most recent call last):
    ...
    ValueError: paths must name at least one image, got none
    """
    decoded = decode_all(files, size, **options)
    unreadable = {item.row for item in decoded.unreadable}
    places = [row for row in range(len(files)) if row not in unreadable]
    data = ImageDataset(decoded.store, labels, places=places, normalise=normalise, transform=transform, names=files)
    spread = np.unique(np.linspace(0, len(places) - 1, _LOOKED_AT).astype(int))
    brightest = int(decoded.store.take(np.asarray(places)[spread]).max())
    return data, ImageReport(len(files), decoded.unreadable, unmeasured, list(ignored), brightest=brightest)
