"""Whether one method is better than another where both were run on the same cells, folds or seeds."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from statistics import mean, stdev

from apmax import validation


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
        ValueError: No cells, or not the same number of them.

    >>> result = compare([0.5, 0.7, 0.9], [0.4, 0.5, 0.9])
    >>> print(f"{result.difference:.2f} in {result.low:.2f} to {result.high:.2f}, {result.won} of {result.cells}")
    0.10 in -0.15 to 0.35, 2 of 3
    """
    if not values or len(values) != len(base):
        raise ValueError(f"values and base must be of the same cells, at least one; got {len(values)} and {len(base)}")
    paired = [own - other for own, other in zip(values, base, strict=True)]
    cells, won, centre = len(paired), sum(d > 0 for d in paired), mean(paired)
    reach = t_quantile(0.975, cells - 1) * stdev(paired) / math.sqrt(cells) if cells > 1 else math.nan
    equal = sum(d == 0 for d in paired)
    return Paired(centre, centre - reach, centre + reach, won, cells, equal)


@cache
def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t with a whole number of degrees of freedom.

    The distribution function is then a finite sum in θ = arctan(t / √ν) (Abramowitz and Stegun, 26.7.3 and 26.7.4),
    increasing in θ, and is inverted by halving.

    Args:
        probability: At least 0.5 and below 1.
        freedom: Degrees of freedom ν, at least 1.

    Raises:
        ValueError: An argument out of range.

    >>> round(t_quantile(0.975, 2), 6)
    4.302653
    """
    wanted = 2 * validation.interval("probability", probability, 0.5, 1, closed="left") - 1
    freedom = validation.whole("freedom", freedom, 1)
    low, high = 0.0, math.pi / 2
    # Each halving brings a digit; beyond 60 the ends are neighbouring floats.
    for _ in range(60):
        middle = (low + high) / 2
        low, high = (middle, high) if _share_within(middle, freedom) < wanted else (low, middle)
    return math.tan((low + high) / 2) * math.sqrt(freedom)


def _share_within(angle: float, freedom: int) -> float:
    """Return P(|T| < √ν tan θ)."""
    sine, cosine = math.sin(angle), math.cos(angle)
    odd = freedom % 2
    term, total = (cosine if odd else 1.0), 0.0
    for k in range(freedom // 2):
        total += term
        term *= cosine**2 * (2 * k + 2) / (2 * k + 3) if odd else cosine**2 * (2 * k + 1) / (2 * k + 2)
    return 2 / math.pi * (angle + sine * total) if odd else sine * total
