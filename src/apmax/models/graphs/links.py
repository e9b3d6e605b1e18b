"""Sums along links: every item of one kind receives those of another that it is linked to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

Side = tuple[Tensor, tuple[Tensor, Tensor] | None]
"""The other ends of all links in the order of these; where each of these begins, and how many links it has.

None instead of both where each has one link.
"""


@dataclass(frozen=True)
class Links:
    """Links from one kind of items to another, in the order of those that receive and of those that send.

    >>> links = Links.of(torch.tensor([1, 0, 1]), torch.tensor([0, 1, 1]), senders=2, receivers=2)
    >>> links.sum(torch.tensor([[1.0], [10.0]]))
    tensor([[10.],
            [11.]])
    """

    received: Side
    sent: Side

    @classmethod
    def of(cls, sender: Tensor, receiver: Tensor, *, senders: int, receivers: int) -> Links:
        """Return the links sender[k] → receiver[k], receivers in increasing order."""
        order = _order(sender, senders)
        sent: Side = (receiver.index_select(0, order), _bags(sender, senders))
        return cls((sender, _bags(receiver, receivers)), sent)

    @classmethod
    def symmetric(cls, sender: Tensor, receiver: Tensor, count: int) -> Links:
        """Return links among items of one kind, each of which is there in both directions; in any order."""
        order = _order(receiver, count)
        both: Side = (sender.index_select(0, order), _bags(receiver, count))
        return cls(both, both)

    @classmethod
    def segments(cls, batch: Tensor, count: int) -> Links:
        """Return the links k → batch[k] of a `batch` in increasing order, which needs no sorting."""
        every = torch.arange(len(batch), device=batch.device)
        return cls((every, _bags(batch, count)), (batch, None))

    def sum(self, values: Tensor) -> Tensor:
        """Return (receivers, h), the sum of the senders' values (senders, h) that each receives."""
        out: Tensor = _Sum.apply(values, self.received, self.sent)
        return out

    def counts(self, dtype: torch.dtype) -> Tensor:
        """Return (receivers, 1), the number of links that arrive at each."""
        index, bags = self.received
        if bags is None:
            return torch.ones(len(index), 1, dtype=dtype, device=index.device)
        return bags[1][:, None].to(dtype)

    def back(self) -> Links:
        """Return the same links in the other direction."""
        return Links(self.sent, self.received)


def _order(values: Tensor, count: int) -> Tensor:
    if values.device.type == "cpu" and count <= 2**16:
        # numpy sorts two-byte numbers by their digits, in a fraction of the time.
        return torch.from_numpy(np.argsort(values.numpy().astype(np.uint16), kind="stable"))
    return torch.argsort(values)


def _bags(members: Tensor, count: int) -> tuple[Tensor, Tensor]:
    counts = members.new_zeros(count).index_add_(0, members, torch.ones_like(members))
    return counts.cumsum(0) - counts, counts


class _Sum(torch.autograd.Function):
    """Gather and sum in one pass, forwards along the links and backwards against them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, there: Side, back: Side) -> Tensor:
        ctx.there, ctx.back = there, back
        return _sum(values, there)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        gradient = gradient.contiguous()
        if gradient.requires_grad:
            return _Sum.apply(gradient, ctx.back, ctx.there), None, None
        return _sum(gradient, ctx.back), None, None


def _sum(values: Tensor, along: Side) -> Tensor:
    index, bags = along
    if bags is None:
        return values.index_select(0, index)
    # Detached: of values that require a gradient it would also keep what its own backward needs.
    out: Tensor = torch.embedding_bag(values.detach(), index, bags[0])[0]
    return out
