"""The mathematics of AP maximisation, pure: no classes, no state.

Notation of the paper: g is the inner function, f the outer, u the moving average of g. Arrays of g and u have shape
(..., k, 2) for k anchors (positives); leading dimensions are tasks.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from apmax import surrogates, validation
from apmax.exact import pair_sums
from apmax.surrogates import Surrogate

POS, ALL = 0, 1
"""Columns of g and u: g¹ runs over the positives, g² over all examples."""


def inner(
    anchor_scores: Tensor,
    scores: Tensor,
    labels: Tensor,
    *,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    method: str = "auto",
) -> Tensor:
    """Return g̃ of the paper's Algorithm 2: batch means of ℓ over the positives and over all, for every anchor.

    `g¹_i = (1/B) Σ_j 1[y_j = 1]·ℓ(s_j - a_i)`, `g²_i = (1/B) Σ_j ℓ(s_j - a_i)`.

    Args:
        anchor_scores: (..., k) scores of the anchors, which need not be in the batch.
        scores: (..., B) scores of the batch.
        labels: (..., B) of 0/1.
        surrogate: A name in `SURROGATES`, or a `Surrogate`.
        margin: Its margin m, or its scale c.
        method: As in `exact.pair_sums`.

    Returns:
        (..., k, 2), columns `POS` and `ALL`.

    >>> inner(torch.tensor([1.0]), torch.tensor([0.5, 1.0]), torch.tensor([0.0, 1.0]))
    tensor([[0.5000, 0.6250]])
    """
    positive = labels.to(validation.floating(scores).dtype)
    sums = pair_sums(scores, anchor_scores, positive, 1 - positive, surrogate=surrogate, margin=margin, method=method)
    return accumulate(sums) / scores.shape[-1]


def accumulate(parts: Tensor) -> Tensor:
    """Return (g¹, g²) from what the positives and what the negatives contribute: (p, n) becomes (p, p + n)."""
    return torch.stack([parts[..., 0], parts[..., 0] + parts[..., 1]], -1)


class Correction(NamedTuple):
    """How sums over a batch become g: `positives·scale + offset` and `negatives·scale`, for every anchor."""

    positive_scale: Tensor | float
    positive_offset: Tensor | float
    negative_scale: Tensor | float


def prevalence_correction(
    anchor_weight: Tensor | float,
    batch_positive: Tensor | float,
    batch_negative: Tensor | float,
    *,
    prevalence: Tensor | float,
    total_positive: Tensor | float,
    self_pair: float,
) -> Correction:
    """Return what makes batch sums unbiased estimates of g under any sampler that draws within classes.

    With prevalence π, weights w, W₊ the weight of all training positives and ℓ_ii = ℓ(0) an anchor's pair with itself:

        positives: π·[w_i·ℓ_ii + (W₊ - w_i)·wmean_{j ∈ S₊, j ≠ i} ℓ_ji] / W₊
        negatives: (1 - π)·wmean_{j ∈ S₋} ℓ_ji

    An anchor that is the only positive of its batch takes ℓ_ii for the mean over the others, as the paper does. With
    two positives or more the estimate is exactly unbiased where the weights of a class are equal; otherwise the
    weighted means are ratio estimates, unbiased if a batch is drawn in proportion to its weight, and exact over all n.

    Args:
        anchor_weight: (..., k) w_i.
        batch_positive: (..., 1) weight of the batch's positives, anchors included.
        batch_negative: (..., 1) weight of the batch's negatives.
        prevalence: (..., 1) π.
        total_positive: (..., 1) W₊.
        self_pair: ℓ(0).

    >>> prevalence_correction(1.0, 2.0, 2.0, prevalence=0.2, total_positive=4.0, self_pair=0.5)
    Correction(positive_scale=0.15000000000000002, positive_offset=-0.05000000000000001, negative_scale=0.4)
    """
    own = prevalence * anchor_weight / total_positive
    others = prevalence - own
    rest = batch_positive - anchor_weight
    scale: Tensor | float
    offset: Tensor | float
    if isinstance(rest, Tensor):
        alone = rest <= 1e-6 * anchor_weight
        scale = torch.where(alone, 0, others / torch.where(alone, 1, rest))
        offset = self_pair * torch.where(alone, prevalence, own - scale * anchor_weight)
    else:
        scale = others / rest if rest > 0 else 0.0
        offset = self_pair * (own - scale * anchor_weight if rest > 0 else prevalence)
    if isinstance(batch_negative, Tensor):
        return Correction(scale, offset, (1 - prevalence) / torch.where(batch_negative > 0, batch_negative, 1))
    return Correction(scale, offset, (1 - prevalence) / (batch_negative or 1.0))


def outer(u: Tensor) -> Tensor:
    """Return f(u) = -u¹/u², minus the precision at the anchor.

    >>> outer(torch.tensor([[1.0, 4.0]]))
    tensor([-0.2500])
    """
    return -u[..., POS] / u[..., ALL]


def moving_average(u: Tensor, g: Tensor, gamma: float, *, floor: Tensor | float = 0.0) -> Tensor:
    """Return the paper's Algorithm 2, step 3: (1 - γ)·u + γ·g with u² clipped below at u₀ = `floor`.

    >>> moving_average(torch.tensor([[0.0, 0.0]]), torch.tensor([[1.0, 4.0]]), 0.5, floor=3.0)
    tensor([[0.5000, 3.0000]])
    """
    mixed = torch.lerp(u, g, gamma)
    mixed[..., ALL].clamp_(min=floor)
    return mixed


def outer_gradient(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return ∇f(u) = (-1/u², u¹/(u²)²), two arrays (..., k).

    >>> outer_gradient(torch.tensor([[1.0, 4.0]]))
    (tensor([-0.2500]), tensor([0.0625]))
    """
    of_positives = -1 / u[..., ALL]
    return of_positives, of_positives * outer(u)


