"""Curves of scored rows: thinned counts by threshold, and scores by class."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.metrics.bands import Floats

_Rows = npt.NDArray[np.int64]

PIXEL_COLUMNS = 2048
"""Columns of recall in which a thinned curve looks as the whole one: two for each pixel of a chart of 1,000."""
SIGNIFICANT_DIGITS = 3
"""A thinned curve is exact at every number of reviewed rows with so many significant digits."""
HISTOGRAM_BINS = 60


@dataclass(frozen=True)
class ThresholdCurve:
    """Rows at or above each threshold, from the highest threshold to the lowest score.

    Args:
        threshold: Distinct scores, descending.
        flagged: Number (weight) of rows whose score is at least the threshold.
        found: Number (weight) of positive ones among them.
    """

    threshold: tuple[float, ...]
    flagged: tuple[float, ...]
    found: tuple[float, ...]


@dataclass(frozen=True)
class ScoreHistogram:
    """Shares of the positives and of the negatives in bins of equal width, which begin at `start`."""

    start: float
    width: float
    positives: tuple[float, ...]
    negatives: tuple[float, ...]


def threshold_curve(
    scores: npt.NDArray[Any],
    labels: Floats,
    sample_weight: Floats | None = None,
    *,
    columns: int = PIXEL_COLUMNS,
    digits: int = SIGNIFICANT_DIGITS,
) -> ThresholdCurve:
    """Return the counts at each threshold; where there are many, at those that a chart and its controls need.

    A curve of at most `columns` thresholds is whole. Of a longer one these thresholds are kept:

    * in each of `columns` intervals of recall the first, the last, and those of least and greatest precision, so that
      the drawn line covers the same pixels;
    * both neighbours of each number of flagged rows with `digits` significant digits, so that the counts at these
      numbers are exact, ties included (their expectation over a random order is linear between the neighbours);
    * the corners of the convex hull of the ROC curve, one of which has the least expected cost whatever the costs and
      the prevalence are.

    >>> threshold_curve(np.array([0.9, 0.8, 0.8, 0.1]), np.array([1.0, 0.0, 1.0, 0.0]))
    ThresholdCurve(threshold=(0.9, 0.8, 0.1), flagged=(1.0, 3.0, 4.0), found=(1.0, 2.0, 2.0))
    """
    order = np.argsort(-scores, kind="stable")
    ranked, positive = scores[order], labels[order]
    weight = np.ones(len(order)) if sample_weight is None else sample_weight[order]
    last = np.append(np.flatnonzero(ranked[1:] != ranked[:-1]), len(ranked) - 1)
    flagged, found = np.cumsum(weight)[last], np.cumsum(weight * positive)[last]
    threshold = ranked[last]
    if len(last) > columns:
        kept = np.unique(
            np.concatenate(
                [_drawn_points(flagged, found, columns), _round_counts(flagged, digits), _roc_corners(flagged, found)]
            )
        )
        flagged, found, threshold = flagged[kept], found[kept], threshold[kept]
    return ThresholdCurve(tuple(threshold.tolist()), tuple(flagged.tolist()), tuple(found.tolist()))


def _drawn_points(flagged: Floats, found: Floats, columns: int) -> _Rows:
    """Return the first, last, least and greatest precision of each column of pixels."""
    precision = found / flagged
    column = np.minimum((found * (columns / found[-1])).astype(np.int64), columns - 1)
    first = np.flatnonzero(np.diff(column, prepend=-1))
    last = np.append(first[1:] - 1, len(column) - 1)
    by_precision = np.lexsort((precision, column))
    return np.concatenate([first, last, by_precision[first], by_precision[last]])


def _round_counts(flagged: Floats, digits: int) -> _Rows:
    """Return the neighbours of every number of rows that has few significant digits."""
    numbers: list[int] = []
    step = 1
    while step * 10 ** (digits - 1) <= flagged[-1] or step == 1:
        numbers += range(step if step == 1 else step * 10 ** (digits - 1), step * 10**digits, step)
        step *= 10
    count = np.array([number for number in numbers if number <= flagged[-1]])
    above = np.searchsorted(flagged, count)
    return np.concatenate([above, np.maximum(above - 1, 0)])


def _roc_corners(flagged: Floats, found: Floats) -> _Rows:
    """Return the corners of the upper convex hull of (false, found), which includes the origin.

    A point on or below the line through its two neighbours is no corner; all such points go at once, until there is
    none.
    """
    x, y = np.append(0.0, flagged - found), np.append(0.0, found)
    kept = np.arange(len(x))
    while len(kept) > 2:
        dx, dy = np.diff(x[kept]), np.diff(y[kept])
        corner = np.concatenate([[True], dx[:-1] * dy[1:] < dy[:-1] * dx[1:], [True]])
        if corner.all():
            break
        kept = kept[corner]
    result: _Rows = kept[1:] - 1
    return result


def score_histogram(scores: npt.NDArray[Any], labels: Floats, sample_weight: Floats | None = None) -> ScoreHistogram:
    """Return the shares of each class by score.

    >>> score_histogram(np.array([0.0, 0.0, 6.0]), np.array([0.0, 1.0, 1.0])).positives[::59]
    (0.5, 0.5)
    """
    weight = np.ones(len(labels)) if sample_weight is None else sample_weight
    values = scores.astype(np.float64)
    low, high = float(values.min()), float(values.max())
    width = (high - low) / HISTOGRAM_BINS or 1 / HISTOGRAM_BINS
    number = np.minimum((values - low) / width, HISTOGRAM_BINS - 1).astype(int)
    shares = []
    for value in (1, 0):
        counts = np.bincount(number[labels == value], weights=weight[labels == value], minlength=HISTOGRAM_BINS)
        shares.append(tuple((counts / max(counts.sum(), np.finfo(float).tiny)).tolist()))
    return ScoreHistogram(low, width, shares[0], shares[1])
