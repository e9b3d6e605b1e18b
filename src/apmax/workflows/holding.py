"""Which rows are held out: those to choose by, and those for the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data.tables import by_group, by_time, parsing, stratified
from apmax.workflows.data_types import KINDS
from apmax.workflows.spec import DataSpec
from apmax.workflows.targets import Labels, any_positive

Numbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Parts:
    """Rows to train on, to choose by and for the test (None where that is not a part), and how they were told apart."""

    train: Numbers
    valid: Numbers
    test: Numbers | None
    how: str


def hold_out(table: Any, labels: Labels, spec: DataSpec, *, seed: int) -> Parts:
    """Return the parts of a file's rows as `spec` wants them held out.

    Where groups are held out whole, they are such that each class has about its share in every part. Of several
    targets each has its share where rows are held out at random.

    Raises:
        ValueError: A part would have no positives or no negatives.
    """
    marks = marks_of(labels)
    halve, how = way(table, labels, spec, seed=seed)
    rest, test = np.arange(len(marks)), None
    if spec.test_share:
        rest, test = halve(marks, rest, spec.test_share)
    train, valid = halve(marks[rest], rest, spec.share / (1 - spec.test_share))
    parts = Parts(train, valid, test, how)
    for name, rows in (("to train on", train), ("to choose by", valid), ("for the test", test)):
        for value, word in ((1, "positive"), (0, "negative")):
            if rows is not None and not (marks[rows] == value).any():
                raise ValueError(f"holding out {how} leaves no {word} row {name}: hold out more, or in another way")
    return parts


def marks_of(labels: Labels) -> Labels:
    """Return 1 for rows positive for any target; where that is every row, for those of the rarest."""
    marks = any_positive(labels)
    if labels.ndim > 1 and marks.all():
        marks = strata(labels) == 1
    return marks.astype(np.float32)


def strata(labels: Labels) -> Numbers:
    """Return for each row the place of its rarest positive target, 1 for the rarest of all; 0 where it has none.

    >>> strata(np.array([[1, 0, 0], [1, 0, 1], [1, 1, 0], [0, 0, 0], [0, 1, np.nan]])).tolist()
    [3, 1, 2, 0, 2]
    """
    positive = labels == 1
    order = np.argsort(positive.sum(0), kind="stable")
    return np.where(positive.any(1), positive[:, order].argmax(1) + 1, 0)


Halve = Callable[[Labels, Numbers, float], tuple[Numbers, Numbers]]


def way(table: Any, labels: Labels, spec: DataSpec, *, seed: int) -> tuple[Halve, str]:
    """Return what parts rows as `spec` says, and what it holds out in words.

    It is called with the marks and the numbers of the rows to be parted, and how much of them is to be held out.
    """

    def numbered(part: Callable[..., tuple[Numbers, Numbers]], column: Any = None, **more: Any) -> Halve:
        def halve(marks: Labels, rows: Numbers, share: float) -> tuple[Numbers, Numbers]:
            stay, leave = part(marks, share, **more) if column is None else part(marks, column[rows], share, **more)
            return rows[stay], rows[leave]

        return halve

    grouping = KINDS[spec.kind].groupings.get(spec.split or "")
    if grouping is not None:
        groups = np.asarray(grouping(table, spec))
        return numbered(by_group, groups, seed=seed), f"whole {spec.split}s, of which there are {len(set(groups)):,}"
    if spec.group is not None:
        groups = np.asarray(parsing.words(table.column(spec.group)).fill_null("").to_pylist())
        return numbered(by_group, groups, seed=seed), f"whole groups of {spec.group!r}"
    if spec.time is not None:
        return numbered(by_time, moments(table.column(spec.time))), f"the latest by {spec.time!r}"
    if spec.split == "random":
        return numbered(by_chance, seed=seed), f"a random {spec.share:.0%}"
    how = f"a random {spec.share:.0%} of each class"
    if labels.ndim > 1:
        return numbered(of_each_stratum, strata(labels), seed=seed), how
    return numbered(stratified, seed=seed), how


def of_each_stratum(_marks: Labels, own: Numbers, share: float, *, seed: int) -> tuple[Numbers, Numbers]:
    """Return (training, held-out) rows, ascending: `share` of each stratum held out, at least one row where it has two.

    >>> train, held = of_each_stratum(np.zeros(6), np.array([1, 0, 0, 1, 2, 0]), 0.2, seed=0)
    >>> len(train), len(held)
    (4, 2)
    """
    generator = np.random.default_rng(seed)
    held = np.zeros(len(own), bool)
    for stratum in np.unique(own):
        rows = generator.permutation(np.flatnonzero(own == stratum))
        held[rows[: min(max(1, round(share * len(rows))), len(rows) - 1)]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)


def by_chance(marks: Labels, share: float, *, seed: int) -> tuple[Numbers, Numbers]:
    """Return (training, held-out) rows, ascending, whatever their class."""
    order = np.random.default_rng(seed).permutation(len(marks))
    count = max(1, round(share * len(marks)))
    return np.sort(order[count:]), np.sort(order[:count])


def moments(column: Any) -> npt.NDArray[np.float64]:
    """Return a column of dates, or of numbers that count time, as numbers."""
    if not parsing.is_date(column):
        values, unreadable = parsing.numbers(column)
        if unreadable == 0:
            return values
    form = "iso" if parsing.is_date(column) else parsing.date_format(parsing.words(column)) or "iso"
    return parsing.seconds(column, form)[0]
