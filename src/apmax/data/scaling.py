"""Robust scaling of numeric columns: median and interquartile range, with large values compressed."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

_Numbers = NDArray[np.float64]
# Interquartile range of the standard normal distribution.
_NORMAL_RANGE = 1.349
COMPRESSED_FROM = 3.0
"""Scaled values beyond this limit, in either direction, are compressed."""


@dataclass(frozen=True)
class RobustScale:
    """`z = (x − median)/scale`, growing only by logarithm beyond ±3; a missing value becomes 0, the median.

    `scale` is the interquartile range divided by 1.349 (for a normal distribution the standard deviation), the standard
    deviation where that range is 0, and 1 for a constant column.
    """

    median: float
    scale: float

    @staticmethod
    def fit(values: _Numbers, sample_weight: _Numbers | None = None) -> RobustScale:
        """Fit the scale to finite `values` (n,).

        Args:
            values: The values.
            sample_weight: (n,) non-negative; quantiles are then the values where the cumulated weight reaches their
                share. None for equal weights and interpolated quantiles.

        >>> RobustScale.fit(np.array([1.0, 2.0, 3.0])).median
        2.0
        >>> RobustScale.fit(np.array([1.0, 2.0, 3.0]), np.array([1.0, 1.0, 5.0])).median
        3.0
        """
        # Relative to the largest, so that squares and differences of huge numbers do not overflow.
        largest = float(np.abs(values).max(initial=0.0)) or 1.0
        relative = values / largest
        low, median, high = _quartiles(relative, sample_weight)
        deviation = (high - low) / _NORMAL_RANGE
        if deviation == 0:
            mean = np.average(relative, weights=sample_weight)
            deviation = float(np.sqrt(np.average(np.square(relative - mean), weights=sample_weight)))
        scale = largest * deviation
        return RobustScale(largest * median, scale if scale > 0 else 1.0)

    def __call__(self, values: _Numbers) -> _Numbers:
        """Return the scaled values, 0 where missing."""
        with np.errstate(over="ignore"):
            scaled = np.nan_to_num((values - self.median) / self.scale, nan=0.0)
        size = np.abs(scaled)
        if size.max(initial=0.0) <= COMPRESSED_FROM:
            return scaled
        compressed = COMPRESSED_FROM + np.log1p(np.maximum(size, COMPRESSED_FROM) - COMPRESSED_FROM)
        return np.where(size <= COMPRESSED_FROM, scaled, np.copysign(compressed, scaled))


def _quartiles(values: _Numbers, sample_weight: _Numbers | None) -> tuple[float, float, float]:
    if sample_weight is None:
        low, median, high = np.quantile(values, [0.25, 0.5, 0.75])
    else:
        order = np.argsort(values, kind="stable")
        total = np.cumsum(sample_weight[order])
        positions = np.searchsorted(total, np.array([0.25, 0.5, 0.75]) * total[-1])
        low, median, high = values[order][np.minimum(positions, len(values) - 1)]
    return float(low), float(median), float(high)


def relative_weights(sample_weight: _Numbers) -> _Numbers | None:
    """Return the weights divided by their mean, since only their ratios matter; None if they are all equal.

    >>> relative_weights(np.array([2.0, 4.0, 6.0])).tolist(), relative_weights(np.array([0.5, 0.5]))
    ([0.5, 1.0, 1.5], None)
    """
    return None if np.ptp(sample_weight) == 0 else sample_weight / sample_weight.mean()
