"""Data set of molecules with labels, and batches of molecules as plain tensors."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from hashlib import sha256
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from apmax.data.molecules.store import Array, Levels, Ragged, Store
from apmax.data.store_dataset import StoreDataset


class MoleculeBatch:
    """Molecules joined to one graph, the input of the models.

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
        if len(molecules) and not len(molecules.atoms.values):
            raise ValueError("the molecules were read without atoms and bonds; read them with graphs=True")
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
        """Return the batch in page-locked memory."""
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
    """Return `values` renumbered among those that occur, and their rows."""
    seen = np.zeros(len(rows), dtype=bool)
    seen[values] = True
    places = np.cumsum(seen) - 1
    return _long(places[values]), torch.from_numpy(rows[seen].astype(np.int32))


def _shift(part: Ragged, first: Array) -> Array:
    """Return the offset of each sequence's numbers, which count within a molecule."""
    return np.repeat(first, np.diff(part.starts))


def _both_ways(pairs: Array, shift: Array) -> Tensor:
    count = len(pairs)
    joined = np.empty((2, 2 * count), dtype=np.int64)
    joined[0, :count] = joined[1, count:] = pairs[:, 0] + shift
    joined[1, :count] = joined[0, count:] = pairs[:, 1] + shift
    return torch.from_numpy(joined)


def _long(values: Array) -> Tensor:
    return torch.from_numpy(values.astype(np.int64))


class Molecule:
    """One molecule of a store. Its tensors are made on access; those of a batch are made at once.

    Attributes:
        position: Its row in the data set, before `Indexed` writes one into `row`.
        row: None, or the row that `Indexed` gave it.
        y: Its label, a number or a row of tasks, or None.
    """

    __slots__ = ("place", "position", "row", "store", "y")

    def __init__(self, store: Store, place: int, position: int, y: Tensor | None) -> None:
        self.store, self.place, self.position, self.y = store, place, position, y
        self.row: int | None = None

    @property
    def x(self) -> Tensor:
        """Its atoms' categories, (atoms, 8)."""
        return collate_molecules([self]).x

    @property
    def edge_index(self) -> Tensor:
        """Its bonds' atoms, (2, 2 · bonds)."""
        return collate_molecules([self]).edge_index

    @property
    def edge_attr(self) -> Tensor:
        """Its bonds' categories, (2 · bonds, 4)."""
        return collate_molecules([self]).edge_attr

    def to_dict(self) -> dict[str, Any]:
        """Return its tensors by name."""
        return {"x": self.x, "edge_index": self.edge_index, "edge_attr": self.edge_attr, "y": self.y}

    def clone(self) -> Molecule:
        """Return a copy, whose `row` may be set without changing this one's."""
        return copy.copy(self)


def collate_molecules(items: Sequence[Molecule], **_: Any) -> MoleculeBatch:
    """Join molecules to a batch; those of one store by one gather."""
    parts = [
        store.take(np.array([item.place for item in group], dtype=np.int64))
        for store, group in groupby(items, key=lambda item: item.store)
    ]
    rows = [item.position if item.row is None else item.row for item in items]
    labels = [item.y for item in items]
    y = None if any(label is None for label in labels) else torch.stack(labels)  # type: ignore[arg-type]
    return MoleculeBatch(parts[0] if len(parts) == 1 else Store.join(parts), y, torch.tensor(rows))


# With this torch's own loader collates molecules without a collate function, also of a `Subset` or an `Indexed`.
default_collate_fn_map[Molecule] = collate_molecules


class MoleculeDataset(StoreDataset):
    """Molecules of a store with labels, or some of them.

    Args:
        store: All molecules.
        labels: One per molecule of the *store*: (n,), or (n, tasks) with NaN for "not measured"; None where unknown.
        places: The molecules of the store that belong to this data set; all by default.

    Raises:
        ValueError: Labels other than 0 and 1 (and NaN among several tasks), or not one per molecule.

    >>> from apmax.data.molecules.building import build_chunk
    >>> data = MoleculeDataset(build_chunk(0, ["CCO", "C", "c1ccccc1"]).store, [1, 0, 1])
    >>> loader = torch.utils.data.DataLoader(data, batch_sampler=[[2, 0]])
    >>> batch = next(iter(loader))
    >>> batch, batch.y, batch.row
    (MoleculeBatch(molecules=2, atoms=9, bonds=8), tensor([1., 1.]), tensor([2, 0]))
    """

    item = "molecule"
    store: Store
    collate = staticmethod(collate_molecules)

    def __init__(self, store: Store, labels: Any = None, *, places: Any = None) -> None:
        super().__init__(store, labels, places)

    @property
    def table_rows(self) -> Array:
        """The row of every molecule in the table it was read from, (n,)."""
        rows: Array = self.store.rows[self.places]
        return rows

    @property
    def fingerprint(self) -> str:
        """A SHA-256 of the molecules in their order, by which the trainer knows a data set again."""
        return sha256(np.ascontiguousarray(self.store.identity[self.places]).tobytes()).hexdigest()

    def __getitem__(self, row: int) -> Molecule:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[Molecule]:
        """Return the molecules of a batch; their tensors are made when they are collated."""
        index = self._check_rows(rows)
        places = self.places[index].tolist()
        labels = [None] * len(rows) if self.labels is None else self.labels[torch.from_numpy(index)].unbind()
        return [
            Molecule(self.store, place, position, label)
            for place, position, label in zip(places, index.tolist(), labels, strict=True)
        ]

    def subset(self, rows: Any) -> MoleculeDataset:
        """Return the data set of these rows, counted from 0."""
        index = self._check_rows(rows)
        part = MoleculeDataset(self.store, places=self.places[index])
        part.labels = None if self.labels is None else self.labels[torch.from_numpy(index)]
        return part

    def at_table_rows(self, rows: Any) -> MoleculeDataset:
        """Return the data set of these rows of the table, in their order; those that are not here are left out."""
        wanted = np.asarray(rows, dtype=np.int64)
        position = np.full(max(int(self.table_rows.max()), int(wanted.max(initial=0))) + 1, -1)
        position[self.table_rows] = np.arange(len(self))
        found = position[wanted]
        return self.subset(found[found >= 0])

    def __repr__(self) -> str:
        shape = "no labels" if self.labels is None else f"labels {tuple(self.labels.shape)}"
        return f"MoleculeDataset({len(self)} molecules, {shape})"
