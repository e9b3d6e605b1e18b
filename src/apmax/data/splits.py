"""Training, validation and test rows: by chance, by class, by groups that stay together, or as given."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import validation

Rows = npt.NDArray[np.int64]
EIGHTY_TEN_TEN = (0.8, 0.1, 0.1)


@dataclass(frozen=True)
class Split:
    """Rows of the three parts; together they need not be all rows, but no row is in two of them.

    Raises:
        ValueError: A row twice, or a negative one.
    """

    train: Rows
    valid: Rows
    test: Rows

    def __post_init__(self) -> None:
        joined = np.concatenate([self.train, self.valid, self.test])
        values, counts = np.unique(joined, return_counts=True)
        if (counts > 1).any():
            raise ValueError(f"a split must not hold a row twice, got row {values[counts > 1][0]} in two places")
        if (values < 0).any():
            raise ValueError(f"a split must hold rows from 0, got {values[0]}")


def random_split(num_rows: int, fractions: Sequence[float] = EIGHTY_TEN_TEN, *, seed: int = 0) -> Split:
    """Return a split by chance.

    >>> split = random_split(10)
    >>> len(split.train), len(split.valid), len(split.test)
    (8, 1, 1)
    """
    order = np.random.default_rng(seed).permutation(validation.whole("num_rows", num_rows, 1))
    return Split(*(np.sort(part) for part in np.split(order, _cuts(num_rows, fractions))))


def stratified_split(labels: Any, fractions: Sequence[float] = EIGHTY_TEN_TEN, *, seed: int = 0) -> Split:
    """Return a split by chance in which every part has its share (±1) of the positives and of the negatives.

    Raises:
        ValueError: Labels of several tasks, which no one split can do justice to.

    >>> split = stratified_split([1, 0, 0, 0, 0] * 10)
    >>> len(split.train), int((split.train % 5 == 0).sum())
    (40, 8)
    """
    table = validation.label_array(labels).numpy()
    if table.ndim != 1:
        raise ValueError(f"labels must be of one task to stratify by, got shape {table.shape}")
    generator = np.random.default_rng(seed)
    parts: list[list[Rows]] = [[], [], []]
    for label in (0, 1):
        rows = generator.permutation(np.flatnonzero(table == label))
        for part, some in zip(parts, np.split(rows, _cuts(len(rows), fractions)), strict=True):
            part.append(some)
    return Split(*(np.sort(np.concatenate(part)) for part in parts))


def grouped_split(groups: Sequence[Any], fractions: Sequence[float] = EIGHTY_TEN_TEN) -> Split:
    """Return the split in which no group is divided: the largest groups go first, into training while they fit.

    MoleculeNet's rule: a group that would overfill the training part goes to validation, and one that would overfill
    both goes to the test. Of two groups of a size the one that begins later goes first. Deterministic.

    >>> grouped_split(["a", "a", "b", "a", "c"], (0.6, 0.2, 0.2)).test
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
        ValueError: An array is missing, or not of whole numbers.
    """
    with np.load(path, allow_pickle=False) as file:
        for name in ("train", "valid", "test"):
            if name not in file or file[name].ndim != 1 or file[name].dtype.kind not in "iu":
                raise ValueError(f"{path} must hold an array of row numbers called {name!r}, it has {list(file)}")
        return Split(*(file[name].astype(np.int64) for name in ("train", "valid", "test")))


def _fractions(fractions: Sequence[float]) -> tuple[float, float, float]:
    if len(fractions) != 3 or any(part < 0 for part in fractions) or abs(sum(fractions) - 1) > 1e-6:
        raise ValueError(f"fractions must be three shares that sum to 1, got {tuple(fractions)}")
    first, second, third = map(float, fractions)
    return first, second, third


def _cuts(num_rows: int, fractions: Sequence[float]) -> list[int]:
    first, second, _ = _fractions(fractions)
    return [round(num_rows * first), round(num_rows * (first + second))]
