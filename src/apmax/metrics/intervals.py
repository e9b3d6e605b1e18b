"""Confidence intervals of ranking metrics, and the paired difference of two models on one test set."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from apmax import validation
from apmax.metrics.bootstrap import resampled_average_precision
from apmax.metrics.curves import auprc_of, average_precision_of
from apmax.metrics.early_recognition import (
    BEDROC_ALPHA,
    ENRICHMENT_FRACTION,
    bedroc_of,
    checked_alpha,
    checked_places,
    found_of,
)
from apmax.metrics.quantiles import beta_quantile, t_quantile
from apmax.metrics.ranking import Ranked, Sample, one_weighted_task


@dataclass(frozen=True)
class Interval:
    """An estimate between `low` and `high`, which should hold the truth with probability `confidence`.

    >>> print(Interval(0.5, 0.25, 0.75, 0.95))
    0.500 (95 %: 0.250 to 0.750)
    """

    estimate: float
    low: float
    high: float
    confidence: float

    def __str__(self) -> str:
        return f"{self.estimate:.3f} ({100 * self.confidence:.4g} %: {self.low:.3f} to {self.high:.3f})"


@dataclass(frozen=True)
class Difference(Interval):
    """The interval of a difference, and the share of resamples in which it is above zero (zero itself counts half).

    >>> print(Difference(0.02, -0.01, 0.05, 0.95, share_above_zero=0.9))
    +0.020 (95 %: -0.010 to +0.050)
    """

    share_above_zero: float

    def __str__(self) -> str:
        return f"{self.estimate:+.3f} ({100 * self.confidence:.4g} %: {self.low:+.3f} to {self.high:+.3f})"


def average_precision_interval(
    scores: Any,
    labels: Any,
    *,
    confidence: float = 0.95,
    method: str = "beta",
    resamples: int = 1000,
    seed: int = 0,
    sample_weight: Any = None,
) -> Interval:
    """Return the average precision with an interval for its value in the population.

    "beta": AP is a mean over the positives of precisions between 0 and 1, each with a variance of at most AP·(1 - AP),
    like a binomial share. The interval is the exact (Clopper-Pearson) interval of such a share, from quantiles B of the
    beta distribution: with α = 1 - confidence and x = n·AP it is `B(α/2; x, n - x + 1)` to `B(1 - α/2; x + 1, n - x)`.
    It is on the wide side, and remains informative near 1: for a perfect ranking it is (α/2)^(1/n₊) to 1. The number
    of trials n is that of the positives n₊, with weights Kish's effective number `(Σw)²/Σw²`. It is less, AP·(1 -
    AP)/var, where the rows show a larger variance, as do a few negatives above all positives or of large weight: with
    z = w·∂AP/∂w for each of the m rows of a class, var is the sum of `m²/(m - 1)·(mean z² - (mean z)²)` over the
    classes, where mean z² is at least that of weights which do not depend on the scores, `mean w²·mean (∂AP/∂w)²`.

    "bootstrap": quantiles of the average precision of resamples, positives and negatives drawn separately, each row
    with its weight. It is narrower, and with few positives too narrow and too high: a positive that is drawn twice ties
    with itself. For a perfect ranking it has no width.

    docs/explanation/intervals.md has a table of how often the intervals hold the truth.

    Args:
        scores: Finite scores on any scale, (n,) or (n, 1).
        labels: 0/1 of the same shape.
        confidence: Between 0 and 1.
        method: "beta" or "bootstrap".
        resamples: Number of resamples of the bootstrap.
        seed: Seed of the bootstrap's own generator.
        sample_weight: Weights (n,); their scale does not matter.

    Returns:
        Estimate and interval; NaN without positives. The ends of the bootstrap are also NaN with one positive, whose
        spread no resample shows.

    Raises:
        ValueError: As `average_precision`; several tasks; `confidence`, `method` or `resamples` out of range.

    >>> interval = average_precision_interval([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])
    >>> print(f"{interval.estimate:.3f} in {interval.low:.3f} to {interval.high:.3f}")
    0.833 in 0.087 to 1.000
    """
    confidence = validation.interval("confidence", confidence, 0, 1, closed="neither")
    validation.choice("method", method, ["beta", "bootstrap"])
    resamples, seed = validation.whole("resamples", resamples, 1), validation.whole("seed", seed)
    given = one_weighted_task(scores, labels, sample_weight)
    estimate = average_precision_of(given).item()
    if method == "beta":
        return _beta_interval(estimate, _trials(given, estimate), confidence)
    if int(given.labels.sum()) < 2:
        return Interval(estimate, math.nan, math.nan, confidence)
    values = resampled_average_precision([given], resamples, seed)[0]
    return Interval(estimate, *_quantiles(values, confidence), confidence)


def auprc_interval(scores: Any, labels: Any, *, confidence: float = 0.95, sample_weight: Any = None) -> Interval:
    """Return the trapezoidal AUPRC with the interval "beta" of `average_precision_interval`.

    Args:
        scores: Finite scores on any scale, (n,) or (n, 1).
        labels: 0/1 of the same shape.
        confidence: Between 0 and 1.
        sample_weight: Weights (n,); their scale does not matter.

    Returns:
        Estimate and interval; NaN without positives.

    Raises:
        ValueError: As `auprc`; several tasks; `confidence` out of range.

    >>> interval = auprc_interval([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])
    >>> print(f"{interval.estimate:.3f} in {interval.low:.3f} to {interval.high:.3f}")
    0.792 in 0.073 to 1.000
    """
    confidence = validation.interval("confidence", confidence, 0, 1, closed="neither")
    given = one_weighted_task(scores, labels, sample_weight)
    estimate = auprc_of(given).item()
    return _beta_interval(estimate, _trials(given, estimate), confidence)


def auroc_interval(scores: Any, labels: Any, *, confidence: float = 0.95, sample_weight: Any = None) -> Interval:
    """Return the AUROC A with a score interval: all θ with |A - θ| ≤ z·sd(θ).

    The variance at θ is the larger one of two. The first is DeLong's, from the data: with `V_i` the share of negatives
    below positive i (ties half), `W_j` the share of positives above negative j, and weights v, w that sum to 1 in each
    class,

        var(A) = Σ v_i²·(V_i - A)²/(1 - Σ v_i²) + Σ w_j²·(W_j - A)²/(1 - Σ w_j²),

    times θ·(1 - θ)/(A·(1 - A)). Near 0 and 1 the data show too little of it; the second is that of exponential
    distributions (Hanley and McNeil 1982),

        [θ(1 - θ) + (n₊ - 1)·(θ/(2 - θ) - θ²) + (n₋ - 1)·(2θ²/(1 + θ) - θ²)] / (n₊·n₋),

    or the same with n₊ and n₋ exchanged if that is larger; with weights, n₊ and n₋ are Kish's effective numbers.

    Args:
        scores: Finite scores on any scale, (n,) or (n, 1).
        labels: 0/1 of the same shape.
        confidence: Between 0 and 1.
        sample_weight: Weights (n,); their scale does not matter.

    Returns:
        Estimate and interval; NaN without positives or without negatives.

    Raises:
        ValueError: As `auroc`; several tasks; `confidence` out of range.

    >>> interval = auroc_interval([5, 3, 1, 4, 2, 0], [1, 1, 1, 0, 0, 0])
    >>> print(f"{interval.estimate:.3f} in {interval.low:.3f} to {interval.high:.3f}")
    0.667 in 0.208 to 0.939
    """
    confidence = validation.interval("confidence", confidence, 0, 1, closed="neither")
    given = one_weighted_task(scores, labels, sample_weight)
    positives, negatives = given.positives(), given.negatives()
    if not len(positives.keys) or not len(negatives.keys):
        return Interval(math.nan, math.nan, math.nan, confidence)
    below, above = 1 - _share_above(negatives, positives.keys), _share_above(positives, negatives.keys)
    estimate = (positives.weighted_sum(below) / positives.total).item()
    observed = _variance_of_mean(below, positives) + _variance_of_mean(above, negatives)
    ratio = observed / (estimate * (1 - estimate)) if 0 < estimate < 1 else 0.0
    sizes = positives.effective_size(), negatives.effective_size()

    def variance(area: float) -> float:
        model = max(_exponential_variance(area, *sizes), _exponential_variance(area, *reversed(sizes)))
        return max(model, ratio * area * (1 - area))

    return Interval(estimate, *_score_limits(estimate, variance, confidence), confidence)


def precision_at_k_interval(
    scores: Any, labels: Any, *, k: int, confidence: float = 0.95, sample_weight: Any = None
) -> Interval:
    """Return the precision among the k best with the exact (Clopper-Pearson) interval of k trials.

    Given the score of the next row, the k rows above it are independent draws from the population above that score.
    With weights, the number of trials is Kish's effective number of these rows.

    Args:
        scores: Finite scores on any scale, (n,) or (n, 1).
        labels: 0/1 of the same shape.
        k: Length of the list, 1 to n.
        confidence: Between 0 and 1.
        sample_weight: Weights (n,); a row of weight 2 takes two of the k places.

    Raises:
        ValueError: As `precision_at_k`; several tasks; `confidence` out of range.

    >>> interval = precision_at_k_interval([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0], k=2)
    >>> print(f"{interval.estimate:.3f} in {interval.low:.3f} to {interval.high:.3f}")
    0.500 in 0.013 to 0.987
    """
    confidence = validation.interval("confidence", confidence, 0, 1, closed="neither")
    given = one_weighted_task(scores, labels, sample_weight)
    places = checked_places(k, given)
    found = found_of(given.positives(), given.negatives(), places).item()
    return _beta_interval(found / places, _effective_places(given, places), confidence)


def recall_at_k_interval(
    scores: Any, labels: Any, *, k: int, confidence: float = 0.95, sample_weight: Any = None
) -> Interval:
    """Return the share of the positives among the k best with the exact interval of min(k, n₊) trials.

    The list can hold min(k, n₊) positives: the interval is that of the share of these which are found, times
    `min(k, n₊)/n₊`. With weights the numbers are Kish's effective ones.

    Arguments and errors are those of `precision_at_k_interval`. NaN without positives.

    >>> interval = recall_at_k_interval([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0], k=2)
    >>> print(f"{interval.estimate:.3f} in {interval.low:.3f} to {interval.high:.3f}")
    0.500 in 0.013 to 0.987
    """
    confidence = validation.interval("confidence", confidence, 0, 1, closed="neither")
    given = one_weighted_task(scores, labels, sample_weight)
    return _recall_interval(given, checked_places(k, given), confidence)


def enrichment_factor_interval(
    scores: Any,
    labels: Any,
    *,
    fraction: float = ENRICHMENT_FRACTION,
    confidence: float = 0.95,
    sample_weight: Any = None,
) -> Interval:
    """Return the enrichment factor with its interval, that of the recall at k = fraction·n divided by the fraction.

    Args:
        scores: Finite scores on any scale, (n,) or (n, 1).
        labels: 0/1 of the same shape.
        fraction: Above 0, at most 1.
        confidence: Between 0 and 1.
        sample_weight: Weights (n,); their scale does not matter.

    Returns:
        Estimate and interval; NaN without positives.

    Raises:
        ValueError: As `enrichment_factor`; several tasks; `confidence` out of range.

    >>> interval = enrichment_factor_interval([0.9, 0.8, 0.7, 0.6], [1, 0, 0, 0], fraction=0.5)
    >>> print(f"{interval.estimate:.3f} in {interval.low:.3f} to {interval.high:.3f}")
    2.000 in 0.050 to 2.000
    """
    confidence = validation.interval("confidence", confidence, 0, 1, closed="neither")
    fraction = validation.interval("fraction", fraction, 0, 1, closed="right")
    given = one_weighted_task(scores, labels, sample_weight)
    total = len(given.keys) if given.weight is None else given.weight.sum().item()
    recall = _recall_interval(given, fraction * total, confidence)
    return Interval(recall.estimate / fraction, recall.low / fraction, recall.high / fraction, confidence)


def bedroc_interval(
    scores: Any, labels: Any, *, alpha: float = BEDROC_ALPHA, confidence: float = 0.95, sample_weight: Any = None
) -> Interval:
    """Return BEDROC with the interval "beta" of `average_precision_interval`, of min(n₊, 2n/α) trials.

    BEDROC is a mean over positives of values between 0 and 1 while these are few; many of them take the places of each
    other, and the first places count as `(Σw)²/Σw² ≈ 2n/α` trials, w = exp(-α·place/n). With weights the numbers of
    rows are Kish's effective ones.

    Args:
        scores: Finite scores on any scale, (n,) or (n, 1).
        labels: 0/1 of the same shape.
        alpha: How much the top of the list counts, at least 1e-6.
        confidence: Between 0 and 1.
        sample_weight: Weights (n,); their scale does not matter.

    Returns:
        Estimate and interval; NaN without positives or without negatives.

    Raises:
        ValueError: As `bedroc`; several tasks; `confidence` out of range.

    >>> interval = bedroc_interval([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0], alpha=1.0)
    >>> print(f"{interval.estimate:.3f} in {interval.low:.3f} to {interval.high:.3f}")
    0.754 in 0.062 to 1.000
    """
    confidence = validation.interval("confidence", confidence, 0, 1, closed="neither")
    alpha = checked_alpha(alpha)
    given = one_weighted_task(scores, labels, sample_weight)
    positives, everyone = given.positives(), given.ranked(given.labels >= 0)
    estimate = bedroc_of(positives, given.negatives(), alpha).item()
    if math.isnan(estimate):
        return Interval(estimate, estimate, estimate, confidence)
    size = min(positives.effective_size(), max(1.0, 2 * everyone.effective_size() / alpha))
    return _beta_interval(estimate, size, confidence)


def paired_difference(
    scores_a: Any,
    scores_b: Any,
    labels: Any,
    *,
    confidence: float = 0.95,
    resamples: int = 1000,
    seed: int = 0,
    sample_weight: Any = None,
) -> Difference:
    """Return by how much model a's average precision exceeds model b's on one test set, by a paired bootstrap.

    Every resample draws positives and negatives separately and is ranked by both models, so that the difficulty of the
    test set cancels. The interval is between quantiles of the differences, further out than `confidence` says where
    there are few positives: resamples of n values vary less than new samples do, and the percentile interval is widened
    to the confidence at which a normal one is as wide as Student's (Hesterberg, What teachers should know about the
    bootstrap, 2015). With weights, n is Kish's effective number of positives.

    Args:
        scores_a: Finite scores of one model on any scale, (n,) or (n, 1).
        scores_b: Those of the other, for the same examples; the scales need not agree.
        labels: 0/1 of the same shape.
        confidence: Between 0 and 1.
        resamples: Number of resamples.
        seed: Seed of the bootstrap's own generator.
        sample_weight: Weights (n,), drawn with their rows; their scale does not matter.

    Returns:
        AP(a) - AP(b) with its interval and the share of resamples above zero. The estimate is NaN without positives,
        all else with fewer than two.

    Raises:
        ValueError: As `average_precision`; several tasks; `confidence` or `resamples` out of range.

    >>> labels = [1, 0, 1, 0, 0, 0, 1, 0]
    >>> better = paired_difference([8, 7, 6, 5, 4, 3, 2, 1], [1, 8, 3, 6, 5, 4, 7, 2], labels)
    >>> print(f"{better.estimate:.3f} in {better.low:.3f} to {better.high:.3f}, {better.share_above_zero:.2f}")
    0.296 in -0.625 to 0.694, 0.82
    """
    confidence = validation.interval("confidence", confidence, 0, 1, closed="neither")
    resamples, seed = validation.whole("resamples", resamples, 1), validation.whole("seed", seed)
    a = one_weighted_task(scores_a, labels, sample_weight, name="scores_a")
    b = one_weighted_task(scores_b, labels, sample_weight, name="scores_b")
    estimate = (average_precision_of(a) - average_precision_of(b)).item()
    if a.labels.sum() < 2:
        return Difference(estimate, math.nan, math.nan, confidence, math.nan)
    values_a, values_b = resampled_average_precision([a, b], resamples, seed)
    differences = values_a - values_b
    share = float(((np.sign(differences) + 1) / 2).mean())
    widened = _expanded_confidence(confidence, a.positives().effective_size())
    return Difference(estimate, *_quantiles(differences, widened), confidence, share)


def _trials(given: Sample, estimate: float) -> float:
    """Return the number of trials of a binomial share that varies as much as average precision, as far as is known."""
    positives, negatives = given.positives(), given.negatives()
    size = positives.effective_size()
    if not size:
        return size
    found, false = (group.above(positives.keys, ties=True) for group in (positives, negatives))
    taken, precision = found + false, found / (found + false)
    share = (torch.ones_like(found) if positives.weight is None else positives.weight) / positives.total
    # More weight of a row changes the precision at its own score and at all lower ones, and as a positive the mean.
    of_positives = positives.sum_at_or_below(share * (1 - precision) / taken, positives.keys)
    of_positives += (precision - (share * precision).sum()) / positives.total
    of_negatives = positives.sum_at_or_below(-share * precision / taken, negatives.keys)
    variance = _resampling_variance(of_positives, positives) + _resampling_variance(of_negatives, negatives)
    return min(size, max(1.0, estimate * (1 - estimate) / variance)) if variance > 0 else size


def _resampling_variance(slope: Tensor, group: Ranked) -> float:
    """Return the variance of a metric over resamples of a group, from its derivatives by the weights of the rows.

    If few rows have most of the weight they show little of it: it is at least that of weights that do not depend on the
    scores.
    """
    rows = len(slope)
    if rows < 2 or not bool(slope.any()):
        return 0.0
    weight = torch.ones_like(slope) if group.weight is None else group.weight
    # Relative to the largest: squares of very large values would be infinite, of very small ones 0.
    unit = float(weight.max()) * float(slope.abs().max())
    weight, slope = weight / weight.max(), slope / slope.abs().max()
    square = torch.maximum((weight * slope).square().mean(), weight.square().mean() * slope.square().mean())
    spread = float(square - (weight * slope).mean().square())
    return spread * unit * unit * rows**2 / (rows - 1)


def _effective_places(given: Sample, places: float) -> float:
    """Return Kish's effective number of the rows in the first `places`: their number where all weigh the same."""
    if given.weight is None:
        return places
    everyone = given.ranked(given.labels >= 0)
    assert everyone.weight is not None
    above, at = everyone.above(everyone.keys, ties=False), everyone.above(everyone.keys, ties=True)
    # Beside a far larger weight above, the difference rounds to 0.
    tied = torch.where(at > above, at - above, everyone.weight)
    taken = ((places - above) / tied).clamp(0, 1) * everyone.weight
    unit = everyone.weight.max()
    return float((taken / unit).sum() ** 2 / (taken / unit * (everyone.weight / unit)).sum())


