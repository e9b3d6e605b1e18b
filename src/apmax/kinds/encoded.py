"""Rows as a model takes them, and those that could not be made so."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import Tensor
from torch.utils.data import TensorDataset

from apmax.data.tables import Report


@dataclass(frozen=True)
class Refused:
    """A row that no model can score: its number in the file, from 0, what stands there, and why not."""

    row: int
    value: str
    reason: str


@dataclass
class RowReport(Report):
    """What was strange about rows, and which of them could not be read at all.

    Args:
        refused: Those rows.
        strict: Raise at the first of them.
    """

    refused: list[Refused] = field(default_factory=list)
    strict: bool = False

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


def encode(encoder: Any, table: Any, report: RowReport | None = None) -> Encoded:
    """Return a `pyarrow.Table`'s rows as a model takes them; what was strange is added to `report`."""
    made = encoder.encode(table, RowReport() if report is None else report)
    if isinstance(made, Tensor):
        return Encoded(TensorDataset(made), np.arange(len(made)))
    found: Encoded = made
    return found
