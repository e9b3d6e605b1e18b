"""Platt calibration: a logistic curve from scores to probabilities."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

_Array = NDArray[np.float64]
_MAX_STEPS = 100
_MIN_SLOPE = 1e-6


class PlattCurve(NamedTuple):
    """The logit of a probability as `slope·score + intercept`; the slope is positive, so the ranking stays the same."""

    slope: float
    intercept: float

    def logit(self, scores: _Array) -> _Array:
        """Return the logits of these scores."""
        return self.slope * scores + self.intercept

    def probability(self, scores: _Array) -> _Array:
        """Return the probabilities of these scores.

        >>> PlattCurve(2.0, -1.0).probability(np.array([0.5, -1e9])).tolist()
        [0.5, 0.0]
        """
        return _logistic(self.logit(scores))


def fit_platt(scores: _Array, labels: _Array, sample_weight: _Array) -> PlattCurve:
    """Fit the logistic curve to 0/1 labels by Newton's method, to machine precision.

    As in Platt (1999) the targets are `(N₊ + 1)/(N₊ + 2)` and `1/(N₋ + 2)` instead of 1 and 0, so that perfectly
    separated scores get finite logits. N counts a row of weight 2 as two rows. Weights below 1 cannot be such counts:
    then only their ratios matter.

    >>> curve = fit_platt(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 0.0, 1.0]), np.ones(4))
    >>> [round(value, 3) for value in curve]
    [0.411, -0.617]
    """
    weight = sample_weight if sample_weight.min() >= 1 else sample_weight * (len(sample_weight) / sample_weight.sum())
    positive = float(weight @ labels)
    target = np.where(labels == 1, (positive + 1) / (positive + 2), 1 / (weight.sum() - positive + 2))
    weight = weight / weight.sum()
    centre = float(weight @ scores)
    spread = float(np.sqrt(weight @ np.square(scores - centre))) or 1.0
    scaled = (scores - centre) / spread
    slope, intercept = _newton(scaled, target, weight, fixed_slope=None)
    if slope < _MIN_SLOPE:
        slope, intercept = _newton(scaled, target, weight, fixed_slope=_MIN_SLOPE)
    return PlattCurve(slope / spread, intercept - slope * centre / spread)


def _logistic(logits: _Array) -> _Array:
    with np.errstate(invalid="ignore"):  # NaN stays NaN
        probability: _Array = np.exp(-np.logaddexp(0, -logits))
    return probability


def _newton(scores: _Array, target: _Array, weight: _Array, *, fixed_slope: float | None) -> tuple[float, float]:
    """Return slope and intercept that minimise the cross-entropy (convex); the slope is `fixed_slope` if given."""
    prior = float(weight @ target)
    point = np.array([0.0 if fixed_slope is None else fixed_slope, np.log(prior / (1 - prior))])
    free = slice(0 if fixed_slope is None else 1, 2)
    design = np.stack([scores, np.ones_like(scores)])

    def cross_entropy(at: _Array) -> float:
        logits = at @ design
        return float(weight @ (np.logaddexp(0, logits) - target * logits))

    best = cross_entropy(point)
    for _ in range(_MAX_STEPS):
        probability = _logistic(point @ design)
        gradient = design @ (weight * (probability - target))
        curvature = (design * (weight * probability * (1 - probability))) @ design.T
        step = np.zeros(2)
        step[free] = np.linalg.lstsq(curvature[free, free], gradient[free], rcond=None)[0]
        size = 1.0
        while (value := cross_entropy(point - size * step)) > best and size > 1e-10:
            size /= 2
        if value >= best:
            break
        point, best = point - size * step, value
    return float(point[0]), float(point[1])
