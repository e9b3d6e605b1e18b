"""ML-MPNN, message passing on four levels: atoms, bonds, cliques and the whole molecule."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from apmax.data.molecules.descriptors import COUNT
from apmax.data.molecules.vocabulary import CLIQUE_KINDS
from apmax.models.graphs.base import GraphNetwork
from apmax.models.graphs.inputs import Graphs
from apmax.models.graphs.levels import Level, Molecules
from apmax.models.graphs.links import Links
from apmax.models.graphs.looked_up import Kinds, LookedUp

LAYERS = 3

State = Tensor | LookedUp
States = tuple[State, State, State, Tensor]
"""What a layer reads: atoms (N, h), bonds (E / 2, h), cliques (C, h), molecules (B, h)."""
Updated = tuple[Tensor, Tensor, Tensor, Tensor]
"""What it returns, written out."""


def along(links: Links, state: State) -> State:
    """Return the sums of a state along links, in the form that it has."""
    return state.along(links) if isinstance(state, LookedUp) else links.sum(state)


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

    def forward(self, graph: Tensor, level: Level | None, *own: State) -> Tensor:
        """Return (n, hidden) from a level's own inputs (n, hidden) and its molecules' (B, hidden)."""
        out: Tensor = self.second(self.first(graph, level, *own))
        return out

    def first(self, graph: Tensor, level: Level | None, *own: State) -> Tensor:
        """Return what the second layer reads, (n, hidden)."""
        last, *weights = self.weight.unbind()
        total = torch.addmm(self.bias, graph, last)
        if level is not None:
            total = level.molecules.back().sum(total)
        for state, weight in zip(own, weights, strict=True):
            if isinstance(state, LookedUp):
                total = total.addmm_(state.shares, state.table @ weight)
            else:
                total = total.addmm_(state, weight)
        return total.relu_()


class Norms(nn.Module):
    """Graph-size norm and batch norm of atoms, bonds and cliques, batch norm of the molecule; then ReLU."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.levels = nn.ModuleList(nn.BatchNorm1d(hidden) for _ in range(3))
        self.graph = nn.BatchNorm1d(hidden)

    def forward(self, states: Updated, of: Molecules) -> Updated:
        """Return the four levels' normalised states; the given ones are overwritten."""
        levels = zip(self.levels, (of.atoms, of.bonds, of.cliques), states, strict=False)
        atoms, bonds, cliques = (norm(level.scale_(state)).relu_() for norm, level, state in levels)
        return atoms, bonds, cliques, self.graph(states[3]).relu_()

    def begin(self, kinds: tuple[Kinds, Kinds, Kinds], graph: Tensor) -> States:
        """Return those of the states that all begins with, in which atoms, bonds and cliques are of few kinds."""
        atoms, bonds, cliques = (kind.normalised(norm) for kind, norm in zip(kinds, self.levels, strict=True))
        return atoms, bonds, cliques, self.graph(graph)


class MultiLevelLayer(nn.Module):
    """One round: bonds, then atoms, then cliques, then the molecule, each from the others as they are by then."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.bonds = JoinedMLP(3, hidden)
        self.atoms = JoinedMLP(3, hidden)
        self.cliques = JoinedMLP(3, hidden)
        self.graph = JoinedMLP(4, hidden)

    def forward(self, states: States, of: Molecules) -> Updated:
        """Return the four levels' next states."""
        before, _, cliques_before, graph = states
        bonds, near = self._bonds(states, of)
        atoms = self.atoms(graph, of.atoms, near, before)
        inside = of.members.sum(atoms).div_(of.member_counts)
        cliques = self.cliques(graph, of.cliques, inside, along(of.tree, cliques_before))
        graph = self.graph(graph, None, of.atoms.mean(atoms), of.bonds.mean(bonds), of.cliques.mean(cliques))
        return atoms, bonds, cliques, graph

    def last(self, states: States, of: Molecules) -> Tensor:
        """Return the molecules' next state alone.

        Of atoms and cliques only means are read then, and the second layer of a mean is the mean of the second layer,
        with fewer rows to multiply. (Not of bonds, where a molecule has none: their mean is 0.)
        """
        atoms, _, cliques, graph = states
        bonds, near = self._bonds(states, of)
        hidden = self.atoms.first(graph, of.atoms, near, atoms)
        inside = self.atoms.second(of.members.sum(hidden).div_(of.member_counts))
        of_atoms = self.atoms.second(of.atoms.mean(hidden))
        hidden = self.cliques.first(graph, of.cliques, inside, along(of.tree, cliques))
        of_cliques = self.cliques.second(of.cliques.mean(hidden))
        out: Tensor = self.graph(graph, None, of_atoms, of.bonds.mean(bonds), of_cliques)
        return out

    def _bonds(self, states: States, of: Molecules) -> tuple[Tensor, Tensor]:
        """Return the bonds' next states, and of each atom the sum over its bonds of the other atom and the bond."""
        atoms, before, _, graph = states
        pair: Any = along(of.ends, atoms)
        to_ends = of.ends.back()
        bonds = self.bonds(graph, of.bonds, before, pair)
        # The other ends are what both ends sum to, less the atom itself, once for each bond.
        if isinstance(atoms, LookedUp):
            others = to_ends.sum(pair.shares).addcmul_(of.less_degrees, atoms.shares)
            return bonds, to_ends.sum(bonds).addmm_(others, atoms.table)
        return bonds, to_ends.sum(pair + bonds).addcmul_(of.less_degrees, atoms)


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

    def build(self) -> None:
        """Make the layers."""
        hidden, atom_features, bond_features = self.hidden, self.atom_features, self.bond_features
        self.atoms = nn.Linear(atom_features, hidden)
        self.bonds = nn.Linear(bond_features, hidden)
        self.cliques = nn.Embedding(len(CLIQUE_KINDS), hidden)
        self.layers = nn.ModuleList(MultiLevelLayer(hidden) for _ in range(LAYERS))
        self.norms = nn.ModuleList(Norms(hidden) for _ in range(LAYERS))
        # Of the last layer only the molecule's state is read.
        self.last_norm = nn.BatchNorm1d(hidden)
        self.head = self.make_head(hidden + COUNT)

    def embed(self, graphs: Graphs, given: Any) -> Tensor:
        """Return every molecule's last state and descriptors, (B, hidden + 200)."""
        of = Molecules.of(graphs, given, self.dtype)
        bonds = graphs.bonds.index()[: len(of.bonds.factors)]
        kinds = (
            Kinds.of(of.atoms, graphs.atoms.index(), self.atoms(graphs.atoms.rows)),
            Kinds.of(of.bonds, bonds, self.bonds(graphs.bonds.rows)),
            Kinds.of(of.cliques, given.cliques, self.cliques.weight),
        )
        layers: list[Any] = list(self.layers)
        norms: list[Any] = list(self.norms)
        states = norms[0].begin(kinds, kinds[1].mean(of.bonds))
        for layer, norm in zip(layers[:-1], norms[1:], strict=True):
            states = norm(layer(states, of), of)
        graph = self.last_norm(layers[-1].last(states, of)).relu_()
        return torch.cat([graph, given.descriptors.to(self.dtype)], dim=1)
