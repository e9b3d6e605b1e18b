"""Losses that are a mean over examples: cross-entropy and its re-weighted relatives."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F  # noqa: N812

from apmax import validation
from apmax.losses.base import Batch, Loss, mean_over_tasks, one_if_zero


class Pointwise(Loss):
    """A value per example, averaged within each class: `π·mean₊ + (1-π)·mean₋`, the population's mean.

    The sampler's share of each class does not change the expectation; `prevalence="batch"` is the
    plain mean over the batch.
    """

    def compute(self, batch: Batch) -> Tensor:
        """Return the prevalence-weighted mean of `each`."""
        value = (self.balanced(batch) * self.each(batch.scores, batch.positive > 0)).sum(-1)
        return mean_over_tasks(value, ((batch.positive + batch.negative) > 0).any(-1))

    @abstractmethod
    def each(self, scores: Tensor, positive: Tensor) -> Tensor:
        """Return the loss of every example, (..., B), from its score and whether it is a positive."""


class CrossEntropyLoss(Pointwise):
    """Binary cross-entropy on logits, `π·mean₊ log(1 + e^{-s}) + (1-π)·mean₋ log(1 + e^{s})`.

    >>> import torch
    >>> loss = CrossEntropyLoss([0, 0, 0, 1])
    >>> round(loss(torch.zeros(2), torch.tensor([0., 1.])).item(), 4)
    0.6931
    """

    def each(self, scores: Tensor, positive: Tensor) -> Tensor:
        """Return `log(1 + e^{-z})`, z the score towards the example's own class."""
        return -F.logsigmoid(towards_label(scores, positive))


class ClassBalancedLoss(Pointwise):
    """Class-balanced cross-entropy (Cui et al. 2019), `α_y · log(1 + e^{-z})`, z = s for a positive, -s otherwise.

    `α_y ∝ (1 - β)/(1 - β^{n_y})`, one over the effective number of the n_y training examples of class y, scaled so
    that the two sum to 2 (their section 4). The weights come from the training labels and multiply the class means,
    `π·α₊·mean₊ + (1-π)·α₋·mean₋`: they are applied after the prevalence correction, which only undoes the sampler.
    β = 0 is cross-entropy; β → 1 gives both classes the same weight. A row of `sample_weight` 2 counts as two rows,
    and a task whose labels are of one class is not re-weighted.

    Args:
        labels: The training labels, (n,) or (n, tasks).
        beta: β in [0, 1).
        prevalence: See `Loss`.
        sample_weight: See `Loss`.
        validate: See `Loss`.

    >>> import torch
    >>> loss = ClassBalancedLoss([0, 0, 0, 1], beta=0.9)
    >>> round(loss(torch.zeros(2), torch.tensor([0., 1.])).item(), 4)
    0.5334
    """

    weights: Tensor

    def __init__(
        self,
        labels: Any,
        *,
        beta: float = 0.9999,
        prevalence: float | str | None = None,
        sample_weight: Any = None,
        validate: bool = True,
    ) -> None:
        super().__init__(labels, prevalence=prevalence, sample_weight=sample_weight, validate=validate)
        self.beta = validation.interval("beta", beta, 0, 1, closed="left")
        weights = effective_number_weights(class_counts(self), self.beta)
        self.register_buffer("weights", weights, persistent=False)

    def score_limit(self, dtype: torch.dtype) -> float:
        """Return the magnitude up to which a score times the weight of its class, at most 2, is finite."""
        return torch.finfo(dtype).max / 4

    def each(self, scores: Tensor, positive: Tensor) -> Tensor:
        """Return the cross-entropy of each example times the weight of its class."""
        return by_class(self.weights, positive, scores.dtype) * -F.logsigmoid(towards_label(scores, positive))


class FocalLoss(Pointwise):
    """Focal loss (Lin et al. 2017, eq. 5), `-α_t (1 - p_t)^focusing log p_t`, p_t the probability of the true class.

    Computed from logarithms of sigmoids, so value and gradient are finite for every finite logit. `focusing=0` with
    `balance=None` is cross-entropy.

    Args:
        labels: The training labels, (n,) or (n, tasks).
        focusing: The exponent (their γ), at least 0: the larger, the less an easy example counts.
        balance: α, the weight of a positive; a negative weighs 1 - α. None leaves both at 1.
        prevalence: See `Loss`.
        sample_weight: See `Loss`.
        validate: See `Loss`.

    >>> import torch
    >>> loss = FocalLoss([0, 0, 0, 1], focusing=2.0, balance=None)
    >>> round(loss(torch.zeros(2), torch.tensor([0., 1.])).item(), 4)
    0.1733
    """

    def __init__(
        self,
        labels: Any,
        *,
        focusing: float = 2.0,
        balance: float | None = 0.25,
        prevalence: float | str | None = None,
        sample_weight: Any = None,
        validate: bool = True,
    ) -> None:
        super().__init__(labels, prevalence=prevalence, sample_weight=sample_weight, validate=validate)
        self.focusing = validation.interval("focusing", focusing, 0, closed="left")
        self.balance = None if balance is None else validation.interval("balance", balance, 0, 1, closed="neither")

    def each(self, scores: Tensor, positive: Tensor) -> Tensor:
        """Return the focal loss of each example."""
        z = towards_label(scores, positive)
        value = (self.focusing * F.logsigmoid(-z)).exp() * -F.logsigmoid(z)
        if self.balance is None:
            return value
        return torch.where(positive, self.balance * value, (1 - self.balance) * value)


