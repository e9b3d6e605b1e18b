"""Saddle-point losses: their auxiliary variables are Parameters, and those named in `ascend` are maximised."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from apmax import validation
from apmax.losses.base import Batch, Loss, mean_over_tasks, one_if_zero


class AUCMLoss(Loss):
    """AUC margin loss (Yuan et al. 2020): the squared AUC surrogate as a min-max problem over a, b and α ≥ 0.

    With h = sigmoid(s) and p the prevalence, the expectation of

        (1-p)(h-a)² 1[y=1] + p(h-b)² 1[y=0] + 2α(p(1-p)m + p·h 1[y=0] - (1-p)·h 1[y=1]) - p(1-p)α²

    is, written in class means,

        p(1-p) · { mean₊(h-a)² + mean₋(h-b)² + 2α(m + mean₋h - mean₊h) - α² },

    the form computed here; `prevalence="batch"` takes p from the batch. In a batch without one of the classes only the
    other class's square remains: α compares the classes, and there is nothing to compare ("batch": p(1-p) = 0, and so
    is the value). At the optimal a, b and α it is p(1-p) times the mean over pairs of `(m - h₊ + h₋)²` wherever
    mean₊h - mean₋h ≤ m.

    `a`, `b` are minimised with the model, `alpha` is maximised (`ascend`); `project` keeps it at 0 or above at the
    start of every training call, so any torch optimiser trains it. All have shape () or (tasks,).

    Args:
        labels: The training labels, (n,) or (n, tasks).
        margin: m, above 0.
        prevalence: See `Loss`.
        sample_weight: See `Loss`.
        validate: See `Loss`.

    >>> import torch
    >>> loss = AUCMLoss([0, 0, 0, 1])
    >>> round(loss(torch.zeros(2), torch.tensor([0., 1.])).item(), 4)
    0.0938
    """

    ascend: ClassVar[tuple[str, ...]] = ("alpha",)

    def __init__(
        self,
        labels: Any,
        *,
        margin: float = 1.0,
        prevalence: float | str | None = None,
        sample_weight: Any = None,
        validate: bool = True,
    ) -> None:
        super().__init__(labels, prevalence=prevalence, sample_weight=sample_weight, validate=validate)
        self.margin = validation.interval("margin", margin, 0, 1e15, closed="right")
        like = self.total_positive
        self.a = nn.Parameter(torch.zeros(like.shape, device=like.device))
        self.b = nn.Parameter(torch.zeros(like.shape, device=like.device))
        self.alpha = nn.Parameter(torch.zeros(like.shape, device=like.device))

    def project(self) -> None:
        """Put a negative α back to 0; called at the start of every training call."""
        _keep_non_negative(self.alpha)

    def compute(self, batch: Batch) -> Tensor:
        """Return the saddle function at the present a, b and α."""
        if self.training:
            self.project()
        a, b, alpha = (value.to(batch.scores.dtype) for value in (self.a, self.b, self.alpha.clamp_min(0)))
        h = batch.scores.sigmoid()
        positive, negative = batch.positive.sum(-1), batch.negative.sum(-1)

        def positive_mean(values: Tensor) -> Tensor:
            return (batch.positive * values).sum(-1) / one_if_zero(positive)

        def negative_mean(values: Tensor) -> Tensor:
            return (batch.negative * values).sum(-1) / one_if_zero(negative)

        within = positive_mean((h - a.unsqueeze(-1)) ** 2) + negative_mean((h - b.unsqueeze(-1)) ** 2)
        between = 2 * alpha * (self.margin + negative_mean(h) - positive_mean(h)) - alpha**2
        share = positive / one_if_zero(positive + negative) if self.prevalence is None else self.prevalence.to(h.dtype)
        both = (positive > 0) & (negative > 0)
        value = share * (1 - share) * (within + torch.where(both, between, 0))
        return mean_over_tasks(value, (positive + negative) > 0)


class MinMaxLoss(Loss):
    """Area under the precision-recall curve by anchored precisions (Eban et al. 2017), hinge surrogate.

    Between the prevalence π and 1 lie K precisions α_k = π + (1-π)·k/(K+1), Δ = (1-π)/(K+1) apart (at 1 itself
    the weight of a false positive would be infinite). For each, a threshold b_k gives the recall that precision
    allows, and a multiplier λ_k ≥ 0 holds the precision. Their Lagrangian, divided by the number of examples:

        Σ_k Δ · { π·[(1+λ_k)·mean₊(1 - (s-b_k))₊ - λ_k] + (1-π)·λ_k·α_k/(1-α_k)·mean₋(1 + (s-b_k))₊ }

    It is minimised over the model and `thresholds`, maximised over `multipliers` (`ascend`), which `project` keeps at
    0 or above at the start of every training call, so any torch optimiser trains them. Both have shape (anchors,) or
    (tasks, anchors); they begin at 0 and at 1. `prevalence="batch"` takes the plain mean over the batch; the
    anchors, which the multipliers belong to, then start from the share of positives in `labels`.

    Args:
        labels: The training labels, (n,) or (n, tasks).
        anchors: K, at least 1.
        prevalence: See `Loss`.
        sample_weight: See `Loss`.
        validate: See `Loss`.

    >>> import torch
    >>> loss = MinMaxLoss([0, 0, 0, 1], anchors=2)
    >>> round(loss(torch.zeros(2), torch.tensor([0., 1.])).item(), 4)
    0.875
    """

    ascend: ClassVar[tuple[str, ...]] = ("multipliers",)

    precisions: Tensor

    def __init__(
        self,
        labels: Any,
        *,
        anchors: int = 10,
        prevalence: float | str | None = None,
        sample_weight: Any = None,
        validate: bool = True,
    ) -> None:
        super().__init__(labels, prevalence=prevalence, sample_weight=sample_weight, validate=validate)
        self.anchors = validation.whole("anchors", anchors, 1)
        start = self.prevalence
        if start is None:
            start = self.total_positive / one_if_zero(self.total_weight)
        steps = torch.arange(1, self.anchors + 1, dtype=start.dtype, device=start.device) / (self.anchors + 1)
        precisions = start.unsqueeze(-1) + (1 - start).unsqueeze(-1) * steps
        self.register_buffer("precisions", precisions, persistent=False)
        self.thresholds = nn.Parameter(torch.zeros(precisions.shape, device=start.device))
        self.multipliers = nn.Parameter(torch.ones(precisions.shape, device=start.device))

    def project(self) -> None:
        """Put negative multipliers back to 0; called at the start of every training call."""
        _keep_non_negative(self.multipliers)

    def score_limit(self, dtype: torch.dtype) -> float:
        """Return the magnitude of scores that leaves a factor of 2³² for the multipliers and the sum over anchors."""
        return torch.finfo(dtype).max / 2**32

    def compute(self, batch: Batch) -> Tensor:
        """Return the Lagrangian at the present thresholds and multipliers."""
        if self.training:
            self.project()
        dtype = batch.scores.dtype
        below_one = 1 - self.precisions
        spacing = below_one[..., -1:].to(dtype)  # the last anchor is one step short of 1
        # Times the spacing: alone, the odds of an anchor near 1 would overflow first.
        odds = (below_one[..., -1:] * self.precisions / below_one.clamp_min(torch.finfo(torch.float32).eps)).to(dtype)
        thresholds, multipliers = self.thresholds.to(dtype), self.multipliers.clamp_min(0).to(dtype)
        weight = self.balanced(batch)
        positive = torch.where(batch.positive > 0, weight, 0)
        negative = weight - positive
        beyond = batch.scores.unsqueeze(-2) - thresholds.unsqueeze(-1)
        missed = (positive.unsqueeze(-2) * (1 - beyond).clamp_min(0)).sum(-1)
        admitted = (negative.unsqueeze(-2) * (1 + beyond).clamp_min(0)).sum(-1)
        share = positive.sum(-1, keepdim=True)
        anchored = spacing * ((1 + multipliers) * missed - multipliers * share) + multipliers * odds * admitted
        return mean_over_tasks(anchored.sum(-1), ((batch.positive + batch.negative) > 0).any(-1))


def _keep_non_negative(parameter: nn.Parameter) -> None:
    """Put negative entries of a parameter back to 0.

    Through `.data`: between two optimiser steps a second call changes nothing, so a graph that is still waiting for
    its backward pass stays valid (gradient accumulation).
    """
    parameter.data.clamp_(min=0)
