"""Which rows are held out: those to choose by, and those for the test."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data import (
    Labels,
    one_column,
    parsing,
    split_by_group,
    split_by_time,
    split_random,
    split_stratified,
    timestamps,
)
from apmax.workflows.data_types import KINDS
from apmax.workflows.spec import DataSpec

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
    marks = one_column(labels)
    halve, how = way(table, labels, spec, seed=seed)
    rest, test = np.arange(len(marks)), None
    if spec.test_share:
        rest, test = halve(rest, spec.test_share)
    train, valid = halve(rest, spec.share / (1 - spec.test_share))
    parts = Parts(train, valid, test, how)
    for name, rows in (("to train on", train), ("to choose by", valid), ("for the test", test)):
        for value, word in ((1, "positive"), (0, "negative")):
            if rows is not None and not (marks[rows] == value).any():
                raise ValueError(f"holding out {how} leaves no {word} row {name}: hold out more, or in another way")
    return parts


Halve = Callable[[Numbers, float], tuple[Numbers, Numbers]]


def way(table: Any, labels: Labels, spec: DataSpec, *, seed: int) -> tuple[Halve, str]:
    """Return the function that splits rows as `spec` says, and a description of the rows that it holds out.

    It is called with the numbers of the rows to be split, and the share of them to hold out.
    """

    def numbered(split: Callable[[Numbers, float], tuple[Numbers, Numbers]]) -> Halve:
        def halve(rows: Numbers, share: float) -> tuple[Numbers, Numbers]:
            train, held_out = split(rows, share)
            return rows[train], rows[held_out]

        return halve

    grouping = KINDS[spec.kind].groupings.get(spec.split or "")
    if grouping is not None or spec.group is not None:
        if grouping is not None:
            groups = np.asarray(grouping(table, spec))
            how = f"whole {spec.split}s, of which there are {len(set(groups)):,}"
        else:
            groups = np.asarray(parsing.words(table.column(spec.group)).fill_null("").to_pylist())
            how = f"whole groups of {spec.group!r}"
        return numbered(lambda rows, share: split_by_group(labels[rows], groups[rows], share, seed=seed)), how
    if spec.time is not None:
        times = timestamps(table.column(spec.time))
        return numbered(lambda rows, share: split_by_time(labels[rows], times[rows], share)), (
            f"the latest by {spec.time!r}"
        )
    if spec.split == "random":
        return numbered(lambda rows, share: split_random(len(rows), share, seed=seed)), f"a random {spec.share:.0%}"
    return numbered(lambda rows, share: split_stratified(labels[rows], share, seed=seed)), (
        f"a random {spec.share:.0%} of each class"
    )
