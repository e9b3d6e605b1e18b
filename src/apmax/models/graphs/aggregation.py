"""Segment sums and sparse neighbourhood sums."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn


def segment_sum(values: Tensor, segments: Tensor, count: int) -> Tensor:
    """Return (count, ...), the sum of the values (n, ...) of each segment.

    >>> segment_sum(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 2]), 3)
    tensor([1., 0., 6.])
    """
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, segments, values)


def segment_sizes(segments: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return (count, 1), the number of members of each segment, 1 for an empty one."""
    ones = torch.ones(len(segments), 1, dtype=dtype, device=segments.device)
    return segment_sum(ones, segments, count).clamp_(min=1)


def segment_mean(values: Tensor, segments: Tensor, count: int) -> Tensor:
    """Return (count, ...), the mean of the values of each segment, 0 for an empty one."""
    return segment_sum(values, segments, count) / segment_sizes(segments, count, values.dtype)


def segment_mean_of_linear(layer: nn.Linear, sums: Tensor, segments: Tensor) -> Tensor:
    """Return (count, out), the mean of `layer(x)` over each segment, from the sums (count, in) of its x.

    0 for an empty segment, to which the bias does not apply either.
    """
    sizes = segment_sum(sums.new_ones(len(segments), 1), segments, len(sums))
    return (nn.functional.linear(sums, layer.weight) + sizes * layer.bias) / sizes.clamp(min=1)


@dataclass(frozen=True)
class _CompressedRows:
    """One orientation of an adjacency matrix, by rows.

    Attributes:
        columns: (entries,) the columns of the first row's entries, then of the second row's, ...
        starts: (rows,) the position of each row's first entry; None where every row has exactly one entry.
        counts: (rows,) the number of each row's entries; None as above.
    """

    columns: Tensor
    starts: Tensor | None
    counts: Tensor | None


@dataclass(frozen=True)
class Adjacency:
    """A sparse 0/1 matrix A from items that send (columns) to items that receive (rows); `sum` is A @ values.

    Both A and its transpose are kept in compressed-row form, so that the forward and the backward pass each gather
    and sum in one kernel.

    >>> adjacency = Adjacency.from_pairs(torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1]), senders=2, receivers=2)
    >>> adjacency.sum(torch.tensor([[1.0], [10.0]]))
    tensor([[10.],
            [11.]])
    """

    matrix: _CompressedRows
    transpose: _CompressedRows

    @classmethod
    def from_pairs(cls, sender: Tensor, receiver: Tensor, *, senders: int, receivers: int) -> Adjacency:
        """Return the matrix with entries (receiver[k], sender[k]), in any order."""
        return cls(_compress(sender, receiver, receivers), _compress(receiver, sender, senders))

    @classmethod
    def symmetric(cls, sender: Tensor, receiver: Tensor, count: int) -> Adjacency:
        """Return a symmetric matrix; both (i, j) and (j, i) are among the pairs."""
        rows = _compress(sender, receiver, count)
        return cls(rows, rows)

    @classmethod
    def from_segments(cls, segments: Tensor, count: int) -> Adjacency:
        """Return the matrix from items to their segments, of `segments` in increasing order."""
        items = torch.arange(len(segments), device=segments.device)
        return cls(_CompressedRows(items, *_row_bounds(segments, count)), _CompressedRows(segments, None, None))

    @classmethod
    def from_index(cls, sender: Tensor, senders: int) -> Adjacency:
        """Return the matrix in which receiver k has the single sender `sender[k]`."""
        receivers = torch.arange(len(sender), device=sender.device)
        return cls(_CompressedRows(sender, None, None), _compress(receivers, sender, senders))

    def sum(self, values: Tensor) -> Tensor:
        """Return (receivers, h), the sums over each receiver's senders of their values (senders, h)."""
        out: Tensor = _NeighbourSum.apply(values, self.matrix, self.transpose)
        return out

    def degrees(self, dtype: torch.dtype) -> Tensor:
        """Return (receivers, 1), the number of senders of each."""
        if self.matrix.counts is None:
            return torch.ones(len(self.matrix.columns), 1, dtype=dtype, device=self.matrix.columns.device)
        return self.matrix.counts[:, None].to(dtype)

    @property
    def transposed(self) -> Adjacency:
        """The transpose."""
        return Adjacency(self.transpose, self.matrix)


def _compress(columns: Tensor, rows: Tensor, count: int) -> _CompressedRows:
    if rows.device.type == "cpu" and count <= 2**16:
        # numpy sorts two-byte numbers by radix, in a fraction of the time.
        order = torch.from_numpy(np.argsort(rows.numpy().astype(np.uint16), kind="stable"))
    else:
        order = torch.argsort(rows, stable=True)
    return _CompressedRows(columns.index_select(0, order), *_row_bounds(rows, count))


def _row_bounds(rows: Tensor, count: int) -> tuple[Tensor, Tensor]:
    counts = torch.bincount(rows, minlength=count)
    return counts.cumsum(0) - counts, counts


class _NeighbourSum(torch.autograd.Function):
    """Multiplication by an adjacency matrix, whose gradient is multiplication by the transpose."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, matrix: _CompressedRows, transpose: _CompressedRows) -> Tensor:
        ctx.matrix, ctx.transpose = matrix, transpose
        return _multiply(matrix, values)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradient.contiguous()
        if gradient.requires_grad:
            return _NeighbourSum.apply(gradient, ctx.transpose, ctx.matrix), None, None
        return _multiply(ctx.transpose, gradient), None, None


def _multiply(matrix: _CompressedRows, values: Tensor) -> Tensor:
    if matrix.starts is None:
        return values.index_select(0, matrix.columns)
    # Detached, as embedding_bag saves more for its own backward when its input requires a gradient.
    out: Tensor = torch.embedding_bag(values.detach(), matrix.columns, matrix.starts)[0]
    return out
