"""Images: a folder per class, or a column of files."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
from torch import nn

from apmax import validation
from apmax.data.images import (
    LARGE_IMAGES,
    SMALL_IMAGES,
    Augment,
    ImageDataset,
    ImageFolder,
    augment_for,
    contact_sheet_of_files,
    images_of,
)
from apmax.data.images.decoding import FITS, shape_of
from apmax.data.images.folder import PATH
from apmax.models.images import MODELS, load_pretrained
from apmax.train import Stage, sized_recipe
from apmax.workflows.data_types.base import Gathered, Kind, Labels, Pictures
from apmax.workflows.data_types.encoded import Refused
from apmax.workflows.data_types.image_files import ImageEncoder, Where, images_at_a_time, processes, restore

AUGMENTS: dict[str, Augment | None] = {"none": None, "small": SMALL_IMAGES, "large": LARGE_IMAGES}
USUAL_SIZE = 224
LOOKED_AT = 64
"""Files whose size is looked at, where none was given."""


def check(data: Any) -> None:
    """Raise for values of a job's images that cannot be meant."""
    if data.size is not None:
        validation.whole("data.size", data.size, 8)
    if data.fit is not None:
        validation.choice("data.fit", data.fit, FITS)
    if data.augment is not None:
        validation.choice("data.augment", data.augment, AUGMENTS)
    if data.upside_down and data.augment == "none":
        raise ValueError("data.upside_down mirrors training images, and data.augment='none' leaves them as they are")


def settle(data: Any, table: Any, source: Any) -> Any:
    """Return a job's [data] with what it leaves open: 224×224, or the images' own size where that is smaller."""
    size = data.size
    if size is None:
        files = Where.of(source, path=data.path, root=data.root, ending=data.ending).files(table)
        shapes = [shape_of(file) for file in files[:: max(1, len(files) // LOOKED_AT)]]
        sides = [min(shape) for shape in shapes if shape is not None]
        size = max(8, min(USUAL_SIZE, round(median(sides)))) if sides else USUAL_SIZE
    augment = data.augment or next(name for name, each in AUGMENTS.items() if each == augment_for(size))
    return replace(data, size=size, fit=data.fit or FITS[0], augment=augment)


def describe(data: Any) -> str:
    """Return in words what images become."""
    done = {"none": "left as they are", "small": "shifted and mirrored", "large": "cropped, mirrored and recoloured"}
    upside = ", upside down too" if data.upside_down else ""
    return f"images become {data.size}×{data.size} ({data.fit}); in training they are {done[data.augment]}{upside}"


def fit(table: Any, data: Any, without: Sequence[str]) -> ImageEncoder:  # noqa: ARG001 - as every kind is asked
    """Return the encoder of a job's images."""
    where = Where(data.path or PATH, ending=data.ending or "")
    size = data.size or USUAL_SIZE
    return ImageEncoder(size, data.fit or FITS[0], len(data.targets), where=where, most=images_at_a_time(size))


def gather(table: Any, labels: Labels, data: Any, source: Any) -> Gathered:
    """Return the labelled images of a file or a folder, read through the cache."""
    tasks = labels[:, None] if labels.ndim == 1 else labels
    known = np.flatnonzero(~np.isnan(tasks).all(1))
    where = Where.of(source, path=data.path, root=data.root, ending=data.ending)
    every = where.files(table)
    files = [every[row] for row in known]
    if files and not any(map(os.path.isfile, files)):
        raise ValueError(where.lost(files))
    dataset, report = images_of(
        files,
        tasks[known],
        size=data.size,
        fit=data.fit,
        on_error=data.on_error or "skip",
        workers=processes(),
        unmeasured=len(every) - len(known),
        ignored=getattr(source, "ignored", ()),
    )
    refused = [Refused(int(known[item.row]), item.name, item.reason) for item in report.unreadable]
    return Gathered(dataset, known[dataset.places], report.lines(), refused)


def for_training(dataset: ImageDataset, data: Any, seed: int) -> ImageDataset:
    """Return the images as they are trained on: augmented by draws of that seed."""
    augment = AUGMENTS[data.augment]
    if augment is not None and data.upside_down:
        augment = replace(augment, upside_down=True)
    return dataset.subset(np.arange(len(dataset)), augment=augment, seed=seed)


def reading(encoder: ImageEncoder, source: Any, given: Mapping[str, Any]) -> ImageEncoder:
    """Return the encoder for the images of a file or a folder; paths begin at the file's folder if nothing is said."""
    path = given.get("path", None if isinstance(source, ImageFolder) else encoder.where.column)
    where = Where.of(source, path=path, root=given.get("root"), ending=given.get("ending", encoder.where.ending))
    return replace(encoder, where=where)


def draw(path: Path, files: Sequence[str], scores: Any, labels: Any, title: str | None, data: Any) -> None:
    """Write a contact sheet of the best-ranked images, true and false positives marked."""
    contact_sheet_of_files(path, files, scores, labels=labels, title=title, fit=data.fit)


def stages(rows: int, positives: int, model: str) -> Sequence[Stage]:  # noqa: ARG001 - the same for all networks
    """Return the default recipe, in batches of 64 as the paper's: some ten thousand steps, then an AP stage.

    >>> [(stage.name, stage.epochs, stage.sampler.num_pos) for stage in stages(8_032, 890, "resnet18")]
    [('ce', 80, 4), ('ap + ce', 12, 8)]
    """
    return sized_recipe(rows, positives, steps=10_000, joint_steps=1500, least_epochs=20)


def network(name: str) -> Callable[..., nn.Module]:
    """Return what builds the network for a number of tasks."""

    def build(tasks: int, *, width: int = 64, stem: str = "imagenet") -> nn.Module:
        return MODELS[name](tasks, width=width, stem=stem)

    return build


IMAGES = Kind(
    title="images: a folder per class, or a table of files",
    fit=fit,
    restore=restore,
    shape=lambda encoder: encoder.tasks,
    models={name: network(name) for name in MODELS},
    stages=stages,
    takes=frozenset({"path", "root", "ending", "size", "fit", "augment", "upside_down", "on_error"}),
    check=check,
    settle=settle,
    describe=describe,
    gather=gather,
    for_training=for_training,
    reading=reading,
    load_weights=load_pretrained,
    pictures=Pictures(files=lambda encoder, table: encoder.where.files(table), draw=draw),
    batch_rows=lambda data: images_at_a_time(data.size or USUAL_SIZE),
    several_targets=True,
    folders=True,
)
