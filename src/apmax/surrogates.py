"""Pairwise surrogates ℓ(x) of the indicator 1[h_s ≥ h_i], with x = h_s - h_i; all non-negative and increasing in x."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from apmax import validation

_MARGINS = 1e-30, 1e30
"""The smallest and the largest margin: float32 holds both and their inverses."""
MAX_EXPONENT = 80.0
"""The exponential surrogate is held constant beyond this exponent, so that sums over a data set stay finite."""


class Piece(NamedTuple):
    """A polynomial `c0 + c1·y + c2·y²` in y = x - start, valid for start ≤ x < stop (None: without end)."""

    start: float
    stop: float | None
    coefficients: tuple[float, float, float]


@dataclass(frozen=True)
class Surrogate:
    """A surrogate with its derivative and, if it is one, its form as a piecewise polynomial.

    Args:
        name: The key in `SURROGATES`.
        value_and_slope: ℓ(x) and ℓ′(x) for a tensor of differences and a margin; x may be overwritten.
        pieces: For a margin, the pieces of ℓ from left to right, of any widths: each begins where the one before it
            ends. ℓ is 0 before the first and after the last, if that has an end. They are not compared with
            `value_and_slope`. None if ℓ is no piecewise polynomial.
        bounded: Whether ℓ has an upper bound. One without measures AP on scores in [0, 1] only.

    >>> SURROGATES["smooth_step"](torch.tensor([-2.0, 0.0, 2.0]), 1.0)
    tensor([0.0000, 0.5000, 1.0000])
    """

    name: str
    value_and_slope: Callable[[Tensor, float], tuple[Tensor, Tensor]]
    pieces: Callable[[float], tuple[Piece, ...]] | None = None
    bounded: bool = True

    def __call__(self, x: Tensor, margin: float = 1.0) -> Tensor:
        """Return ℓ(x), computed in float32 or better and differentiable."""
        value: Tensor = _Elementwise.apply(validation.floating(x), self, margin)
        return value

    def derivative(self, x: Tensor, margin: float = 1.0) -> Tensor:
        """Return ℓ′(x), computed in float32 or better; continuous from the right where ℓ has a kink."""
        return self.value_and_slope(validation.floating(x).detach().clone(), margin)[1]

    def at_zero(self, margin: float) -> float:
        """Return ℓ(0), the contribution of an example compared with itself."""
        return float(self.value_and_slope(torch.zeros((), dtype=torch.float64, device="cpu"), margin)[0])


class _Elementwise(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, surrogate: Surrogate, margin: float) -> Tensor:
        value, slope = surrogate.value_and_slope(x.clone(), margin)
        ctx.save_for_backward(slope)
        return value

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None, None]:
        return ctx.saved_tensors[0] * incoming, None, None


# These work in place where they can: on a matrix of pairs, fresh memory costs more than arithmetic.


def _squared_hinge(x: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    active = x.add_(margin).clamp_min_(0)
    return active * active, active.mul_(2)


def _hinge(x: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    slope = (x >= -margin).to(x.dtype)
    return x.add_(margin).clamp_min_(0), slope


def _smoothed_hinge(x: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    # The textbook form [(x+m)₊² - x₊²]/(2m) cancels for large x.
    slope = (x + margin).clamp_(0, margin).div_(margin)
    return x.clamp_min_(0).add_(slope * slope, alpha=margin / 2), slope


def _ramp(x: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    slope = ((x >= -margin) & (x < margin)).to(x.dtype).div_(2 * margin)
    return x.add_(margin).div_(2 * margin).clamp_(0, 1), slope


def _smooth_step(x: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    # As a difference of squared hinges this would cancel: float32 gives -32…32 at |x| = 1e4.
    # Small batches spend their time in the number of operations: the usual margin of 1 needs no division.
    z = (x if margin == 1 else x.div_(margin)).clamp_(-1, 1)
    rest = 1 - z.abs()
    return z.addcmul_(z, rest).add_(1).mul_(0.5), rest if margin == 1 else rest.div_(margin)


def _logistic(x: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    scaled = x.mul_(margin)
    return torch.logaddexp(scaled, torch.zeros_like(scaled)), scaled.sigmoid_().mul_(margin)


def _sigmoid(x: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    scaled = x.mul_(margin)
    value = scaled.sigmoid()
    # Not value·(1 - value): that is 0 where the sigmoid rounds to 1.
    return value, scaled.neg_().sigmoid_().mul_(value).mul_(margin)


def _exponential(x: Tensor, margin: float) -> tuple[Tensor, Tensor]:
    scaled = x.mul_(margin)
    value = scaled.clamp_max(MAX_EXPONENT).exp_()
    return value, torch.where(scaled < MAX_EXPONENT, margin * value, 0)


SURROGATES: dict[str, Surrogate] = {
    surrogate.name: surrogate
    for surrogate in (
        Surrogate("squared_hinge", _squared_hinge, lambda m: (Piece(-m, None, (0, 0, 1)),), bounded=False),
        Surrogate("hinge", _hinge, lambda m: (Piece(-m, None, (0, 1, 0)),), bounded=False),
        Surrogate(
            "smoothed_hinge",
            _smoothed_hinge,
            lambda m: (Piece(-m, 0, (0, 0, 0.5 / m)), Piece(0, None, (m / 2, 1, 0))),
            bounded=False,
        ),
        Surrogate("ramp", _ramp, lambda m: (Piece(-m, m, (0, 0.5 / m, 0)), Piece(m, None, (1, 0, 0)))),
        Surrogate(
            "smooth_step",
            _smooth_step,
            lambda m: (
                Piece(-m, 0, (0, 0, 0.5 / m**2)),
                Piece(0, m, (0.5, 1 / m, -0.5 / m**2)),
                Piece(m, None, (1, 0, 0)),
            ),
        ),
        Surrogate("logistic", _logistic, bounded=False),
        Surrogate("sigmoid", _sigmoid),
        Surrogate("exponential", _exponential, bounded=False),
    )
}
"""All surrogates by name. `margin` is the paper's m, and its scale c for logistic, sigmoid and exponential."""


def get(surrogate: str | Surrogate, margin: float) -> Surrogate:
    """Return the surrogate of that name after checking name and margin.

    Raises:
        ValueError: Unknown name, or a margin outside [1e-30, 1e30] (ℓ(0) = 0 makes AP 0/0).
    """
    validation.interval("margin", margin, *_MARGINS)
    if isinstance(surrogate, Surrogate):
        return surrogate
    return SURROGATES[validation.choice("surrogate", surrogate, SURROGATES)]
