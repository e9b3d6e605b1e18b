"""From scores to probabilities: Platt's logistic curve."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit  # type: ignore[import-untyped]

Array = NDArray[np.float64]
_STEPS = 100
_LEAST_SLOPE = 1e-6


class Platt(NamedTuple):
    """The logit of a probability as `slope·score + intercept`; the slope is positive, so that no ranking changes."""

    slope: float
    intercept: float

    def logit(self, scores: Array) -> Array:
        """Return the logits of these scores."""
        return self.slope * scores + self.intercept


def calibrate(scores: Array, labels: Array, sample_weight: Array) -> Platt:
    """Return the logistic curve that fits 0/1 labels best, by Newton's method to the last digits.

    As in Platt (1999) the targets are `(N₊ + 1)/(N₊ + 2)` and `1/(N₋ + 2)` instead of 1 and 0, so that perfectly
    separated scores get finite logits. N counts a row of weight 2 as two rows. Weights below 1 cannot be such counts:
    then only their ratios matter.

    >>> curve = calibrate(np.array([0.0, 1.0, 2.0, 3.0]), np.array([0.0, 1.0, 0.0, 1.0]), np.ones(4))
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
    slope, intercept = _newton(scaled, target, weight, fixed=None)
    if slope < _LEAST_SLOPE:
        slope, intercept = _newton(scaled, target, weight, fixed=_LEAST_SLOPE)
    return Platt(slope / spread, intercept - slope * centre / spread)


def _newton(scores: Array, target: Array, weight: Array, *, fixed: float | None) -> tuple[float, float]:
    """Return slope and intercept of the least cross-entropy, the slope `fixed` if given; the problem is convex."""
    share = float(weight @ target)
    at = np.array([0.0 if fixed is None else fixed, np.log(share / (1 - share))])
    free = slice(0 if fixed is None else 1, 2)
    design = np.stack([scores, np.ones_like(scores)])

    def value(point: Array) -> float:
        logits = point @ design
        return float(weight @ (np.logaddexp(0, logits) - target * logits))

    best = value(at)
    for _ in range(_STEPS):
        probability = expit(at @ design)
        gradient = design @ (weight * (probability - target))
        curvature = (design * (weight * probability * (1 - probability))) @ design.T
        step = np.zeros(2)
        step[free] = np.linalg.lstsq(curvature[free, free], gradient[free], rcond=None)[0]
        size = 1.0
        while (new := value(at - size * step)) > best and size > 1e-10:
            size /= 2
        if new >= best:
            break
        at, best = at - size * step, new
    return float(at[0]), float(at[1])
