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
from apmax.models.graphs.inputs import Graphs
from apmax.models.graphs.links import Links

States = tuple[Tensor, Tensor, Tensor, Tensor]
"""Atoms (N, h), bonds (E / 2, h), cliques (C, h), molecules (B, h)."""


@dataclass(frozen=True)
class Level:
    """The members of one level (atoms, bonds or cliques), and the molecule each belongs to."""

    molecules: Links
    sizes: Tensor
    factors: Tensor

    @classmethod
    def of(cls, batch: Tensor, count: int, dtype: torch.dtype) -> Level:
        """Return the level whose members belong to the molecules `batch`, in increasing order."""
        molecules = Links.segments(batch, count)
        sizes = molecules.counts(dtype).clamp_(min=1)
        return cls(molecules, sizes, sizes.rsqrt().index_select(0, batch))

    def mean(self, values: Tensor) -> Tensor:
        """Return the mean of each molecule's members, (B, ...)."""
        return self.molecules.sum(values).div_(self.sizes)

    def scale(self, values: Tensor) -> Tensor:
        """Return the values divided by the root of their molecule's number of members."""
        return values * self.factors


@dataclass(frozen=True)
class Molecules:
    """The structure of a batch on all levels.

    Attributes:
        ends: Atoms → the bonds they are an end of.
        degrees: (N, 1) bonds of each atom.
        members: Atoms → the cliques they belong to.
        member_counts: (C, 1) atoms of each clique.
        tree: Cliques → their neighbours in the junction tree.
    """

    atoms: Level
    bonds: Level
    cliques: Level
    ends: Links
    degrees: Tensor
    members: Links
    member_counts: Tensor
    tree: Links


class JoinedMLP(nn.Module):
    """Two layers over several inputs side by side.

    W [a, b, …] = W_a a + W_b b + …: an input that many rows share (a molecule's, an atom's) is multiplied once and
    then looked up, and nothing is copied side by side.
    """

    def __init__(self, inputs: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(inputs, hidden, hidden))
        self.bias = nn.Parameter(torch.empty(hidden))
        self.second = nn.Linear(hidden, hidden)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Initialise the first layer as torch does a linear layer of all inputs side by side."""
        bound = (self.weight.shape[0] * self.weight.shape[1]) ** -0.5
        nn.init.uniform_(self.weight, -bound, bound)
        nn.init.uniform_(self.bias, -bound, bound)

    def forward(self, graph: Tensor, level: Level | None, *own: Tensor) -> Tensor:
        """Return (n, hidden) from a level's own inputs (n, hidden) and its molecules' (B, hidden)."""
        last, *weights = self.weight.unbind()
        total = torch.addmm(self.bias, graph, last)
        if level is not None:
            total = level.molecules.back().sum(total)
        for value, weight in zip(own, weights, strict=True):
            total = total.addmm_(value, weight)
        out: Tensor = self.second(total.relu_())
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
        pair = of.ends.sum(atoms)
        bonds = self.bonds(graph, of.bonds, bonds, pair)
        # A bond's end receives the other end and the bond: what both ends sum to, less itself, once for each bond.
        near = of.ends.back().sum(pair + bonds).addcmul_(of.degrees, atoms, value=-1)
        atoms = self.atoms(graph, of.atoms, near, atoms)
        inside = of.members.sum(atoms).div_(of.member_counts)
        beside = of.tree.sum(cliques)
        cliques = self.cliques(graph, of.cliques, inside, beside)
        graph = self.graph(graph, None, of.atoms.mean(atoms), of.bonds.mean(bonds), of.cliques.mean(cliques))
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
        bonds = self.bonds(graphs.bonds.rows).index_select(0, graphs.bonds.index()[: len(of.bonds.factors)])
        states: Any = (atoms, bonds, self.cliques.weight.index_select(0, given.cliques), of.bonds.mean(bonds))
        for number, (layer, norms) in enumerate(zip(self.layers, self.norms, strict=True)):
            states = norms(states, of)
            states = states if number == 0 else tuple(state.relu_() for state in states)
            states = layer(states, of)
        last = self.last_norm(states[3]).relu_()
        return torch.cat([last, given.descriptors.to(self.dtype)], dim=1)

    def _structure(self, graphs: Graphs, given: Any) -> Molecules:
        if getattr(given, "cliques", None) is None or getattr(given, "descriptors", None) is None:
            raise ValueError("ML-MPNN needs cliques and descriptors: make the data set with levels=True")
        clique, member = given.members
        # Our batches hold every bond once, and after them the same in the other direction.
        bonds = given.edge_index.shape[1] // 2
        both = torch.arange(bonds, device=clique.device).repeat_interleave(2)
        ends = given.edge_index[:, :bonds].T.flatten()
        atoms, cliques, count = graphs.num_atoms, len(given.cliques), graphs.count
        pairs = Links.of(ends, both, senders=atoms, receivers=bonds)
        members = Links.of(member, clique, senders=atoms, receivers=cliques)
        return Molecules(
            atoms=Level.of(graphs.batch, count, self.dtype),
            bonds=Level.of(graphs.batch.index_select(0, graphs.source[:bonds]), count, self.dtype),
            cliques=Level.of(given.clique_batch, count, self.dtype),
            ends=pairs,
            degrees=pairs.back().counts(self.dtype),
            members=members,
            member_counts=members.counts(self.dtype),
            tree=Links.symmetric(given.tree[0], given.tree[1], cliques),
        )
