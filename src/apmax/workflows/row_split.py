"""Splits of a file's rows into training, validation and test rows, by the rule of its configuration."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data import (
    Labels,
    one_column,
    split_by_group,
    split_by_time,
    split_random,
    split_stratified,
    timestamps,
)
from apmax.data.splits import RowNumbers
from apmax.workflows.data_types import DataType, LabelledRows
from apmax.workflows.labelled_files import group_names


@dataclass(frozen=True)
class RowSplit:
    """Row numbers of the training, validation and test parts (None without a test part), and the method in words."""

    train: RowNumbers
    valid: RowNumbers
    test: RowNumbers | None
    method: str


def split_rows(rows: LabelledRows, data_type: DataType[Any], *, seed: int) -> RowSplit:
    """Return the parts of a file's rows.

    Groups stay whole, and each class has about its share in every part. Of several targets each has its share where
    rows are held out at random.

    Raises:
        ValueError: A part would have no positives or no negatives.
    """
    config = data_type.config
    hold_out, method = row_splitter(rows, data_type, seed=seed)
    rest, test = np.arange(len(rows.labels)), None
    if config.test_share:
        rest, test = hold_out(rest, config.test_share)
    train, valid = hold_out(rest, config.share / (1 - config.test_share))
    check_parts(rows.labels, {"training": train, "validation": valid, "test": test}, method)
    return RowSplit(train, valid, test, method)


def check_parts(labels: Labels, parts: Mapping[str, RowNumbers | None], method: str) -> None:
    """Raise `ValueError` if a part of the rows, by its name, has no positive or no negative one."""
    positive = one_column(labels)
    for part, rows in parts.items():
        for value, word in ((1, "positive"), (0, "negative")):
            if rows is not None and not (positive[rows] == value).any():
                raise ValueError(
                    f"holding out {method} leaves no {word} row for {part}: hold out more, or in another way"
                )


HoldOut = Callable[[RowNumbers, float], tuple[RowNumbers, RowNumbers]]
"""Splits some rows, by their numbers and the share to hold out, into training and held-out rows."""


def row_splitter(rows: LabelledRows, data_type: DataType[Any], *, seed: int) -> tuple[HoldOut, str]:
    """Return the function that holds out a share of some of the rows, and its method in words."""
    config, labels = data_type.config, rows.labels

    def numbered(split: HoldOut) -> HoldOut:
        def hold_out(part: RowNumbers, share: float) -> tuple[RowNumbers, RowNumbers]:
            train, held_out = split(part, share)
            return part[train], part[held_out]

        return hold_out

    groups = row_groups(rows, data_type)
    if groups is not None:
        if config.group is not None:
            method = f"whole groups of {config.group!r}"
        else:
            method = f"whole {config.split}s, {len(set(groups)):,} in all"
        return numbered(lambda part, share: split_by_group(labels[part], groups[part], share, seed=seed)), method
    if config.time is not None:
        times, method = read_times(rows.table, config.time), f"the latest by {config.time!r}"
        return numbered(lambda part, share: split_by_time(labels[part], times[part], share)), method
    if config.split == "random":
        method = "at random"
        return numbered(lambda part, share: split_random(len(part), share, seed=seed)), method
    method = "at random within each class"
    return numbered(lambda part, share: split_stratified(labels[part], share, seed=seed)), method


def row_groups(rows: LabelledRows, data_type: DataType[Any]) -> npt.NDArray[Any] | None:
    """Return the group of each row, None where rows are split one by one."""
    config = data_type.config
    if config.group is not None:
        return group_names(rows.table, config.group)
    if config.split in config.groupings:
        return data_type.groups(rows)
    return None


def read_times(table: Any, column: str) -> npt.NDArray[np.float64]:
    """Return the time of each row as a number.

    Raises:
        ValueError: A time is missing, or is neither a date nor a number.
    """
    values = table.column(column)
    times = timestamps(values)
    bad = np.flatnonzero(np.isnan(times))
    if len(bad):
        raise ValueError(
            f"time: column {column!r} must hold a date or a number in every row; {len(bad):,} of {len(times):,} do "
            f"not, such as {values[int(bad[0])].as_py()!r}"
        )
    return times
