"""The formulas of AP maximisation as pure functions; `APLoss` trains by these.

Notation of the SOAP paper: g is the inner function, f the outer, u the moving average of g. Arrays of g and u have
shape (2, ..., k): the two components in front, the k anchors (positives) last, tasks in between.
"""

from __future__ import annotations

import warnings
from typing import NamedTuple

import torch
from torch import Tensor

from apmax import surrogates, validation
from apmax.exact import pair_sums
from apmax.exact.kernel import pair_kernel
from apmax.surrogates import Surrogate

POS, ALL = 0, 1
"""Components of g and u: g¹ runs over the positives, g² over all examples."""


class Correction(NamedTuple):
    """A linear map from pair sums to the parts of g: `parts = scale·sums + offset`.

    The parts, like the sums, are those of the positives and of the negatives, so that g¹ is the first part and g² the
    sum of both. `scale` and `offset` have shape (2, ..., k), or (2, ..., 1) where all anchors share the map.
    """

    scale: Tensor
    offset: Tensor


def inner(
    anchor_scores: Tensor,
    scores: Tensor,
    labels: Tensor,
    *,
    surrogate: str | Surrogate = "smooth_step",
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
        (2, ..., k), components `POS` and `ALL`.

    >>> inner(torch.tensor([1.0]), torch.tensor([0.5, 1.0]), torch.tensor([0.0, 1.0]), surrogate="squared_hinge")
    tensor([[0.5000],
            [0.6250]])
    """
    positive = labels.to(validation.floating(scores).dtype)
    sums = pair_sums(scores, anchor_scores, positive, 1 - positive, surrogate=surrogate, margin=margin, method=method)
    size = sums.new_full((*scores.shape[:-1], 1), scores.shape[-1])
    return corrected_inner(sums, batch_mean(size))


def corrected_inner(sums: Tensor, correction: Correction) -> Tensor:
    """Return g, (2, ..., k), from the pair sums over the positives and over the negatives, (2, ..., k).

    >>> corrected_inner(torch.tensor([[2.0], [3.0]]), Correction(torch.tensor([[0.5], [1.0]]), torch.zeros(2, 1)))
    tensor([[1.],
            [4.]])
    """
    return torch.addcmul(correction.offset, sums, correction.scale).cumsum(0)


def batch_mean(total_weight: Tensor) -> Correction:
    """Return the map that divides pair sums by the batch's total weight, (..., 1): the paper's Algorithm 2."""
    scale = 1 / _one_if_zero(total_weight)
    scale = torch.stack([scale, scale])
    return Correction(scale, torch.zeros_like(scale))


def prevalence_correction(
    anchor_weight: Tensor,
    batch_positive: Tensor,
    batch_negative: Tensor,
    *,
    prevalence: Tensor | float,
    total_positive: Tensor | float,
    self_pair: float,
) -> Correction:
    """Return the map that makes batch sums unbiased estimates of g under any sampler that draws within classes.

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

    >>> one, two = torch.tensor([1.0]), torch.tensor([2.0])
    >>> prevalence_correction(one, two, two, prevalence=0.2, total_positive=4.0, self_pair=0.5)
    Correction(scale=tensor([[0.1500],
            [0.4000]]), offset=tensor([[-0.0500],
            [ 0.0000]]))
    """
    own = prevalence * anchor_weight / total_positive
    others = batch_positive - anchor_weight
    alone = others <= 1e-6 * anchor_weight
    scale = torch.where(alone, 0, (prevalence - own) / torch.where(alone, 1, others))
    offset = self_pair * torch.where(alone, prevalence, own - scale * anchor_weight)
    negative_scale = ((1 - prevalence) / _one_if_zero(batch_negative)).expand_as(scale)
    return Correction(torch.stack([scale, negative_scale]), torch.stack([offset, torch.zeros_like(offset)]))


def moving_average(u: Tensor, g: Tensor, gamma: float, *, floor: Tensor | float = 0.0) -> Tensor:
    """Return the paper's Algorithm 2, step 3: (1 - γ)·u + γ·g with u² clipped below at u₀ = `floor`.

    >>> moving_average(torch.tensor([[0.0], [0.0]]), torch.tensor([[1.0], [4.0]]), 0.5, floor=3.0)
    tensor([[0.5000],
            [3.0000]])
    """
    mixed = torch.lerp(u, g, gamma)
    mixed[ALL].clamp_(min=floor)
    return mixed


def outer(u: Tensor) -> Tensor:
    """Return f(u) = -u¹/u², minus the precision at each anchor, (..., k).

    >>> outer(torch.tensor([[1.0], [4.0]]))
    tensor([-0.2500])
    """
    return -u[POS] / u[ALL]


def outer_slope(u: Tensor) -> tuple[Tensor, Tensor]:
    """Return 1 + f(u), (..., k), and the gradient of f with respect to the parts of u, (2, ..., k).

    The paper's ∇f(u) = (-1/u², u¹/(u²)²) is with respect to (u¹, u²). With respect to the parts, u¹ of the positives
    and u² - u¹ of the negatives, it is `(-(1 - u¹/u²)/u², (u¹/u²)/u²)`.

    >>> outer_slope(torch.tensor([[1.0], [4.0]]))
    (tensor([0.7500]), tensor([[-0.1875],
            [ 0.0625]]))
    """
    of_positives, of_all = u.unbind(0)
    precision = of_positives / of_all
    lost = 1 - precision
    return lost, torch.stack([-lost, precision]).div_(of_all)


def compose(u: Tensor, g: Tensor, weight: Tensor | None = None) -> Tensor:
    """Return the mean of f(u) over the anchors, with the paper's gradient estimate: mean of ∇f(u)·∇g (equation 6).

    Differentiable with respect to `g` alone. Where u = g it is the plain objective with its true gradient.

    Args:
        u: (2, ..., k) the anchors' estimates of g.
        g: (2, ..., k) g of this batch.
        weight: (..., k) weights of the anchors that sum to 1; None for the plain mean.

    >>> g = torch.tensor([[1.0], [4.0]], requires_grad=True)
    >>> value = compose(torch.tensor([[1.0], [2.0]]), g)
    >>> value.item(), torch.autograd.grad(value, g)[0].tolist()
    (-0.5, [[-0.5], [0.25]])
    """
    share = 1 / u.shape[-1] if weight is None else weight
    lost, slope = outer_slope(u.detach())
    parts = torch.stack([g[POS], g[ALL] - g[POS]])
    linear = (share * (slope * parts).sum(0)).sum(-1)
    value = (share * (lost - 1)).sum(-1)
    return linear + (value - linear).detach()


def ap_objective(
    scores: Tensor,
    labels: Tensor,
    surrogate: str | Surrogate = "smooth_step",
    margin: float = 1.0,
    *,
    method: str = "auto",
    sample_weight: Tensor | None = None,
    prevalence: float | None = None,
) -> Tensor:
    """Return the exact objective P(w) over all n examples, a number in [-1, 0]; minus it approximates AP.

    `P = -Σ_{i ∈ D₊} w_i·(g¹_i / g²_i) / W₊` (the paper's equation 2), in O(n log n) time and O(n) memory,
    differentiable with respect to `scores`. The sharp limit of "smooth_step" is AP with every anchor's pair with itself
    counted by half, since ℓ(0) = 1/2. Unbounded surrogates ("squared_hinge", ...) measure AP on scores in [0, 1] only.
    "exponential" is degenerate: g¹_i / g²_i does not depend on i, and P is minus the softmax mass on the positives (up
    to the clamp of the exponent).

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
        ValueError: Wrong shapes, labels other than 0/1, non-finite scores, no positive at all; the surrogate overflows.

    Warns:
        UserWarning: The surrogate is unbounded and a score lies outside [0, 1].

    >>> scores = torch.tensor([0.0, 1.0, 2.0, 3.0])
    >>> round(ap_objective(scores, torch.tensor([0, 1, 0, 1]), margin=0.1).item(), 4)
    -0.8
    """
    surrogate = surrogates.get(surrogate, margin)
    share = None if prevalence is None else validation.interval("prevalence", prevalence, 0, 1, closed="neither")
    scores, labels = validation.same_shape(scores, torch.as_tensor(labels, device=getattr(scores, "device", None)))
    labels = validation.floating(labels)
    validation.binary(labels)
    validation.finite(scores.detach())
    unbounded = not surrogate.bounded and bool(((scores < 0) | (scores > 1)).any())
    if unbounded:
        warnings.warn(
            f"surrogate {surrogate.name!r} measures average precision on scores in [0, 1] only: "
            "pass scores.sigmoid(), or take 'smooth_step'",
            stacklevel=2,
        )
    if labels.ndim == 2:
        scores, labels = scores.mT, labels.mT
    positive, negative, _ = _class_weights(labels, sample_weight)
    index = positions_of_positives(positive)
    total_positive = positive.sum(-1, keepdim=True)
    # Sums of an unbounded surrogate overflow float32 long before the scores do.
    compared = scores.double() if unbounded else scores
    anchors, anchor_weight = compared.gather(-1, index), positive.gather(-1, index)
    sums = pair_sums(compared, anchors, positive, negative, surrogate=surrogate, margin=margin, method=method).double()
    if not surrogate.bounded and not bool(sums.detach().isfinite().all()):
        raise ValueError(
            f"scores spread over {(compared.max() - compared.min()).item():g}, where surrogate {surrogate.name!r} "
            "overflows: pass scores.sigmoid(), or take 'smooth_step'"
        )
    sums = _with_self_pairs(sums, anchor_weight, surrogate.at_zero(margin))
    if share is not None:
        sums = sums * _prevalence_factors(positive, negative, share)
    precision = -outer(sums.cumsum(0))
    by_task = (anchor_weight * precision).sum(-1) / _one_if_zero(total_positive[..., 0])
    return -(by_task.sum() / (total_positive > 0).sum()).to(validation.floating(scores).dtype)


def ap_newton_terms(
    scores: Tensor,
    labels: Tensor,
    margin: float = 1.0,
    *,
    sample_weight: Tensor | None = None,
    prevalence: float | None = None,
    damping: float = 0.1,
    method: str = "auto",
) -> tuple[Tensor, Tensor]:
    """Return the gradient and a positive curvature of W₊·P by the scores, (n,) and (n,), for Newton steps of boosting.

    P is `ap_objective` with the surrogate "smooth_step", W₊ the weight of the positives. P is not convex. It changes
    through the pairs of an anchor and another example, each of which pushes its two scores apart or together, by λ; an
    example's gradient is the sum of its ±λ, and its curvature

        `h = Σ |λ| / margin + damping·w·W₊/W`,

    with w its weight and W that of all rows: a step `-Σg/Σh` over any set of rows is at most `margin` long. The second
    term keeps curvatures positive where no pair is within reach. The scores are sorted nowhere, only the positives.

    A row of weight 2 has the gradient of two rows, but as a positive less curvature: copies of a row push each other,
    which no tree can follow, and a row does not push itself. Steps of copies are shorter, never longer.

    Args:
        scores: (n,) or (n, 1).
        labels: 0/1 of the same shape.
        margin: Margin of the surrogate.
        sample_weight: (n,) a weight for every example.
        prevalence: As in `ap_objective`.
        damping: The share of W₊ that is added to the curvatures of all rows together; above 0.
        method: As in `exact.pair_sums`.

    Raises:
        ValueError: Wrong shapes, labels other than 0/1, non-finite scores, no positive at all.

    >>> gradient, curvature = ap_newton_terms(torch.tensor([0.5, 0.0]), torch.tensor([0.0, 1.0]), damping=0.01)
    >>> gradient, curvature
    (tensor([ 0.1322, -0.1322], dtype=torch.float64), tensor([0.1372, 0.1372], dtype=torch.float64))
    """
    surrogate = surrogates.get("smooth_step", margin)
    share = None if prevalence is None else validation.interval("prevalence", prevalence, 0, 1, closed="neither")
    validation.interval("damping", damping, 0, closed="neither")
    scores, labels = validation.same_shape(scores.detach(), torch.as_tensor(labels, device=scores.device))
    if scores.ndim != 1:
        raise ValueError(f"scores must have shape (n,), got {tuple(scores.shape)}")
    labels = validation.floating(labels)
    validation.binary(labels)
    validation.finite(scores)
    positive, negative, unit = _class_weights(labels, sample_weight)
    index = positions_of_positives(positive)
    scores, anchor_weight = scores.double(), positive[index]
    kernel = pair_kernel(scores, scores[index], torch.stack([positive, negative]), surrogate, margin, method)
    sums = _with_self_pairs(kernel.sums(), anchor_weight, surrogate.at_zero(margin))
    factors = 1.0 if share is None else _prevalence_factors(positive, negative, share)
    slope = outer_slope((sums * factors).cumsum(0))[1] * anchor_weight * factors
    gradient, of_anchors = kernel.pull(slope)
    gradient = gradient.index_add(0, index, of_anchors)
    pushes, of_anchors = kernel.pull(slope.abs())
    # An anchor's pair with itself pushes nothing: it is in both parts and cancels in the gradient.
    own = slope[POS].abs() * anchor_weight / margin
    pushes = pushes.index_add(0, index, -of_anchors - 2 * own).clamp_min_(0)
    weight = positive + negative
    floor = damping * weight * (positive.sum() / weight.sum())
    return gradient * unit, (pushes / margin + floor) * unit


def _class_weights(labels: Tensor, sample_weight: Tensor | None) -> tuple[Tensor, Tensor, float]:
    """Return the weights of the positives and of the negatives, 0 for other examples, and the unit they are in."""
    positive, negative, unit = (labels == 1).double(), (labels == 0).double(), 1.0
    if sample_weight is not None:
        weight = validation.weights(sample_weight, labels.shape[-1:])
        weight, unit = validation.rescaled_weights(weight)
        positive, negative = positive * weight.to(positive), negative * weight.to(negative)
    if not bool((positive > 0).any()):
        raise ValueError("labels must hold at least one positive (1), got none")
    return positive, negative, unit


def _with_self_pairs(sums: Tensor, anchor_weight: Tensor, self_pair: float) -> Tensor:
    """Return pair sums that hold at least each anchor's pair with itself, which is known.

    Where scores lie so far apart that rounding lost it, it is restored; where an anchor only pads a task with few
    positives, it keeps 0/0 out of value and gradient.
    """
    lost = (self_pair * _one_if_zero(anchor_weight) - sums[POS].detach()).clamp_min_(0)
    return sums + torch.stack([lost, torch.zeros_like(lost)])


def _prevalence_factors(positive: Tensor, negative: Tensor, share: float) -> Tensor:
    """Return the factors of the sums over either class, (2, ..., 1), at which a share of the weight is positive."""
    totals = [weight.sum(-1, keepdim=True) for weight in (positive, negative)]
    return torch.stack([share / _one_if_zero(totals[0]), (1 - share) / _one_if_zero(totals[1])])


def anchor_shares(weight: Tensor) -> Tensor:
    """Return anchors' weights scaled to sum to 1 over each task's anchors and over the tasks that have any.

    >>> anchor_shares(torch.tensor([[1.0, 3.0], [1.0, 0.0], [0.0, 0.0]]))
    tensor([[0.1250, 0.3750],
            [0.5000, 0.0000],
            [0.0000, 0.0000]])
    """
    total = weight.sum(-1, keepdim=True)
    return weight / (_one_if_zero(total) * (total > 0).sum().clamp_min(1))


def positions_of_positives(positive: Tensor, count: int | None = None) -> Tensor:
    """Return the positions of the examples with a positive weight, (..., k).

    Tasks with fewer than k positives are padded with other examples, whose weight is 0.

    Args:
        positive: (..., n) weight of every positive, 0 for other examples.
        count: k, if known: then no synchronisation is needed. Otherwise the largest number that any task has.
    """
    if count is None and positive.ndim == 1:
        return positive.nonzero().squeeze(-1)
    count = int((positive > 0).sum(-1).max()) if count is None else count
    return positive.topk(count, dim=-1).indices


def _one_if_zero(total: Tensor) -> Tensor:
    """Return weights to divide by, 1 instead of 0."""
    return torch.where(total > 0, total, 1)
