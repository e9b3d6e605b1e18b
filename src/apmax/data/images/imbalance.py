"""The paper's imbalanced sets of balanced classes: the second half positive, and few of the positives kept."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from apmax import validation

Rows = npt.NDArray[np.int64]
PAPERS_KEEP = 0.02


def imbalanced_rows(
    classes: npt.ArrayLike, num_classes: int, *, keep: float = PAPERS_KEEP, valid: float = 0.2, seed: int = 0
) -> tuple[Rows, Rows]:
    """Return the training and the validation rows, ascending: all negatives, and a share `keep` of the positives.

    Every class gives its share of both parts (±1), and the totals are those shares of all rows, rounded.

    Args:
        classes: The class of every row, from 0; those of the second half are positive.
        num_classes: How many there are.
        keep: The share of positives that is kept.
        valid: The share of the kept rows that goes to validation.
        seed: Of the choice.

    Raises:
        ValueError: A class out of range, or no positive is left in one of the parts.

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
    groups = (range(half), range(half, num_classes))
    train: list[Rows] = []
    held: list[Rows] = []
    for share, group in zip((1.0, keep), groups, strict=True):
        rows = [generator.permutation(np.flatnonzero(table == label)) for label in group]
        kept = _shares([len(some) for some in rows], share)
        for some, count, later in zip(rows, kept, _shares(kept, valid), strict=True):
            held.append(some[:later])
            train.append(some[later:count])
    parts = np.sort(np.concatenate(train)), np.sort(np.concatenate(held))
    for name, part in zip(("training", "validation"), parts, strict=True):
        if not (table[part] >= half).any():
            raise ValueError(f"keep={keep} leaves no positive for {name}")
    return parts


def _shares(counts: list[int], share: float) -> list[int]:
    """Return a share of every count, so that the sums from the first on are right to the rounding."""
    ends = np.rint(np.cumsum([0, *counts]) * share)
    return [int(count) for count in np.diff(ends)]
