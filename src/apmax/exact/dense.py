"""Pair sums by the matrix of all pairs, value and gradient written out: fastest for small batches."""

from __future__ import annotations

import torch
from torch import Tensor

from apmax.surrogates import Surrogate

MAX_PAIRS_AT_ONCE = 2**22
"""Pairs held in memory at a time; more are worked off in chunks of anchors."""


class Dense:
    """Sums of ℓ(s - a) over the examples s, for all anchors a, O(n·k) work.

    Args:
        scores: (..., n) scores of the examples; every leading row is a task of its own.
        anchors: (..., k) scores of the anchors.
        weight: (2, ..., n) two weights of every example.
        surrogate: The surrogate.
        margin: Its margin.
    """

    def __init__(self, scores: Tensor, anchors: Tensor, weight: Tensor, surrogate: Surrogate, margin: float) -> None:
        self.scores, self.anchors, self.surrogate, self.margin = scores, anchors, surrogate, margin
        self.weight = weight if weight.ndim == 2 else weight.movedim(0, -2)
        self.step = max(1, MAX_PAIRS_AT_ONCE // max(1, scores.numel()))
        self._slope: Tensor | None = None

    def sums(self) -> Tensor:
        """Return (2, ..., k): for every anchor the sums by either weight."""
        if self.anchors.shape[-1] <= self.step:
            value, self._slope = self._pairs(self.anchors)
            sums = self.weight @ value.mT
        else:
            sums = torch.cat([self.weight @ self._pairs(part)[0].mT for part in self.anchors.split(self.step, -1)], -1)
        return sums if sums.ndim == 2 else sums.movedim(-2, 0)

    def pull(self, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """Take d(objective)/d(sums), (2, ..., k); return the gradients of scores and anchors."""
        cotangent = cotangent if cotangent.ndim == 2 else cotangent.movedim(0, -2)
        if self._slope is not None:
            return self._pull(cotangent, self._slope)
        of_scores, of_anchors = torch.zeros_like(self.scores), []
        for part, incoming in zip(self.anchors.split(self.step, -1), cotangent.split(self.step, -1), strict=True):
            gradient, own = self._pull(incoming, self._pairs(part)[1])
            of_scores += gradient
            of_anchors.append(own)
        return of_scores, torch.cat(of_anchors, -1)

    def _pairs(self, anchors: Tensor) -> tuple[Tensor, Tensor]:
        scores = self.scores if self.scores.ndim == 1 else self.scores.unsqueeze(-2)
        return self.surrogate.value_and_slope(scores - anchors.unsqueeze(-1), self.margin)

    def _pull(self, cotangent: Tensor, slope: Tensor) -> tuple[Tensor, Tensor]:
        flow = (cotangent.mT @ self.weight).mul_(slope)
        return flow.sum(-2), flow.sum(-1).neg_()
