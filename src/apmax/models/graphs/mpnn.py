"""MPNN, message passing with edge-conditioned convolutions (Gilmer et al. 2017)."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from apmax.models.graphs.aggregation import segment_mean, segment_mean_of_linear, segment_sizes, segment_sum
from apmax.models.graphs.base import GraphNetwork
from apmax.models.graphs.graph_batch import GraphBatch

MAX_MATRICES = 64
"""With more distinct bonds (continuous features) the matrices Θ(e) are not computed one by one."""


class EdgeConvolution(nn.Module):
    """x_i ← x_i W + Σ_j x_j Θ(e_ij) + b, with Θ(e) a linear map of the bond features.

    Bonds take few distinct values: one matrix is computed per distinct bond, and there is one matrix product per group
    of equal bonds instead of one per bond.
    """

    def __init__(self, width: int, hidden: int, bond_features: int) -> None:
        super().__init__()
        self.width, self.hidden = width, hidden
        self.matrices = nn.Linear(bond_features, width * hidden)
        self.root = nn.Linear(width, hidden)

    def forward(self, x: Tensor, graphs: GraphBatch) -> Tensor:
        """Return (N, hidden) from atoms (N, width)."""
        rows = graphs.bonds.rows
        if len(rows) > MAX_MATRICES:
            messages, target = self._messages_by_feature(x, graphs), graphs.target
        elif x.device.type == "cpu":
            messages, target = self._messages_by_group(x, graphs)
        else:
            # Group sizes would have to be copied to the host; the product with every matrix costs less.
            table = self._pair_table(x, rows)
            pair = graphs.source * len(rows) + graphs.bonds.index()
            messages, target = table.index_select(0, pair), graphs.target
        out: Tensor = self.root(x)
        return out.index_add_(0, target, messages)

    def forward_features(self, graphs: GraphBatch) -> Tensor:
        """Return (N, hidden), the convolution of the input features, computed once per distinct atom and bond."""
        atoms, rows = graphs.atoms, graphs.bonds.rows
        if atoms.ids is None or len(atoms.rows) * len(rows) > len(graphs.source):
            return self.forward(atoms.gather(atoms.rows), graphs)
        pair = atoms.ids.index_select(0, graphs.source) * len(rows) + graphs.bonds.index()
        messages = self._pair_table(atoms.rows, rows).index_select(0, pair)
        return atoms.gather(self.root(atoms.rows)).index_add_(0, graphs.target, messages)

    def forward_mean(self, x: Tensor, graphs: GraphBatch) -> Tensor:
        """Return (B, hidden), the mean of the convolution over the atoms of each molecule.

        The layer is linear in the atoms: these are summed by molecule and distinct bond first, and there is one matrix
        product per molecule instead of one per bond.
        """
        rows, count = graphs.bonds.rows, graphs.count
        if len(rows) > MAX_MATRICES or len(rows) * count > len(graphs.source):
            return segment_mean(self.forward(x, graphs), graphs.batch, count)
        molecule = graphs.batch.index_select(0, graphs.target)
        segments = molecule * len(rows) + graphs.bonds.index()
        sums = segment_sum(x.index_select(0, graphs.source), segments, count * len(rows))
        messages: Tensor = sums.view(count, len(rows) * self.width) @ self.matrices(rows).view(-1, self.hidden)
        own = segment_mean_of_linear(self.root, segment_sum(x, graphs.batch, count), graphs.batch)
        return own + messages / segment_sizes(graphs.batch, count, x.dtype)

    def _pair_table(self, x: Tensor, bonds: Tensor) -> Tensor:
        matrices = self.matrices(bonds).view(len(bonds), self.width, self.hidden)
        table: Tensor = x @ matrices.transpose(0, 1).flatten(1)
        return table.view(-1, self.hidden)

    def _messages_by_group(self, x: Tensor, graphs: GraphBatch) -> tuple[Tensor, Tensor]:
        rows, ids = graphs.bonds.rows, graphs.bonds.index()
        order = torch.argsort(ids)
        counts = torch.bincount(ids, minlength=len(rows)).tolist()
        parts = x.index_select(0, graphs.source.index_select(0, order)).split(counts)
        matrices = self.matrices(rows).view(len(rows), self.width, self.hidden).unbind()
        messages = [part @ matrix for part, matrix in zip(parts, matrices, strict=True)]
        # An empty first part, for batches without bonds.
        joined = torch.cat([x.new_zeros(0, self.hidden), *messages])
        return joined, graphs.target.index_select(0, order)

    def _messages_by_feature(self, x: Tensor, graphs: GraphBatch) -> Tensor:
        # x Θ(e) = Σ_k e_k (x Θ_k) + x Θ_0, linear in the features e.
        basis = torch.cat([self.matrices.weight.T, self.matrices.bias[None]])
        table = (x @ basis.view(-1, self.width, self.hidden).transpose(0, 1).flatten(1)).view(len(x), -1, self.hidden)
        features = graphs.bonds.gather(torch.nn.functional.pad(graphs.bonds.rows, (0, 1), value=1.0))
        return (features[:, None] @ table.index_select(0, graphs.source))[:, 0]


class MPNN(GraphNetwork):
    """Three edge-conditioned convolutions, mean pooling, a two-layer head, as in the paper's experiments.

    After the first two: graph-size normalisation (division by √atoms), batch norm, ReLU.

    >>> from apmax.data.molecules import MoleculeBatch, build_chunk
    >>> MPNN(hidden=8, tasks=3)(MoleculeBatch(build_chunk(0, ["CCO", "C"]).store)).shape
    torch.Size([2, 3])
    """

    def build(self) -> None:
        """Create the layers."""
        hidden, atom_features, bond_features = self.hidden, self.atom_features, self.bond_features
        self.first = EdgeConvolution(atom_features, hidden, bond_features)
        self.second = EdgeConvolution(hidden, hidden, bond_features)
        self.third = EdgeConvolution(hidden, hidden, bond_features)
        self.first_norm = nn.BatchNorm1d(hidden)
        self.second_norm = nn.BatchNorm1d(hidden)
        self.head = self.make_head(hidden)

    def embed(self, graphs: GraphBatch, inputs: Any) -> Tensor:  # noqa: ARG002
        """Return (B, hidden), the mean of each molecule's atoms."""
        scale = segment_sizes(graphs.batch, graphs.count, self.dtype).rsqrt().index_select(0, graphs.batch)
        x = self.first_norm(self.first.forward_features(graphs) * scale).relu()
        x = self.second_norm(self.second(x, graphs) * scale).relu()
        return self.third.forward_mean(x, graphs)
