"""ML-MPNN, message passing on four levels: atoms, bonds, cliques and the whole molecule."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from apmax.data.molecules import CLIQUE_KINDS
from apmax.data.molecules.descriptors import DESCRIPTOR_COUNT
from apmax.models.graphs.aggregation import Adjacency, segment_mean
from apmax.models.graphs.base import GraphNetwork
from apmax.models.graphs.graph_batch import GraphBatch

LAYERS = 3


@dataclass(frozen=True)
class Level:
    """The assignment of atoms, bonds or cliques to molecules.

    Attributes:
        pooling: Members → their molecules.
        sizes: (B, 1) members of each molecule, 1 where there are none.
        scale: (n, 1) the factor 1 / √size of the graph-size norm, of each member.
    """

    pooling: Adjacency
    sizes: Tensor
    scale: Tensor

    @classmethod
    def from_pooling(cls, pooling: Adjacency, batch: Tensor, dtype: torch.dtype) -> Level:
        """Return the level whose member i belongs to molecule `batch[i]`."""
        sizes = pooling.degrees(dtype).clamp_(min=1)
        return cls(pooling, sizes, sizes.rsqrt().index_select(0, batch))

    def mean(self, values: Tensor) -> Tensor:
        """Return (B, h), the mean over each molecule's members, 0 where there are none."""
        return self.pooling.sum(values).div_(self.sizes)

    def broadcast(self, values: Tensor) -> Tensor:
        """Return (n, h), each member's row of its molecule's values (B, h)."""
        return self.pooling.transposed.sum(values)


@dataclass(frozen=True)
class Topology:
    """The levels of a batch and their adjacency.

    Attributes:
        atoms, bonds, cliques: The levels; bonds are directed, so that every bond of a molecule counts twice.
        ends: Rows (2 i, 2 i + 1) for atom i as source and as target → directed bonds.
        incoming: Directed bonds → their target atoms.
        neighbours: Atoms → adjacent atoms.
        members: Atoms → the cliques they belong to.
        tree: Cliques → adjacent cliques of the junction tree.
    """

    atoms: Level
    bonds: Level
    cliques: Level
    ends: Adjacency
    incoming: Adjacency
    neighbours: Adjacency
    members: Adjacency
    tree: Adjacency

    @classmethod
    def from_batch(cls, graphs: GraphBatch, batch: Any, dtype: torch.dtype) -> Topology:
        """Return the topology of a `MoleculeBatch`.

        Raises:
            ValueError: The batch has no cliques or descriptors.
        """
        if getattr(batch, "cliques", None) is None or getattr(batch, "descriptors", None) is None:
            raise ValueError("ML-MPNN needs cliques and descriptors: read the data set with levels=True")
        source, target, atoms, count = graphs.source, graphs.target, graphs.num_atoms, graphs.count
        bond = torch.arange(len(source), device=source.device)
        bond_molecule = graphs.batch.index_select(0, target)
        ends = torch.stack([2 * source, 2 * target + 1], dim=1).flatten()
        cliques = len(batch.cliques)
        return cls(
            atoms=Level.from_pooling(Adjacency.from_segments(graphs.batch, count), graphs.batch, dtype),
            bonds=Level.from_pooling(Adjacency.from_index(bond_molecule, count).transposed, bond_molecule, dtype),
            cliques=Level.from_pooling(Adjacency.from_segments(batch.clique_batch, count), batch.clique_batch, dtype),
            ends=Adjacency.from_pairs(ends, bond.repeat_interleave(2), senders=2 * atoms, receivers=len(bond)),
            incoming=Adjacency.from_index(target, atoms).transposed,
            neighbours=Adjacency.symmetric(source, target, atoms),
            members=Adjacency.from_pairs(batch.members[1], batch.members[0], senders=atoms, receivers=cliques),
            tree=Adjacency.symmetric(batch.tree[0], batch.tree[1], cliques),
        )


@dataclass(frozen=True)
class States:
    """Hidden states of all levels: atoms (N, h), directed bonds (E, h), cliques (C, h), molecules (B, h)."""

    atoms: Tensor
    bonds: Tensor
    cliques: Tensor
    molecules: Tensor


class TwoLayerMLP(nn.Module):
    """Linear → ReLU → linear; the input may be several blocks of the hidden width side by side.

    As W [a, b, …] = W_a a + W_b b + …, callers multiply each block where it has the fewest rows (a molecule's state
    once per molecule, an atom's once per atom) and add the products; the concatenation is never formed.
    """

    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.first = nn.Linear(width, hidden)
        self.second = nn.Linear(hidden, hidden)

    def forward(self, x: Tensor) -> Tensor:
        """Return (n, hidden) from the concatenated input (n, width)."""
        out: Tensor = self.second(self.first(x).relu_())
        return out

    def blocks(self) -> tuple[Tensor, ...]:
        """Return the weights of the first layer by input block, each (h, hidden) to multiply from the right."""
        blocks: tuple[Tensor, ...] = self.first.weight.T.split(self.second.in_features)
        return blocks


