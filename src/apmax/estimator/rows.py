"""Rows for the trainer: which are held out, what each weighs, and how they are read."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]
from torch import Tensor
from torch.utils.data import Dataset, TensorDataset

Array = NDArray[np.float64]
Rows = NDArray[np.int64]


def hold_out(labels: Array, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Return the rows to train on and those held out, the same share of either class and at least one row of each.

    A class of one row cannot be divided; then all rows are in both parts.

    >>> train, held_out = hold_out(np.array([0.0] * 8 + [1.0] * 2), 0.25, seed=0)
    >>> len(train), len(held_out)
    (7, 3)
    """
    generator = np.random.default_rng(seed)
    parts = [generator.permutation(np.flatnonzero(labels == label)) for label in (0, 1)]
    if min(map(len, parts)) < 2:
        return np.arange(len(labels)), np.arange(len(labels))
    sizes = [min(len(part) - 1, max(1, round(fraction * len(part)))) for part in parts]
    train = np.concatenate([part[size:] for part, size in zip(parts, sizes, strict=True)])
    held_out = np.concatenate([part[:size] for part, size in zip(parts, sizes, strict=True)])
    return np.sort(train), np.sort(held_out)


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
