"""Molecules with labels as a map-style data set whose batches are gathered at once."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map

from apmax import validation
from apmax.data.molecules.batch import MoleculeBatch
from apmax.data.molecules.store import Array, Store


class Molecule:
    """One example: a place in a store. Its tensors are made when they are asked for; a batch's are made at once.

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
        return collate([self]).x

    @property
    def edge_index(self) -> Tensor:
        """Its bonds' atoms, (2, 2 · bonds)."""
        return collate([self]).edge_index

    @property
    def edge_attr(self) -> Tensor:
        """Its bonds' categories, (2 · bonds, 4)."""
        return collate([self]).edge_attr

    def to_dict(self) -> dict[str, Any]:
        """Return its tensors by name."""
        return {"x": self.x, "edge_index": self.edge_index, "edge_attr": self.edge_attr, "y": self.y}

    def clone(self) -> Molecule:
        """Return a copy, whose `row` may be set without changing this one's."""
        return copy.copy(self)


def collate(items: Sequence[Molecule], **_: Any) -> MoleculeBatch:
    """Join molecules to a batch; those of one store, which is the usual case, by one gather."""
    parts = [
        store.take(np.array([item.place for item in group], dtype=np.int64))
        for store, group in groupby(items, key=lambda item: item.store)
    ]
    rows = [item.position if item.row is None else item.row for item in items]
    labels = [item.y for item in items]
    y = None if any(label is None for label in labels) else torch.stack(labels)  # type: ignore[arg-type]
    return MoleculeBatch(parts[0] if len(parts) == 1 else Store.join(parts), y, torch.tensor(rows))


# With this torch's own loader joins molecules, also from a `Subset` or an `Indexed`, without being told how.
default_collate_fn_map[Molecule] = collate


class MoleculeDataset(Dataset[Molecule]):
    """Molecules of a store, with labels; a view of some of its rows where `places` are given.

    Args:
        store: All molecules.
        labels: One per molecule of the *store*: (n,), or (n, tasks) with NaN for "not measured"; None where unknown.
        places: The molecules of the store that this data set consists of; all by default.

    Raises:
        ValueError: Labels other than 0 and 1 (and NaN among several tasks), or not one per molecule.

    >>> from apmax.data.molecules.building import build_chunk
    >>> data = MoleculeDataset(build_chunk(0, ["CCO", "C", "c1ccccc1"]).store, [1, 0, 1])
    >>> loader = torch.utils.data.DataLoader(data, batch_sampler=[[2, 0]])
    >>> batch = next(iter(loader))
    >>> batch, batch.y, batch.row
    (MoleculeBatch(molecules=2, atoms=9, bonds=8), tensor([1., 1.]), tensor([2, 0]))
    """

    collate = staticmethod(collate)

    def __init__(self, store: Store, labels: Any = None, *, places: Any = None) -> None:
        self.store = store
        self.places: Array = np.arange(len(store)) if places is None else np.asarray(places, dtype=np.int64)
        if len(self.places) and not 0 <= self.places.min() <= self.places.max() < len(store):
            raise ValueError(f"places must lie in 0 to {len(store) - 1}, the molecules of the store")
        self.labels: Tensor | None = None
        if labels is not None:
            every = validation.tensor(labels)
            if len(every) != len(store):
                raise ValueError(f"labels must have one row per molecule, got {len(every)} for {len(store)} molecules")
            # Only these rows must be measured: a single task may be unknown elsewhere.
            self.labels = validation.label_array(every[torch.from_numpy(self.places)])

    def __len__(self) -> int:
        return len(self.places)

    @property
    def table_rows(self) -> Array:
        """The row of every molecule in the table it was read from, (n,)."""
        rows: Array = self.store.rows[self.places]
        return rows

    def __getitem__(self, row: int) -> Molecule:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> list[Molecule]:
        """Return the molecules of a batch: nothing is read before they are joined."""
        index = np.asarray(rows, dtype=np.int64)
        if len(index) and not -len(self) <= index.min() <= index.max() < len(self):
            raise IndexError(f"row {index.min() if index.min() < 0 else index.max()} of a data set of {len(self)} rows")
        index = index % max(len(self), 1)
        places = self.places[index].tolist()
        labels = [None] * len(rows) if self.labels is None else self.labels[torch.from_numpy(index)].unbind()
        return [
            Molecule(self.store, place, position, label)
            for place, position, label in zip(places, index.tolist(), labels, strict=True)
        ]

    def subset(self, rows: Any) -> MoleculeDataset:
        """Return the data set of these rows, whose own rows count from 0."""
        index = np.asarray(rows, dtype=np.int64)
        part = MoleculeDataset(self.store, places=self.places[index])
        part.labels = None if self.labels is None else self.labels[torch.from_numpy(index)]
        return part

    def at_table_rows(self, rows: Any) -> MoleculeDataset:
        """Return the data set of those of these rows of the table that are here, in their order."""
        wanted = np.asarray(rows, dtype=np.int64)
        position = np.full(max(int(self.table_rows.max()), int(wanted.max(initial=0))) + 1, -1)
        position[self.table_rows] = np.arange(len(self))
        found = position[wanted]
        return self.subset(found[found >= 0])

    def __repr__(self) -> str:
        shape = "no labels" if self.labels is None else f"labels {tuple(self.labels.shape)}"
        return f"MoleculeDataset({len(self)} molecules, {shape})"
