"""Features of a committee: a matrix for each fold, encoded by what is learnt from that fold's training rows only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from apmax.data import RobustScale
from apmax.data.splits import RowNumbers

Matrix = NDArray[np.float32]


class FittedFeatures(Protocol):
    """Encoding of rows that was fitted to a fold's training rows."""

    @property
    def sizes(self) -> Sequence[int]:
        """Per column of the matrix, 0 for numbers, else the number of codes."""

    def matrix(self, rows: Any) -> Matrix:
        """Return rows of the same form as the training rows as a matrix, (n, len(sizes))."""

    def to_table(self) -> dict[str, Any]:
        """Return the encoding as plain lists, strings and numbers."""


class Features(Protocol):
    """Rows before they are encoded."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def take(self, rows: RowNumbers) -> Any:
        """Return some of the rows in their original form."""

    def fit(self, rows: RowNumbers, sample_weight: NDArray[np.float64]) -> FittedFeatures:
        """Return the encoding fitted to these rows."""


@dataclass(frozen=True)
class ScaledColumns:
    """Robustly scaled numeric columns."""

    scales: tuple[RobustScale, ...]

    @property
    def sizes(self) -> Sequence[int]:
        """Zeros: all columns are numbers."""
        return [0] * len(self.scales)

    def matrix(self, rows: Any) -> Matrix:
        """Return the scaled columns of an array (n, d)."""
        columns = [scale(column) for scale, column in zip(self.scales, np.asarray(rows, np.float64).T, strict=True)]
        return np.stack(columns, axis=1).astype(np.float32)

    def to_table(self) -> dict[str, Any]:
        """Return medians and scales."""
        return {"median": [scale.median for scale in self.scales], "scale": [scale.scale for scale in self.scales]}

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> ScaledColumns:
        """Return the scales that `to_table` described."""
        return ScaledColumns(tuple(map(RobustScale, table["median"], table["scale"])))


@dataclass(frozen=True)
class ArrayFeatures:
    """Numeric features, (n, d)."""

    array: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.array)

    def take(self, rows: RowNumbers) -> Any:
        """Return these rows of the array."""
        return self.array[rows]

    def fit(self, rows: RowNumbers, sample_weight: NDArray[np.float64]) -> ScaledColumns:
        """Return the scales of the columns over these rows."""
        weight = sample_weight[rows]
        relative = None if np.ptp(weight) == 0 else weight / weight.mean()
        return ScaledColumns(tuple(RobustScale.fit(column, relative) for column in self.array[rows].T))


@dataclass(frozen=True)
class EncodedColumns:
    """The columns of a table, encoded by a `TableEncoder`."""

    encoder: Any

    @property
    def sizes(self) -> Sequence[int]:
        """Per column 0 for numbers, else the number of codes."""
        sizes: list[int] = self.encoder.sizes
        return sizes

    def matrix(self, rows: Any) -> Matrix:
        """Return the encoded rows of a `pyarrow.Table`."""
        matrix: Matrix = self.encoder.encode(rows).numpy()
        return matrix

    def to_table(self) -> dict[str, Any]:
        """Return the encoder as plain values."""
        table: dict[str, Any] = self.encoder.to_table()
        return table

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> EncodedColumns:
        """Return the encoding that `to_table` described."""
        from apmax.data.tables import TableEncoder

        return EncodedColumns(TableEncoder.from_table(table))


@dataclass(frozen=True)
class TableFeatures:
    """The columns of a `pyarrow.Table`: numbers, categories and dates.

    Args:
        table: The rows.
        roles: The kind of some columns by name, as in `TableEncoder.fit`.
        without: Columns that are not features.
    """

    table: Any
    roles: Mapping[str, str] = field(default_factory=dict)
    without: tuple[str, ...] = ()

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def take(self, rows: RowNumbers) -> Any:
        """Return these rows of the table."""
        return self.table.take(rows)

    def fit(self, rows: RowNumbers, sample_weight: NDArray[np.float64]) -> EncodedColumns:  # noqa: ARG002 - unweighted
        """Return the encoder fitted to these rows."""
        from apmax.data.tables import TableEncoder

        return EncodedColumns(TableEncoder.fit(self.take(rows), roles=self.roles, without=self.without))


FEATURE_FORMATS: dict[str, type[ScaledColumns] | type[EncodedColumns]] = {
    "array": ScaledColumns,
    "table": EncodedColumns,
}
"""How saved encodings are read, by name."""
