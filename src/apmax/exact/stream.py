"""Pair sums of scores in chunks, or spread over processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.autograd.function import once_differentiable

from apmax import surrogates, validation
from apmax.exact.grid import GridTable
from apmax.exact.tables import pair_table
from apmax.surrogates import Surrogate


class PairStream:
    """`pair_sums` of scores that arrive in chunks, in three passes.

    The first pass is the caller's: it collects the anchors (and, for logistic and sigmoid, the smallest and largest
    score). The second adds the examples; then `sums()` is complete. The third, after `sums` and `backward`, gives their
    gradients.

    Args:
        anchors: (..., k) scores of the anchors.
        surrogate: A name in `SURROGATES`, or a `Surrogate`.
        margin: Its margin m, or its scale c.
        low: (...,) the smallest of all scores; for logistic and sigmoid only.
        high: (...,) the largest of all scores; for logistic and sigmoid only.

    Raises:
        ValueError: Unknown surrogate, margin not positive, scores or anchors that are not finite; for logistic and
            sigmoid: bounds missing, so far apart that no grid holds them, or passed by a score or an anchor.

    >>> scores, positive = torch.tensor([0.0, 1.0, 2.0]), torch.tensor([0.0, 0.0, 1.0])
    >>> stream = PairStream(scores[2:], surrogate="smooth_step")
    >>> for chunk in (slice(0, 2), slice(2, 3)):
    ...     stream.add(scores[chunk], positive[chunk], 1 - positive[chunk])
    >>> stream.sums()
    tensor([[0.5000],
            [0.0000]], dtype=torch.float64)
    """

    def __init__(
        self,
        anchors: Tensor,
        *,
        surrogate: str | Surrogate = "smooth_step",
        margin: float = 1.0,
        low: Tensor | float | None = None,
        high: Tensor | float | None = None,
    ) -> None:
        validation.finite(anchors.detach(), "anchors")
        lead = anchors.shape[:-1]
        bounds = [
            None if end is None else torch.as_tensor(end, dtype=torch.float64, device=anchors.device).expand(lead)
            for end in (low, high)
        ]
        self.table = pair_table(anchors, surrogates.get(surrogate, margin), margin, *bounds)
        self._within_bounds(anchors, "anchors")
        self._summed = self._pulled = False

    def add(self, scores: Tensor, positive: Tensor, negative: Tensor) -> None:
        """Add a chunk: scores (..., m) and each example's weight as a positive and as a negative."""
        # A search finds a position for NaN, too.
        validation.finite(scores.detach())
        self._within_bounds(scores, "scores")
        self.table.add(self.table.locate(scores.detach()), torch.stack([positive, negative]).double())

    def reduce(self, group: dist.ProcessGroup | None = None) -> None:
        """Add up the examples of all processes of `group`; all must hold the same anchors."""
        dist.all_reduce(self.table.moments, group=group)

    def sums(self) -> Tensor:
        """Return (2, ..., k): for every anchor the sums over positives and over negatives."""
        sums = self.table.sums()
        self._summed = True
        return sums

    def backward(self, cotangent: Tensor) -> Tensor:
        """Take d(objective)/d(sums), (2, ..., k), and return the anchors' own gradient, (..., k)."""
        if not self._summed:
            raise ValueError("sums() must be called before backward(): the cotangent is the gradient by these sums")
        of_anchors = self.table.backward(cotangent)
        self._pulled = True
        return of_anchors

    def gradient(self, scores: Tensor, positive: Tensor, negative: Tensor) -> Tensor:
        """Return the gradient of a chunk's scores, (..., m), as examples; anchors have theirs from `backward`."""
        if not self._pulled:
            raise ValueError("backward(cotangent) must be called before gradient(): it takes the objective's gradient")
        validation.finite(scores.detach())
        self._within_bounds(scores, "scores")
        located = self.table.locate(scores.detach())
        return self.table.gradient(located, torch.stack([positive, negative]).double())

    def _within_bounds(self, scores: Tensor, name: str) -> None:
        """Raise if a score lies beyond the ends of a grid, where it could only extrapolate."""
        if isinstance(self.table, GridTable) and not self.table.covers(scores):
            raise ValueError(
                f"{name} must lie between low and high, got {scores.min().item():g} to {scores.max().item():g}: "
                "pass the smallest and the largest of all scores"
            )


