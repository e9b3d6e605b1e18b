"""Which rows are held out to choose by: a fair share of each class, whole groups, or the latest."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import validation

Rows = npt.NDArray[np.int64]


def stratified(labels: npt.NDArray[Any], share: float, *, seed: int) -> tuple[Rows, Rows]:
    """Return (training, held-out) rows, ascending, `share` of each class held out, at least one row of each.

    Raises:
        ValueError: A class with fewer than two rows.

    >>> train, valid = stratified(np.array([1, 0, 0, 0, 1, 0, 0, 0, 0, 0]), 0.5, seed=0)
    >>> len(train), len(valid)
    (5, 5)
    """
    validation.interval("share", share, 0, 1, closed="neither")
    generator = np.random.default_rng(seed)
    held = []
    for value, name in ((1, "positive"), (0, "negative")):
        rows = np.flatnonzero(labels == value)
        if len(rows) < 2:
            raise ValueError(f"a {name} row is needed to train on and one to choose by, there are {len(rows)} in all")
        count = min(max(1, round(share * len(rows))), len(rows) - 1)
        held.append(generator.permutation(rows)[:count])
    valid = np.sort(np.concatenate(held))
    return np.setdiff1d(np.arange(len(labels)), valid), valid


def by_group(labels: npt.NDArray[Any], groups: npt.NDArray[Any], share: float, *, seed: int) -> tuple[Rows, Rows]:
    """Return (training, held-out) rows such that no group is on both sides, about `share` of each class held out.

    Groups are taken in random order, and one is held out where that brings the two classes nearer to their share.

    Raises:
        ValueError: A side would have no positives or no negatives.

    >>> train, valid = by_group(np.array([1, 0, 1, 0, 1, 0]), np.array(["a", "a", "b", "b", "c", "c"]), 0.3, seed=0)
    >>> len(train), len(valid)
    (4, 2)
    """
    validation.interval("share", share, 0, 1, closed="neither")
    _, group = np.unique(groups, return_inverse=True)
    positives = np.bincount(group, weights=labels == 1)
    negatives = np.bincount(group, weights=labels == 0)
    counts = np.stack([positives, negatives], 1)
    wanted = share * counts.sum(0)
    order = np.random.default_rng(seed).permutation(len(counts))
    held = np.zeros(len(counts), bool)
    sum_held = np.zeros(2)
    for each in order:
        # Relative to what is wanted, so that the rare class counts as much as the frequent one.
        totals = np.stack([sum_held, sum_held + counts[each]]) / np.maximum(wanted, 1e-9)
        now, then = ((totals - 1) ** 2).sum(1)
        if then < now:
            held[each] = True
            sum_held += counts[each]
    valid = np.flatnonzero(held[group])
    train = np.flatnonzero(~held[group])
    check_sides(labels, train, valid, f"the {len(counts)} groups")
    return train, valid


def by_time(labels: npt.NDArray[Any], times: npt.NDArray[np.float64], share: float) -> tuple[Rows, Rows]:
    """Return (training, held-out) rows: about the latest `share` held out, rows of one moment on one side.

    Raises:
        ValueError: A missing time, one moment only, or a side without positives or negatives.

    >>> train, valid = by_time(np.array([1, 0, 0, 1, 0]), np.array([1.0, 2.0, 3.0, 4.0, 4.0]), 0.4)
    >>> train.tolist(), valid.tolist()
    ([0, 1, 2], [3, 4])
    """
    validation.interval("share", share, 0, 1, closed="neither")
    unknown = int(np.isnan(times).sum())
    if unknown:
        raise ValueError(f"time must be known in every row, {unknown} of {len(times)} are missing or not readable")
    moments, counts = np.unique(times, return_counts=True)
    if len(moments) < 2:
        raise ValueError("time must have at least two different moments")
    # The cut between two moments that holds out the share nearest to the one asked for.
    later = len(times) - np.cumsum(counts)[:-1]
    cut = moments[np.argmin(np.abs(later - share * len(times)))]
    train, valid = np.flatnonzero(times <= cut), np.flatnonzero(times > cut)
    check_sides(labels, train, valid, "time")
    return train, valid


def check_sides(labels: npt.NDArray[Any], train: Rows, valid: Rows, what: str) -> None:
    """Raise unless both sides have rows of both classes."""
    for side, rows in (("to train on", train), ("to choose by", valid)):
        for value, name in ((1, "positive"), (0, "negative")):
            if not (labels[rows] == value).any():
                raise ValueError(f"splitting by {what} leaves no {name} row {side}; give a validation file instead")
