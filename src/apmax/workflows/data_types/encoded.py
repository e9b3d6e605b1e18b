"""Rows as a model takes them, and those that could not be made so."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import TensorDataset

from apmax import extras
from apmax.data.tables import EncodingReport


@dataclass(frozen=True)
class Refused:
    """A row that no model can score: its number in the file, from 0, what stands there, and why not."""

    row: int
    value: str
    reason: str


@dataclass
class RowReport(EncodingReport):
    """What was strange about rows, and which of them could not be read at all.

    Args:
        refused: Those rows.
        strict: Raise at the first of them.
        seconds: What the time went to.
        last: When the last lap ended.
    """

    refused: list[Refused] = field(default_factory=list)
    strict: bool = False
    seconds: dict[str, float] = field(default_factory=dict, compare=False)
    last: float = field(default_factory=time.perf_counter, compare=False)

    def lap(self, what: str) -> None:
        """Count the time since the last lap as spent on `what`."""
        now = time.perf_counter()
        self.seconds[what] = self.seconds.get(what, 0.0) + now - self.last
        self.last = now

    def pace(self) -> str:
        """Return where the time went.

        >>> RowReport(rows=6000, seconds={"reading": 0.5, "features": 1.0, "network": 0.5}).pace()
        '6,000 rows in 2.0 s, 3,000 a second: reading 0.5 s, features 1.0 s, network 0.5 s'
        """
        total = sum(self.seconds.values())
        parts = ", ".join(f"{what} {seconds:.1f} s" for what, seconds in self.seconds.items())
        return f"{self.rows:,} rows in {total:.1f} s, {self.rows / max(total, 1e-9):,.0f} a second: {parts}"

    def refuse(self, items: Sequence[Refused]) -> None:
        """Add rows that cannot be read.

        Raises:
            ValueError: There are any, and `strict` is set.
        """
        if items and self.strict:
            first = items[0]
            raise ValueError(
                f"row {first.row} cannot be read: {first.value!r} ({first.reason}); --on-error skip leaves such out"
            )
        self.refused += items

    def lines(self, *, most: int = 3) -> list[str]:
        """Return one readable line for each thing found.

        >>> RowReport(rows=9, refused=[Refused(4, "C(C", "extra open parentheses")]).lines()
        ["1 of 9 rows cannot be read: row 4 'C(C' (extra open parentheses)"]
        """
        lines = super().lines()
        if self.refused:
            shown = "; ".join(f"row {item.row} {item.value!r} ({item.reason})" for item in self.refused[:most])
            more = f"; and {len(self.refused) - most:,} more" if len(self.refused) > most else ""
            lines.append(f"{len(self.refused):,} of {self.rows:,} rows cannot be read: {shown}{more}")
        return lines


@dataclass(frozen=True)
class Encoded:
    """A dataset whose items the model takes, and the rows of the table that they are; the others were refused."""

    dataset: Any
    rows: npt.NDArray[np.int64]


def encode(encoder: Any, table: Any, report: RowReport | None = None) -> Iterator[Encoded]:
    """Yield a `pyarrow.Table`'s rows as a model takes them, as many at a time as the encoder likes.

    What was strange is added to `report`.
    """
    made = encoder.encode(table, RowReport() if report is None else report)
    if isinstance(made, Tensor):
        yield Encoded(TensorDataset(made), np.arange(len(made)))
    elif isinstance(made, Encoded):
        yield made
    else:
        yield from made


def texts(table: Any, column: str, option: str) -> list[str]:
    """Return a column's texts, "" where a cell is empty.

    Args:
        table: A `pyarrow.Table`.
        column: Its name.
        option: The option by which it is named.

    Raises:
        ValueError: There is no such column.
    """
    if column not in table.column_names:
        names = ", ".join(map(repr, table.column_names[:12]))
        raise ValueError(f"{option}: there is no column {column!r}; the columns are {names} (--{option} COLUMN)")
    text = table.column(column).cast(extras.load("pyarrow", "tables").string())
    return [(cell or "").strip() for cell in text.to_pylist()]
