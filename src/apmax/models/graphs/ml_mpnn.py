"""ML-MPNN, message passing on four levels: atoms, bonds, cliques and the whole molecule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from apmax import validation
from apmax.data.molecules.descriptors import COUNT
from apmax.data.molecules.vocabulary import ATOM_WIDTH, BOND_WIDTH, CLIQUE_KINDS
from apmax.models.graphs.base import GraphNetwork
from apmax.models.graphs.inputs import Graphs, sizes, sum_by

States = tuple[Tensor, Tensor, Tensor, Tensor]
"""Atoms (N, h), bonds (E / 2, h), cliques (C, h), molecules (B, h)."""


@dataclass(frozen=True)
class Level:
    """The members of one level (atoms, bonds or cliques), and the molecule each belongs to."""

    batch: Tensor
    sizes: Tensor

    @classmethod
    def of(cls, batch: Tensor, count: int, dtype: torch.dtype) -> Level:
        """Return the level whose members belong to the molecules `batch`."""
        return cls(batch, sizes(batch, count, dtype))

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of each molecule's members, (B, ...)."""
        return sum_by(values, self.batch, len(self.sizes)) / self.sizes

    def scale(self, values: Tensor) -> Tensor:
        """Return the values divided by the root of their molecule's number of members."""
        return values * self.sizes.rsqrt().index_select(0, self.batch)


@dataclass(frozen=True)
class Molecules:
    """The structure of a batch on all levels: a bond's two atoms, cliques' members, neighbours in the junction tree."""

    one: Tensor
    other: Tensor
    atoms: Level
    bonds: Level
    cliques: Level
    clique: Tensor
    member: Tensor
    member_counts: Tensor
    tree_source: Tensor
    tree_target: Tensor


class JoinedMLP(nn.Module):
    """Two layers over several inputs side by side.

    W [a, b, …] = W_a a + W_b b + …: an input that many rows share (a molecule's, an atom's) is multiplied once and
    then looked up, and nothing is copied side by side.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.inputs = inputs
        self.first = nn.Linear(inputs * hidden, hidden)
        self.second = nn.Linear(hidden, hidden)

    def parts(self, *values: Tensor) -> list[Tensor]:
        """Return each input's share of the first layer, to be looked up, summed and given to `finish`."""
        weights = self.first.weight.chunk(self.inputs, dim=1)
        return [value @ weight.T for value, weight in zip(values, weights, strict=True)]

    def finish(self, total: Tensor) -> Tensor:
        """Return the output from the sum of the shares, which is overwritten."""
        out: Tensor = self.second(total.add_(self.first.bias).relu_())
        return out


class Norms(nn.Module):
    """Graph-size norm and batch norm of atoms, bonds and cliques, batch norm of the molecule."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(3))
        self.graph = nn.BatchNorm1d(hidden)

    def forward(self, states: States, of: Molecules) -> States:
        """Return the four levels' normalised states."""
        levels = zip(self.levels, (of.atoms, of.bonds, of.cliques), states, strict=False)
        atoms, bonds, cliques = (norm(level.scale(state)) for norm, level, state in levels)
        return atoms, bonds, cliques, self.graph(states[3])


class MultiLevelLayer(nn.Module):
    """One round: bonds, then atoms, then cliques, then the molecule, each from the others as they are by then."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.bonds = JoinedMLP(3, hidden)
        self.atoms = JoinedMLP(3, hidden)
        self.cliques = JoinedMLP(3, hidden)
        self.graph = JoinedMLP(4, hidden)

    def forward(self, states: States, of: Molecules) -> States:
        """Return the four levels' next states."""
        atoms, bonds, cliques, graph = states
        bond, atom, whole = self.bonds.parts(bonds, atoms, graph)
        bond = bond.add_(atom.index_select(0, of.one)).add_(atom.index_select(0, of.other))
        bonds = self.bonds.finish(bond.add_(whole.index_select(0, of.bonds.batch)))

        near = torch.zeros_like(atoms).index_add(0, of.one, atoms.index_select(0, of.other) + bonds)
        near = near.index_add_(0, of.other, atoms.index_select(0, of.one) + bonds)
        near, atom, whole = self.atoms.parts(near, atoms, graph)
        atoms = self.atoms.finish(near.add_(atom).add_(whole.index_select(0, of.atoms.batch)))

        inside = sum_by(atoms.index_select(0, of.member), of.clique, len(cliques)) / of.member_counts
        beside = sum_by(cliques.index_select(0, of.tree_source), of.tree_target, len(cliques))
        inside, beside, whole = self.cliques.parts(inside, beside, graph)
        cliques = self.cliques.finish(inside.add_(beside).add_(whole.index_select(0, of.cliques.batch)))

        means = of.atoms.mean(atoms), of.bonds.mean(bonds), of.cliques.mean(cliques)
        graph = self.graph.finish(torch.stack(self.graph.parts(graph, *means)).sum(0))
        return atoms, bonds, cliques, graph


