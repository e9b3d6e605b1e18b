"""Rows of all data types: encoded ones, labelled ones, the encoder between them, and the report of what was found."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import TensorDataset

from apmax.data import Labels, UnreadableRow, any_positive, describe_unreadable, parsing
from apmax.data.reading import list_names
from apmax.data.tables import EncodingReport
from apmax.validation import plural

_Scalar = TypeVar("_Scalar", bound=np.generic)


@dataclass
class RowReport(EncodingReport):
    """Anomalies of encoded rows, the rows that could not be read, and the time spent.

    Args:
        unreadable_rows: Rows that could not be read.
        strict: Raise at the first unreadable row.
        reduced: Molecules that were reduced to their largest fragment.
        seconds: Time by activity.
        last: When the last activity ended.
    """

    unreadable_rows: list[UnreadableRow] = field(default_factory=list)
    strict: bool = False
    reduced: int = 0
    seconds: dict[str, float] = field(default_factory=dict, compare=False)
    last: float = field(default_factory=time.perf_counter, compare=False)

    def add_time(self, activity: str) -> None:
        """Add the time since the last call to that activity's."""
        now = time.perf_counter()
        self.seconds[activity] = self.seconds.get(activity, 0.0) + now - self.last
        self.last = now

    def timing(self) -> str:
        """Return the rows per second and the time by activity.

        >>> RowReport(rows=6000, seconds={"reading": 0.5, "features": 1.0, "model": 0.5}).timing()
        '6,000 rows in 2.0 s, 3,000 a second: reading 0.5 s, features 1.0 s, model 0.5 s'
        """
        total = sum(self.seconds.values())
        parts = ", ".join(f"{activity} {seconds:.1f} s" for activity, seconds in self.seconds.items())
        return f"{plural(self.rows, 'row')} in {total:.1f} s, {self.rows / max(total, 1e-9):,.0f} a second: {parts}"

    def add_unreadable_rows(self, rows: Sequence[UnreadableRow]) -> None:
        """Add rows that cannot be read.

        Raises:
            ValueError: There are any, and `strict` is set.
        """
        if rows and self.strict:
            first = rows[0]
            raise ValueError(
                f'row {first.row} cannot be read: {first.short_value!r} ({first.reason}); on_error="skip" leaves it out'
            )
        self.unreadable_rows += rows

    def lines(self) -> list[str]:
        """Return one line for each anomaly.

        >>> RowReport(rows=9, unreadable_rows=[UnreadableRow(4, "C(C", "extra open parentheses")]).lines()
        ["1 of 9 rows cannot be read: row 4 'C(C' (extra open parentheses)"]
        """
        lines = super().lines()
        if self.unreadable_rows:
            lines.append(describe_unreadable(self.unreadable_rows, self.rows, most=3))
        if self.reduced:
            lines.append(f"{self.reduced:,} of {self.rows:,} molecules have several fragments: the largest is scored")
        return lines


@dataclass(frozen=True)
class EncodedRows:
    """A dataset of model inputs, and the table row of each item; unreadable rows are left out."""

    dataset: Any
    rows: npt.NDArray[np.int64]


class Encoder(Protocol):
    """The conversion of table rows to model inputs, saved as plain JSON."""

    @property
    def names(self) -> list[str]:
        """The columns that are read."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """The columns that are not, each with the reason."""

    def encode(self, table: Any, report: RowReport) -> Tensor | Iterator[EncodedRows]:
        """Return the rows of a `pyarrow.Table` as a tensor, or yield datasets of those that can be read."""

    def to_table(self) -> dict[str, Any]:
        """Return the encoder as plain lists, strings and numbers."""

    def summary(self) -> dict[str, list[str]]:
        """Return the columns by type."""


def encode_rows(encoder: Encoder, table: Any, report: RowReport | None = None) -> Iterator[EncodedRows]:
    """Yield the rows of a `pyarrow.Table` as model inputs, as many at a time as the encoder chooses."""
    encoded = encoder.encode(table, RowReport() if report is None else report)
    if isinstance(encoded, Tensor):
        yield EncodedRows(TensorDataset(encoded), np.arange(len(encoded)))
    else:
        yield from encoded


@dataclass(frozen=True)
class LabelledRows:
    """The readable rows of a file that have a label.

    Args:
        table: The rows, a `pyarrow.Table`.
        labels: (rows,), or (rows, targets) with NaN where a label is missing.
        dataset: Their model inputs, where these are made when the file is read; None where the encoder comes later.
        warnings: Lines about rows that were left out.
        unreadable: Rows that could not be read.
        numbers: (rows,) the place of each row in the file, counted from 0; None where these are all rows in order.
        sample_weight: (rows,) positive; None where there are no weights.
    """

    table: Any
    labels: Labels
    dataset: Any = None
    warnings: tuple[str, ...] = ()
    unreadable: tuple[UnreadableRow, ...] = ()
    numbers: npt.NDArray[np.int64] | None = None
    sample_weight: npt.NDArray[np.float64] | None = None

    @property
    def positives(self) -> int:
        """Number of rows that are positive for any target."""
        return int(any_positive(self.labels).sum())

    def model_inputs(self, encoder: Encoder) -> Any:
        """Return the dataset of model inputs, made by the encoder where reading has not made it."""
        return next(encode_rows(encoder, self.table)).dataset if self.dataset is None else self.dataset

    def take(self, rows: Any) -> LabelledRows:
        """Return a subset."""
        part = None if self.dataset is None else self.dataset.subset(rows)
        return LabelledRows(
            self.table.take(rows),
            self.labels[rows],
            part,
            numbers=self.row_numbers[np.asarray(rows)],
            sample_weight=None if self.sample_weight is None else self.sample_weight[rows],
        )

    @property
    def row_numbers(self) -> npt.NDArray[np.int64]:
        """The place of each row in the file, counted from 0."""
        return np.arange(len(self.labels)) if self.numbers is None else self.numbers


def target_columns(values: npt.NDArray[_Scalar]) -> npt.NDArray[_Scalar]:
    """Return labels or scores of rows as (rows, targets): those of one target, (rows,), as one column."""
    return values[:, None] if values.ndim == 1 else values


def column_texts(table: Any, column: str, argument: str) -> list[str]:
    """Return the texts of a column of a `pyarrow.Table`, "" where a cell is empty.

    Args:
        table: The rows.
        column: The column's name.
        argument: The argument by which the user names it.

    Raises:
        ValueError: There is no such column.
    """
    if column not in table.column_names:
        names = list_names(table.column_names)
        raise ValueError(f"{argument}: there is no column {column!r}; the columns are {names}")
    try:
        return parsing.cells(table.column(column))
    except ValueError as error:
        raise ValueError(f"{argument}: column {column!r}: {error}") from None
