"""L-BFGS that ends where the gradient is as small as rounding allows, and begins with a curvature if one is known.

The common line searches look for a smaller value and stall where differences of values drown in rounding, at a gradient
of about 1e-8. Here a step is accepted by its slope, too (the approximate Wolfe conditions of Hager and Zhang, 2005),
which takes the gradient to 1e-12.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Objective = Callable[[Array], tuple[float, Array]]
"""A point to its value and gradient."""

_MEMORY = 20
_TRIALS = 30
_DECREASE, _CURVATURE = 0.1, 0.9
# Values that differ by less, relatively, are equal but for rounding.
_ROUNDING = 1e-11
# Where a step fails, a gradient this many times too large is still called converged: rounding is in the way.
_STALLED = 100


class Optimum(NamedTuple):
    """Where the search ended: the point, its value, the iterations taken, and whether the gradient is small enough."""

    point: Array
    value: float
    iterations: int
    converged: bool


class Place(NamedTuple):
    """A point with its value and gradient."""

    point: Array
    value: float
    gradient: Array


def minimise(
    objective: Objective, start: Array, *, solve: Callable[[Array], Array] | None = None, max_iter: int, tol: float
) -> Optimum:
    """Return the local minimum that L-BFGS finds from `start`.

    Args:
        objective: Returns value and gradient, the latter continuous.
        start: Where to begin.
        solve: Multiplies by the inverse of a positive definite estimate of the curvature; None for the identity.
        max_iter: Iterations at most.
        tol: It ends where no component of the gradient is larger.

    >>> found = minimise(lambda x: (float(x @ x), 2 * x), np.array([3.0]), max_iter=10, tol=1e-10)
    >>> found.value, found.converged
    (0.0, True)
    """
    here = Place(start, *objective(start))
    pairs: deque[tuple[Array, Array]] = deque(maxlen=_MEMORY)
    iterations, stalled = 0, False
    while not stalled and iterations < max_iter and _size(here) > tol:
        direction = -multiply(here.gradient, pairs, solve)
        first = 1.0 if pairs or solve is not None else min(1.0, 1 / _size(here))
        found = search(objective, here, direction, first)
        if found is None:
            # Old pairs may mislead where the curvature changes abruptly: once more without them.
            stalled = not pairs
            pairs.clear()
            continue
        move, change = found.point - here.point, found.gradient - here.gradient
        if move @ change > 0:
            pairs.append((move, change))
        here = found
        iterations += 1
    converged = _size(here) <= tol * (_STALLED if stalled else 1)
    return Optimum(here.point, here.value, max(1, iterations), bool(converged))


def multiply(gradient: Array, pairs: deque[tuple[Array, Array]], solve: Callable[[Array], Array] | None) -> Array:
    """Return the estimated inverse curvature times `gradient`: the two-loop recursion over (move, change) pairs."""
    result: Array = gradient.copy()
    kept: list[float] = []
    for move, change in reversed(pairs):
        kept.append(float((move @ result) / (move @ change)))
        result -= kept[-1] * change
    if solve is not None:
        result = solve(result)
    if pairs:
        move, change = pairs[-1]
        result = result * ((move @ change) / (change @ (change if solve is None else solve(change))))
    for (move, change), share in zip(pairs, reversed(kept), strict=True):
        result = result + move * (share - (change @ result) / (move @ change))
    return result


def search(objective: Objective, here: Place, direction: Array, step: float) -> Place | None:
    """Return a point along `direction` that is low and flat enough, or None if there is none to be found.

    Wolfe's conditions, or the approximate ones on slopes alone where the value is the same but for rounding. The
    bracket shrinks by the secant of the slopes, away from its ends.
    """
    slope = float(here.gradient @ direction)
    if not slope < 0:
        return None
    noise = _ROUNDING * max(1.0, abs(here.value))
    low, low_slope, high, high_slope = 0.0, slope, np.inf, 0.0
    for _ in range(_TRIALS):
        point = here.point + step * direction
        found = Place(point, *objective(point))
        new = float(found.gradient @ direction)
        lower = found.value <= here.value + _DECREASE * step * slope
        same = found.value <= here.value + noise and new <= (2 * _DECREASE - 1) * slope
        if (lower or same) and new >= _CURVATURE * slope:
            return found
        if lower or same:
            low, low_slope = step, new
        else:
            high, high_slope = step, new
        if high == np.inf:
            step *= 4
            continue
        step = (low + high) / 2
        if high_slope > 0:
            secant = (low * high_slope - high * low_slope) / (high_slope - low_slope)
            step = float(np.clip(secant, low + 0.1 * (high - low), high - 0.1 * (high - low)))
    return None


def _size(place: Place) -> float:
    return float(np.abs(place.gradient).max(initial=0))