class MLMPNN(GraphNetwork):
    """Multi-level message passing (three layers) with the 200 descriptors before the two-layer head.

    Atoms and bonds start as linear maps of their features, cliques as embeddings of their kind, the molecule as the
    mean of its bonds. Every layer updates, each by a two-layer MLP and in this order: bonds from (sum of both atoms,
    bond, molecule); atoms from (sum over neighbours of atom + bond, atom, molecule); cliques from (mean of their atoms,
    sum of their neighbours in the junction tree, molecule); the molecule from (itself, means of the other three).
    Graph-size and batch norm before every layer, and ReLU between two. The molecule's last state, after batch norm and
    ReLU, and its descriptors are joined before the head.

    A bond has one state, not one for each direction, and so its atoms enter as their sum.

    It needs a `MoleculeBatch` of a data set made with `levels=True`: PyG's containers have no cliques and descriptors.

    Raises:
        ValueError: The batch has no cliques or descriptors.
    """

    def __init__(
        self,
        hidden: int = 64,
        tasks: int = 1,
        *,
        atom_features: int = ATOM_WIDTH,
        bond_features: int = BOND_WIDTH,
        dropout: float = 0.0,
        descriptors: int = COUNT,
        layers: int = 3,
    ) -> None:
        super().__init__(hidden, tasks, atom_features=atom_features, bond_features=bond_features, dropout=dropout)
        self.atoms = nn.Linear(atom_features, hidden)
        self.bonds = nn.Linear(bond_features, hidden)
        self.cliques = nn.Embedding(len(CLIQUE_KINDS), hidden)
        self.layers = nn.ModuleList(MultiLevelLayer(hidden) for _ in range(validation.whole("layers", layers, 1)))
        self.norms = nn.ModuleList(Norms(hidden) for _ in range(layers))
        # Of the last layer only the molecule's state is read.
        self.last_norm = nn.BatchNorm1d(hidden)
        self.head = self.make_head(hidden + descriptors)

    def embed(self, graphs: Graphs, given: Any) -> Tensor:
        """Return every molecule's last state and descriptors, (B, hidden + 200)."""
        of = self._structure(graphs, given)
        atoms = graphs.atoms.spread(self.atoms(graphs.atoms.rows))
        bonds = self.bonds(graphs.bonds.rows).index_select(0, graphs.bonds.index()[: len(of.one)])
        states: Any = (atoms, bonds, self.cliques.weight.index_select(0, given.cliques), of.bonds.mean(bonds))
        for number, (layer, norms) in enumerate(zip(self.layers, self.norms, strict=True)):
            states = norms(states, of)
            states = layer(states if number == 0 else tuple(state.relu_() for state in states), of)
        last = self.last_norm(states[3]).relu_()
        return torch.cat([last, given.descriptors.to(self.dtype)], dim=1)

    def _structure(self, graphs: Graphs, given: Any) -> Molecules:
        if getattr(given, "cliques", None) is None or getattr(given, "descriptors", None) is None:
            raise ValueError("ML-MPNN needs cliques and descriptors: make the data set with levels=True")
        clique, member = given.members
        # Our batches hold every bond once, and after them the same in the other direction.
        one, other = given.edge_index[:, : given.edge_index.shape[1] // 2]
        return Molecules(
            one=one,
            other=other,
            atoms=Level.of(graphs.batch, graphs.count, self.dtype),
            bonds=Level.of(graphs.batch.index_select(0, one), graphs.count, self.dtype),
            cliques=Level.of(given.clique_batch, graphs.count, self.dtype),
            clique=clique,
            member=member,
            member_counts=sizes(clique, len(given.cliques), self.dtype),
            tree_source=given.tree[0],
            tree_target=given.tree[1],
        )
