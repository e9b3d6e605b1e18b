"""What the graph networks are called with: a batch of ours, PyG's `Data` or `Batch`, or plain tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from apmax.data.molecules.vocabulary import ATOM_FIELDS, BOND_FIELDS, dense_atoms, dense_bonds


@dataclass(frozen=True)
class Rows:
    """Features by distinct rows: item i has the features `rows[ids[i]]`, or `rows[i]` where `ids` is None."""

    rows: Tensor
    ids: Tensor | None

    def spread(self, table: Tensor) -> Tensor:
        """Return, for every item, the row of a table that was computed from `rows`."""
        return table if self.ids is None else table.index_select(0, self.ids)

    def index(self) -> Tensor:
        """Return the row of every item."""
        return torch.arange(len(self.rows), device=self.rows.device) if self.ids is None else self.ids


@dataclass(frozen=True)
class Graphs:
    """Many graphs as one.

    Attributes:
        atoms: Features of N atoms.
        bonds: Features of E directed bonds.
        source: (E,) the atom a message comes from.
        target: (E,) the atom it goes to.
        batch: (N,) the graph of each atom.
        count: The number of graphs, B.
    """

    atoms: Rows
    bonds: Rows
    source: Tensor
    target: Tensor
    batch: Tensor
    count: int

    @property
    def num_atoms(self) -> int:
        """N."""
        return len(self.batch)

    def sum_at_targets(self, messages: Tensor) -> Tensor:
        """Return (N, ...), the sum of the messages (E, ...) that arrive at each atom."""
        return messages.new_zeros(self.num_atoms, *messages.shape[1:]).index_add_(0, self.target, messages)


def sum_by(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return (count, ...), the sum of the values (n, ...) of each group.

    >>> sum_by(torch.tensor([1.0, 2.0, 4.0]), torch.tensor([0, 2, 2]), 3)
    tensor([1., 0., 6.])
    """
    return values.new_zeros(count, *values.shape[1:]).index_add_(0, groups, values)


def sizes(groups: Tensor, count: int, dtype: torch.dtype) -> Tensor:
    """Return (count, 1), the number of members of each group, 1 for one that is empty."""
    ones = torch.ones(len(groups), 1, dtype=dtype, device=groups.device)
    return sum_by(ones, groups, count).clamp_(min=1)


def mean_by(values: Tensor, groups: Tensor, count: int) -> Tensor:
    """Return (count, ...), the mean of the values of each group, 0 for an empty one."""
    return sum_by(values, groups, count) / sizes(groups, count, values.dtype)


def mean_of_linear(layer: nn.Linear, sums: Tensor, graphs: Graphs) -> Tensor:
    """Return (B, out), the mean of `layer(x)` over the atoms of each molecule, from the sums (B, in) of their x.

    0 for a molecule without atoms, which has no bias either.
    """
    atoms = sum_by(sums.new_ones(graphs.num_atoms, 1), graphs.batch, graphs.count)
    return (nn.functional.linear(sums, layer.weight) + atoms * layer.bias) / atoms.clamp(min=1)


def read_graphs(
    x: Any,
    edge_index: Tensor | None,
    edge_attr: Tensor | None,
    batch: Tensor | None,
    *,
    dtype: torch.dtype,
    widths: tuple[int, int],
) -> Graphs:
    """Return the graphs of a call.

    Whole numbers are categories, see `apmax.data.molecules.vocabulary`; floating features are taken as they are.

    Raises:
        ValueError: Tensors that are missing or of another width than the model was made for.
    """
    count = None
    if edge_index is None:
        given, count = x, getattr(x, "num_graphs", None)
        if hasattr(given, "atom_rows"):
            atoms = Rows(dense_atoms(given.atom_rows, dtype), given.atoms)
            bonds = Rows(dense_bonds(given.bond_rows, dtype), given.bonds)
            _check(atoms.rows, bonds.rows, widths)
            source, target = given.edge_index
            return Graphs(atoms, bonds, source, target, given.batch, given.num_graphs)
        x, edge_index, edge_attr, batch = (
            getattr(given, name, None) for name in ("x", "edge_index", "edge_attr", "batch")
        )
    if x is None or edge_index is None or edge_attr is None:
        raise ValueError("the model needs x, edge_index and edge_attr, as tensors or as attributes of one object")
    if batch is None:
        batch, count = torch.zeros(len(x), dtype=torch.long, device=x.device), 1
    atoms = Rows(x.to(dtype), None) if x.is_floating_point() else _categories(x, len(ATOM_FIELDS), "x", dtype)
    if edge_attr.is_floating_point():
        bonds = _distinct(edge_attr.to(dtype))
    else:
        bonds = _categories(edge_attr, len(BOND_FIELDS), "edge_attr", dtype)
    _check(atoms.rows, bonds.rows, widths)
    if count is None:
        count = int(batch.max()) + 1 if len(batch) else 0
    return Graphs(atoms, bonds, edge_index[0], edge_index[1], batch, count)


def _categories(values: Tensor, width: int, name: str, dtype: torch.dtype) -> Rows:
    if values.ndim != 2 or values.shape[1] != width:
        raise ValueError(f"{name} of categories must have shape (n, {width}), got {tuple(values.shape)}")
    rows, ids = torch.unique(values, dim=0, return_inverse=True)
    return Rows((dense_atoms if name == "x" else dense_bonds)(rows, dtype), ids)


def _distinct(values: Tensor) -> Rows:
    if values.requires_grad or len(values) == 0:
        return Rows(values, None if len(values) else torch.zeros(0, dtype=torch.long, device=values.device))
    rows, ids = torch.unique(values, dim=0, return_inverse=True)
    return Rows(rows, ids)


def _check(atoms: Tensor, bonds: Tensor, widths: tuple[int, int]) -> None:
    for name, found, width in (("x", atoms, widths[0]), ("edge_attr", bonds, widths[1])):
        if found.ndim != 2 or found.shape[1] != width:
            raise ValueError(f"{name} must have {width} features, as the model was made for, got {tuple(found.shape)}")
