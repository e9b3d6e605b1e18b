"""Rows for the trainer: their weights, and a data set of dense or sparse rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

Array = NDArray[np.float64]


def relative(sample_weight: Array) -> Array | None:
    """Return the weights as multiples of their mean, which is all that they mean; None if they are equal.

    >>> relative(np.array([2.0, 4.0, 6.0])).tolist(), relative(np.array([0.5, 0.5]))
    ([0.5, 1.0, 1.5], None)
    """
    return None if np.ptp(sample_weight) == 0 else sample_weight / sample_weight.mean()


def dataset(table: Any) -> Dataset[Any]:
    """Return the rows of a dense or sparse table as a torch data set."""
    return SparseRows(table) if sparse.issparse(table) else TensorDataset(torch.from_numpy(np.ascontiguousarray(table)))


class SparseRows(Dataset[Tensor]):
    """The rows of a sparse table, a batch at a time made dense."""

    def __init__(self, table: Any) -> None:
        self.table = table.tocsr()

    def __len__(self) -> int:
        return int(self.table.shape[0])

    def __getitem__(self, row: int) -> Tensor:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> Tensor:
        """Return these rows, (len(rows), d)."""
        return torch.from_numpy(self.table[rows].toarray())

    @staticmethod
    def collate(batch: Tensor) -> Tensor:
        """Return the batch, which is joined already."""
        return batch
