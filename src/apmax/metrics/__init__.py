"""How well scores rank: average precision, its relatives and their uncertainty; torch in, torch out.

Scores are taken raw, on any scale, and never transformed, so that large logits do not tie. Ties and weights are exact,
the arithmetic is float64, and one rule says what is undefined: a metric is NaN where its definition divides by zero
(no positives; for AUROC also no negatives), or where a task has too few rows for the k that was asked.
"""

from apmax.metrics.curves import (
    PrecisionRecallCurve,
    RankingMetrics,
    auprc,
    auroc,
    average_precision,
    precision_at_k,
    precision_recall_curve,
    ranking_metrics,
    recall_at_k,
)
from apmax.metrics.intervals import (
    Difference,
    Interval,
    auprc_interval,
    auroc_interval,
    average_precision_interval,
    paired_difference,
)
from apmax.metrics.paired import Paired, compare

__all__ = [
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
    "compare",
    "paired_difference",
    "precision_at_k",
    "precision_recall_curve",
    "ranking_metrics",
    "recall_at_k",
]
