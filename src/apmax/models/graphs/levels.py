"""The structure of a batch on all levels of ML-MPNN: atoms, bonds, cliques, molecules."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apmax.models.graphs.inputs import Graphs
from apmax.models.graphs.links import Links


@dataclass(frozen=True)
class Level:
    """The members of one level (atoms, bonds or cliques), and the molecule each belongs to.

    Attributes:
        molecules: Members → their molecules.
        sizes: (B, 1) members of each molecule, 1 where there are none.
        factors: (n, 1) for each member 1 / √size of its molecule, the graph-size norm.
    """

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

    def scale_(self, values: Tensor) -> Tensor:
        """Divide the values, in place, by the root of their molecule's number of members."""
        return values.mul_(self.factors)


@dataclass(frozen=True)
class Molecules:
    """How the levels of a batch are linked.

    Attributes:
        ends: Atoms → the bonds they are an end of.
        less_degrees: (N, 1) minus the bonds of each atom.
        members: Atoms → the cliques they belong to.
        member_counts: (C, 1) atoms of each clique.
        tree: Cliques → their neighbours in the junction tree.
    """

    atoms: Level
    bonds: Level
    cliques: Level
    ends: Links
    less_degrees: Tensor
    members: Links
    member_counts: Tensor
    tree: Links

    @classmethod
    def of(cls, graphs: Graphs, given: Any, dtype: torch.dtype) -> Molecules:
        """Return the structure of a `MoleculeBatch` and the graphs that were read from it.

        Raises:
            ValueError: It has no cliques or descriptors.
        """
        if getattr(given, "cliques", None) is None or getattr(given, "descriptors", None) is None:
            raise ValueError("ML-MPNN needs cliques and descriptors: make the data set with levels=True")
        clique, member = given.members
        # Our batches hold every bond once, and after them the same in the other direction.
        bonds = given.edge_index.shape[1] // 2
        both = torch.arange(bonds, device=clique.device).repeat_interleave(2)
        one, other = given.edge_index[:, :bonds]
        atoms, cliques, count = graphs.num_atoms, len(given.cliques), graphs.count
        ends = Links.of(torch.stack([one, other], 1).flatten(), both, senders=atoms, receivers=bonds)
        members = Links.of(member, clique, senders=atoms, receivers=cliques)
        return cls(
            atoms=Level.of(graphs.batch, count, dtype),
            bonds=Level.of(graphs.batch.index_select(0, one), count, dtype),
            cliques=Level.of(given.clique_batch, count, dtype),
            ends=ends,
            less_degrees=-ends.back().counts(dtype),
            members=members,
            member_counts=members.counts(dtype),
            tree=Links.symmetric(given.tree[0], given.tree[1], cliques),
        )
