"""GINE, the graph isomorphism network with bond features."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from apmax.models.graphs.base import GraphNetwork
from apmax.models.graphs.inputs import Graphs, mean_of_linear, sum_by


class GINEConvolution(nn.Module):
    """x_i ← W ((1 + ε) x_i + Σ_j relu(x_j + e_ij)) + b, with a trainable ε (Hu et al. 2020)."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.linear = nn.Linear(width, hidden)

    def forward(self, x: Tensor, bonds: Tensor, graphs: Graphs) -> Tensor:
        """Return (N, hidden) from atoms (N, width) and the distinct rows of bonds (R, width)."""
        out: Tensor = self.linear((1 + self.eps) * x + graphs.sum_at_targets(self._messages(x, bonds, graphs)))
        return out

    def first(self, bonds: Tensor, graphs: Graphs) -> Tensor:
        """Return the same of the graphs' own atom features.

        A message depends on the kind of atom and the kind of bond alone, and of such pairs a batch has far fewer than
        bonds: relu and the linear layer are applied once to each pair, and the results are looked up and summed.
        """
        atoms = graphs.atoms
        pairs = len(atoms.rows) * len(bonds)
        if atoms.ids is None or pairs > len(graphs.source):
            return self.forward(atoms.spread(atoms.rows), bonds, graphs)
        table = (atoms.rows[:, None] + bonds).relu_().flatten(0, 1) @ self.linear.weight.T
        pair = atoms.ids.index_select(0, graphs.source) * len(bonds) + graphs.bonds.index()
        own = (1 + self.eps) * (atoms.rows @ self.linear.weight.T) + self.linear.bias
        return atoms.spread(own).index_add_(0, graphs.target, table.index_select(0, pair))

    def pooled(self, x: Tensor, bonds: Tensor, graphs: Graphs) -> Tensor:
        """Return the mean of `forward` over the atoms of each molecule, (B, hidden).

        After the messages the layer is linear, and so they are summed by molecule, and its product is one for every
        molecule instead of one for every atom.
        """
        arrived = sum_by(self._messages(x, bonds, graphs), graphs.batch.index_select(0, graphs.target), graphs.count)
        sums = (1 + self.eps) * sum_by(x, graphs.batch, graphs.count) + arrived
        return mean_of_linear(self.linear, sums, graphs)

    def _messages(self, x: Tensor, bonds: Tensor, graphs: Graphs) -> Tensor:
        return (x.index_select(0, graphs.source) + graphs.bonds.spread(bonds)).relu_()


class GINE(GraphNetwork):
    """Three GINE convolutions, mean pooling, a two-layer head, as in the paper's experiments.

    Bond features pass a linear layer to the width of the atom features for the first convolution, and another to the
    hidden width, shared by the second and third. ReLU after the first two convolutions.

    >>> from apmax.data.molecules import MoleculeBatch, build_chunk
    >>> GINE(hidden=8)(MoleculeBatch(build_chunk(0, ["CCO", "C"]).store)).shape
    torch.Size([2])
    """

    def build(self) -> None:
        """Make the layers."""
        hidden, atom_features, bond_features = self.hidden, self.atom_features, self.bond_features
        self.bonds_first = nn.Linear(bond_features, atom_features)
        self.bonds_later = nn.Linear(atom_features, hidden)
        self.first = GINEConvolution(atom_features, hidden)
        self.second = GINEConvolution(hidden, hidden)
        self.third = GINEConvolution(hidden, hidden)
        self.head = self.make_head(hidden)

    def embed(self, graphs: Graphs, given: Any) -> Tensor:  # noqa: ARG002
        """Return the mean of each molecule's atoms, (B, hidden)."""
        wide = self.bonds_first(graphs.bonds.rows)
        bonds = self.bonds_later(wide)
        x = self.first.first(wide, graphs).relu_()
        x = self.second(x, bonds, graphs).relu_()
        return self.third.pooled(x, bonds, graphs)
