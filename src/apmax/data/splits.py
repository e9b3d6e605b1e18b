"""Splits of rows: stratified, random, by group, by time, k-fold, and the three-part splits of published sets.

`split_…` returns (training, held-out) rows, ascending. `Split` has the three parts of the paper's experiments.
Labels are (n,), or (n, targets) with NaN where missing.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import validation
from apmax.data.archives import read_npz

RowNumbers = npt.NDArray[np.int64]
Labels = npt.NDArray[np.float32]
"""(n,), or (n, targets): 1 positive, 0 negative, NaN missing."""
EIGHTY_TEN_TEN = (0.8, 0.1, 0.1)


def any_known(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which rows have a label for any target, (n,)."""
    return np.asarray(np.atleast_2d(~np.isnan(labels).T).any(0), dtype=np.bool_)


def any_positive(labels: npt.NDArray[Any]) -> npt.NDArray[np.bool_]:
    """Return which rows are positive for any target, (n,)."""
    return np.asarray(np.atleast_2d((labels == 1).T).any(0), dtype=np.bool_)


def strata(labels: npt.NDArray[Any]) -> RowNumbers:
    """Return the stratum of each row of labels (n, targets): its rarest positive target, counted from the rarest.

    1 is the rarest target of all; 0 are the rows without a positive.

    >>> strata(np.array([[1, 0, 0], [1, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, np.nan]])).tolist()
    [3, 1, 2, 0, 2]
    """
    positive = labels == 1
    order = np.argsort(positive.sum(0), kind="stable")
    return np.where(positive.any(1), positive[:, order].argmax(1) + 1, 0)


def one_column(labels: npt.NDArray[Any]) -> Labels:
    """Return labels (n,) that stand for those of several targets: 1 for rows positive for any.

    Where that is every row, 1 for those of the rarest target.

    >>> one_column(np.array([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])).tolist()
    [0.0, 1.0, 0.0]
    """
    if labels.ndim == 1:
        return labels.astype(np.float32, copy=False)
    positive = any_positive(labels)
    return (strata(labels) == 1 if positive.all() else positive).astype(np.float32)


