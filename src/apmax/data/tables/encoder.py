"""From a table's columns to one matrix of numbers, fitted once and saved as plain JSON."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apmax import extras
from apmax.data.reading import list_names
from apmax.data.tables.columns import KINDS, Column, read_column, write_column
from apmax.data.tables.inference import DROP, role
from apmax.data.tables.report import EncodingReport

pa = extras.load("pyarrow", "tables")


@dataclass(frozen=True)
class TableEncoder:
    """What every row of a table becomes, learnt from training rows only.

    Args:
        columns: The columns that are used.
        left_out: Those that are not, each with the reason.

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
    def fit(table: Any, *, roles: Mapping[str, str] | None = None, without: Iterable[str] = ()) -> TableEncoder:
        """Learn from the rows of a `pyarrow.Table`.

        Args:
            table: Training rows.
            roles: What some columns are, by name: number, category, date or drop. The others are inferred.
            without: Columns that are no features: the target, the group.

        Raises:
            ValueError: A role for a column that is not there, or of no known name; nothing left to learn from.
        """
        roles = dict(roles or {})
        for name in roles:
            if name not in table.column_names:
                raise ValueError(f"there is no column {name!r}; the columns are {list_names(table.column_names)}")
        excluded = set(without)
        columns: list[Column] = []
        left_out: dict[str, str] = {}
        for name in table.column_names:
            if name in excluded:
                continue
            column = table.column(name)
            kind, reason = role(name, column, roles)
            if kind == DROP:
                left_out[name] = reason
            else:
                columns.append(KINDS[kind].fit(name, column))
        if not columns:
            reasons = "; ".join(f"{name!r} ({reason})" for name, reason in left_out.items())
            raise ValueError(f"no column is left to learn from{': ' + reasons if reasons else ''}")
        return TableEncoder(tuple(columns), left_out)

    @property
    def sizes(self) -> list[int]:
        """For each column of the matrix 0 if it is a number, else how many codes there are."""
        return [size for column in self.columns for size in column.sizes]

    @property
    def names(self) -> list[str]:
        """The table's columns that are read."""
        return [column.name for column in self.columns]

    def encode(self, table: Any, report: EncodingReport | None = None) -> Tensor:
        """Return the rows as float32, (rows, len(sizes)): scaled numbers, and codes of categories as whole numbers.

        What was strange is added to `report`.

        Raises:
            ValueError: None of the columns is there.
        """
        report = EncodingReport() if report is None else report
        present = set(table.column_names)
        absent = [name for name in self.names if name not in present]
        if len(absent) == len(self.names):
            raise ValueError(
                f"none of the columns that were trained on is there: they are {list_names(self.names)}, "
                f"these are {list_names(table.column_names)}"
            )
        report.absent = absent
        report.rows += table.num_rows
        matrix = np.empty((table.num_rows, len(self.sizes)), np.float32)
        place = 0
        for column in self.columns:
            there = column.name in present
            values = table.column(column.name) if there else pa.nulls(table.num_rows, pa.string())
            for part in column.encode(values, report):
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
