"""Paired comparison of two methods over the same cells, folds or seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from apmax.metrics.quantiles import t_quantile


@dataclass(frozen=True)
class Paired:
    """The mean difference over cells with its 95 % interval, and in how many cells it is above zero, or zero."""

    difference: float
    low: float
    high: float
    won: int
    cells: int
    equal: int = 0


def compare(values: Sequence[float], base: Sequence[float]) -> Paired:
    """Return by how much `values` exceed `base` cell by cell; the interval is Student's t.

    mean(d) ± t₀.₉₇₅(n − 1) · std(d) / √n for the differences d. One cell has no spread: its ends are NaN.

    Args:
        values: A method's result in each cell.
        base: The other's in the same cells, in the same order.

    Raises:
        ValueError: No cells, not the same number of them, or a value that is not finite.

    >>> result = compare([0.5, 0.7, 0.9], [0.4, 0.5, 0.9])
    >>> print(f"{result.difference:.2f} in {result.low:.2f} to {result.high:.2f}, {result.won} of {result.cells}")
    0.10 in -0.15 to 0.35, 2 of 3
    """
    if not len(values) or len(values) != len(base):
        raise ValueError(f"values and base must be of the same cells, at least one; got {len(values)} and {len(base)}")
    for name, given in (("values", values), ("base", base)):
        for cell, value in enumerate(given):
            if not math.isfinite(value):
                raise ValueError(
                    f"{name} must be finite, got {float(value):g} in cell {cell}; leave that cell out of both"
                )
    paired = [float(own) - float(other) for own, other in zip(values, base, strict=True)]
    cells, won, centre = len(paired), sum(d > 0 for d in paired), mean(paired)
    reach = t_quantile(0.975, cells - 1) * stdev(paired) / math.sqrt(cells) if cells > 1 else math.nan
    equal = sum(d == 0 for d in paired)
    return Paired(centre, centre - reach, centre + reach, won, cells, equal)