class LevelNorms(nn.Module):
    """Graph-size norm (division by √members) of atoms, bonds and cliques, and batch norm of all four levels."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.atoms = nn.BatchNorm1d(hidden)
        self.bonds = nn.BatchNorm1d(hidden)
        self.cliques = nn.BatchNorm1d(hidden)
        self.molecules = nn.BatchNorm1d(hidden)

    def forward(self, states: States, topology: Topology) -> States:
        """Return the normalised states."""
        return States(
            self.atoms(states.atoms * topology.atoms.scale),
            self.bonds(states.bonds * topology.bonds.scale),
            self.cliques(states.cliques * topology.cliques.scale),
            self.molecules(states.molecules),
        )


class MultiLevelLayer(nn.Module):
    """One update of all levels, each from the states of the others as already updated.

    With x atoms, e_rc the directed bond r → c, c cliques, u the molecule and [·] concatenation:

        e_rc ← bonds([x_r, x_c, e_rc, u])
        x_c  ← atoms([x_c, messages(Σ_r [x_r, e_rc]), u])
        c    ← cliques([clique_atoms(Σ_{i in c} x_i), c, clique_neighbours(Σ adjacent cliques), u])
        u    ← molecules([u, mean x, mean e, mean c])
    """

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.bonds = TwoLayerMLP(4 * hidden, hidden)
        self.messages = TwoLayerMLP(2 * hidden, hidden)
        self.atoms = TwoLayerMLP(3 * hidden, hidden)
        self.clique_atoms = TwoLayerMLP(hidden, hidden)
        self.clique_neighbours = TwoLayerMLP(hidden, hidden)
        self.cliques = TwoLayerMLP(4 * hidden, hidden)
        self.molecules = TwoLayerMLP(4 * hidden, hidden)

    def forward(self, states: States, topology: Topology) -> States:
        """Return the updated states."""
        bonds = self.bonds.second(self._bonds(states, topology))
        received = topology.incoming.sum(bonds) @ self.messages.blocks()[1]
        atoms = self.atoms.second(self._atoms(states, topology, received))
        members = self.clique_atoms.first(topology.members.sum(atoms))
        cliques = self.cliques.second(self._cliques(states, topology, members))
        means = torch.cat(
            [states.molecules, topology.atoms.mean(atoms), topology.bonds.mean(bonds), topology.cliques.mean(cliques)],
            dim=1,
        )
        return States(atoms, bonds, cliques, self.molecules(means))

    def forward_molecules(self, states: States, topology: Topology) -> Tensor:
        """Return the updated state of the molecules only, (B, h).

        Atoms, bonds and cliques are then read only through sums, and a linear layer of a sum is the sum of the linear
        layer: their second layers are applied to sums, which have fewer rows.
        """
        hidden = self._bonds(states, topology)
        received = _linear_of_sums(self.bonds.second, self.messages.blocks()[1], hidden, topology.incoming)
        no_bonds = topology.bonds.pooling.degrees(hidden.dtype) == 0
        bond_means = self.bonds.second(topology.bonds.mean(hidden)).masked_fill(no_bonds, 0.0)
        hidden = self._atoms(states, topology, received)
        members = _linear_of_sums(self.atoms.second, self.clique_atoms.first.weight.T, hidden, topology.members)
        atom_means = self.atoms.second(topology.atoms.mean(hidden))
        hidden = self._cliques(states, topology, members + self.clique_atoms.first.bias)
        clique_means = self.cliques.second(topology.cliques.mean(hidden))
        out: Tensor = self.molecules(torch.cat([states.molecules, atom_means, bond_means, clique_means], dim=1))
        return out

    def _bonds(self, states: States, topology: Topology) -> Tensor:
        """Return the hidden layer of the bonds' MLP, (E, h)."""
        source, target, bond, molecule = self.bonds.blocks()
        # Two rows for each atom: its product as source; and its product as target plus that of the molecule.
        shared = torch.addmm(self.bonds.first.bias, states.molecules, molecule)
        shared = topology.atoms.broadcast(torch.cat([torch.zeros_like(shared), shared], dim=1))
        by_end = shared.addmm_(states.atoms, torch.cat([source, target], dim=1)).view(-1, len(source))
        return topology.ends.sum(by_end).addmm_(states.bonds, bond).relu_()

    def _atoms(self, states: States, topology: Topology, received: Tensor) -> Tensor:
        """Return the hidden layer of the atoms' MLP, (N, h), from the bonds' part of the messages' first layer."""
        neighbour, _ = self.messages.blocks()
        own, message, molecule = self.atoms.blocks()
        hidden = torch.addmm(self.messages.first.bias, topology.neighbours.sum(states.atoms), neighbour)
        hidden = hidden.add_(received).relu_()
        # The second layer of the messages and its block of the next layer are one matrix.
        bias = torch.addmv(self.atoms.first.bias, message.T, self.messages.second.bias)
        total = topology.atoms.broadcast(torch.addmm(bias, states.molecules, molecule))
        return total.addmm_(hidden, self.messages.second.weight.T @ message).addmm_(states.atoms, own).relu_()

    def _cliques(self, states: States, topology: Topology, members: Tensor) -> Tensor:
        """Return the hidden layer of the cliques' MLP, (C, h), from the first layer of `clique_atoms`."""
        atoms, own, adjacent, molecule = self.cliques.blocks()
        neighbours = self.clique_neighbours.first(topology.tree.sum(states.cliques)).relu_()
        bias = torch.addmv(self.cliques.first.bias, atoms.T, self.clique_atoms.second.bias)
        bias = torch.addmv(bias, adjacent.T, self.clique_neighbours.second.bias)
        total = topology.cliques.broadcast(torch.addmm(bias, states.molecules, molecule))
        total = total.addmm_(members.relu_(), self.clique_atoms.second.weight.T @ atoms)
        total = total.addmm_(neighbours, self.clique_neighbours.second.weight.T @ adjacent)
        return total.addmm_(states.cliques, own).relu_()


