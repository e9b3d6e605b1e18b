"""GINE, the graph isomorphism network with bond features (Hu et al. 2020)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from apmax.models.graphs.aggregation import segment_mean_of_linear, segment_sum
from apmax.models.graphs.base import GraphNetwork
from apmax.models.graphs.graph_batch import GraphBatch


class GINEConvolution(nn.Module):
    """x_i ← W ((1 + ε) x_i + Σ_j relu(x_j + e_ij)) + b, with a trainable ε."""

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.eps = nn.Parameter(torch.zeros(()))
        self.linear = nn.Linear(width, hidden)

    def reset_parameters(self) -> None:
        """Set ε to zero; the linear layer has its own method."""
        nn.init.zeros_(self.eps)

    def forward(self, x: Tensor, bonds: Tensor, graphs: GraphBatch) -> Tensor:
        """Return (N, hidden) from atoms (N, width) and the distinct bonds' embeddings (R, width)."""
        out: Tensor = self.linear((1 + self.eps) * x + graphs.sum_at_targets(self._messages(x, bonds, graphs)))
        return out

    def forward_features(self, bonds: Tensor, graphs: GraphBatch) -> Tensor:
        """Return (N, hidden), the convolution of the atoms' input features.

        A message depends only on the distinct atom and the distinct bond, and a batch has far fewer such pairs than
        bonds: ReLU and the linear layer are applied once to each pair, then gathered and summed.
        """
        atoms = graphs.atoms
        pairs = len(atoms.rows) * len(bonds)
        if atoms.ids is None or pairs > len(graphs.source):
            return self.forward(atoms.gather(atoms.rows), bonds, graphs)
        table = (atoms.rows[:, None] + bonds).relu_().flatten(0, 1) @ self.linear.weight.T
        pair = atoms.ids.index_select(0, graphs.source) * len(bonds) + graphs.bonds.index()
        own = (1 + self.eps) * (atoms.rows @ self.linear.weight.T) + self.linear.bias
        return atoms.gather(own).index_add_(0, graphs.target, table.index_select(0, pair))

    def forward_mean(self, x: Tensor, bonds: Tensor, graphs: GraphBatch) -> Tensor:
        """Return (B, hidden), the mean of the convolution over the atoms of each molecule.

        The layer is linear in the sum of the messages: these are summed by molecule first, and the matrix product has
        one row per molecule instead of one per atom.
        """
        molecule = graphs.batch.index_select(0, graphs.target)
        messages = segment_sum(self._messages(x, bonds, graphs), molecule, graphs.count)
        sums = (1 + self.eps) * segment_sum(x, graphs.batch, graphs.count) + messages
        return segment_mean_of_linear(self.linear, sums, graphs.batch)

    def _messages(self, x: Tensor, bonds: Tensor, graphs: GraphBatch) -> Tensor:
        return (x.index_select(0, graphs.source) + graphs.bonds.gather(bonds)).relu_()


class GINE(GraphNetwork):
    """Three GINE convolutions, mean pooling, a two-layer head, as in the paper's experiments.

    Bond features pass a linear layer to the width of the atom features for the first convolution, and another to the
    hidden width, shared by the second and third. ReLU after the first two convolutions.

    >>> from apmax.data.molecules import MoleculeBatch, build_chunk
    >>> GINE(hidden=8)(MoleculeBatch(build_chunk(0, ["CCO", "C"]).store)).shape
    torch.Size([2])
    """

    def build(self) -> None:
        """Create the layers."""
        hidden, atom_features, bond_features = self.hidden, self.atom_features, self.bond_features
        self.bonds_first = nn.Linear(bond_features, atom_features)
        self.bonds_later = nn.Linear(atom_features, hidden)
        self.first = GINEConvolution(atom_features, hidden)
        self.second = GINEConvolution(hidden, hidden)
        self.third = GINEConvolution(hidden, hidden)
        self.head = self.make_head(hidden)

    def embed(self, graphs: GraphBatch, inputs: Any) -> Tensor:  # noqa: ARG002
        """Return (B, hidden), the mean of each molecule's atoms."""
        wide = self.bonds_first(graphs.bonds.rows)
        bonds = self.bonds_later(wide)
        x = self.first.forward_features(wide, graphs).relu_()
        x = self.second(x, bonds, graphs).relu_()
        return self.third.forward_mean(x, bonds, graphs)