class LDAMLoss(Pointwise):
    """Label-distribution-aware margins with deferred re-weighting (Cao et al. 2019, sections 3.2 and 3.3).

    Their loss of an example of class y is `-log softmax` of the logits times `scale`, after the logit of y has lost
    its margin `Δ_y = C/n_y^{1/4}`. With two classes the softmax depends on the difference of the logits alone, which
    is the score s however it is split between them ((0, s), (-s/2, s/2), ...), so that

        ℓ = log(1 + exp(-scale · (z - Δ_y))),    z = s for a positive, -s for a negative,

    with C such that the rarer class has the margin `max_margin`. From epoch `defer_epoch` on, each class is weighted
    as in `ClassBalancedLoss` with `beta`. The epoch is set by `set_epoch` and kept in `state_dict`.

    Args:
        labels: The training labels, (n,) or (n, tasks).
        max_margin: The larger of the two margins, at least 0.
        scale: Their s, above 0. The paper's 30 is for normalised features and weights (logits in [-1, 1]).
        defer_epoch: First epoch (from 0) of the re-weighting; the paper: 160 of 200, that is 80 % of all epochs.
            None: never.
        beta: β of the re-weighting, in [0, 1).
        prevalence: See `Loss`.
        sample_weight: See `Loss`.
        validate: See `Loss`.

    >>> import torch
    >>> loss = LDAMLoss([0] * 16 + [1], max_margin=0.5, scale=1.0)
    >>> round(loss(torch.zeros(2), torch.tensor([0., 1.])).item(), 4)
    0.8347
    """

    margins: Tensor
    weights: Tensor
    epoch: Tensor

    def __init__(
        self,
        labels: Any,
        *,
        max_margin: float = 0.5,
        scale: float = 30.0,
        defer_epoch: int | None = 160,
        beta: float = 0.9999,
        prevalence: float | str | None = None,
        sample_weight: Any = None,
        validate: bool = True,
    ) -> None:
        super().__init__(labels, prevalence=prevalence, sample_weight=sample_weight, validate=validate)
        self.max_margin = validation.interval("max_margin", max_margin, 0, 1e15)
        self.scale = validation.interval("scale", scale, 0, 1e15, closed="right")
        self.defer_epoch = None if defer_epoch is None else validation.whole("defer_epoch", defer_epoch)
        self.beta = validation.interval("beta", beta, 0, 1, closed="left")
        counts = class_counts(self)
        # The margins depend on the ratio of the counts alone, which is finite even where the counts are not.
        relative = class_counts(self, relative=True)
        known = relative.where(relative > 0, math.inf)
        margins = self.max_margin * (known.amin(0) / known).nan_to_num() ** 0.25
        self.register_buffer("margins", margins, persistent=False)
        self.register_buffer("weights", effective_number_weights(counts, self.beta), persistent=False)
        self.register_buffer("epoch", torch.zeros((), dtype=torch.int64, device=counts.device))

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins: classes are re-weighted from `defer_epoch` on."""
        self.epoch.fill_(validation.whole("epoch", epoch))

    def score_limit(self, dtype: torch.dtype) -> float:
        """Return the magnitude up to which a score, times `scale` and the weight of its class, is finite."""
        return torch.finfo(dtype).max / (4 * max(1.0, self.scale))

    def each(self, scores: Tensor, positive: Tensor) -> Tensor:
        """Return the loss of each example with its class's margin and, once deferred, its class's weight."""
        z = towards_label(scores, positive) - by_class(self.margins, positive, scores.dtype)
        value = -F.logsigmoid(self.scale * z)
        if self.defer_epoch is None:
            return value
        # The epoch is compared on its own device: reading it would make the host wait.
        weights = torch.where(self.epoch >= self.defer_epoch, self.weights, 1)
        return by_class(weights, positive, scores.dtype) * value


def towards_label(scores: Tensor, positive: Tensor) -> Tensor:
    """Return s for a positive and -s for a negative: large where the example is on its right side."""
    return torch.where(positive, scores, -scores)


def by_class(values: Tensor, positive: Tensor, dtype: torch.dtype) -> Tensor:
    """Return each example's entry of `values`, (2,) or (2, tasks): negatives' first, positives' second."""
    negative_value, positive_value = values.to(dtype).unsqueeze(-1).unbind(0)
    return torch.where(positive, positive_value, negative_value)


def class_counts(loss: Loss, *, relative: bool = False) -> Tensor:
    """Return the number (weight) of training rows of each class, (2,) or (2, tasks): negatives first.

    `relative` counts are in the loss's unit of weight.

    >>> class_counts(CrossEntropyLoss([0, 0, 1]))
    tensor([2., 1.], dtype=torch.float64)
    """
    counts = torch.stack([loss.total_weight - loss.total_positive, loss.total_positive])
    return counts if relative else counts * loss.weight_unit


def effective_number_weights(counts: Tensor, beta: float) -> Tensor:
    """Return the weights `(1 - β)/(1 - β^n)` of two classes, scaled to sum to 2; ones where a class has no rows.

    >>> effective_number_weights(torch.tensor([30.0, 10.0]), 0.0)
    tensor([1., 1.])
    """
    decay = -math.log(beta) if beta > 0 else math.inf
    # The effective numbers up to a factor; where they underflow they are proportional to the counts.
    effective = -torch.expm1(-decay * counts)
    effective = torch.where((effective > 0).all(0), effective, counts)
    # (1/e₀, 1/e₁) and (e₁, e₀) are proportional.
    weights = 2 * effective.flip(0) / one_if_zero(effective.sum(0))
    return torch.where((counts > 0).all(0), weights, 1)
