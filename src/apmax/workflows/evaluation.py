"""How good scores are, with how sure that is."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from apmax import metrics
from apmax.metrics import Interval
from apmax.train import nan_to_none

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
        table: dict[str, Any] = nan_to_none(asdict(self))
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
        auprc=metrics.auprc_interval(given, truth),
        auroc=metrics.auroc_interval(given, truth),
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