def compose(u: Tensor, g: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of f(u) over the anchors, with the paper's gradient estimate: mean of ∇f(u)·∇g (equation 6).

    Differentiable with respect to `g` alone. Where u = g it is the plain objective with its true gradient.

    Args:
        u: (..., k, 2) the anchors' estimates of g.
        g: (..., k, 2) g of this batch.
        weight: (..., k) weights of the anchors that sum to 1; None for the plain mean.

    >>> g = torch.tensor([[1.0, 4.0]], requires_grad=True)
    >>> value = compose(torch.tensor([[1.0, 2.0]]), g)
    >>> value.item(), torch.autograd.grad(value, g)[0].tolist()
    (-0.5, [[-0.5, 0.25]])
    """
    u = u.detach()
    share = 1 / u.shape[-2] if weight is None else weight
    of_positives, of_all = outer_gradient(u)
    linear = (share * (of_positives * g[..., POS] + of_all * g[..., ALL])).sum(-1)
    value = (share * outer(u)).sum(-1)
    return linear + (value - linear).detach()


def ap_objective(
    scores: Tensor,
    labels: Tensor,
    surrogate: str | Surrogate = "squared_hinge",
    margin: float = 1.0,
    *,
    method: str = "auto",
    sample_weight: Tensor | None = None,
    prevalence: float | None = None,
) -> Tensor:
    """Return the exact objective P(w) over all n examples, a number in [-1, 0]; minus it approximates AP.

    `P = -Σ_{i ∈ D₊} w_i·(g¹_i / g²_i) / W₊` (the paper's equation 2), in O(n log n) time and O(n) memory,
    differentiable with respect to `scores`. "exponential" is degenerate: g¹_i / g²_i does not depend on i, and P
    is minus the softmax mass on the positives (up to the clamp of the exponent). "squared_hinge" measures AP on
    scores in [0, 1] only; for raw scores take "smooth_step". Its sharp limit is AP with every anchor's pair with
    itself counted by half, since ℓ(0) = 1/2.

    Args:
        scores: (n,), (n, 1) or (n, tasks).
        labels: 0/1 of the same shape; NaN in a table of tasks means "not measured". Several tasks give the mean over
            those that have a positive.
        surrogate: A name in `SURROGATES`, or a `Surrogate`.
        margin: Its margin m, or its scale c.
        method: As in `exact.pair_sums`.
        sample_weight: (n,) a weight for every example.
        prevalence: The share of positives at which precision is taken; None for that of `labels`.

    Raises:
        ValueError: Wrong shapes, labels other than 0/1, non-finite scores, no positive at all.

    >>> scores = torch.tensor([0.0, 1.0, 2.0, 3.0])
    >>> round(ap_objective(scores, torch.tensor([0, 1, 0, 1]), "smooth_step", 0.1).item(), 4)
    -0.8
    """
    surrogate = surrogates.get(surrogate, margin)
    share = None if prevalence is None else validation.interval("prevalence", prevalence, 0, 1, closed="neither")
    scores, labels = validation.same_shape(scores, torch.as_tensor(labels, device=scores.device))
    labels = validation.floating(labels)
    validation.binary(labels)
    validation.finite(scores.detach())
    if labels.ndim == 2:
        scores, labels = scores.mT, labels.mT
    positive, negative = (labels == 1).double(), (labels == 0).double()
    if sample_weight is not None:
        weight = validation.weights(sample_weight, scores.shape[-1:]).to(positive)
        positive, negative = positive * weight, negative * weight
    index = positives_of(positive)
    if index.shape[-1] == 0:
        raise ValueError("labels must hold at least one positive (1), got none")
    total_positive, total_negative = positive.sum(-1, keepdim=True), negative.sum(-1, keepdim=True)
    anchors, anchor_weight = scores.gather(-1, index), positive.gather(-1, index)
    sums = pair_sums(scores, anchors, positive, negative, surrogate=surrogate, margin=margin, method=method).double()
    # An anchor's pair with itself is known. Where scores lie so far apart that rounding lost it, it is put back; where
    # an anchor only pads a task with few positives, it keeps 0/0 out of value and gradient.
    lost = (surrogate.at_zero(margin) * _or_one(anchor_weight) - sums[..., 0].detach()).clamp_min_(0)
    sums = sums + torch.stack([lost, torch.zeros_like(lost)], -1)
    if share is not None:
        factors = torch.stack([share / _or_one(total_positive), (1 - share) / _or_one(total_negative)], -1)
        sums = sums * factors
    precision = -outer(accumulate(sums))
    each = (anchor_weight * precision).sum(-1) / _or_one(total_positive[..., 0])
    return -(each.sum() / (total_positive > 0).sum()).to(validation.floating(scores).dtype)


def _or_one(total: Tensor) -> Tensor:
    """Return a weight to divide by, 1 in the place of 0."""
    return torch.where(total > 0, total, 1)


def positives_of(positive: Tensor, count: int | None = None) -> Tensor:
    """Return the positions of the examples with a positive weight, (..., k).

    Tasks with fewer than k positives are padded with other examples, whose weight is 0.

    Args:
        positive: (..., n) weight of every positive, 0 for other examples.
        count: k, if known: then nothing waits for the data. Otherwise the largest number that any task has.
    """
    if count is None and positive.ndim == 1:
        return positive.nonzero().squeeze(-1)
    count = int((positive > 0).sum(-1).max()) if count is None else count
    return positive.topk(count, dim=-1).indices