def _linear_of_sums(layer: nn.Linear, weight: Tensor, x: Tensor, adjacency: Adjacency) -> Tensor:
    """Return `adjacency.sum(layer(x)) @ weight`, with the layer applied after the sum."""
    bias = adjacency.degrees(x.dtype) * (layer.bias @ weight)
    return torch.addmm(bias, adjacency.sum(x), layer.weight.T @ weight)


class MLMPNN(GraphNetwork):
    """Multi-level message passing (three layers) with 200 molecular descriptors, as in the paper's experiments.

    Atoms, and bonds by direction, start as two-layer MLPs of their features, cliques as an embedding of their kind,
    the molecule as a two-layer MLP of its bonds' mean features. Graph-size and batch norm follow the start and every
    `MultiLevelLayer`. The head reads the molecule's last state and its descriptors.

    The input must be a `MoleculeBatch` of a data set read with `levels=True`: PyG's containers have no cliques and
    descriptors.

    Raises:
        ValueError: The batch has no cliques or descriptors.
    """

    def build(self) -> None:
        """Create the layers."""
        hidden = self.hidden
        self.atoms = TwoLayerMLP(self.atom_features, hidden)
        self.bonds = TwoLayerMLP(self.bond_features, hidden)
        self.cliques = nn.Embedding(len(CLIQUE_KINDS), hidden)
        self.molecules = TwoLayerMLP(self.bond_features, hidden)
        self.norms = nn.ModuleList(LevelNorms(hidden) for _ in range(LAYERS))
        self.layers = nn.ModuleList(MultiLevelLayer(hidden) for _ in range(LAYERS))
        # Only the molecules' state of the last layer is read.
        self.last_norm = nn.BatchNorm1d(hidden)
        self.head = self.make_head(hidden + DESCRIPTOR_COUNT)

    def embed(self, graphs: GraphBatch, inputs: Any) -> Tensor:
        """Return (B, hidden + 200), every molecule's last state and descriptors."""
        topology = Topology.from_batch(graphs, inputs, self.dtype)
        bond_molecule = graphs.batch.index_select(0, graphs.target)
        states = States(
            graphs.atoms.gather(self.atoms(graphs.atoms.rows)),
            graphs.bonds.gather(self.bonds(graphs.bonds.rows)),
            self.cliques(inputs.cliques),
            self.molecules(segment_mean(graphs.bonds.gather(graphs.bonds.rows), bond_molecule, graphs.count)),
        )
        layers: list[Any] = list(self.layers)
        norms: list[Any] = list(self.norms)
        for norm, layer in zip(norms[:-1], layers[:-1], strict=True):
            states = layer(norm(states, topology), topology)
        molecules = self.last_norm(layers[-1].forward_molecules(norms[-1](states, topology), topology))
        return torch.cat([molecules, inputs.descriptors.to(self.dtype)], dim=1)
