"""Sums along links: every item of one kind receives those of another that it is linked to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

Side = tuple[Tensor, Tensor | None]
"""The other ends of all links in the order of these, and where each of these begins; None where each has one link."""


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
        order = torch.argsort(sender)
        sent: Side = (receiver.index_select(0, order), _starts(sender.index_select(0, order), senders))
        return cls((sender, _starts(receiver, receivers)), sent)

    @classmethod
    def symmetric(cls, sender: Tensor, receiver: Tensor, count: int) -> Links:
        """Return links among items of one kind, each of which is there in both directions; in any order."""
        order = torch.argsort(receiver)
        both: Side = (sender.index_select(0, order), _starts(receiver.index_select(0, order), count))
        return cls(both, both)

    @classmethod
    def segments(cls, batch: Tensor, count: int) -> Links:
        """Return the links k → batch[k] of a `batch` in increasing order, which needs no sorting."""
        every = torch.arange(len(batch), device=batch.device)
        return cls((every, _starts(batch, count)), (batch, None))

    def sum(self, values: Tensor) -> Tensor:
        """Return (receivers, h), the sum of the senders' values (senders, h) that each receives."""
        out: Tensor = _Sum.apply(values, self.received, self.sent)
        return out

    def counts(self, dtype: torch.dtype) -> Tensor:
        """Return (receivers, 1), the number of links that arrive at each."""
        index, starts = self.received
        if starts is None:
            return torch.ones(len(index), 1, dtype=dtype, device=index.device)
        return torch.diff(starts, append=starts.new_full((1,), len(index)))[:, None].to(dtype)

    def back(self) -> Links:
        """Return the same links in the other direction."""
        return Links(self.sent, self.received)


def _starts(ordered: Tensor, count: int) -> Tensor:
    return torch.searchsorted(ordered, torch.arange(count, device=ordered.device))


class _Sum(torch.autograd.Function):
    """Gather and sum in one pass, forwards along the links and backwards against them."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, there: Side, back: Side) -> Tensor:
        ctx.there, ctx.back = there, back
        index, starts = there
        if starts is None:
            return values.index_select(0, index)
        out: Tensor = torch.embedding_bag(values, index, starts)[0]
        return out

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None, None]:
        return _Sum.apply(gradient.contiguous(), ctx.back, ctx.there), None, None
