"""Pair sums of a smooth surrogate (logistic, sigmoid) by a grid and one FFT: O(n + G log G).

Weights are spread over the four nearest grid points by cubic Lagrange interpolation, convolved with ℓ sampled on the
grid, and read off at the anchors by the same interpolation.
"""

from __future__ import annotations

import torch
from torch import Tensor

from apmax.exact.search import Located
from apmax.surrogates import Surrogate

POINTS_PER_UNIT = 16
"""Grid points per unit of c·score. The error grows with the fourth power of the spacing."""
MAX_POINTS = 2**22

# Largest |d⁴ℓ/dx⁴| at c = 1.
_FOURTH_DERIVATIVE = {"logistic": 0.125, "sigmoid": 0.128}
_KNOTS_BEFORE, _KNOTS_AFTER = 1, 2


def grid_points(spread: float, scale: float) -> int:
    """Return how many grid points scores within `spread` need: a power of two."""
    needed = int(min(POINTS_PER_UNIT * scale * spread, 2.0**40)) + 8
    return 1 << (needed - 1).bit_length()


class GridTable:
    """Sums of ℓ(s - a) over the examples s, for all anchors a at once, within `error_bound` per unit of weight.

    Args:
        anchors: (..., k) scores of the anchors; every leading row is a task of its own.
        surrogate: `logistic` or `sigmoid`.
        scale: Its c.
        low: (...,) the smallest score of each task, anchors included.
        high: (...,) the largest.

    Raises:
        ValueError: The scores spread so widely that the grid would be too fine to hold.
    """

    def __init__(self, anchors: Tensor, surrogate: Surrogate, scale: float, low: Tensor, high: Tensor) -> None:
        if surrogate.name not in _FOURTH_DERIVATIVE:
            raise ValueError(f"method 'grid' is for logistic and sigmoid; use 'bucket' for {surrogate.name!r}")
        self.anchors = anchors.detach().double()
        self.low, self.high = low.double().unsqueeze(-1), high.double().unsqueeze(-1)
        spread = float((high.double() - low.double()).max())
        self.points = grid_points(spread, scale)
        if self.points > MAX_POINTS:
            raise ValueError(
                f"scores spread over {spread:g}, too wide for method 'grid' at margin {scale:g}; "
                "use method='dense' or 'auto'"
            )
        coarsest = 1 / (POINTS_PER_UNIT * scale)
        room = self.points - _KNOTS_BEFORE - _KNOTS_AFTER - 2
        self.spacing = min(coarsest, max(spread / room, coarsest * 1e-3))
        self.error_bound = 2.25 * (3 / 128) * _FOURTH_DERIVATIVE[surrogate.name] * (scale * self.spacing) ** 4
        lags = torch.arange(-self.points, self.points, dtype=torch.float64, device=anchors.device).roll(-self.points)
        value, slope = surrogate.value_and_slope(lags * self.spacing, scale)
        self._kernel, self._slope_kernel = torch.fft.rfft(value), torch.fft.rfft(slope)
        shape = (2, *self.anchors.shape[:-1], self.points)
        self.moments = torch.zeros(shape, dtype=torch.float64, device=anchors.device)
        self._field: Tensor

    def covers(self, scores: Tensor) -> bool:
        """Return whether all scores (..., m) lie between the ends of the grid."""
        below, above = scores.double() - self.low, scores.double() - self.high
        return bool((below >= 0).all() & (above <= 0).all())

    def add(self, located: Located, weight: Tensor) -> None:
        """Add located examples (..., m) with their two weights (2, ..., m)."""
        _spread(self.moments, *located, weight.double())

    def sums(self) -> Tensor:
        """Return (2, ..., k): for every anchor the sums by either weight."""
        return self._at_anchors(self._kernel).clamp_min_(0)

    def backward(self, cotangent: Tensor) -> Tensor:
        """Take d(objective)/d(sums), (2, ..., k); return the anchors' gradient and get ready for `gradient`."""
        cotangent = cotangent.double()
        masses = torch.zeros_like(self.moments)
        _spread(masses, *self.locate(self.anchors), cotangent)
        self._field = self._convolve(masses, self._slope_kernel)
        return -(cotangent * self._at_anchors(self._slope_kernel)).sum(0)

    def gradient(self, located: Located, weight: Tensor) -> Tensor:
        """Return the gradient with respect to the scores of located examples, (..., m), after `backward`."""
        return (weight * _read(self._field, *located)).sum(0)

    def _at_anchors(self, kernel: Tensor) -> Tensor:
        return _read(self._convolve(self.moments, kernel.conj()), *self.locate(self.anchors))

    def _convolve(self, masses: Tensor, kernel: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(masses, n=2 * self.points) * kernel
        field: Tensor = torch.fft.irfft(spectrum, n=2 * self.points)
        return field[..., : self.points]

    def locate(self, scores: Tensor) -> Located:
        """Return the first of each example's four grid points, and the four weights (4, ..., m)."""
        position = (scores.double() - self.low) / self.spacing + _KNOTS_BEFORE
        cell = position.floor().clamp(_KNOTS_BEFORE, self.points - 1 - _KNOTS_AFTER)
        f = position - cell
        below, above, beyond = f + 1, f - 1, f - 2
        weights = torch.stack(
            [-f * above * beyond / 6, below * above * beyond / 2, -below * f * beyond / 2, below * f * above / 6]
        )
        return Located(cell.long() - _KNOTS_BEFORE, weights)


def _spread(grid: Tensor, first: Tensor, stencil: Tensor, mass: Tensor) -> None:
    for offset in range(4):
        grid.scatter_add_(-1, (first + offset).expand_as(mass), mass * stencil[offset])


def _read(grid: Tensor, first: Tensor, stencil: Tensor) -> Tensor:
    index = first.expand(2, *first.shape)
    total = grid.gather(-1, index) * stencil[0]
    for offset in range(1, 4):
        total += grid.gather(-1, index + offset) * stencil[offset]
    return total
