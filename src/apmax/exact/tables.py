"""Additive tables of pair sums: the table that suits a surrogate, and examples passed through it in chunks."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from apmax.exact.buckets import BucketTable
from apmax.exact.exponential import ExponentialTable
from apmax.exact.grid import GridTable
from apmax.exact.search import Located
from apmax.surrogates import Surrogate

PairTable = BucketTable | ExponentialTable | GridTable
"""A table to which examples are added one by one: its `moments` add up over chunks and over processes."""

_CHUNK = 2**18
"""Examples at a time, few enough to stay in the processor's cache."""


def pair_table(
    anchors: Tensor, surrogate: Surrogate, margin: float, low: Tensor | None = None, high: Tensor | None = None
) -> PairTable:
    """Return the additive table that suits the surrogate; only a grid needs the range of the scores."""
    if not anchors.numel():
        raise ValueError("anchors must not be empty: there is nothing to compare the scores with")
    if surrogate.pieces is not None:
        return BucketTable(anchors, surrogate, margin)
    if surrogate.name == "exponential":
        return ExponentialTable(anchors, margin)
    if low is None or high is None:
        raise ValueError(f"low and high are needed for {surrogate.name!r}: the smallest and the largest score of all")
    return GridTable(anchors, surrogate, margin, low, high)


class TabulatedPairs:
    """Sums of ℓ(s - a) over the examples s, for all anchors a, by an additive table.

    Args:
        scores: (..., n) scores of the examples; every leading row is a task of its own.
        anchors: (..., k) scores of the anchors.
        weight: (2, ..., n) two weights of every example.
        surrogate: The surrogate.
        margin: Its margin.
        low: (...,) the smallest score, for a grid.
        high: (...,) the largest score, for a grid.
    """

    def __init__(
        self,
        scores: Tensor,
        anchors: Tensor,
        weight: Tensor,
        surrogate: Surrogate,
        margin: float,
        low: Tensor | None = None,
        high: Tensor | None = None,
    ) -> None:
        self.scores, self.weight = scores, weight
        self.table = pair_table(anchors, surrogate, margin, low, high)
        # Locating the examples is most of the work, so the result is kept for the backward pass. Not so on a grid,
        # where it is a division, and four weights for every example to keep.
        self._located: list[Located] | None = None if isinstance(self.table, GridTable) else []

    def sums(self) -> Tensor:
        """Return (2, ..., k) in float64: for every anchor the sums by either weight."""
        for part, weight in self._chunks():
            located = self.table.locate(part)
            self.table.add(located, weight)
            if self._located is not None:
                self._located.append(located)
        # A search finds a position for NaN, too; unchecked, it must not pass for a number.
        return self.table.sums() + (self.scores * 0).sum(-1, keepdim=True)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """Take d(objective)/d(sums), (2, ..., k); return the gradients of scores and anchors."""
        of_anchors = self.table.backward(cotangent).to(self.scores.dtype)
        gradient = torch.empty_like(self.scores)
        start = 0
        for number, (part, weight) in enumerate(self._chunks()):
            stop = start + part.shape[-1]
            located = self.table.locate(part) if self._located is None else self._located[number]
            gradient[..., start:stop] = self.table.gradient(located, weight)
            start = stop
        return gradient, of_anchors

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = max(1, _CHUNK * self.scores.shape[-1] // max(1, self.scores.numel()))
        yield from zip(self.scores.split(size, -1), self.weight.split(size, -1), strict=True)
