"""Average precision, the precision-recall and ROC curves and the top of the list, with exact ties and weights."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from apmax import validation
from apmax.metrics.ranking import Ranked, Sample, one_task, sample


class RankingMetrics(NamedTuple):
    """Average precision, trapezoidal AUPRC and AUROC of one ranking, or their means over several tasks."""

    ap: float
    auprc: float
    auroc: float


class PrecisionRecallCurve(NamedTuple):
    """Points of a precision-recall curve at ascending thresholds, and last the point (1, 0) without a threshold."""

    precision: Tensor
    recall: Tensor
    thresholds: Tensor


def average_precision(scores: Any, labels: Any, *, sample_weight: Any = None) -> Tensor:
    """Return the average precision, `AP = Σ_k (R_k - R_{k-1})·P_k` over the distinct scores from the top.

    Equal to the mean over the positives of the precision at their score, examples of equal score entering together
    (eq. 1 of the SOAP paper); this is scikit-learn's `average_precision_score`.

    Args:
        scores: Finite scores on any scale, (n,), (n, 1) or (n, tasks).
        labels: 0/1 of the same shape; NaN in (n, tasks) means "not measured".
        sample_weight: Weights (n,); a weight of 2 counts as two equal rows, one of 0 as none.

    Returns:
        A float64 scalar, or (tasks,) values; NaN without positives.

    Raises:
        ValueError: Scores are not finite, labels not 0/1, weights negative or all zero, or shapes differ.

    >>> average_precision([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])
    tensor(0.8333, dtype=torch.float64)
    """
    return average_precision_of(sample(scores, labels, sample_weight))


def average_precision_of(given: Sample) -> Tensor:
    """Return the average precision of a checked sample."""
    return _average_precision(given.positives(), given.negatives())


def auprc(scores: Any, labels: Any, *, sample_weight: Any = None) -> Tensor:
    """Return the area under the precision-recall curve by the trapezoid rule, `Σ_k (R_k - R_{k-1})·(P_k + P_{k-1})/2`.

    The points are those of `precision_recall_curve`, P_0 = 1 included. This is the number some papers print as
    AUPRC; it joins points that no threshold attains by straight lines and so is not `average_precision`.

    Arguments, result and errors are those of `average_precision`.

    >>> auprc([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])
    tensor(0.7917, dtype=torch.float64)
    """
    return auprc_of(sample(scores, labels, sample_weight))


def auprc_of(given: Sample) -> Tensor:
    """Return the trapezoidal area under the precision-recall curve of a checked sample."""
    return _auprc(given.positives(), given.negatives())


def auroc(scores: Any, labels: Any, *, sample_weight: Any = None) -> Tensor:
    """Return the area under the ROC curve: the share of (positive, negative) pairs in the right order, ties half.

    Arguments and errors are those of `average_precision`.

    Returns:
        A float64 scalar, or (tasks,) values; NaN without positives or without negatives.

    >>> auroc([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])
    tensor(0.7500, dtype=torch.float64)
    """
    given = sample(scores, labels, sample_weight)
    return _auroc(given.positives(), given.negatives())


def ranking_metrics(scores: Any, labels: Any, *, sample_weight: Any = None) -> RankingMetrics:
    """Return average precision, AUPRC and AUROC as plain numbers, from one sort of each class.

    Arguments and errors are those of `average_precision`. Of (n, tasks) every number is the mean over the tasks that
    have both classes, NaN if there is none. Of one task a number is NaN where it is undefined: all three without
    positives, AUROC also without negatives.

    >>> result = ranking_metrics([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])
    >>> print(f"AP {result.ap:.4f}, AUPRC {result.auprc:.4f}, AUROC {result.auroc:.4f}")
    AP 0.8333, AUPRC 0.7917, AUROC 0.7500
    """
    given = sample(scores, labels, sample_weight)
    positives, negatives = given.positives(), given.negatives()
    values = torch.stack([metric(positives, negatives) for metric in (_average_precision, _auprc, _auroc)])
    if values.ndim == 2:
        values = values.masked_fill((positives.total == 0) | (negatives.total == 0), torch.nan).nanmean(-1)
    return RankingMetrics(*values.tolist())


def precision_recall_curve(scores: Any, labels: Any, *, sample_weight: Any = None) -> PrecisionRecallCurve:
    """Return precision and recall of "score >= threshold" for every distinct score of positive weight.

    The layout is scikit-learn's: thresholds ascend, precision and recall have one more point, (1, 0), at the end.
    Without positives recall is NaN except at that end. One task only: curves of several differ in length.

    Args:
        scores: Finite scores on any scale, (n,) or (n, 1).
        labels: 0/1 of the same shape.
        sample_weight: Weights (n,).

    Returns:
        precision and recall (m + 1,) in float64, thresholds (m,) in the scores' type, half precision as float32.

    Raises:
        ValueError: As `average_precision`, or there are several tasks.

    >>> precision_recall_curve([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0]).recall
    tensor([1.0000, 1.0000, 0.5000, 0.5000, 0.0000], dtype=torch.float64)
    """
    given = one_task(sample(scores, labels, sample_weight))
    positives, negatives = given.positives(), given.negatives()
    counted = given.keys if given.weight is None else given.keys[given.weight > 0]
    thresholds = counted.unique(sorted=True).flip(0)
    found, false = positives.above(thresholds, ties=True), negatives.above(thresholds, ties=True)
    last = found.new_tensor([1.0, 0.0])
    precision, recall = found / (found + false), found / positives.total
    return PrecisionRecallCurve(torch.cat([precision, last[:1]]), torch.cat([recall, last[1:]]), -thresholds)


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
    found, _, places = _found(scores, labels, k, sample_weight)
    return found / places


def recall_at_k(scores: Any, labels: Any, *, k: int, sample_weight: Any = None) -> Tensor:
    """Return the share of the positives that are among the k best-scored examples.

    Ties at the cut, arguments and errors are those of `precision_at_k`.

    Returns:
        A float64 scalar, or (tasks,) values; NaN without positives or with fewer than k measured examples.

    >>> recall_at_k([0.9, 0.8, 0.8, 0.6], [1, 0, 1, 0], k=2)
    tensor(0.7500, dtype=torch.float64)
    """
    found, total, _ = _found(scores, labels, k, sample_weight)
    return found / total


def _found(scores: Any, labels: Any, k: int, sample_weight: Any) -> tuple[Tensor, Tensor, float]:
    """Return the expected weight of positives among the first k places, that of all positives, and k in their unit."""
    k = validation.whole("k", k, 1)
    given = sample(scores, labels, sample_weight)
    everyone, positives = given.ranked(~given.labels.isnan()), given.positives()
    places = k / given.weight_unit
    if places > everyone.total.max():
        total = everyone.total.max() * given.weight_unit
        raise ValueError(f"k must be at most the number (weight) of examples, {total:g}; got {k}")
    cut = torch.full_like(everyone.total, places).unsqueeze(-1)
    last = cut.long() - 1 if everyone.cumulative is None else torch.searchsorted(everyone.cumulative, cut) - 1
    key = everyone.keys.gather(-1, last.clamp_max(everyone.keys.shape[-1] - 1))
    above, at = everyone.above(key, ties=False), everyone.above(key, ties=True)
    found_above, found_at = positives.above(key, ties=False), positives.above(key, ties=True)
    found = found_above + (found_at - found_above) * (cut - above) / (at - above)
    return torch.where(everyone.total < places, torch.nan, found.squeeze(-1)), positives.total, places


def _average_precision(positives: Ranked, negatives: Ranked) -> Tensor:
    found, false = positives.above(positives.keys, ties=True), negatives.above(positives.keys, ties=True)
    return positives.weighted_sum(_ratio(found, found + false, 0)) / positives.total


def _auprc(positives: Ranked, negatives: Ranked) -> Tensor:
    precision = []
    for ties in (True, False):
        found, false = positives.above(positives.keys, ties=ties), negatives.above(positives.keys, ties=ties)
        precision.append(_ratio(found, found + false, 1))
    return positives.weighted_sum(precision[0] + precision[1]) / (2 * positives.total)


def _auroc(positives: Ranked, negatives: Ranked) -> Tensor:
    wrong = (negatives.above(positives.keys, ties=True) + negatives.above(positives.keys, ties=False)) / 2
    right = negatives.total.unsqueeze(-1) - wrong
    return positives.weighted_sum(right) / (positives.total * negatives.total)


def _ratio(part: Tensor, whole: Tensor, empty: float) -> Tensor:
    """Return `part / whole`, and `empty` where the whole is 0."""
    return torch.where(whole > 0, part / whole, empty)
