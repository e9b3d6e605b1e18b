"""Losses that are a sum over examples: cross-entropy and its re-weighted relatives."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from apmax.losses.base import Batch, Loss, mean_over_tasks


class CrossEntropy(Loss):
    """Binary cross-entropy on logits, `π·mean₊ log(1 + e^{-s}) + (1-π)·mean₋ log(1 + e^{s})`.

    >>> import torch
    >>> loss = CrossEntropy([0, 0, 0, 1])
    >>> round(loss(torch.zeros(2), torch.tensor([0., 1.])).item(), 4)
    0.6931
    """

    def compute(self, batch: Batch) -> Tensor:
        """Return the weighted mean of `softplus(∓s)`."""
        sign = (batch.positive > 0).to(batch.scores.dtype) * 2 - 1
        value = (self.balanced(batch) * F.softplus(-sign * batch.scores)).sum(-1)
        return mean_over_tasks(value, ((batch.positive + batch.negative) > 0).any(-1))
