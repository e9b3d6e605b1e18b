"""Detection of leakage: columns that alone separate the classes were probably written after the outcome."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data import parsing
from apmax.data.tables.columns import Category, Date, EncodingReport
from apmax.data.tables.encoder import TableEncoder
from apmax.metrics import auroc

SUSPICIOUS = 0.999
LEAST_POSITIVES = 5
"""With fewer positives a column may separate the classes by chance."""


@dataclass(frozen=True)
class Leak:
    """A column that separates the classes, its AUROC, and whether by its value or by being missing."""

    name: str
    auroc: float
    by: str


def leaks(encoder: TableEncoder, table: Any, labels: npt.NDArray[np.float32]) -> list[Leak]:
    """Return the columns whose value, or whose being missing, ranks the training rows with AUROC ≥ 0.999.

    A category ranks by the share of positives among the rows of its word.

    >>> import pyarrow as pa
    >>> table = pa.table({"age": [30 + i % 7 for i in range(100)], "refund": [float(i < 6) for i in range(100)]})
    >>> leaks(TableEncoder.fit(table), table, np.array([float(i < 6) for i in range(100)], dtype=np.float32))
    [Leak(name='refund', auroc=1.0, by='value')]
    """
    positive = labels == 1
    if positive.sum() < LEAST_POSITIVES or (~positive).sum() < LEAST_POSITIVES:
        return []
    found = []
    for column in encoder.columns:
        values = table.column(column.name)
        if isinstance(column, Category):
            codes = column.encode(values, EncodingReport())[0].astype(int) + 1
            rates = np.bincount(codes, weights=positive) / np.maximum(np.bincount(codes), 1)
            ranks, missing = rates[codes], None
        else:
            ranks = parsing.seconds(values, column.format)[0] if isinstance(column, Date) else column.read(values)[0]
            missing = np.isnan(ranks)
        for by, scores in (("value", ranks), ("being missing", missing)):
            if scores is None or (by == "being missing" and not scores.any()):
                continue
            known = ~np.isnan(scores)
            # A value that is known in few rows says nothing about the others.
            if known.mean() <= 0.5 or positive[known].all() or not positive[known].any():
                continue
            area = float(auroc(scores[known].astype(np.float64), positive[known]))
            if max(area, 1 - area) >= SUSPICIOUS:
                found.append(Leak(column.name, max(area, 1 - area), by))
                break
    return found
