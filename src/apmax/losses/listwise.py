"""Losses over the ranking within a batch: smooth ranks and soft histograms."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from apmax import validation
from apmax.losses.base import Batch, Loss, mean_over_tasks, one_if_zero


class SmoothAPLoss(Loss):
    """SmoothAP (Brown et al. 2020): average precision with ranks counted by a sigmoid of temperature τ.

    With σ_ji = 1/(1 + exp(-(s_j - s_i)/τ)), and the positive class as the one query, their loss is

        1 - mean_{i ∈ S₊} (1 + Σ_{j ∈ S₊, j≠i} σ_ji) / (1 + Σ_{j ∈ S₊, j≠i} σ_ji + Σ_{j ∈ S₋} σ_ji),

    which is `prevalence="batch"`. By default the sums are those of a training set with n₊ positives and prevalence π,
    estimated by the means of the batch, so that the sampler does not change what is estimated:

        Σ_{S₊, j≠i} → (n₊-1)·mean_{S₊, j≠i},    Σ_{S₋} → n₊·(1-π)/π·mean_{S₋}.

    With one positive in the batch the mean over the others is taken as ½, its average over all pairs of positives.
    As τ → 0 it is 1 - AP where no scores are tied. With weights, i itself counts w_i instead of 1, sums and means are
    weighted, n₊ is the positives' total weight. A task without positives in the batch is left out; without any the
    value is 0. Only a (positives, B) matrix is built; counting the positives is a host synchronisation.

    Args:
        labels: The training labels, (n,) or (n, tasks).
        temperature: τ, at least 1e-15; 0.01 in the paper.
        sigmoid: Rank sigmoid(s), bounded as the paper's similarities are, and not s itself.
        prevalence: See `Loss`.
        sample_weight: See `Loss`.
        validate: See `Loss`.

    >>> import torch
    >>> loss = SmoothAPLoss([0, 0, 0, 1])
    >>> round(loss(torch.zeros(2), torch.tensor([0., 1.])).item(), 4)
    0.6
    """

    def __init__(
        self,
        labels: Any,
        *,
        temperature: float = 0.01,
        sigmoid: bool = True,
        prevalence: float | str | None = None,
        sample_weight: Any = None,
        validate: bool = True,
    ) -> None:
        super().__init__(labels, prevalence=prevalence, sample_weight=sample_weight, validate=validate)
        self.temperature = validation.interval("temperature", temperature, 1e-15, 1e15)
        self.sigmoid = sigmoid

    def compute(self, batch: Batch) -> Tensor:
        """Return 1 - smooth AP, averaged over the tasks with positives."""
        scores = torch.atleast_2d(batch.scores.sigmoid() if self.sigmoid else batch.scores)
        positive, negative = torch.atleast_2d(batch.positive, batch.negative)
        if batch.weighted:
            # The share of a heavy positive is subtracted from its sums; in float32 little of the others' would remain.
            scores, positive, negative = scores.double(), positive.double(), negative.double()
        task, column = (positive > 0).nonzero(as_tuple=True)
        own_score, own_weight = scores[task, column], positive[task, column]

        def of_anchor(values: Tensor) -> Tensor:
            # One task broadcasts: copying its row for every anchor would only cost memory.
            return values if values.shape[0] == 1 else values.index_select(0, task)

        above = ((of_anchor(scores) - own_score.unsqueeze(-1)) / self.temperature).sigmoid()
        positives_above = (above * of_anchor(positive)).sum(-1) - own_weight / 2  # σ_ii = ½ is not another positive
        negatives_above = (above * of_anchor(negative)).sum(-1)
        if self.prevalence is None:
            higher = own_weight + positives_above
            intruders = negatives_above
        else:
            share = self.prevalence.to(scores.dtype).reshape(-1)[task]
            total = self.total_positive.to(scores.dtype).reshape(-1)[task]
            others = positive.sum(-1)[task] - own_weight
            mean_positive = torch.where(others > 0, (positives_above / one_if_zero(others)).clamp_max(1), 0.5)
            mean_negative = negatives_above / one_if_zero(negative.sum(-1))[task]
            higher = share * (own_weight + (total - own_weight).clamp_min(0) * mean_positive) / one_if_zero(total)
            intruders = (1 - share) * mean_negative
        missing = own_weight * intruders / one_if_zero(higher + intruders)
        totals = positive.sum(-1)
        value = torch.zeros_like(totals).index_add(0, task, missing) / one_if_zero(totals)
        return mean_over_tasks(value, totals > 0).to(batch.scores.dtype)


class FastAPLoss(Loss):
    """FastAP (Cakir et al. 2019): average precision of a soft histogram of the scores.

    They bin the distances to a query; here the query is the positive class and sigmoid(s) in [0, 1] replaces
    the (reversed) distance. Every example is split between the two nearest of `bins` + 1 evenly spaced centres
    (the triangular kernel); with h⁺_b and h⁻_b the class means of these histograms, and H⁺, H⁻ their sums from the
    highest centre down to b,

        1 - Σ_b h⁺_b · π·H⁺_b / (π·H⁺_b + (1-π)·H⁻_b).

    `prevalence="batch"` takes π from the batch, which is their formula `1 - (1/N⁺) Σ_b h⁺_b H⁺_b / H_b` in counts.
    Scores that lie on centres give 1 - AP exactly, ties included. Elsewhere it stays above 1 - AP however many bins
    there are, by less than 1/(4r) for a positive of rank r that has its two centres to itself: it is split in two.
    A task without positives in the batch is left out; without any the value is 0.

    Args:
        labels: The training labels, (n,) or (n, tasks).
        bins: How many intervals [0, 1] is divided into, at least 1; 10 in the paper.
        prevalence: See `Loss`.
        sample_weight: See `Loss`.
        validate: See `Loss`.

    >>> import torch
    >>> loss = FastAPLoss([0, 0, 0, 1])
    >>> round(loss(torch.zeros(2), torch.tensor([0., 1.])).item(), 4)
    0.75
    """

    def __init__(
        self,
        labels: Any,
        *,
        bins: int = 10,
        prevalence: float | str | None = None,
        sample_weight: Any = None,
        validate: bool = True,
    ) -> None:
        super().__init__(labels, prevalence=prevalence, sample_weight=sample_weight, validate=validate)
        self.bins = validation.whole("bins", bins, 1)

    def compute(self, batch: Batch) -> Tensor:
        """Return 1 - histogram AP, averaged over the tasks with positives."""
        position = batch.scores.sigmoid() * self.bins
        # Unchecked NaN scores make the value NaN; as an index they would be out of bounds.
        lower = position.detach().nan_to_num(0).floor().clamp_max(self.bins - 1)
        upper_part = position - lower
        bins = torch.stack([lower, lower + 1], -1).flatten(-2).long()
        parts = torch.stack([1 - upper_part, upper_part], -1)

        def histogram(weight: Tensor) -> Tensor:
            empty = weight.new_zeros((*weight.shape[:-1], self.bins + 1))
            return empty.scatter_add(-1, bins, (weight.unsqueeze(-1) * parts).flatten(-2))

        totals = batch.positive.sum(-1)
        weight = self.balanced(batch)
        positive = torch.where(batch.positive > 0, weight, 0)
        hits, intruders = histogram(positive), histogram(weight - positive)
        hits_above, intruders_above = _from_the_top(hits), _from_the_top(intruders)
        precision = hits_above / one_if_zero(hits_above + intruders_above)
        value = 1 - (hits * precision).sum(-1) / one_if_zero(positive.sum(-1))
        return mean_over_tasks(torch.where(totals > 0, value, 0), totals > 0)


def _from_the_top(histogram: Tensor) -> Tensor:
    """Return the sum from the last bin down to each bin.

    >>> _from_the_top(torch.tensor([1.0, 2.0, 3.0]))
    tensor([6., 5., 3.])
    """
    return histogram.flip(-1).cumsum(-1).flip(-1)
