"""Ranks of test rows by every method, and average precision of resampled rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

_CHUNK = 100
"""Resamples that are counted at a time: a bound on memory."""

Ranks = Mapping[str, NDArray[Any]]
"""Of a split: "units" and "labels" of its test rows, and ranks by method; equal scores share one.

Rows of one unit (a molecule, or a lesion with several images) have one label and are resampled together.
"""


class TestRows(Protocol):
    """The test rows of a split."""

    @property
    def test_units(self) -> NDArray[np.int64]:
        """The unit of each row, the same number in all splits of a problem."""

    @property
    def test_labels(self) -> NDArray[np.float64]:
        """The label of each row."""


def save_ranks(path: Path, split: TestRows, method: str, scores: NDArray[np.float64]) -> None:
    """Add the ranks of a method to the file of its split."""
    found = dict(read_ranks(path)) if path.exists() else {}
    levels = np.unique(scores, return_inverse=True)[1].ravel()
    found |= {"units": split.test_units.astype(np.int32), "labels": split.test_labels.astype(np.uint8)}
    found[method] = levels.astype(np.min_scalar_type(len(levels)))
    path.parent.mkdir(parents=True, exist_ok=True)
    unfinished = path.with_name(f"unfinished-{path.name}")
    np.savez_compressed(unfinished, **found)
    unfinished.replace(path)


def read_ranks(path: Path) -> Ranks:
    """Return what the file of a split holds."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def resampled_means(
    splits: Sequence[Ranks], methods: Iterable[str], resamples: int = 1000, seed: int = 0
) -> dict[str, NDArray[np.float64]]:
    """Return for each method the mean average precision over splits of every resample, (resamples,).

    A resample draws positive and negative units of the problem with replacement, each class from all that are in the
    test part of some split. All splits and methods share it: a unit counts as often in each. So splits may share some
    units or, as seeds do, all. A split without a positive in a resample takes no part in its mean.
    """
    every, labels = _distinct(splits)
    generator = np.random.default_rng(seed)
    places = [np.searchsorted(every, split["units"]) for split in splits]
    values: dict[str, list[NDArray[np.float64]]] = {method: [] for method in methods}
    for start in range(0, resamples, _CHUNK):
        size = min(_CHUNK, resamples - start)
        counts = np.zeros((size, len(every)))
        for label in (0, 1):
            own = np.flatnonzero(labels == label)
            counts[:, own] = generator.multinomial(len(own), np.full(len(own), 1 / len(own)), size=size)
        for method, chunks in values.items():
            found = [
                _average_precision(counts[:, place], split["labels"], split[method])
                for split, place in zip(splits, places, strict=True)
            ]
            chunks.append(np.nanmean(found, 0))
    return {method: np.concatenate(chunks) for method, chunks in values.items()}


def _distinct(splits: Sequence[Ranks]) -> tuple[NDArray[Any], NDArray[Any]]:
    units, first = np.unique(np.concatenate([split["units"] for split in splits]), return_index=True)
    return units, np.concatenate([split["labels"] for split in splits])[first]


def _average_precision(counts: NDArray[np.float64], labels: NDArray[Any], ranks: NDArray[Any]) -> NDArray[np.float64]:
    """Return the average precision of rows that count `counts` times, (resamples, n); NaN without positives."""
    order = np.argsort(ranks, kind="stable")[::-1]
    last = np.flatnonzero(np.append(np.diff(ranks[order].astype(np.int64)) != 0, True))
    taken, found = ((counts[:, order] * weight).cumsum(1)[:, last] for weight in (1, labels[order]))
    precision = found / np.maximum(taken, 1)
    with np.errstate(invalid="ignore"):
        result: NDArray[np.float64] = (np.diff(found, axis=1, prepend=0) * precision).sum(1) / found[:, -1]
    return result
