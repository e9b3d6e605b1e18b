"""Curves of scored rows: thinned counts by threshold, the band of precision, calibration, scores by class."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import NormalDist
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.metrics.bootstrap import Stratum
from apmax.metrics.quantiles import beta_quantile

Floats = npt.NDArray[np.float64]
_Rows = npt.NDArray[np.int64]

PIXEL_COLUMNS = 2048
"""Columns of recall in which a thinned curve looks as the whole one: two for each pixel of a chart of 1,000."""
SIGNIFICANT_DIGITS = 3
"""A thinned curve is exact at every number of reviewed rows with so many significant digits."""
BAND_RECALLS = 101
BAND_RESAMPLES = 400
BAND_LEVELS = 2000
"""The most thresholds at which a resample is counted, at equal distances of recall."""
CALIBRATION_BINS, HISTOGRAM_BINS = 10, 60
CONFIDENCE = 0.95
_CHUNK = 2**22


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
class PrecisionBand:
    """Pointwise 95 % limits of the precision at a recall."""

    recall: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class CalibrationBin:
    """Mean predicted probability of the rows of a bin, and their share of positives with its 95 % interval."""

    rows: float
    predicted: float
    observed: float
    low: float
    high: float


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


def precision_band(
    scores: npt.NDArray[Any],
    labels: Floats,
    sample_weight: Floats | None = None,
    *,
    resamples: int = BAND_RESAMPLES,
    seed: int = 0,
) -> PrecisionBand | None:
    """Return pointwise 95 % limits of the precision at equally spaced recalls; None with fewer than two positives.

    The limits are quantiles over resamples that draw positives and negatives separately, widened to Wilson's score
    interval of the precision where that is wider: a resample never shows a negative above the first one.
    """
    positive = labels == 1
    if positive.sum() < 2:
        return None
    levels = np.unique(-scores[positive])
    if len(levels) > BAND_LEVELS:
        levels = levels[np.linspace(0, len(levels) - 1, BAND_LEVELS + 1).astype(int)[1:]]
    level = np.searchsorted(levels, -scores[positive])
    weight = np.ones(len(scores)) if sample_weight is None else sample_weight
    weighted = sample_weight is not None
    hits = Stratum([level], [len(levels)], weight[positive] if weighted else None)
    gap = np.searchsorted(levels, -scores[~positive])
    misses = Stratum([gap], [len(levels) + 1], weight[~positive] if weighted else None)
    recall = np.linspace(0, 1, BAND_RECALLS)
    generator = np.random.Generator(np.random.SFC64(seed))
    parts = []
    step = max(1, _CHUNK // (len(levels) + 1))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = zip(hits.draw(generator, size)[0], misses.draw(generator, size)[0], strict=True)
        parts += [_precision_at(found.cumsum(), false[:-1].cumsum(), recall) for found, false in drawn]
    low, high = np.quantile(np.array(parts), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2], axis=0)
    found = np.bincount(level, weights=weight[positive]).cumsum()
    false = np.bincount(gap, weights=weight[~positive], minlength=len(levels) + 1)[:-1].cumsum()
    at = _first_level(found, recall)
    scale = _kish(weight) / weight.sum()
    least, most = _wilson_interval(found[at] * scale, (found[at] + false[at]) * scale)
    return PrecisionBand(
        tuple(recall.tolist()), tuple(np.minimum(low, least).tolist()), tuple(np.maximum(high, most).tolist())
    )


def _first_level(found: Floats, recall: Floats) -> _Rows:
    """Return the first level at which each recall is reached; at recall 0 the first with a positive."""
    # A relative margin: the sums of weights are rounded.
    wanted = np.maximum(recall * found[-1] * (1 - 1e-12), np.finfo(float).tiny)
    result: _Rows = np.minimum(np.searchsorted(found, wanted), len(found) - 1)
    return result


def _precision_at(found: Floats, false: Floats, recall: Floats) -> Floats:
    at = _first_level(found, recall)
    result: Floats = found[at] / (found[at] + false[at])
    return result


def calibration_bins(
    probabilities: Floats, labels: Floats, sample_weight: Floats | None = None
) -> tuple[CalibrationBin, ...]:
    """Return bins of rows by probability, each with about the same expected number of positives.

    With rare positives, bins of equal numbers of rows would all but one lie near zero.

    >>> [round(item.observed, 2) for item in calibration_bins(np.array([0.2, 0.2, 0.8]), np.array([0.0, 1.0, 1.0]))]
    [0.5, 1.0]
    """
    weight = np.ones(len(labels)) if sample_weight is None else sample_weight
    order = np.argsort(probabilities, kind="stable")
    p, y, w = probabilities[order], labels[order], weight[order]
    expected = np.cumsum(w * p)
    if expected[-1] <= 0:
        return ()
    number = np.minimum((expected - w * p / 2) / expected[-1] * CALIBRATION_BINS, CALIBRATION_BINS - 1).astype(int)
    # Rows of one probability stay together.
    first = np.flatnonzero(np.diff(p, prepend=-1.0))
    number = number[first[np.searchsorted(first, np.arange(len(p)), side="right") - 1]]
    bins = []
    for each in np.unique(number):
        rows = number == each
        total = w[rows].sum()
        if total > 0:
            observed, size = float((w[rows] * y[rows]).sum() / total), _kish(w[rows])
            low, high = _binomial_interval(observed * size, size)
            bins.append(CalibrationBin(float(total), float((w[rows] * p[rows]).sum() / total), observed, low, high))
    return tuple(bins)


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


def _kish(weight: Floats) -> float:
    """Return the effective number of weighted rows."""
    return float(weight.sum() ** 2 / (weight**2).sum())


def _wilson_interval(hits: Floats, size: Floats) -> tuple[Floats, Floats]:
    """Return Wilson's 95 % score interval of shares."""
    z = NormalDist().inv_cdf((1 + CONFIDENCE) / 2)
    centre = (hits + z**2 / 2) / (size + z**2)
    half = z * np.sqrt(hits * (size - hits) / size + z**2 / 4) / (size + z**2)
    return np.maximum(centre - half, 0), np.minimum(centre + half, 1)


def _binomial_interval(hits: float, size: float) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) 95 % interval of a share."""
    tail = (1 - CONFIDENCE) / 2
    low = beta_quantile(tail, hits, size - hits + 1) if hits > 0 else 0.0
    high = beta_quantile(1 - tail, hits + 1, size - hits) if size - hits > 1e-9 else 1.0
    return low, high