def _recall_interval(given: Sample, places: float, confidence: float) -> Interval:
    positives = given.positives()
    if not len(positives.keys):
        return Interval(math.nan, math.nan, math.nan, confidence)
    recall = (found_of(positives, given.negatives(), places) / positives.total).item()
    most = min(1.0, places / positives.total.item())
    size = min(positives.effective_size(), _effective_places(given, places))
    share = _beta_interval(min(1.0, recall / most), size, confidence)
    return Interval(recall, share.low * most, share.high * most, confidence)


def _beta_interval(estimate: float, size: float, confidence: float) -> Interval:
    if size == 0:
        return Interval(math.nan, math.nan, math.nan, confidence)
    hits, tail = size * estimate, (1 - confidence) / 2
    low = beta_quantile(tail, hits, size - hits + 1) if hits > 0 else 0.0
    high = beta_quantile(1 - tail, hits + 1, size - hits) if hits < size else 1.0
    return Interval(estimate, low, high, confidence)


def _share_above(group: Ranked, keys: Tensor) -> Tensor:
    """Return the share of a group above each of `keys`, ties half."""
    return (group.above(keys, ties=False) + group.above(keys, ties=True)) / (2 * group.total)


def _variance_of_mean(values: Tensor, group: Ranked) -> float:
    """Return the estimated variance of the weighted mean of `values`, one per row; 0 for one row."""
    if len(values) < 2:
        return 0.0
    weight = torch.ones_like(values) if group.weight is None else group.weight
    share = weight / weight.sum()
    mean = (share * values).sum()
    return float((share**2 * (values - mean) ** 2).sum() / (1 - (share**2).sum()))