def pair_sums_across_ranks(
    scores: Tensor,
    anchors: Tensor,
    positive: Tensor,
    negative: Tensor,
    *,
    surrogate: str | Surrogate = "smooth_step",
    margin: float = 1.0,
    group: dist.ProcessGroup | None = None,
) -> Tensor:
    """Return `pair_sums` of the examples and anchors of all processes, the same (2, k) array on each.

    Arguments are this process's share, (n,) and (k,), of any length, as in `pair_sums`. The processes exchange anchors
    and their tables, O(k), never the scores. Every process must compute the same objective from the result; backward
    then gives each its own scores' part of the joint gradient without further communication. (Under DDP, which
    averages gradients, multiply the objective by the number of processes.) Where a score or an anchor of any process is
    not finite, all sums are NaN on every process.

    Raises:
        ValueError: No process holds an anchor, or as in `PairStream`; on every process alike.
    """
    surrogate = surrogates.get(surrogate, margin)
    sums: Tensor = _AcrossRanks.apply(scores, anchors, positive, negative, surrogate, margin, group)
    return sums


class _AcrossRanks(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any,
        scores: Tensor,
        anchors: Tensor,
        positive: Tensor,
        negative: Tensor,
        surrogate: Surrogate,
        margin: float,
        group: dist.ProcessGroup | None,
    ) -> Tensor:
        joined, ctx.start = gather_ragged(anchors.detach().double(), group)
        if not joined.numel():
            raise ValueError("anchors must not be empty on every process: there is nothing to compare the scores with")
        # A search finds a position for NaN, and a grid has none: one process would raise and the others wait for it.
        values, finite = _finite_or_zero(scores.detach().double())
        joined, joined_finite = _finite_or_zero(joined)
        infinity = values.new_full((1,), torch.inf)
        ends = torch.stack([torch.cat([sign * values, infinity]).min() for sign in (1, -1)] + [finite.double()])
        dist.all_reduce(ends, dist.ReduceOp.MIN, group=group)
        low, high = torch.minimum(ends[0], joined.min()), torch.maximum(-ends[1], joined.max())
        ctx.table = pair_table(joined, surrogate, margin, low, high)
        ctx.located = ctx.table.locate(values)
        ctx.table.add(ctx.located, torch.stack([positive, negative]).double())
        dist.all_reduce(ctx.table.moments, group=group)
        ctx.save_for_backward(scores, anchors, positive, negative)
        sums: Tensor = ctx.table.sums() + torch.where((ends[2] > 0) & joined_finite, 0.0, torch.nan)
        return sums

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, cotangent: Tensor) -> tuple[Tensor | None, ...]:
        scores, anchors, positive, negative = ctx.saved_tensors
        of_anchors = ctx.table.backward(cotangent)[ctx.start : ctx.start + anchors.shape[0]].to(anchors.dtype)
        gradient = ctx.table.gradient(ctx.located, torch.stack([positive, negative]).double()).to(scores.dtype)
        return gradient, of_anchors, None, None, None, None, None


def _finite_or_zero(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return values with 0 for NaN and infinity, and whether there were none of these."""
    finite = values.isfinite()
    return torch.where(finite, values, 0), finite.all()


def gather_ragged(values: Tensor, group: dist.ProcessGroup | None = None) -> tuple[Tensor, int]:
    """Return all processes' values, joined along the first dimension in the order of ranks, and the start of its own.

    The processes may hold different numbers of rows, or none.
    """
    world, rank = dist.get_world_size(group), dist.get_rank(group)
    count = torch.tensor([values.shape[0]], device=values.device)
    counts = [torch.empty_like(count) for _ in range(world)]
    dist.all_gather(counts, count, group=group)
    sizes = [int(size) for size in counts]
    padded = values.new_zeros(max(sizes), *values.shape[1:])
    padded[: values.shape[0]] = values
    parts = [torch.empty_like(padded) for _ in range(world)]
    dist.all_gather(parts, padded, group=group)
    return torch.cat([part[:size] for part, size in zip(parts, sizes, strict=True)]), sum(sizes[:rank])
