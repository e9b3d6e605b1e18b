"""Bands for pictures: limits of the precision along a precision–recall curve, and bins of calibration."""

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

BAND_RECALLS = 101
BAND_RESAMPLES = 400
BAND_LEVELS = 2000
"""The most thresholds at which a resample is counted, at equal distances of recall."""
_CHUNK = 2**22


@dataclass(frozen=True)
class PrecisionBand:
    """Pointwise limits of the precision at a recall."""

    recall: tuple[float, ...]
    low: tuple[float, ...]
    high: tuple[float, ...]


@dataclass(frozen=True)
class CalibrationBin:
    """Mean predicted probability of the rows of a bin, and their share of positives with its interval."""

    rows: float
    predicted: float
    observed: float
    low: float
    high: float


def precision_band(
    scores: npt.NDArray[Any],
    labels: Floats,
    sample_weight: Floats | None = None,
    *,
    confidence: float = 0.95,
    resamples: int = BAND_RESAMPLES,
    seed: int = 0,
) -> PrecisionBand | None:
    """Return pointwise limits of the precision at equally spaced recalls; None with fewer than two positives.

    The limits are quantiles over resamples that draw positives and negatives separately, widened to Wilson's score
    interval of the precision where that is wider: a resample never shows a negative above the first one. Rows of weight
    0 do not count.
    """
    if sample_weight is not None:
        # Resamples that draw only rows of weight 0 would have no positive.
        counted = sample_weight > 0
        scores, labels, sample_weight = scores[counted], labels[counted], sample_weight[counted]
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
    low, high = np.quantile(np.array(parts), [(1 - confidence) / 2, (1 + confidence) / 2], axis=0)
    found = np.bincount(level, weights=weight[positive]).cumsum()
    false = np.bincount(gap, weights=weight[~positive], minlength=len(levels) + 1)[:-1].cumsum()
    at = _first_level(found, recall)
    scale = _kish(weight) / weight.sum()
    least, most = _wilson_interval(found[at] * scale, (found[at] + false[at]) * scale, confidence)
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
    probabilities: Floats,
    labels: Floats,
    sample_weight: Floats | None = None,
    *,
    bins: int = 10,
    confidence: float = 0.95,
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
    # Rows of one probability stay together, in the bin of their middle.
    first = np.flatnonzero(np.diff(p, prepend=-1.0))
    ends = np.append(expected[first[1:] - 1], expected[-1])
    middle = (np.append(0.0, ends[:-1]) + ends) / 2
    number = np.minimum(middle / expected[-1] * bins, bins - 1).astype(int)
    number = np.repeat(number, np.diff(np.append(first, len(p))))
    found = []
    for each in np.unique(number):
        rows = number == each
        total = w[rows].sum()
        if total > 0:
            observed, size = float((w[rows] * y[rows]).sum() / total), _kish(w[rows])
            low, high = _binomial_interval(observed * size, size, confidence)
            found.append(CalibrationBin(float(total), float((w[rows] * p[rows]).sum() / total), observed, low, high))
    return tuple(found)


def _kish(weight: Floats) -> float:
    """Return the effective number of weighted rows."""
    # Over a power of two, which is exact: squares of very large and very small weights are not finite or 0.
    weight = np.ldexp(weight, -np.frexp(weight.max())[1])
    return float(weight.sum() ** 2 / (weight**2).sum())


def _wilson_interval(hits: Floats, size: Floats, confidence: float) -> tuple[Floats, Floats]:
    """Return Wilson's score interval of shares."""
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = (hits + z**2 / 2) / (size + z**2)
    half = z * np.sqrt(hits * (size - hits) / size + z**2 / 4) / (size + z**2)
    return np.maximum(centre - half, 0), np.minimum(centre + half, 1)


def _binomial_interval(hits: float, size: float, confidence: float) -> tuple[float, float]:
    """Return the exact (Clopper-Pearson) interval of a share."""
    tail = (1 - confidence) / 2
    low = beta_quantile(tail, hits, size - hits + 1) if hits > 0 else 0.0
    high = beta_quantile(1 - tail, hits + 1, size - hits) if size - hits > 1e-9 else 1.0
    return low, high
