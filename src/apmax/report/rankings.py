"""Rankings in a report: scored rows become a part with its metrics, curves and examples; subgroups."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import metrics
from apmax.metrics.bands import calibration_bins, precision_band
from apmax.report.content import ScoredPart, Subgroup, SubgroupTable
from apmax.report.curves import PIXEL_COLUMNS, score_histogram, threshold_curve
from apmax.train import PlattCurve
from apmax.workflows.scored_rows import unequal_weights

MOST_SUBGROUPS = 20
_MOST_PLAIN_DIGITS = 7
_QUARTERS = 4


def score_part(
    name: str,
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    sample_weight: npt.NDArray[Any] | None = None,
    *,
    calibration: PlattCurve | None = None,
    calibration_fitted: bool = False,
    columns: int = PIXEL_COLUMNS,
) -> ScoredPart:
    """Return a ranking of labelled rows as a part of a report.

    Args:
        name: Of the part, such as "test".
        scores: Finite scores, (n,).
        labels: 0/1, (n,).
        sample_weight: Weights (n,); rows of weight 0 are left out.
        calibration: The curve from scores to probabilities.
        calibration_fitted: Whether it was fitted to these rows.
        columns: Columns of pixels for which the curve is thinned.

    Raises:
        ValueError: As `apmax.metrics.average_precision`; no positive or no negative row.

    >>> part = score_part("test", np.array([0.9, 0.8, 0.7, 0.1]), np.array([1, 0, 1, 0]))
    >>> round(part.ap.estimate, 3), part.no_skill, part.curve.found
    (0.833, 0.5, (1.0, 1.0, 2.0, 2.0))
    """
    values, truth = np.asarray(scores), np.asarray(labels, np.float64)
    weight = unequal_weights(sample_weight)
    if weight is not None:
        counted = weight > 0
        values, truth, weight = values[counted], truth[counted], weight[counted]
    ap = metrics.average_precision_interval(values, truth, sample_weight=weight)
    auroc = metrics.auroc_interval(values, truth, sample_weight=weight)
    for value, word in ((1, "positive"), (0, "negative")):
        if not (truth == value).any():
            raise ValueError(f"labels: {name} has no {word} row, so that there is no curve")
    curve = threshold_curve(values, truth, weight, columns=columns)
    doubles = values.astype(np.float64)
    bins = () if calibration is None else calibration_bins(calibration.probability(doubles), truth, weight)
    return ScoredPart(
        name=name,
        rows=len(truth),
        positives=int(truth.sum()),
        no_skill=curve.found[-1] / curve.flagged[-1],
        ap=ap,
        auroc=auroc,
        curve=curve,
        band=precision_band(values, truth, weight),
        histogram=score_histogram(values, truth, weight),
        calibration=bins,
        calibration_fitted=calibration_fitted,
        platt=() if calibration is None else (float(calibration.slope), float(calibration.intercept)),
    )


def headline(part: ScoredPart) -> str:
    """Return the verdict on a ranking in one sentence.

    >>> print(headline(score_part("test", np.arange(40.0), np.arange(40) >= 36)))
    Average precision 1.000 (0.398 to 1.000) on the test rows: 10 times that of a random ranking (0.100).
    """
    ap, times = part.ap, part.ap.estimate / part.no_skill
    text = f"Average precision {ap.estimate:.3f} ({ap.low:.3f} to {ap.high:.3f}) on the {part.name} rows"
    random = f"that of a random ranking ({part.no_skill:.3f})"
    if ap.low > part.no_skill:
        return f"{text}: {times:.{0 if times >= 9.5 else 1}f} times {random}."
    if ap.high < part.no_skill:
        return f"{text}: below {random}."
    return f"{text}: it cannot be told from {random}."


def subgroup_table(
    column: str,
    values: Sequence[Any],
    part: str,
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    sample_weight: npt.NDArray[Any] | None = None,
) -> SubgroupTable:
    """Return average precision by the values of a column: the most frequent ones, or quarters of many numbers.

    Args:
        column: Its name.
        values: Its values, one a row; None where missing.
        part: The part of the data.
        scores: Scores, (n,).
        labels: 0/1, (n,).
        sample_weight: Weights (n,).

    >>> table = subgroup_table("city", ["a", "a", "b", "b"], "test", np.array([4.0, 3, 2, 1]), np.array([1, 0, 0, 1]))
    >>> [(each.value, each.ap.estimate, each.share_of_top) for each in table.each]
    [('a', 1.0, 1.0), ('b', 0.5, 0.0)]
    """
    ranked, truth = np.asarray(scores), np.asarray(labels, np.float64)
    if sample_weight is not None:
        kept = np.flatnonzero(np.asarray(sample_weight) > 0)
        values, ranked, truth = [values[row] for row in kept.tolist()], ranked[kept], truth[kept]
        sample_weight = np.asarray(sample_weight)[kept]
    names, order = _group_names(values)
    weight = unequal_weights(sample_weight)
    top = np.argsort(-ranked, kind="stable")[: max(1, int(truth.sum()))]
    rows = []
    for name in order[:MOST_SUBGROUPS]:
        group = names == name
        own = None if weight is None else weight[group]
        rows.append(
            Subgroup(
                value=str(name),
                rows=int(group.sum()),
                positives=int(truth[group].sum()),
                no_skill=float(np.average(truth[group], weights=own)),
                ap=metrics.average_precision_interval(ranked[group], truth[group], sample_weight=own),
                share_of_top=float(group[top].mean()),
            )
        )
    return SubgroupTable(column, part, tuple(rows), max(0, len(order) - MOST_SUBGROUPS))


def _group_names(values: Sequence[Any]) -> tuple[npt.NDArray[Any], list[str]]:
    """Return the subgroup of each row, and the subgroups: by frequency, or quarters of numbers in their order."""
    known = [value for value in values if value is not None]
    if len(set(known)) > MOST_SUBGROUPS and all(isinstance(value, (int, float)) for value in known):
        numbers = np.array([np.nan if value is None else value for value in values], np.float64)
        missing = ~np.isfinite(numbers)
        edges = np.unique(np.quantile(numbers[~missing], np.linspace(0, 1, _QUARTERS + 1)))
        place = np.clip(np.searchsorted(edges, numbers, side="right") - 1, 0, len(edges) - 2)
        titles = _interval_titles(edges)
        names = np.array([titles[k] for k in place], dtype=object)
        names[missing] = "(missing)"
        return names, [*titles, *(["(missing)"] if missing.any() else [])]
    names = np.array(["(missing)" if value is None else str(value) for value in values], dtype=object)
    unique, counts = np.unique(names.astype(str), return_counts=True)
    return names, [str(unique[k]) for k in np.argsort(-counts, kind="stable")]


def _interval_titles(edges: npt.NDArray[np.float64]) -> list[str]:
    """Return a title for each interval: as many digits as tell the edges apart, and no powers of ten below 10⁷.

    >>> _interval_titles(np.array([202300.0, 202325.0, 202350.0]))
    ['202300 to 202325', '202325 to 202350']
    """
    for digits in range(4, 18):
        texts = [f"{edge:.{digits}g}" for edge in edges]
        if len(set(texts)) == len(texts) and (digits >= _MOST_PLAIN_DIGITS or not any("e+" in text for text in texts)):
            break
    return [f"{low} to {high}" for low, high in pairwise(texts)]
