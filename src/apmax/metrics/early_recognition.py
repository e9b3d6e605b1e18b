"""Metrics of the top of a ranking: precision and recall at k, enrichment factor and BEDROC; ties and weights are exact.

All of them are sums over the positives: a positive with weight c strictly above its score and weight t at it lies on
each of the places c to c + t with the same probability, for rows of equal score are in random order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from apmax import validation
from apmax.metrics.ranking import Ranked, Sample, sample

ENRICHMENT_FRACTION = 0.01
BEDROC_ALPHA = 20.0
_LEAST_ALPHA = 1e-6
# Relative: weights that are equal on paper differ by less.
_ROUNDING = 1e-12


def precision_at_k(scores: Any, labels: Any, *, k: int, sample_weight: Any = None) -> Tensor:
    """Return the share of positives among the k best-scored examples.

    Where equal scores straddle the cut, the value is its expectation over a random order of them: with a examples
    strictly above the cut and t tied at it, `(TP_above + TP_tied·(k - a)/t) / k`. The order of the rows never matters.

    Args:
        scores: Finite scores on any scale, (n,), (n, 1) or (n, tasks).
        labels: 0/1 of the same shape; NaN in (n, tasks) means "not measured".
        k: Length of the list, 1 to n.
        sample_weight: Weights (n,); a row of weight 2 takes two of the k places.

    Returns:
        A float64 scalar, or (tasks,) values; NaN for a task with fewer than k measured examples.

    Raises:
        ValueError: As `average_precision`, or k is less than 1 or more than the number (weight) of examples.

    >>> precision_at_k([0.9, 0.8, 0.8, 0.6], [1, 0, 1, 0], k=2)
    tensor(0.7500, dtype=torch.float64)
    """
    given = sample(scores, labels, sample_weight)
    places, positives, negatives = checked_places(k, given), given.positives(), given.negatives()
    found = found_of(positives, negatives, places)
    return torch.where(_shorter(positives, negatives, places), torch.nan, found / places)


def recall_at_k(scores: Any, labels: Any, *, k: int, sample_weight: Any = None) -> Tensor:
    """Return the share of the positives that are among the k best-scored examples.

    Ties at the cut, arguments and errors are those of `precision_at_k`.

    Returns:
        A float64 scalar, or (tasks,) values; NaN without positives or with fewer than k measured examples.

    >>> recall_at_k([0.9, 0.8, 0.8, 0.6], [1, 0, 1, 0], k=2)
    tensor(0.7500, dtype=torch.float64)
    """
    given = sample(scores, labels, sample_weight)
    places, positives, negatives = checked_places(k, given), given.positives(), given.negatives()
    found = found_of(positives, negatives, places)
    return torch.where(_shorter(positives, negatives, places), torch.nan, found / positives.total)


def enrichment_factor(
    scores: Any, labels: Any, *, fraction: float = ENRICHMENT_FRACTION, sample_weight: Any = None
) -> Tensor:
    """Return how many times as frequent the positives are in the best-scored fraction as among all examples.

    A random ranking has 1, the best possible one `min(1/fraction, n/n₊)`. Where `fraction·n` is not whole, the last row
    counts by its share (RDKit rounds up). Ties at the cut are those of `precision_at_k`.

    Args:
        scores: Finite scores on any scale, (n,), (n, 1) or (n, tasks).
        labels: 0/1 of the same shape; NaN in (n, tasks) means "not measured".
        fraction: Above 0, at most 1.
        sample_weight: Weights (n,); a weight of 2 counts as two equal rows, one of 0 as none.

    Returns:
        A float64 scalar, or (tasks,) values; NaN without positives.

    Raises:
        ValueError: As `average_precision`, or `fraction` is out of range.

    >>> enrichment_factor([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 0], fraction=0.5)
    tensor(2., dtype=torch.float64)
    """
    fraction = validation.interval("fraction", fraction, 0, 1, closed="right")
    given = sample(scores, labels, sample_weight)
    return enrichment_factor_of(given.positives(), given.negatives(), fraction)


def bedroc(scores: Any, labels: Any, *, alpha: float = BEDROC_ALPHA, sample_weight: Any = None) -> Tensor:
    """Return BEDROC, the sum of `exp(-α·rank/n)` over the positives on a scale from 0 (worst) to 1 (best ranking).

    Truchon and Bayly, Evaluating virtual screening methods (2007), equation 36; the value is its expectation over a
    random order of equal scores. With α = 20 the first 8 % of the list make 80 % of the value. Like average precision
    it depends on the share of positives: compare it between test sets of equal prevalence.

    Args:
        scores: Finite scores on any scale, (n,), (n, 1) or (n, tasks).
        labels: 0/1 of the same shape; NaN in (n, tasks) means "not measured".
        alpha: How much the top of the list counts, at least 1e-6.
        sample_weight: Weights (n,); a weight of 2 counts as two equal rows, one of 0 as none.

    Returns:
        A float64 scalar, or (tasks,) values; NaN without positives or without negatives.

    Raises:
        ValueError: As `average_precision`, or `alpha` is less than 1e-6.

    >>> bedroc([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])
    tensor(0.9934, dtype=torch.float64)
    """
    alpha = checked_alpha(alpha)
    given = sample(scores, labels, sample_weight)
    return bedroc_of(given.positives(), given.negatives(), alpha)


def found_of(positives: Ranked, negatives: Ranked, places: float | Tensor) -> Tensor:
    """Return the expected weight of the positives among the first `places`, a number or (tasks,) of them."""
    above, tied = _places(positives, negatives)
    left = torch.as_tensor(places, dtype=above.dtype, device=above.device).unsqueeze(-1) - above
    return positives.weighted_sum(torch.where(tied > 0, (left / tied).clamp(0, 1), 0))


def enrichment_factor_of(positives: Ranked, negatives: Ranked, fraction: float) -> Tensor:
    """Return the enrichment factor of ranked classes."""
    places = fraction * (positives.total + negatives.total)
    return found_of(positives, negatives, places) / positives.total / fraction


def bedroc_of(positives: Ranked, negatives: Ranked, alpha: float) -> Tensor:
    """Return BEDROC of ranked classes.

    Over places c to c + t, in shares of all, `exp(-α·place)` sums to `exp(-α·c)·(1 - exp(-α·t))` but for a factor that
    the scale from the worst ranking (positives last) to the best one (positives first) cancels.
    """
    value = _bedroc(positives, negatives, alpha)
    commoner = positives.total > negatives.total
    if bool(commoner.any()):
        # Of the rarer class: the scale of the commoner one is a difference that rounds to 0.
        value = torch.where(commoner, 1 - _bedroc(negatives, positives, alpha), value)
    return torch.where((positives.total > 0) & (negatives.total > 0), value.clamp(0, 1), torch.nan)


def _bedroc(positives: Ranked, negatives: Ranked, alpha: float) -> Tensor:
    """Return BEDROC, but for rounding; `positives` are the class whose share is not rounded."""
    total = positives.total + negatives.total
    above, tied = (part / total.unsqueeze(-1) for part in _places(positives, negatives))
    each = torch.where(tied > 0, torch.exp(-alpha * above) * -torch.expm1(-alpha * tied) / tied, 0)
    share = positives.total / total
    # expm1: the difference of two exponentials would round to 0 for a small share.
    worst = -torch.exp(-alpha * (1 - share)) * torch.expm1(-alpha * share)
    span = torch.expm1(-alpha * share) * torch.expm1(-alpha * (1 - share))
    return (positives.weighted_sum(each) / total - worst) / span


def _shorter(positives: Ranked, negatives: Ranked, places: float) -> Tensor:
    """Return whether all examples fill fewer places, (tasks,) or a number; rounding of weights does not count."""
    return (positives.total + negatives.total) * (1 + _ROUNDING) < places


def checked_alpha(alpha: float) -> float:
    """Return the α of BEDROC if rounding leaves digits of the value: the error is about 1e-16/α.

    Raises:
        ValueError: `alpha` is not finite or less than 1e-6.
    """
    alpha = validation.interval("alpha", alpha, 0, closed="neither")
    if alpha < _LEAST_ALPHA:
        raise ValueError(
            f"alpha must be at least {_LEAST_ALPHA:g}, got {alpha:g}; take auroc, the limit of small alpha"
        )
    return alpha


def checked_places(k: int, given: Sample) -> float:
    """Return the weight of k places in the unit of a sample's weights.

    Raises:
        ValueError: k is less than 1 or more than the number (weight) of examples of every task.
    """
    k = validation.whole("k", k, 1)
    measured = ~given.labels.isnan()
    total = (measured.double() if given.weight is None else measured * given.weight).sum(-1).max()
    places = k / given.weight_unit
    # Sums of weights are rounded: a list of all examples is not too long.
    if places > total * (1 + _ROUNDING):
        raise ValueError(f"k must be at most the number (weight) of examples, {total * given.weight_unit:g}; got {k}")
    return places


def _places(positives: Ranked, negatives: Ranked) -> tuple[Tensor, Tensor]:
    """Return for each positive the weight of all examples strictly above it, and of those at its score."""
    above, at = (
        positives.above(positives.keys, ties=ties) + negatives.above(positives.keys, ties=ties)
        for ties in (False, True)
    )
    tied = at - above
    if positives.weight is not None:
        # Beside a far larger weight above, the difference rounds to 0; the positive's own weight is still at its score.
        tied = torch.where(tied > 0, tied, positives.weight)
    return above, tied
