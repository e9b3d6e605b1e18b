"""How good scores are, with how sure that is."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from apmax import metrics
from apmax.metrics import Interval

TOPS = (10, 50, 100, 500, 1000)


@dataclass(frozen=True)
class Evaluation:
    """All that is reported of one set of rows; `no_skill` is the AP of a random ranking, the share of positives."""

    rows: int
    positives: int
    no_skill: float
    ap: Interval
    auprc: Interval
    auroc: Interval
    precision_at: dict[int, float]

    def to_table(self) -> dict[str, Any]:
        """Return plain dicts and numbers for JSON, None where undefined."""
        table: dict[str, Any] = _plain(asdict(self))
        return table


def evaluate(scores: npt.NDArray[Any], labels: npt.NDArray[Any]) -> Evaluation:
    """Return AP, AUPRC and AUROC with 95 % intervals, the no-skill line, and precision at some k and at k = n₊.

    >>> result = evaluate(np.array([0.9, 0.8, 0.7, 0.1]), np.array([1, 0, 1, 0]))
    >>> round(result.ap.estimate, 3), result.no_skill, result.precision_at
    (0.833, 0.5, {2: 0.5})
    """
    given, truth = torch.as_tensor(scores), torch.as_tensor(labels)
    rows, positives = len(truth), int(truth.sum())
    tops = sorted({k for k in (*TOPS, positives) if 0 < k <= rows})
    return Evaluation(
        rows=rows,
        positives=positives,
        no_skill=positives / rows,
        ap=metrics.average_precision_interval(given, truth),
        auprc=auprc_interval(given, truth),
        auroc=auroc_interval(scores, labels),
        precision_at={k: metrics.precision_at_k(given, truth, k=k).item() for k in tops},
    )


@dataclass(frozen=True)
class Evaluations:
    """One evaluation for each target that has positives and negatives among the rows."""

    each: dict[str, Evaluation]
    several: bool

    def to_table(self) -> dict[str, Any]:
        """Return plain dicts: of the only target its figures, of several each one's by name, and their mean AP."""
        tables = {name: part.to_table() for name, part in self.each.items()}
        if not self.several:
            return next(iter(tables.values()))
        return {"mean_ap": self.mean_ap, "targets": tables}

    @property
    def mean_ap(self) -> float:
        """The mean AP over the targets."""
        return float(np.mean([part.ap.estimate for part in self.each.values()]))


def evaluate_targets(scores: npt.NDArray[Any], labels: npt.NDArray[Any], names: Sequence[str]) -> Evaluations:
    """Return the evaluation of each target over the rows that have its label and a score.

    Args:
        scores: (rows,), or (rows, targets) of several; NaN where a row could not be read.
        labels: 0 or 1, NaN where not known.
        names: The targets.

    Raises:
        ValueError: No target has a positive and a negative row.

    >>> labels = np.array([[1, 1], [0, np.nan], [0, 1]])
    >>> result = evaluate_targets(np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0]]), labels, ["a", "b"])
    >>> {name: part.ap.estimate for name, part in result.each.items()}
    {'a': 1.0}
    """
    each = {}
    columns = zip(names, scores.reshape(len(scores), -1).T, labels.reshape(len(labels), -1).T, strict=True)
    for name, given, truth in columns:
        known = ~np.isnan(truth) & ~np.isnan(given)
        if (truth[known] == 1).any() and (len(names) == 1 or (truth[known] == 0).any()):
            each[name] = evaluate(np.ascontiguousarray(given[known]), np.ascontiguousarray(truth[known]))
    if not each:
        raise ValueError(f"there is no positive row of {', '.join(map(repr, names))}: AP is undefined")
    return Evaluations(each, len(names) > 1)


def auprc_interval(scores: Any, labels: Any, *, confidence: float = 0.95) -> Interval:
    """Return the trapezoidal AUPRC with the interval `logit(A) ± z·(n₊·A·(1 − A))^(-1/2)` (Boyd, Eng, Page 2013)."""
    value, positives = metrics.auprc(scores, labels).item(), int(labels.sum())
    spread = math.inf if value in (0.0, 1.0) else 1 / math.sqrt(max(positives, 1) * value * (1 - value))
    return _logit_interval(value, spread, confidence)


def auroc_interval(scores: Any, labels: Any, *, confidence: float = 0.95) -> Interval:
    """Return the AUROC with DeLong's variance, the interval taken on the logit scale.

    With `V_i` the share of negatives below positive i (ties half) and `W_j` the share of positives above negative j:
    `var(A) = var(V)/n₊ + var(W)/n₋` and `logit(A) ± z·sd(A)/(A·(1 − A))`. For a perfect ranking, or a class of
    one row, nothing is known of the spread, and the interval is (0, 1).

    >>> auroc_interval(np.array([3.0, 1.0, 2.0, 0.0]), np.array([1, 1, 0, 0])).estimate
    0.75
    """
    own = np.asarray(scores, dtype=np.float64)
    positive = np.asarray(labels) == 1
    hits, misses = own[positive], own[~positive]
    if not len(hits) or not len(misses):
        return Interval(math.nan, math.nan, math.nan, confidence)
    above = _placed(hits, misses)
    below = 1 - _placed(misses, hits)
    value = float(above.mean())
    if value in (0.0, 1.0) or min(len(hits), len(misses)) < 2:
        return _logit_interval(value, math.inf, confidence)
    variance = above.var(ddof=1) / len(hits) + below.var(ddof=1) / len(misses)
    return _logit_interval(value, math.sqrt(variance) / (value * (1 - value)), confidence)


def _placed(values: npt.NDArray[np.float64], others: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return for each value the share of `others` below it, ties half."""
    ordered = np.sort(others)
    shares = np.searchsorted(ordered, values, "left") + np.searchsorted(ordered, values, "right")
    return np.asarray(shares / (2 * len(others)), dtype=np.float64)


def _logit_interval(value: float, spread: float, confidence: float) -> Interval:
    if math.isinf(spread) or value in (0.0, 1.0):
        return Interval(value, 0.0, 1.0, confidence)
    centre, reach = math.log(value) - math.log1p(-value), NormalDist().inv_cdf((1 + confidence) / 2) * spread
    low, high = ((1 + math.tanh((centre + side * reach) / 2)) / 2 for side in (-1, 1))
    return Interval(value, low, high, confidence)


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return {str(key): _plain(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value
