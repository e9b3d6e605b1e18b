"""Average precision, the areas under the precision-recall and ROC curves, and the bundle of all ranking metrics."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from apmax.metrics.early_recognition import BEDROC_ALPHA, ENRICHMENT_FRACTION, bedroc_of, enrichment_factor_of
from apmax.metrics.ranking import Ranked, Sample, one_task, sample


class RankingMetrics(NamedTuple):
    """Metrics of one ranking, or their means over several tasks.

    Attributes:
        ap: Average precision.
        auprc: Trapezoidal area under the precision-recall curve.
        auroc: Area under the ROC curve.
        bedroc: BEDROC with α = 20.
        enrichment: Enrichment factor of the best-scored 1 %.
    """

    ap: float
    auprc: float
    auroc: float
    bedroc: float
    enrichment: float


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
    """Return average precision, AUPRC, AUROC, BEDROC and the enrichment factor at 1 %, from one sort of each class.

    Arguments and errors are those of `average_precision`. Of (n, tasks) every number is the mean over the tasks that
    have both classes, NaN if there is none. Of one task a number is NaN where it is undefined: all without positives,
    AUROC and BEDROC also without negatives.

    >>> result = ranking_metrics([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0])
    >>> print(f"AP {result.ap:.4f}, AUPRC {result.auprc:.4f}, AUROC {result.auroc:.4f}")
    AP 0.8333, AUPRC 0.7917, AUROC 0.7500
    """
    given = sample(scores, labels, sample_weight)
    positives, negatives = given.positives(), given.negatives()
    values = torch.stack(
        [
            _average_precision(positives, negatives),
            _auprc(positives, negatives),
            _auroc(positives, negatives),
            bedroc_of(positives, negatives, BEDROC_ALPHA),
            enrichment_factor_of(positives, negatives, ENRICHMENT_FRACTION),
        ]
    )
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
