"""The user's own images: a folder per class, or a table of paths and labels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from apmax import validation
from apmax.data import parsing
from apmax.data.images.augment import IMAGENET, LARGE_IMAGES, SMALL_IMAGES, Augment, Normalise
from apmax.data.images.cache import decode_all
from apmax.data.images.dataset import ImageDataset
from apmax.data.images.listing import list_images
from apmax.data.images.parts import ImageReport
from apmax.data.reading import open_table
from apmax.data.splits import Labels
from apmax.data.targets import Targets, read_labelled

_LARGE = 64


def augment_for(size: int) -> Augment:
    """Return what suits images of that size: shifts for small ones, resized crops and colours for large ones."""
    return LARGE_IMAGES if size > _LARGE else SMALL_IMAGES


def read_folder(
    path: str | PathLike[str],
    targets: str | Sequence[str],
    *,
    size: int = 224,
    normalise: Normalise = IMAGENET,
    **options: Any,
) -> tuple[ImageDataset, ImageReport]:
    """Return the images of a folder that has one folder per class.

    Args:
        path: The folder; files are found in the classes' folders at any depth. Images in none of them have no label,
            and are left out and counted.
        targets: The positive class; or several, each of which becomes a task against all others.
        size: Height and width that images are resized to.
        normalise: Mean and deviation per channel.
        **options: Of `decode_all`: `fit`, `cache`, `on_error`, `workers`, `progress`.

    Returns:
        The data set, in the order of names and not augmented (see `ImageDataset.subset`), and a report.

    Raises:
        ValueError: No such class, no images, or an image that cannot be read (unless `on_error="skip"`).
        FileNotFoundError: No such folder.
    """
    listing = list_images(path)
    wanted = [targets] if isinstance(targets, str) else list(targets)
    if not listing.classes:
        raise ValueError(f"{path} must have a folder per class, it has none; for a table of paths use read_csv")
    for name in wanted:
        validation.choice("targets", name, listing.classes)
    listing.check()
    marked = [(file, own) for file, own in zip(listing.files, listing.class_of, strict=True) if own is not None]
    files = [file for file, _ in marked]
    labels = [[float(own == target) for target in wanted] for _, own in marked]
    unmeasured, ignored = len(listing.files) - len(files), listing.ignored
    table = np.array(labels, dtype=np.float32)
    return image_dataset(
        files, table, size=size, normalise=normalise, unmeasured=unmeasured, ignored=ignored, **options
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
    """Return the images that a csv, csv.gz or parquet file names.

    Args:
        path: The table.
        targets: One target column or several: two values each, empty where not measured (see `Target`); or the
            `targets` of another file's report. Rows without any label are left out.
        positive: The value of the positives; may be None for such as 0/1, no/yes, inactive/active.
        column: The column of paths.
        root: What the paths begin at; by default the table's folder.
        ending: Added to every path, as ".jpg" where the table has bare names.
        size: Height and width that images are resized to.
        normalise: Mean and deviation per channel.
        **options: Of `decode_all`: `fit`, `cache`, `on_error`, `workers`, `progress`.

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
    base = Path(path).parent if root is None else Path(root)
    known = np.asarray(~np.isnan(labels).all(axis=1))
    names = parsing.cells(table.column(column))
    files = [str(base / f"{name}{ending}") for name, good in zip(names, known, strict=True) if good]
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
    **options: Any,
) -> tuple[ImageDataset, ImageReport]:
    """Return the images of these files, with labels (n, tasks) or without, and a report.

    >>> image_dataset([], size=32)
    Traceback (most recent call last):
    ...
    ValueError: paths must name at least one image, got none
    """
    decoded = decode_all(files, size, **options)
    lost = {item.row for item in decoded.unreadable}
    places = [row for row in range(len(files)) if row not in lost]
    data = ImageDataset(decoded.store, labels, places=places, normalise=normalise, names=files)
    return data, ImageReport(len(files), decoded.unreadable, unmeasured, list(ignored))
