"""Ranking metrics: average precision, AUPRC, AUROC, BEDROC, enrichment, precision at k, and confidence intervals.

Scores are taken raw, on any scale, and never transformed, so that large logits do not tie. Ties and weights are exact,
the arithmetic is float64, and one rule covers undefined values: a metric is NaN where its definition divides by zero
(no positives; for AUROC and BEDROC also no negatives), or where a task has fewer than k rows.
"""

from apmax.metrics.curves import (
    PrecisionRecallCurve,
    RankingMetrics,
    auprc,
    auroc,
    average_precision,
    precision_recall_curve,
    ranking_metrics,
)
from apmax.metrics.early_recognition import bedroc, enrichment_factor, precision_at_k, recall_at_k
from apmax.metrics.intervals import (
    Difference,
    Interval,
    auprc_interval,
    auroc_interval,
    average_precision_interval,
    bedroc_interval,
    enrichment_factor_interval,
    paired_difference,
    precision_at_k_interval,
    recall_at_k_interval,
)
from apmax.metrics.paired import Paired, compare
from apmax.metrics.stateful import AveragePrecision

__all__ = [
    "AveragePrecision",
    "Difference",
    "Interval",
    "Paired",
    "PrecisionRecallCurve",
    "RankingMetrics",
    "auprc",
    "auprc_interval",
    "auroc",
    "auroc_interval",
    "average_precision",
    "average_precision_interval",
    "bedroc",
    "bedroc_interval",
    "compare",
    "enrichment_factor",
    "enrichment_factor_interval",
    "paired_difference",
    "precision_at_k",
    "precision_at_k_interval",
    "precision_recall_curve",
    "ranking_metrics",
    "recall_at_k",
    "recall_at_k_interval",
]
