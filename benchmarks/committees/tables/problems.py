"""Imbalanced tables: which may be used for choices, which are held back, and how each is thinned and split."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax.data import split_stratified
from apmax.data.archives import read_npz
from benchmarks.data_folder import data_folder

DEVELOPMENT = (
    "mammography",
    "thyroid",
    "satimage-2",
    "pendigits",
    "optdigits",
    "musk",
    "ALOI",
    "letter",
    "PageBlocks",
    "hiva",
    "http",
    "fault",
    "satellite",
)
"""Tables by which settings may be chosen."""
HELD_BACK = ("campaign", "donors", "InternetAds", "mnist", "landsat", "Cardiotocography", "magic.gamma", "SpamBase")
"""Tables that are run once, with settings that are final, and choose nothing."""
TEST_SHARE = 0.4
MOST_POSITIVES = 0.02
MOST_ROWS = 20_000

_Rows = NDArray[np.int64]


@dataclass(frozen=True)
class TableSplit:
    """Training and test rows of a table: features (n, d) in float64, and labels of 0/1."""

    train: NDArray[np.float64]
    train_labels: NDArray[np.float64]
    test: NDArray[np.float64]
    test_labels: NDArray[np.float64]


def thin_rows(labels: NDArray[np.float64], share: float, most: int, generator: np.random.Generator) -> _Rows:
    """Return rows of which at most `share` are positive, at most `most` of them with that ratio of classes kept.

    >>> labels = np.array([1.0] * 50 + [0.0] * 98)
    >>> kept = thin_rows(labels, 0.02, 1000, np.random.default_rng(0))
    >>> len(kept), int(labels[kept].sum())
    (100, 2)
    """
    positives, negatives = (generator.permutation(np.flatnonzero(labels == value)) for value in (1, 0))
    positives = positives[: max(1, round(share / (1 - share) * len(negatives)))]
    keep = min(1.0, most / (len(positives) + len(negatives)))
    count = round(keep * len(positives))
    kept = np.concatenate([positives[:count], negatives[: min(len(negatives), most - count)]])
    return np.sort(kept)


def read_table(name: str) -> tuple[NDArray[Any], NDArray[np.float64]]:
    """Return the features as stored and the 0/1 labels of a table.

    Raises:
        SystemExit: APMAX_DATA is not set.
    """
    arrays = read_npz(data_folder() / "tabular" / f"{name}.npz", ("X", "y"))
    return arrays["X"], arrays["y"].astype(np.float64)


def load_table_split(name: str, resplit: int) -> TableSplit:
    """Return a resplit of a table: thinned positives, sub-sampled rows and a stratified split, all drawn by its number.

    Raises:
        SystemExit: APMAX_DATA is not set.
    """
    X, labels = read_table(name)
    rows = thin_rows(labels, MOST_POSITIVES, MOST_ROWS, np.random.default_rng(resplit))
    X, labels = X[rows].astype(np.float64), labels[rows]
    train, test = split_stratified(labels, TEST_SHARE, seed=resplit)
    return TableSplit(X[train], labels[train], X[test], labels[test])
