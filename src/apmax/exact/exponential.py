"""Pair sums of the exponential surrogate, clamped at its largest exponent, by one binary search for each example."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from apmax.exact.search import Located, edges_at_or_below
from apmax.surrogates import MAX_EXPONENT

_CEILING = math.exp(MAX_EXPONENT)


class ExponentialTable:
    """Sums of e^{min(c·(s - a), 80)} over the examples s, for all anchors a at once.

    An anchor's threshold t = a + 80/c is the score from which the exponent is clamped. Each example is put between
    two thresholds and counted relative to the upper one, so that every term lies in [0, 1] and sums add up over chunks
    and processes; the products of ratios between thresholds are taken in the logarithm.

    Args:
        anchors: (..., k) scores of the anchors; every leading row is a task of its own.
        scale: The surrogate's c.
    """

    def __init__(self, anchors: Tensor, scale: float) -> None:
        self.scale = scale
        self.reference, relative = _centred(anchors)
        self.edges, self._order = (relative + MAX_EXPONENT / scale).sort(-1)
        self._log_edges = scale * self.edges
        shape = (2, 2, *self.edges.shape[:-1], self.edges.shape[-1] + 1)
        self.moments = torch.zeros(shape, dtype=torch.float64, device=anchors.device)
        self._rate: Tensor

    def locate(self, scores: Tensor) -> Located:
        """Return the number of thresholds at or below each score, and e^{c·(s - t)} for the next one t above it."""
        relative, last = scores.double() - self.reference, self.edges.shape[-1] - 1
        bucket = edges_at_or_below(self.edges, relative)
        upper = self.edges.gather(-1, bucket.clamp_max(last))
        ratio = (self.scale * (relative - upper)).clamp_max(0).exp()
        return Located(bucket, torch.where(bucket <= last, ratio, 0))

    def add(self, located: Located, weight: Tensor) -> None:
        """Add located examples (..., m) with their two weights (2, ..., m)."""
        mass = weight.double()
        index = located.entry.expand_as(mass)
        self.moments[0].scatter_add_(-1, index, mass)
        self.moments[1].scatter_add_(-1, index, mass * located.part)

    def sums(self) -> Tensor:
        """Return (2, ..., k): for every anchor the sums by either weight."""
        clamped = self.moments[0][..., 1:].flip(-1).cumsum(-1).flip(-1)
        return _CEILING * self._unsort(clamped + self._below())

    def backward(self, cotangent: Tensor) -> Tensor:
        """Take d(objective)/d(sums), (2, ..., k); return the anchors' gradient and get ready for `gradient`."""
        cotangent = cotangent.double() * (self.scale * _CEILING)
        weight = cotangent.gather(-1, self._order.expand_as(cotangent))
        rate = torch.zeros_like(weight)
        for sign in (1, -1):
            logs = (sign * weight).clamp_min(0).log() - self._log_edges
            rate += sign * (logs.flip(-1).logcumsumexp(-1).flip(-1) + self._log_edges).exp()
        self._rate = torch.nn.functional.pad(rate, (0, 1))
        return -(cotangent * self._unsort(self._below())).sum(0)

    def gradient(self, located: Located, weight: Tensor) -> Tensor:
        """Return the gradient with respect to the scores of located examples, (..., m), after `backward`."""
        rate = self._rate.gather(-1, located.entry.expand_as(weight))
        return (rate * weight * located.part).sum(0)

    def _below(self) -> Tensor:
        """Return Σ e^{c·(s - t)} over the examples below each threshold t, sorted by threshold."""
        logs = self.moments[1][..., :-1].log() + self._log_edges
        return (logs.logcumsumexp(-1) - self._log_edges).exp()

    def _unsort(self, values: Tensor) -> Tensor:
        return torch.empty_like(values).scatter_(-1, self._order.expand_as(values), values)


def _centred(anchors: Tensor) -> tuple[Tensor, Tensor]:
    """Return the median anchor of each task and all anchors relative to it, in float64.

    Differences of neighbours are exact in floating point; relative to a typical anchor an offset costs no digits.
    """
    anchors = anchors.detach().double().contiguous()
    reference = anchors.median(-1, keepdim=True).values
    return reference, anchors - reference