def _exponential_variance(area: float, first: float, second: float) -> float:
    """Return the variance of the AUROC between exponential distributions (Hanley and McNeil 1982, equation 1)."""
    square = area**2
    within_first = (first - 1) * (area / (2 - area) - square)
    within_second = (second - 1) * (2 * square / (1 + area) - square)
    return max(0.0, (area * (1 - area) + within_first + within_second) / (first * second))


def _score_limits(estimate: float, variance: Callable[[float], float], confidence: float) -> tuple[float, float]:
    """Return the ends of {θ in [0, 1]: |estimate - θ| ≤ z·√variance(θ)}, each by bisection."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)

    def end(outside: float) -> float:
        inside = estimate
        while min(inside, outside) < (middle := (inside + outside) / 2) < max(inside, outside):
            if abs(estimate - middle) <= z * math.sqrt(variance(middle)):
                inside = middle
            else:
                outside = middle
        return middle

    return end(0.0) if estimate > 0 else 0.0, end(1.0) if estimate < 1 else 1.0


def _expanded_confidence(confidence: float, size: float) -> float:
    """Return the confidence of the percentile interval whose coverage is about `confidence`, for `size` values."""
    size = max(2, round(size))
    reach = math.sqrt(size / (size - 1)) * t_quantile((1 + confidence) / 2, size - 1)
    return math.erf(reach / math.sqrt(2))


def _quantiles(values: npt.NDArray[np.float64], confidence: float) -> tuple[float, float]:
    low, high = np.quantile(values, [(1 - confidence) / 2, (1 + confidence) / 2])
    return float(low), float(high)
