"""A batch of molecules on plain tensors."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apmax.data.molecules.store import Array, Levels, Ragged, Store


class MoleculeBatch:
    """Molecules joined to one graph: what a model is called with.

    Atoms and bonds are numbers of the distinct rows of categories in this batch: a first layer is computed once per
    distinct row and then looked up. `x` and `edge_attr` are the rows themselves, as other code expects them.

    Attributes:
        atoms: (N,) positions in `atom_rows`.
        atom_rows: (distinct, 8) whole numbers, see `vocabulary.ATOM_FIELDS`.
        edge_index: (2, E), source and target of every bond; both directions.
        bonds: (E,) positions in `bond_rows`.
        bond_rows: (distinct, 4) whole numbers, see `vocabulary.BOND_FIELDS`.
        batch: (N,) the molecule of each atom, in increasing order.
        num_graphs: Molecules in the batch.
        y: (B,) or (B, tasks) labels, or None.
        row: (B,) rows in the data set, the `index` of the losses.
        cliques, clique_batch, members, tree, descriptors: For ML-MPNN, or None: (C,) kinds and molecules of the
            junction trees' cliques; (2, M) clique and atom of each membership; (2, T) neighbours in the trees, both
            directions; (B, 200).
    """

    __slots__ = (
        "atom_rows",
        "atoms",
        "batch",
        "bond_rows",
        "bonds",
        "clique_batch",
        "cliques",
        "descriptors",
        "edge_index",
        "members",
        "num_graphs",
        "row",
        "tree",
        "y",
    )

    atom_rows: Tensor
    atoms: Tensor
    batch: Tensor
    bond_rows: Tensor
    bonds: Tensor
    clique_batch: Tensor | None
    cliques: Tensor | None
    descriptors: Tensor | None
    edge_index: Tensor
    members: Tensor | None
    num_graphs: int
    row: Tensor | None
    tree: Tensor | None
    y: Tensor | None

    def __init__(self, molecules: Store, y: Tensor | None = None, row: Tensor | None = None) -> None:
        counts = np.diff(molecules.atoms.starts)
        first = molecules.atoms.starts[:-1]
        self.num_graphs, self.y, self.row = len(molecules), y, row
        self.atoms, self.atom_rows = _distinct(molecules.atoms.values, molecules.atom_rows)
        self.batch = _long(np.repeat(np.arange(len(counts)), counts))
        bonds = molecules.bonds.values
        self.edge_index = _both_ways(bonds[:, 1:], _shift(molecules.bonds, first))
        kinds, self.bond_rows = _distinct(bonds[:, 0], molecules.bond_rows)
        self.bonds = torch.cat([kinds, kinds])
        self.cliques = self.clique_batch = self.members = self.tree = self.descriptors = None
        if molecules.levels is not None:
            self._add(molecules.levels, first)

    def _add(self, levels: Levels, first_atoms: Array) -> None:
        counts, first = np.diff(levels.cliques.starts), levels.cliques.starts[:-1]
        self.cliques = _long(levels.cliques.values)
        self.clique_batch = _long(np.repeat(np.arange(len(counts)), counts))
        cliques = levels.members.values[:, 0] + _shift(levels.members, first)
        atoms = levels.members.values[:, 1] + _shift(levels.members, first_atoms)
        self.members = _long(np.stack([cliques, atoms]))
        self.tree = _both_ways(levels.tree.values, _shift(levels.tree, first))
        self.descriptors = torch.from_numpy(np.array(levels.descriptors))

    @property
    def x(self) -> Tensor:
        """Every atom's categories, (N, 8)."""
        return self.atom_rows[self.atoms]

    @property
    def edge_attr(self) -> Tensor:
        """Every directed bond's categories, (E, 4)."""
        return self.bond_rows[self.bonds]

    def __len__(self) -> int:
        return self.num_graphs

    def to(self, device: Any, non_blocking: bool = False) -> MoleculeBatch:
        """Return the batch with its tensors on `device`."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> MoleculeBatch:
        """Return the batch in page-locked memory, as loaders ask for."""
        return self._map(lambda tensor: tensor.pin_memory())

    def _map(self, function: Any) -> MoleculeBatch:
        moved = copy.copy(self)
        for name in self.__slots__:
            value = getattr(self, name)
            if isinstance(value, Tensor):
                setattr(moved, name, function(value))
        return moved

    def __repr__(self) -> str:
        return f"MoleculeBatch(molecules={self.num_graphs}, atoms={len(self.atoms)}, bonds={len(self.bonds) // 2})"


def _distinct(values: Array, rows: Array) -> tuple[Tensor, Tensor]:
    """Return `values` counted within those that occur, and these rows."""
    seen = np.zeros(len(rows), dtype=bool)
    seen[values] = True
    places = np.cumsum(seen) - 1
    return _long(places[values]), torch.from_numpy(rows[seen].astype(np.int32))


def _shift(part: Ragged, first: Array) -> Array:
    """Return what is to be added to numbers that count within each molecule."""
    return np.repeat(first, np.diff(part.starts))


def _both_ways(pairs: Array, shift: Array) -> Tensor:
    count = len(pairs)
    joined = np.empty((2, 2 * count), dtype=np.int64)
    joined[0, :count] = joined[1, count:] = pairs[:, 0] + shift
    joined[1, :count] = joined[0, count:] = pairs[:, 1] + shift
    return torch.from_numpy(joined)


def _long(values: Array) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))
