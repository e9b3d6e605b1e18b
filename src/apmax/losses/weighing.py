"""How sums over a batch's classes become g, and how the slope of the objective comes back to them."""

from __future__ import annotations

from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from apmax.functional import Correction


class Weighing(Protocol):
    """A linear map from sums over the positives and over the negatives, (2, ..., k), to g, (2, ..., k)."""

    def g(self, sums: Tensor) -> Tensor:
        """Return g¹ and g² of every anchor."""

    def objective(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of 1 - u¹/u² and, by ∇f(u)·∇g (the paper's equation 6), its slope in the sums."""


class Uniform(NamedTuple):
    """All examples weigh 1: the map is the same for every anchor, and four numbers hold it.

    Small batches spend their time in the number of operations, hence constants that are made once. `matrix` (2, 2) and
    `offset` (2, 1) lead to g, `back` (2, 1) leads back; `unit` is (1, 0), `anchors` is k.
    """

    matrix: Tensor
    offset: Tensor
    back: Tensor
    unit: Tensor
    anchors: Tensor

    @classmethod
    def of(cls, correction: Correction, count: int, dtype: torch.dtype) -> Uniform:
        """Return the map of a correction that holds numbers, for `count` anchors on the CPU."""
        scale, offset, negative_scale = correction
        matrix = torch.tensor([[scale, 0], [scale, negative_scale]], dtype=dtype)
        back = torch.tensor([[-scale / count], [-negative_scale / count]], dtype=dtype)
        unit = torch.tensor([[1], [0]], dtype=dtype)
        return cls(matrix, torch.full_like(unit, float(offset)), back, unit, torch.tensor(count, dtype=dtype))

    def g(self, sums: Tensor) -> Tensor:
        """Return g¹ and g² of every anchor."""
        return torch.addmm(self.offset, self.matrix, sums)

    def objective(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the mean of 1 - u¹/u² and its slope in the sums."""
        above, everything = u.unbind(0)
        # 1 - precision and -precision: the value and, divided by -u², its slopes in both parts of u.
        lost = self.unit - above / everything
        return lost[0].sum() / self.anchors, lost / everything * self.back


class PerAnchor(NamedTuple):
    """Examples weigh what they may, in any number of tasks: every anchor has a map of its own.

    `share` are the anchors' weights in the mean, (..., k).
    """

    correction: Correction
    share: Tensor

    def g(self, sums: Tensor) -> Tensor:
        """Return g¹ and g² of every anchor."""
        positives, negatives = sums.unbind(0)
        positives = positives * self.correction.positive_scale + self.correction.positive_offset
        return torch.stack([positives, positives + negatives * self.correction.negative_scale])

    def objective(self, u: Tensor) -> tuple[Tensor, Tensor]:
        """Return the weighted mean of 1 - u¹/u² and its slope in the sums."""
        above, everything = u.unbind(0)
        # A task without a measured label in the batch has nothing to divide.
        everything = torch.where(everything > 0, everything, 1)
        lost = 1 - above / everything
        of_positives = self.share / everything
        slope = [
            -of_positives * lost * self.correction.positive_scale,
            of_positives * (1 - lost) * self.correction.negative_scale,
        ]
        return (self.share * lost).sum(), torch.stack(slope)


def shares(weight: Tensor) -> Tensor:
    """Return anchors' weights scaled to sum to 1 over each task's anchors and over the tasks that have any.

    >>> shares(torch.tensor([[1.0, 3.0], [1.0, 0.0], [0.0, 0.0]]))
    tensor([[0.1250, 0.3750],
            [0.5000, 0.0000],
            [0.0000, 0.0000]])
    """
    total = weight.sum(-1, keepdim=True)
    present = total > 0
    return weight / (torch.where(present, total, 1) * present.sum().clamp_min(1))
