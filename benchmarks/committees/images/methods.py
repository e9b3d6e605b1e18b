"""Methods that are compared on images, each from a split to scores of its test images, on the same cores."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
from numpy.typing import NDArray

from apmax.data import k_fold
from apmax.metrics import average_precision
from benchmarks.committees.images.problems import ImageSplit, load_image_split
from benchmarks.committees.methods import EFFORTS, Scored, train_rows_by_command
from benchmarks.committees.runner import Suite

_NARROW = ("--model", "resnet18", "--width", "16")
NETWORKS: dict[str, tuple[str, ...]] = {"resnet18_narrow": _NARROW, "resnet18_narrow_ce": (*_NARROW, "--loss", "ce")}
"""One network by the recipe of `apmax train --model`: cross-entropy and then AP + CE, or cross-entropy alone."""
LOGISTIC = "logistic_pixels"
STRENGTHS = (1e-5, 1e-4, 1e-3, 1e-2, 1e-1)
"""Values of C of the logistic regression on standardised pixels."""
_FOLDS = 3
_ITERATIONS = 300


def _train_by_command(split: ImageSplit, effort: str | None, seed: int, arguments: tuple[str, ...] = ()) -> Scored:
    """Run `apmax train` on PNG files of the training images, named by a table."""
    import pyarrow as pa

    with (
        tempfile.TemporaryDirectory() as folder,
        # Every method decodes the files itself, and leaves nothing behind.
        patch.dict(os.environ, {"APMAX_CACHE": str(Path(folder) / "cache")}),
    ):
        train, test = (
            pa.table({"path": _write_images(Path(folder) / name, rows, split.size)})
            for name, rows in (("train", split.train), ("test", split.test))
        )
        options = ["--path", "path", *arguments]
        if split.train_groups is not None:
            train = train.append_column("group", pa.array(split.train_groups))
            options += ["--group", "group"]
        return train_rows_by_command(train, split.train_labels, test, effort, seed, options)


def _write_images(folder: Path, rows: NDArray[np.uint8], size: int) -> list[str]:
    from PIL import Image

    folder.mkdir()
    paths = [str(folder / f"{number:06d}.png") for number in range(len(rows))]
    for path, row in zip(paths, rows, strict=True):
        Image.fromarray(row.reshape(size, size, 3)).save(path)
    return paths


def _logistic_pixels(split: ImageSplit, seed: int) -> Scored:
    """Fit logistic regression to standardised pixels, with C by the mean AP of folds, then to all training rows."""
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    train, labels = split.train.astype(np.float32), split.train_labels
    folds = k_fold(labels, _FOLDS, groups=split.train_groups, seed=seed)

    def fit(strength: float, rows: NDArray[np.int64]) -> Any:
        model = make_pipeline(StandardScaler(), LogisticRegression(C=strength, max_iter=_ITERATIONS))
        return model.fit(train[rows], labels[rows])

    def value(strength: float) -> float:
        scores = ((fit(strength, rows).decision_function(train[held]), labels[held]) for rows, held in folds)
        return float(np.mean([average_precision(*each) for each in scores]))

    found = {strength: value(strength) for strength in STRENGTHS}
    best = max(found, key=lambda strength: found[strength])
    model = fit(best, np.arange(len(labels)))
    scores = model.decision_function(split.test.astype(np.float32)).astype(np.float64)
    return Scored(scores, {"C": best, "crossfit_ap": found[best]})


def _fit(split: ImageSplit, method: str, seed: int, limit: float | None, autogluon: str | None) -> Scored:  # noqa: ARG001
    if method in EFFORTS:
        return _train_by_command(split, method, seed)
    if method in NETWORKS:
        return _train_by_command(split, None, seed, NETWORKS[method])
    return _logistic_pixels(split, seed)


IMAGE_SUITE = Suite(
    (LOGISTIC, *NETWORKS, *EFFORTS), load_image_split, _fit, ("scikit-learn", "numpy", "torch", "Pillow")
)
"""Logistic regression, one network with either loss, and committees of both efforts with their members."""
