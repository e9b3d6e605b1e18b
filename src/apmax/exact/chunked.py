"""Pair sums by an additive table, the examples passed through it in pieces that stay in the cache."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor

from apmax.exact.grid import Grid
from apmax.exact.search import Place
from apmax.exact.tables import table
from apmax.surrogates import Surrogate

_CHUNK = 2**18


class Chunked:
    """Sums of ℓ(s - a) over the examples s, for all anchors a, by buckets or by a grid.

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
        self.table = table(anchors, surrogate, margin, low, high)
        # Where the examples stand is kept for the way back, for finding it is most of the work; not so on a grid, where
        # it is a division, and four weights for every example to keep.
        self._places: list[Place] | None = None if isinstance(self.table, Grid) else []

    def sums(self) -> Tensor:
        """Return (2, ..., k) in float64: for every anchor the sums by either weight."""
        for part, weight in self._chunks():
            place = self.table.locate(part)
            self.table.add(place, weight)
            if self._places is not None:
                self._places.append(place)
        # A search finds a place for NaN, too; unchecked, it must not pass for a number.
        return self.table.sums() + (self.scores * 0).sum(-1, keepdim=True)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """Take d(objective)/d(sums), (2, ..., k); return the gradients of scores and anchors."""
        of_anchors = self.table.backward(cotangent).to(self.scores.dtype)
        gradient = torch.empty_like(self.scores)
        start = 0
        for number, (part, weight) in enumerate(self._chunks()):
            stop = start + part.shape[-1]
            place = self.table.locate(part) if self._places is None else self._places[number]
            gradient[..., start:stop] = self.table.gradient(place, weight)
            start = stop
        return gradient, of_anchors

    def _chunks(self) -> Iterator[tuple[Tensor, Tensor]]:
        size = max(1, _CHUNK * self.scores.shape[-1] // max(1, self.scores.numel()))
        yield from zip(self.scores.split(size, -1), self.weight.split(size, -1), strict=True)
