"""States of few different kinds: what they are multiplied by meets a table of the kinds, and not every item."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apmax.models.graphs.levels import Level
from apmax.models.graphs.links import Links


@dataclass(frozen=True)
class LookedUp:
    """The states `shares @ table`, (n, h).

    (S T) W = S (T W), and sums along links are sums of shares: nothing of size (n, h) is made or has a gradient.

    Attributes:
        shares: (n, R), without gradient.
        table: (R, h).
    """

    shares: Tensor
    table: Tensor

    def along(self, links: Links) -> LookedUp:
        """Return, for the receivers of links, the sums of the items that they are linked to."""
        return LookedUp(links.sum(self.shares), self.table)


@dataclass(frozen=True)
class Kinds:
    """The members of a level, each of which is a row of a table.

    Attributes:
        shares: (n, R + 1), the member's factor of the graph-size norm in the column of its row, 1 in the last column.
        moments: (2, R), means over the members of these factors, and of their squares; in double precision.
        rows: (R, h), the table.

    >>> level = Level.of(torch.tensor([0, 0, 0, 0, 1]), 2, torch.float32)
    >>> kinds = Kinds.of(level, torch.tensor([0, 1, 1, 1, 0]), torch.tensor([[2.0], [4.0]]))
    >>> state = kinds.normalised(torch.nn.BatchNorm1d(1, eps=0))
    >>> [round(value, 3) for [value] in (state.shares @ state.table).tolist()]  # four that are halved, and one
    [-2.0, 0.5, 0.5, 0.5, 0.5]
    """

    shares: Tensor
    moments: Tensor
    rows: Tensor

    @classmethod
    def of(cls, level: Level, ids: Tensor, rows: Tensor) -> Kinds:
        """Return the level whose member i is row `ids[i]`."""
        shares = level.factors.new_zeros(len(ids), len(rows) + 1)
        shares.scatter_(1, ids[:, None], level.factors)
        shares[:, -1] = 1
        # A member has one row, and so its share times its factor is the square of its share.
        sums = torch.cat([torch.ones_like(level.factors), level.factors], dim=1).T @ shares
        return cls(shares, sums[:, :-1].double() / max(len(ids), 1), rows)

    def mean(self, level: Level) -> Tensor:
        """Return the mean of each molecule's rows, (B, h); 0 where there are none."""
        # The shares are divided by the root of the number of members already.
        return level.molecules.sum(self.shares)[:, :-1].div(level.sizes.sqrt()) @ self.rows

    def normalised(self, norm: Any) -> LookedUp:
        """Return the batch norm of the states; its running statistics go on as if these had been written out."""
        # In double precision, as squares are subtracted.
        rows = self.rows.double()
        if norm.training:
            mean, variance = self._statistics(rows, norm)
        else:
            mean, variance = norm.running_mean, norm.running_var
        factor = norm.weight * (variance + norm.eps).rsqrt()
        table = torch.cat([rows * factor, (norm.bias - mean * factor)[None]])
        return LookedUp(self.shares, table.to(self.rows.dtype))

    def _statistics(self, rows: Tensor, norm: Any) -> tuple[Tensor, Tensor]:
        once, twice = self.moments
        mean = once @ rows
        variance = twice @ rows.square() - mean.square()
        count = len(self.shares)
        with torch.no_grad():
            norm.num_batches_tracked += 1
            if count:
                kept = norm.running_mean.dtype
                norm.running_mean.lerp_(mean.to(kept), norm.momentum)
                norm.running_var.lerp_((variance * (count / max(count - 1, 1))).to(kept), norm.momentum)
        return mean, variance