def split_stratified(labels: npt.NDArray[Any], share: float, *, seed: int) -> tuple[RowNumbers, RowNumbers]:
    """Hold out `share` of each class, at least one row of each and never all of them.

    With several targets the classes are the `strata`, of which one of a single row stays in training.

    Raises:
        ValueError: One target, and a class with fewer than two rows.

    >>> train, held_out = split_stratified(np.array([1, 0, 0, 0, 1, 0, 0, 0, 0, 0]), 0.5, seed=0)
    >>> len(train), len(held_out)
    (5, 5)
    """
    validation.interval("share", share, 0, 1, closed="neither")
    if labels.ndim == 1:
        classes = [np.flatnonzero(labels == value) for value in (1, 0)]
        for rows, name in zip(classes, ("positive", "negative"), strict=True):
            if len(rows) < 2:
                raise ValueError(
                    f"a split needs a {name} row for training and one to hold out, there are {len(rows)} in all"
                )
    else:
        classes = _equal_values(strata(labels))
    generator = np.random.default_rng(seed)
    held = np.zeros(len(labels), bool)
    for rows in classes:
        held[generator.permutation(rows)[: min(max(1, round(share * len(rows))), len(rows) - 1)]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def split_random(num_rows: int, share: float, *, seed: int) -> tuple[RowNumbers, RowNumbers]:
    """Hold out `share` of the rows whatever their class, at least one and not all.

    >>> train, held_out = split_random(10, 0.2, seed=0)
    >>> len(train), len(held_out)
    (8, 2)
    """
    validation.interval("share", share, 0, 1, closed="neither")
    order = np.random.default_rng(seed).permutation(validation.whole("num_rows", num_rows, 2))
    count = min(max(1, round(share * num_rows)), num_rows - 1)
    return np.sort(order[count:]), np.sort(order[:count])


def split_by_group(
    labels: npt.NDArray[Any], groups: npt.NDArray[Any], share: float, *, seed: int
) -> tuple[RowNumbers, RowNumbers]:
    """Hold out whole groups, about `share` of each class.

    Groups are taken in random order; one is held out where that brings the two classes nearer to their share. Where
    every group with positives (or negatives) is too large for that, the one that comes nearest is held out.

    Args:
        labels: (n,) or (n, targets).
        groups: The group of each row, (n,).
        share: The share of each class to hold out.
        seed: Of the order.

    Raises:
        ValueError: A side has no positives or no negatives.

    >>> labels, groups = np.array([1, 0, 1, 0, 1, 0]), np.array(["a", "a", "b", "b", "c", "c"])
    >>> train, held_out = split_by_group(labels, groups, 0.3, seed=0)
    >>> len(train), len(held_out)
    (4, 2)
    """
    validation.interval("share", share, 0, 1, closed="neither")
    labels = one_column(labels)
    group, counts = _group_counts(labels, groups)
    held = _held_out_groups(counts, share, np.random.default_rng(seed).permutation(len(counts)))
    train, held_out = np.flatnonzero(~held[group]), np.flatnonzero(held[group])
    _check_classes(labels, train, held_out, f"the {len(counts)} groups")
    return train, held_out


def split_by_time(
    labels: npt.NDArray[Any], times: npt.NDArray[np.float64], share: float
) -> tuple[RowNumbers, RowNumbers]:
    """Hold out about the latest `share`; rows of the same time stay together.

    Args:
        labels: (n,) or (n, targets).
        times: The time of each row as a number, (n,).
        share: The share to hold out.

    Raises:
        ValueError: A time is missing, all are the same, or a side has no positives or no negatives.

    >>> train, held_out = split_by_time(np.array([1, 0, 0, 1, 0]), np.array([1.0, 2.0, 3.0, 4.0, 4.0]), 0.4)
    >>> train.tolist(), held_out.tolist()
    ([0, 1, 2], [3, 4])
    """
    validation.interval("share", share, 0, 1, closed="neither")
    validation.known_times(times)
    distinct, counts = np.unique(times, return_counts=True)
    if len(distinct) < 2:
        raise ValueError("time must have at least two different values")
    # The cut between two times that holds out the share nearest to the wanted one.
    later = len(times) - np.cumsum(counts)[:-1]
    cut = distinct[np.argmin(np.abs(later - share * len(times)))]
    train, held_out = np.flatnonzero(times <= cut), np.flatnonzero(times > cut)
    _check_classes(one_column(labels), train, held_out, "time")
    return train, held_out


def k_fold(
    labels: npt.NDArray[Any], k: int, *, groups: npt.NDArray[Any] | None = None, seed: int
) -> list[tuple[RowNumbers, RowNumbers]]:
    """Return k pairs of (training, held-out) rows; every row is held out once.

    Without groups every fold has its share (±1) of each class (of several targets: of each of the `strata`), and the
    folds have equal sizes (±1). With groups no group is divided: those with the most positives are assigned first,
    each to the fold with the fewest positives, so that every fold has positives if k groups have.

    Args:
        labels: (n,) or (n, targets).
        k: The number of folds.
        groups: The group of each row, (n,).
        seed: Of the order.

    Raises:
        ValueError: Fewer rows or groups than folds.

    >>> folds = k_fold(np.array([1, 0, 0, 0, 1, 0, 0, 0]), 2, seed=0)
    >>> [int((held_out % 4 == 0).sum()) for _, held_out in folds]
    [1, 1]
    """
    validation.whole("k", k, 2)
    generator = np.random.default_rng(seed)
    if len(labels) < k:
        raise ValueError(f"k must be at most the number of rows, got k={k} and {len(labels)} rows")
    fold = np.empty(len(labels), dtype=np.int64)
    if groups is None:
        classes = _equal_values(np.nan_to_num(labels, nan=-1) if labels.ndim == 1 else strata(labels))
        # Round-robin, one class after the other, so that the sizes of the folds are equal as well.
        order = np.concatenate([generator.permutation(rows) for rows in classes])
        fold[order] = np.arange(len(order)) % k
    else:
        group, counts = _group_counts(one_column(labels), groups)
        if len(counts) < k:
            raise ValueError(f"k must be at most the number of groups, got k={k} and {len(counts)} groups")
        order = generator.permutation(len(counts))
        order = order[np.lexsort((-counts[order].sum(1), -counts[order, 0]))]
        fold_of_group = np.empty(len(counts), dtype=np.int64)
        totals = np.zeros((k, 2))
        for each in order:
            by = totals[:, 0] if counts[each, 0] else totals.sum(1)
            chosen = np.lexsort((totals.sum(1), by))[0]
            fold_of_group[each] = chosen
            totals[chosen] += counts[each]
        fold = fold_of_group[group]
    return [(np.flatnonzero(fold != number), np.flatnonzero(fold == number)) for number in range(k)]


@dataclass(frozen=True)
class Split:
    """The rows of three parts; not necessarily all rows, but none twice.

    Raises:
        ValueError: A row twice, or a negative one.
    """

    train: RowNumbers
    valid: RowNumbers
    test: RowNumbers

    def __post_init__(self) -> None:
        joined = np.concatenate([self.train, self.valid, self.test])
        values, counts = np.unique(joined, return_counts=True)
        if (counts > 1).any():
            raise ValueError(f"a split must not hold a row twice, got row {values[counts > 1][0]} in two places")
        if (values < 0).any():
            raise ValueError(f"a split must hold rows from 0, got {values[0]}")

    @staticmethod
    def random(num_rows: int, fractions: Sequence[float] = EIGHTY_TEN_TEN, *, seed: int = 0) -> Split:
        """Return a random split.

        >>> split = Split.random(10)
        >>> len(split.train), len(split.valid), len(split.test)
        (8, 1, 1)
        """
        order = np.random.default_rng(seed).permutation(validation.whole("num_rows", num_rows, 1))
        return Split(*(np.sort(part) for part in np.split(order, _cuts(num_rows, fractions))))

    @staticmethod
    def stratified(labels: Any, fractions: Sequence[float] = EIGHTY_TEN_TEN, *, seed: int = 0) -> Split:
        """Return a random split whose parts have their share (±1) of the positives and of the negatives.

        Raises:
            ValueError: Labels of several targets.

        >>> split = Split.stratified([1, 0, 0, 0, 0] * 10)
        >>> len(split.train), int((split.train % 5 == 0).sum())
        (40, 8)
        """
        table = validation.label_array(labels).numpy()
        if table.ndim != 1:
            raise ValueError(f"labels must be of one task to stratify by, got shape {table.shape}")
        generator = np.random.default_rng(seed)
        parts: list[list[RowNumbers]] = [[], [], []]
        for rows in _equal_values(table):
            shuffled = generator.permutation(rows)
            for part, some in zip(parts, np.split(shuffled, _cuts(len(rows), fractions)), strict=True):
                part.append(some)
        return Split(*(np.sort(np.concatenate(part)) for part in parts))

    @staticmethod
    def by_group(groups: Sequence[Any], fractions: Sequence[float] = EIGHTY_TEN_TEN) -> Split:
        """Return the split by MoleculeNet's rule: no group is divided, the largest go into training while they fit.

        A group that would overfill the training part goes to validation, and one that would overfill both to the
        test part. Of two groups of the same size the one that begins later comes first. Deterministic.

        >>> Split.by_group(["a", "a", "b", "a", "c"], (0.6, 0.2, 0.2)).test
        array([2])
        """
        first, second, _ = _fractions(fractions)
        members: dict[Any, list[int]] = {}
        for row, group in enumerate(groups):
            members.setdefault(group, []).append(row)
        train: list[int] = []
        valid: list[int] = []
        test: list[int] = []
        for rows in sorted(members.values(), key=lambda rows: (len(rows), rows[0]), reverse=True):
            if len(train) + len(rows) <= first * len(groups) + 1e-9:
                train += rows
            elif len(train) + len(valid) + len(rows) <= (first + second) * len(groups) + 1e-9:
                valid += rows
            else:
                test += rows
        return Split(*(np.array(sorted(part), dtype=np.int64) for part in (train, valid, test)))


def load_split(path: str | PathLike[str]) -> Split:
    """Return the split of an .npz file with the arrays `train`, `valid` and `test` of row numbers.

    Raises:
        ValueError: An array is missing, damaged, larger than 1 GiB, or not of whole numbers.
    """
    arrays = read_npz(path, ("train", "valid", "test"))
    for name, array in arrays.items():
        if array.ndim != 1 or array.dtype.kind not in "iu":
            raise ValueError(f"{path} must hold row numbers in {name!r}, got {array.dtype} of shape {array.shape}")
    return Split(*(array.astype(np.int64) for array in arrays.values()))


def _equal_values(values: npt.NDArray[Any]) -> list[RowNumbers]:
    """Return the rows of each value, in the order of values."""
    return [np.flatnonzero(values == value) for value in np.unique(values)]


def _group_counts(labels: Labels, groups: npt.NDArray[Any]) -> tuple[RowNumbers, npt.NDArray[np.float64]]:
    """Return the number of each row's group, and each group's positives and negatives, (groups, 2)."""
    _, group = np.unique(validation.group_array(groups, len(labels)), return_inverse=True)
    return group, np.stack([np.bincount(group, weights=labels == value) for value in (1, 0)], 1)


def _held_out_groups(counts: npt.NDArray[np.float64], share: float, order: RowNumbers) -> npt.NDArray[np.bool_]:
    """Return which groups `split_by_group` holds out, by their positives and negatives, (groups, 2)."""
    total = counts.sum(0)
    held, sum_held = np.zeros(len(counts), bool), np.zeros(2)

    def distance(held_out: npt.NDArray[np.float64]) -> float:
        # Relative to the wanted counts, so that the rare class counts as much as the frequent one.
        return float(((held_out / np.maximum(share * total, 1e-9) - 1) ** 2).sum())

    def hold_out(group: int) -> None:
        held[group] = True
        sum_held[:] += counts[group]

    def hold_out_nearer() -> None:
        for group in order:
            more = sum_held + counts[group]
            if not held[group] and (more < total).all() and distance(more) < distance(sum_held):
                hold_out(group)

    hold_out_nearer()
    if not sum_held.all():
        held[:], sum_held[:] = False, 0
        for value in (0, 1):
            possible = [group for group in order if counts[group, value] and (sum_held + counts[group] < total).all()]
            if possible and not sum_held[value]:
                hold_out(min(possible, key=lambda group: distance(sum_held + counts[group])))
        hold_out_nearer()
    return held


def _check_classes(labels: Labels, train: RowNumbers, held_out: RowNumbers, by: str) -> None:
    for part, rows in (("for training", train), ("to hold out", held_out)):
        for value, name in ((1, "positive"), (0, "negative")):
            if not (labels[rows] == value).any():
                raise ValueError(
                    f"splitting by {by} leaves no {name} row {part}: choose another share, or split in another way"
                )


def _fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    if len(fractions) != 3 or any(part < 0 for part in fractions) or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(f"fractions must be three shares that sum to 1, got {tuple(fractions)}")
    first, second, third = map(float, fractions)
    return first, second, third


def _cuts(num_rows: int, fractions: Sequence[float]) -> list[int]:
    first, second, _ = _fractions(fractions)
    return [round(num_rows * first), round(num_rows * (first + second))]
