"""Whether one method is better than another on the same cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from apmax import extras


@dataclass(frozen=True)
class Paired:
    """The mean difference over cells with its 95 % interval, and in how many cells it is above zero."""

    difference: float
    low: float
    high: float
    won: int
    cells: int


def compare(values: Sequence[float], base: Sequence[float]) -> Paired:
    """Return by how much `values` exceed `base` cell by cell; the interval is Student's t.

    >>> result = compare([0.5, 0.7, 0.9], [0.4, 0.5, 0.9])
    >>> print(f"{result.difference:.2f} in {result.low:.2f} to {result.high:.2f}, {result.won} of {result.cells}")
    0.10 in -0.15 to 0.35, 2 of 3
    """
    paired = [own - other for own, other in zip(values, base, strict=True)]
    centre = mean(paired)
    quantile = extras.load("scipy.stats", "sklearn").t.ppf(0.975, len(paired) - 1)
    reach = float(quantile) * stdev(paired) / len(paired) ** 0.5
    return Paired(centre, centre - reach, centre + reach, sum(d > 0 for d in paired), len(paired))
