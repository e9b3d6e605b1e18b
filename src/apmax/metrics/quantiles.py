"""The beta distribution and quantiles of Student's t, without scipy."""

from __future__ import annotations

import math
from functools import cache

from apmax import validation


@cache
def beta_quantile(probability: float, a: float, b: float) -> float:
    """Return the quantile of the beta distribution with parameters a and b, by bisection.

    Args:
        probability: Between 0 and 1.
        a: First parameter, above 0.
        b: Second parameter, above 0.

    Raises:
        ValueError: An argument out of range.

    >>> round(beta_quantile(0.025, 5.0, 1.0), 6)  # 0.025^(1/5)
    0.478176
    """
    probability = validation.interval("probability", probability, 0, 1)
    a, b = validation.interval("a", a, 0, closed="neither"), validation.interval("b", b, 0, closed="neither")
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        low, high = (middle, high) if beta_cdf(middle, a, b) < probability else (low, middle)
    return middle


def beta_cdf(x: float, a: float, b: float) -> float:
    """Return the beta distribution's function I_x(a, b) by its continued fraction (DLMF 8.17.22).

    For whole a and b it is also a binomial tail: a or more hits in a + b - 1 trials of probability x.

    >>> round(beta_cdf(0.5, 3, 1), 6)  # three hits in three trials
    0.125
    """
    # Beyond the mode the fraction of the mirrored function converges faster.
    return 1 - _beta_fraction(1 - x, b, a) if x > (a + 1) / (a + b + 2) else _beta_fraction(x, a, b)


def _beta_fraction(x: float, a: float, b: float) -> float:
    if x <= 0:
        return 0.0
    log_front = a * math.log(x) + b * math.log1p(-x) - math.log(a)
    log_front += math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b)
    # The modified Lentz algorithm: ratios of successive numerators and denominators.
    fraction, numerators, denominators, step = 1.0, 1.0, 0.0, 0
    change = 0.0
    while abs(change - 1) > 1e-15:
        m, odd = divmod(step, 2)
        if not odd:
            term = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        else:
            term = (m + 1) * (b - m - 1) * x / ((a + 2 * m + 1) * (a + 2 * m + 2))
        denominators = 1 / _not_zero(1 + term * denominators)
        numerators = _not_zero(1 + term / numerators)
        change = numerators * denominators
        fraction *= change
        step += 1
    return math.exp(log_front) / fraction


def t_quantile(probability: float, freedom: int) -> float:
    """Return the quantile of Student's t, from that of `T²/(ν + T²)`, which is a beta distribution (1/2, ν/2).

    Args:
        probability: At least 0.5 and below 1.
        freedom: Degrees of freedom ν, at least 1.

    Raises:
        ValueError: An argument out of range.

    >>> round(t_quantile(0.975, 2), 6)
    4.302653
    """
    probability = validation.interval("probability", probability, 0.5, 1, closed="left")
    freedom = validation.whole("freedom", freedom, 1)
    share = beta_quantile(2 * probability - 1, 0.5, freedom / 2)
    if share < 0.5:
        return math.sqrt(freedom * share / (1 - share))
    rest = beta_quantile(2 - 2 * probability, freedom / 2, 0.5)
    return math.sqrt(freedom * (1 - rest) / rest)


def _not_zero(value: float) -> float:
    return value if abs(value) > 1e-300 else 1e-300
