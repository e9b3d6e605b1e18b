"""`pair_sums`: one differentiable function, three methods of computation."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from apmax import surrogates, validation
from apmax.exact.grid import MAX_POINTS, grid_points
from apmax.exact.tables import TabulatedPairs
from apmax.surrogates import Surrogate

PAIR_SUM_METHODS = ("auto", "dense", "bucket", "grid")
DENSE_PAIRS = 200_000
"""Up to this many pairs the full matrix is faster than a search."""
_PAIRS_PER_POINT = 64
"""A point of the grid, with its FFTs, costs about as much as this many pairs."""
_MAX_LOGARITHM = 2.0**24
"""Up to this many units of c·score the exponential's sums, which are added in the logarithm, keep eight digits."""
_MAX_PAIRS_AT_ONCE = 2**22
"""Pairs held in memory at a time; more are computed in chunks of anchors."""


class PairKernel(Protocol):
    """The interface of every method; nothing in it is recorded by autograd."""

    def sums(self) -> Tensor:
        """Return (2, ..., k): for every anchor the sums by either weight."""

    def pull(self, cotangent: Tensor) -> tuple[Tensor, Tensor]:
        """Take d(objective)/d(sums), (2, ..., k); return the gradients of scores and anchors."""


def pair_sums(
    scores: Tensor,
    anchors: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    surrogate: str | Surrogate = "smooth_step",
    margin: float = 1.0,
    method: str = "auto",
) -> Tensor:
    """Return Σ_j w_j·ℓ(s_j - a_i) over the positives and over the negatives, for every anchor i.

    These are n·g¹ and n·(g² - g¹) of the paper's inner function g (its equation 3). The result is differentiable
    with respect to `scores` and `anchors`.

    Args:
        scores: (..., n) scores of all examples; leading dimensions are tasks, each on its own.
        anchors: (..., k) scores of the anchors.
        positive: (..., n) weight of every example that is positive, 0 for the others.
        negative: (..., n) weight of every example that is negative, 0 for the others.
        surrogate: A name in `SURROGATES`, or a `Surrogate`.
        margin: Its margin m, or its scale c.
        method: "dense" takes all pairs; "bucket" (hinges, ramp, steps, exponential) is O((n + k) log k) and exact;
            "grid" (logistic, sigmoid) is O(n + G log G) within a relative error of about 1e-6; "auto" chooses.

    Returns:
        (2, ..., k): sums over the positives and over the negatives, in float32 or better.

    >>> scores = torch.tensor([0.0, 1.0, 2.0])
    >>> pair_sums(scores, scores[2:], torch.tensor([0., 0., 1.]), torch.tensor([1., 1., 0.]))
    tensor([[0.5000],
            [0.0000]])
    """
    surrogate = surrogates.get(surrogate, margin)
    validation.choice("method", method, PAIR_SUM_METHODS)
    weight = torch.stack([positive, negative]).to(validation.floating(scores).dtype)
    sums: Tensor = _PairSums.apply(scores, anchors, weight, surrogate, margin, method)
    return sums


def pair_kernel(
    scores: Tensor, anchors: Tensor, weight: Tensor, surrogate: Surrogate, margin: float, method: str = "auto"
) -> PairKernel:
    """Return the pair sums and their pull-back without autograd, for objectives that know their own gradient.

    Args:
        scores: (..., n), float32 or better.
        anchors: (..., k), likewise.
        weight: (2, ..., n), two non-negative weights of every example.
        surrogate: The surrogate.
        margin: Its margin.
        method: As in `pair_sums`.
    """
    fast = _fast_method(surrogate)
    if method not in ("auto", "dense", fast):
        raise ValueError(
            f"method {method!r} does not suit surrogate {surrogate.name!r}: "
            f"use {'' if fast is None else repr(fast) + ', '}'dense' or 'auto'"
        )
    if method == "auto":
        method = _fastest(scores, anchors, surrogate, margin)
    if method == "dense" or not (scores.numel() and anchors.numel()):
        if surrogate.name == "exponential":
            # e^80 times a few thousand examples would overflow float32.
            scores, anchors, weight = scores.double(), anchors.double(), weight.double()
        return DensePairs(scores, anchors, weight, surrogate, margin)
    bounds = _extremes(scores, anchors) if method == "grid" else ()
    return TabulatedPairs(scores, anchors, weight, surrogate, margin, *bounds)


class DensePairs:
    """Sums of ℓ(s - a) over the examples s, for all anchors a, by the matrix of all pairs: O(n·k) work.

    Value and gradient are written out, which makes it the fastest way for small batches.

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
        self.step = max(1, _MAX_PAIRS_AT_ONCE // max(1, scores.numel()))
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


def _fast_method(surrogate: Surrogate) -> str | None:
    """Return the method other than "dense" that suits the surrogate; None for a custom one without pieces."""
    if surrogate.pieces is not None or surrogate.name == "exponential":
        return "bucket"
    return "grid" if surrogate.name in ("logistic", "sigmoid") else None


def _extremes(scores: Tensor, anchors: Tensor) -> tuple[Tensor, Tensor]:
    low, high = scores.aminmax(dim=-1)
    first, last = anchors.aminmax(dim=-1)
    return torch.minimum(low, first).double(), torch.maximum(high, last).double()


def _fastest(scores: Tensor, anchors: Tensor, surrogate: Surrogate, margin: float) -> str:
    fast, number = _fast_method(surrogate), scores.numel() * anchors.shape[-1]
    # The time of both methods is proportional to the number of tasks, so that one task decides.
    if fast is None or scores.shape[-1] * anchors.shape[-1] <= DENSE_PAIRS:
        return "dense"
    if fast == "bucket" and surrogate.name != "exponential":
        return "bucket"
    low, high = _extremes(scores, anchors)
    if fast == "bucket":
        return "bucket" if margin * float((high - low).max()) <= _MAX_LOGARITHM else "dense"
    points = grid_points(float((high - low).max()), margin) * low.numel()
    return "grid" if points <= min(MAX_POINTS, number // _PAIRS_PER_POINT) else "dense"


def _full_precision(device: torch.device) -> AbstractContextManager[object]:
    """Return a context in which autocast does not turn products of float32 into half precision."""
    if torch.is_autocast_enabled(device.type):
        return torch.autocast(device.type, enabled=False)
    return nullcontext()


class _PairSums(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, scores: Tensor, anchors: Tensor, weight: Tensor, surrogate: Surrogate, margin: float, method: str
    ) -> Tensor:
        # Saved so that autograd detects a change in place before the backward pass.
        ctx.save_for_backward(scores, anchors)
        dtype = weight.dtype
        with _full_precision(scores.device):
            ctx.kernel = pair_kernel(scores.to(dtype), anchors.to(dtype), weight, surrogate, margin, method)
            sums: Tensor = ctx.kernel.sums()
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        scores, anchors = ctx.saved_tensors
        with _full_precision(cotangent.device):
            of_scores, of_anchors = ctx.kernel.pull(cotangent)
        return of_scores.to(scores.dtype), of_anchors.to(anchors.dtype), None, None, None, None
