"""Losses over the joined batch of all processes."""

from __future__ import annotations

from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from apmax.exact.stream import gather_ragged
from apmax.losses import Loss


def world_size(group: dist.ProcessGroup | None = None) -> int:
    """Return the number of processes; 1 if there is no process group.

    >>> world_size()
    1
    """
    return dist.get_world_size(group) if dist.is_available() and dist.is_initialized() else 1


def gather_shards(shard: Tensor, group: dist.ProcessGroup | None = None) -> Tensor:
    """Return all processes' shards joined along the first dimension, in the order of ranks, with gradient.

    Shards may differ in length or be empty. Every process must compute the same loss from the result. Backward gives
    each shard its part of the gradient times the number of processes, so that the mean over processes, which DDP takes
    of the model's gradients, is the gradient of the loss on the joined batch.

    >>> gather_shards(torch.tensor([1.0, 2.0]))
    tensor([1., 2.])
    """
    if world_size(group) == 1:
        return shard
    joined: Tensor = _Gather.apply(shard, group)
    return joined


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, group: dist.ProcessGroup | None) -> Tensor:
        joined, ctx.start = gather_ragged(shard, group)
        ctx.length, ctx.world = shard.shape[0], dist.get_world_size(group)
        return joined

    @staticmethod
    def backward(ctx: Any, incoming: Tensor) -> tuple[Tensor, None]:
        return incoming[ctx.start : ctx.start + ctx.length] * ctx.world, None


class Gathered(nn.Module):
    """A loss on the joined batch of all processes; with one process it is the loss itself.

    The model may be wrapped in `DistributedDataParallel`; the loss is not: every process computes the same update of
    its state and of its own parameters from the same batch, so that these stay equal without being exchanged.

    Args:
        loss: Any loss of `apmax.losses`, built from the labels of the whole training set.
        group: The process group; None for the default one.

    >>> from apmax import APLoss
    >>> loss = Gathered(APLoss([0, 1, 0, 1]))
    >>> loss(torch.zeros(2), torch.tensor([0., 1.]), torch.tensor([0, 1])).item()
    0.5
    """

    def __init__(self, loss: Loss, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.loss, self.group = loss, group

    def forward(
        self, scores: Tensor, labels: Tensor, index: Tensor | None = None, *, sample_weight: Tensor | None = None
    ) -> Tensor:
        """Return the loss of the joined batch, the same on every process; the arguments are this process's shard."""
        rest = [
            # The rows may still be on the host, from which not every backend sends.
            None if shard is None else gather_shards(shard.to(scores.device), self.group)
            for shard in (index, sample_weight)
        ]
        value: Tensor = self.loss(
            gather_shards(scores, self.group), gather_shards(labels, self.group), rest[0], sample_weight=rest[1]
        )
        return value

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the loss."""
        self.loss.set_epoch(epoch)
