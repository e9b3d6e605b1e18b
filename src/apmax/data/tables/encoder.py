"""Encoder from a table's columns to a matrix of numbers, fitted to training rows and saved as JSON."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apmax import extras
from apmax.data.parsing import decimal_points
from apmax.data.reading import list_names
from apmax.data.tables.columns import KINDS, Column, EncodingReport, Number, read_column, write_column
from apmax.data.tables.inference import ALL_MISSING, DROP, column_role, lack_of_values

pa = extras.load("pyarrow", "tables")

_SHOWN = 8
"""Columns that an error names."""


@dataclass(frozen=True)
class TableEncoder:
    """Encoding of the rows of a table, fitted to training rows.

    Args:
        columns: The columns in use.
        left_out: The other columns, each with the reason.

    >>> import pyarrow as pa
    >>> table = pa.table({"id": ["a", "b", "c"], "age": ["31", "", "58"], "sex": ["f", "m", "f"]})
    >>> encoder = TableEncoder.fit(table)
    >>> encoder.left_out, encoder.sizes
    ({'id': 'different in every row: an id?'}, [0, 0, 2])
    >>> encoder.encode(table)
    tensor([[-1.3490,  0.0000,  0.0000],
            [ 0.0000,  1.0000,  1.0000],
            [ 1.3490,  0.0000,  0.0000]])
    """

    columns: tuple[Column, ...]
    left_out: Mapping[str, str]

    @staticmethod
    def fit(
        table: Any,
        *,
        roles: Mapping[str, str] | None = None,
        without: Iterable[str] = (),
        decimal_comma: Iterable[str] = (),
    ) -> TableEncoder:
        """Fit an encoder to the rows of a `pyarrow.Table`.

        Args:
            table: Training rows.
            roles: The kind of some columns by name: number, category, date or drop. The others are inferred.
            without: Columns that are not features: the target, the group.
            decimal_comma: Columns of numbers with a decimal comma, such as "2,5".

        Raises:
            ValueError: A role for a missing column, an unknown role, or no column left.
        """
        roles = dict(roles or {})
        for name in roles:
            if name not in table.column_names:
                raise ValueError(f"there is no column {name!r}; the columns are {list_names(table.column_names)}")
        excluded, commas = set(without), set(decimal_comma)
        columns: list[Column] = []
        left_out: dict[str, str] = {}
        for name in table.column_names:
            if name in excluded:
                continue
            column = table.column(name)
            kind, reason = column_role(name, decimal_points(column) if name in commas else column, roles)
            if kind == DROP:
                left_out[name] = reason
                continue
            with _named_column(name):
                number = kind == Number.kind and name in commas
                columns.append(
                    Number.fit(name, column, decimal_comma=True) if number else KINDS[kind].fit(name, column)
                )
        return TableEncoder._of(columns, left_out)

    @staticmethod
    def _of(columns: Sequence[Column], left_out: Mapping[str, str]) -> TableEncoder:
        if not columns:
            reasons = "; ".join(f"{name!r} ({reason})" for name, reason in list(left_out.items())[:_SHOWN])
            reasons += f"; and {len(left_out) - _SHOWN:,} more" if len(left_out) > _SHOWN else ""
            raise ValueError(f"no column is left to learn from{': ' + reasons if reasons else ''}")
        return TableEncoder(tuple(columns), left_out)

    def refit(self, table: Any) -> TableEncoder:
        """Return an encoder of the same columns, each of the same kind, fitted to some of the training rows.

        A column that is constant in these rows is left out, unless all of them are.

        Raises:
            ValueError: No column has a value in these rows.

        >>> import pyarrow as pa
        >>> table = pa.table({"age": [31, 58, 47], "sex": ["f", "m", "f"]})
        >>> TableEncoder.fit(table).refit(table.take([0, 2])).left_out
        {'sex': 'the same in every row'}
        """
        lacking = {column.name: lack_of_values(column, table.column(column.name)) for column in self.columns}
        left_out = {name: reason for name, reason in lacking.items() if reason}
        if len(left_out) == len(self.columns):
            left_out = {name: reason for name, reason in left_out.items() if reason == ALL_MISSING}
        columns = [c.refit(table.column(c.name)) for c in self.columns if c.name not in left_out]
        return TableEncoder._of(columns, {**self.left_out, **left_out})

    @property
    def sizes(self) -> list[int]:
        """Per column of the matrix, 0 for numbers, else the number of codes."""
        return [size for column in self.columns for size in column.sizes]

    @property
    def names(self) -> list[str]:
        """The names of the columns in use."""
        return [column.name for column in self.columns]

    def encode(self, table: Any, report: EncodingReport | None = None) -> Tensor:
        """Return the rows as float32, (rows, len(sizes)): scaled numbers, and codes of categories as whole numbers.

        Findings are added to `report`.

        Raises:
            ValueError: All columns are missing.
        """
        report = EncodingReport() if report is None else report
        present = set(table.column_names)
        absent = [name for name in self.names if name not in present]
        if len(absent) == len(self.names):
            raise ValueError(
                f"none of the columns that were trained on is there: they are {list_names(self.names)}, "
                f"these are {list_names(table.column_names)}"
            )
        report.add_absent(absent, table.column_names)
        report.rows += table.num_rows
        matrix = np.empty((table.num_rows, len(self.sizes)), np.float32)
        place = 0
        for column in self.columns:
            values = table.column(column.name) if column.name in present else pa.nulls(table.num_rows, pa.string())
            with _named_column(column.name):
                parts = column.encode(values, report)
            for part in parts:
                matrix[:, place] = part
                place += 1
        return torch.from_numpy(matrix)

    def to_table(self) -> dict[str, Any]:
        """Return the encoder as plain lists, strings and numbers, from which `from_table` makes an equal one."""
        return {"columns": [write_column(column) for column in self.columns], "left_out": dict(self.left_out)}

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> TableEncoder:
        """Return the encoder that `to_table` described."""
        return TableEncoder(tuple(read_column(column) for column in table["columns"]), dict(table["left_out"]))

    def summary(self) -> dict[str, list[str]]:
        """Return the names of the columns by kind."""
        return {kind: [column.name for column in self.columns if column.kind == kind] for kind in KINDS}


@contextmanager
def _named_column(name: str) -> Iterator[None]:
    """Add the name of a column to an error about its values."""
    try:
        yield
    except ValueError as error:
        raise ValueError(f"column {name!r}: {error}") from None
