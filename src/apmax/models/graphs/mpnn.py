"""MPNN, message passing whose matrices depend on the bond."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from apmax.models.graphs.base import GraphNetwork
from apmax.models.graphs.inputs import Graphs, mean_by, mean_of_linear, sizes, sum_by

MOST_GROUPS = 64
"""Beyond so many distinct bonds (features that are not categories) the matrices are never formed."""


class EdgeConvolution(nn.Module):
    """x_i ← x_i W + Σ_j x_j Θ(e_ij) + b, with Θ(e) a linear map of the bond features (Gilmer et al. 2017).

    Bonds take few distinct values. So one matrix is made per distinct bond, and one product per group of equal bonds
    replaces a matrix for each bond.
    """

    def __init__(self, width: int, hidden: int, bond_features: int) -> None:
        super().__init__()
        self.width, self.hidden = width, hidden
        self.matrices = nn.Linear(bond_features, width * hidden)
        self.root = nn.Linear(width, hidden)

    def forward(self, x: Tensor, graphs: Graphs) -> Tensor:
        """Return (N, hidden) from atoms (N, width)."""
        rows = graphs.bonds.rows
        if len(rows) > MOST_GROUPS:
            messages, target = self._by_feature(x, graphs), graphs.target
        elif x.device.type == "cpu":
            messages, target = self._by_group(x, graphs)
        else:
            # The sizes of the groups would have to come to the host first; a few more products cost less.
            table = self._all_pairs(x, rows)
            pair = graphs.source * len(rows) + graphs.bonds.index()
            messages, target = table.index_select(0, pair), graphs.target
        out: Tensor = self.root(x)
        return out.index_add_(0, target, messages)

    def first(self, graphs: Graphs) -> Tensor:
        """Return the same of the graphs' own atom features, whose distinct rows meet the distinct bonds once."""
        atoms, rows = graphs.atoms, graphs.bonds.rows
        if atoms.ids is None or len(atoms.rows) * len(rows) > len(graphs.source):
            return self.forward(atoms.spread(atoms.rows), graphs)
        pair = atoms.ids.index_select(0, graphs.source) * len(rows) + graphs.bonds.index()
        messages = self._all_pairs(atoms.rows, rows).index_select(0, pair)
        return atoms.spread(self.root(atoms.rows)).index_add_(0, graphs.target, messages)

    def pooled(self, x: Tensor, graphs: Graphs) -> Tensor:
        """Return the mean of `forward` over the atoms of each molecule, (B, hidden).

        The layer is linear in the atoms, and so they are summed by molecule and bond first: a product for every
        molecule instead of one for every bond.
        """
        rows, count = graphs.bonds.rows, graphs.count
        if len(rows) > MOST_GROUPS or len(rows) * count > len(graphs.source):
            return mean_by(self.forward(x, graphs), graphs.batch, count)
        molecule = graphs.batch.index_select(0, graphs.target)
        places = molecule * len(rows) + graphs.bonds.index()
        sums = sum_by(x.index_select(0, graphs.source), places, count * len(rows))
        messages: Tensor = sums.view(count, len(rows) * self.width) @ self.matrices(rows).view(-1, self.hidden)
        own = mean_of_linear(self.root, sum_by(x, graphs.batch, count), graphs)
        return own + messages / sizes(graphs.batch, count, x.dtype)

    def _all_pairs(self, x: Tensor, bonds: Tensor) -> Tensor:
        matrices = self.matrices(bonds).view(len(bonds), self.width, self.hidden)
        table: Tensor = x @ matrices.transpose(0, 1).flatten(1)
        return table.view(-1, self.hidden)

    def _by_group(self, x: Tensor, graphs: Graphs) -> tuple[Tensor, Tensor]:
        rows, ids = graphs.bonds.rows, graphs.bonds.index()
        order = torch.argsort(ids)
        counts = torch.bincount(ids, minlength=len(rows)).tolist()
        parts = x.index_select(0, graphs.source.index_select(0, order)).split(counts)
        matrices = self.matrices(rows).view(len(rows), self.width, self.hidden).unbind()
        messages = [part @ matrix for part, matrix in zip(parts, matrices, strict=True)]
        # With an empty part first, so that a batch without bonds has something to join.
        joined = torch.cat([x.new_zeros(0, self.hidden), *messages])
        return joined, graphs.target.index_select(0, order)

    def _by_feature(self, x: Tensor, graphs: Graphs) -> Tensor:
        # x Θ(e) = Σ_k e_k (x Θ_k) + x Θ_0: linear in the features, whatever their values.
        basis = torch.cat([self.matrices.weight.T, self.matrices.bias[None]])
        table = (x @ basis.view(-1, self.width, self.hidden).transpose(0, 1).flatten(1)).view(len(x), -1, self.hidden)
        features = graphs.bonds.spread(torch.nn.functional.pad(graphs.bonds.rows, (0, 1), value=1.0))
        return (features[:, None] @ table.index_select(0, graphs.source))[:, 0]


class MPNN(GraphNetwork):
    """Three edge-conditioned convolutions, mean pooling, a two-layer head, as in the paper's experiments.

    After the first two: graph-size normalisation (division by √atoms), batch norm, ReLU.

    >>> from apmax.data.molecules import MoleculeBatch, build_chunk
    >>> MPNN(hidden=8, tasks=3)(MoleculeBatch(build_chunk(0, ["CCO", "C"]).store)).shape
    torch.Size([2, 3])
    """

    def build(self) -> None:
        """Make the layers."""
        hidden, atom_features, bond_features = self.hidden, self.atom_features, self.bond_features
        self.first = EdgeConvolution(atom_features, hidden, bond_features)
        self.second = EdgeConvolution(hidden, hidden, bond_features)
        self.third = EdgeConvolution(hidden, hidden, bond_features)
        self.first_norm = nn.BatchNorm1d(hidden)
        self.second_norm = nn.BatchNorm1d(hidden)
        self.head = self.make_head(hidden)

    def embed(self, graphs: Graphs, given: Any) -> Tensor:  # noqa: ARG002
        """Return the mean of each molecule's atoms, (B, hidden)."""
        scale = sizes(graphs.batch, graphs.count, self.dtype).rsqrt().index_select(0, graphs.batch)
        x = self.first_norm(self.first.first(graphs) * scale).relu()
        x = self.second_norm(self.second(x, graphs) * scale).relu()
        return self.third.pooled(x, graphs)
