"""Input of the graph networks: a `MoleculeBatch`, PyG's `Data` or `Batch`, or plain tensors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apmax.data.molecules import ATOM_FIELDS, BOND_FIELDS, dense_atoms, dense_bonds
from apmax.data.molecules.vocabulary import check_width
from apmax.models.graphs.aggregation import segment_sum


@dataclass(frozen=True)
class FeatureTable:
    """Features of n items, equal rows stored once: item i has the features `rows[ids[i]]`.

    Attributes:
        rows: (R, width), the distinct rows; or one row for each item, where `ids` is None.
        ids: (n,) the row of each item, or None.
    """

    rows: Tensor
    ids: Tensor | None

    def gather(self, table: Tensor) -> Tensor:
        """Return (n, ...), each item's row of a table (R, ...) that was computed from `rows`."""
        return table if self.ids is None else table.index_select(0, self.ids)

    def index(self) -> Tensor:
        """Return (n,), the row of each item."""
        return torch.arange(len(self.rows), device=self.rows.device) if self.ids is None else self.ids


@dataclass(frozen=True)
class GraphBatch:
    """The disjoint union of B graphs.

    Attributes:
        atoms: Features of N atoms.
        bonds: Features of E directed bonds.
        source: (E,) the atom that sends along a bond.
        target: (E,) the atom that receives.
        batch: (N,) the graph of each atom.
        count: The number of graphs, B.
    """

    atoms: FeatureTable
    bonds: FeatureTable
    source: Tensor
    target: Tensor
    batch: Tensor
    count: int

    @property
    def num_atoms(self) -> int:
        """The number of atoms, N."""
        return len(self.batch)

    def sum_at_targets(self, messages: Tensor) -> Tensor:
        """Return (N, ...), the sum of the messages (E, ...) that each atom receives."""
        return segment_sum(messages, self.target, self.num_atoms)


def read_graph_batch(
    x: Any,
    edge_index: Tensor | None,
    edge_attr: Tensor | None,
    batch: Tensor | None,
    *,
    dtype: torch.dtype,
    widths: tuple[int, int],
) -> GraphBatch:
    """Return the graphs that a network was called with.

    Integers are categories, see `apmax.data.molecules.vocabulary`; floating-point features are used unchanged.

    Raises:
        ValueError: A tensor is missing or has another width than the network was built for.
    """
    count = None
    if edge_index is None:
        data, count = x, getattr(x, "num_graphs", None)
        if hasattr(data, "atom_rows"):
            atoms = FeatureTable(dense_atoms(data.atom_rows, dtype), data.atoms)
            bonds = FeatureTable(dense_bonds(data.bond_rows, dtype), data.bonds)
            _check_widths(atoms.rows, bonds.rows, widths)
            source, target = data.edge_index
            return GraphBatch(atoms, bonds, source, target, data.batch, data.num_graphs)
        x, edge_index, edge_attr, batch = (
            getattr(data, name, None) for name in ("x", "edge_index", "edge_attr", "batch")
        )
    if x is None or edge_index is None or edge_attr is None:
        raise ValueError("the model needs x, edge_index and edge_attr, as tensors or as attributes of one object")
    if batch is None:
        batch, count = torch.zeros(len(x), dtype=torch.long, device=x.device), 1
    if x.is_floating_point():
        atoms = FeatureTable(x.to(dtype), None)
    else:
        atoms = _table_of_categories(x, len(ATOM_FIELDS), "x", dtype)
    if edge_attr.is_floating_point():
        bonds = _table_of_features(edge_attr.to(dtype))
    else:
        bonds = _table_of_categories(edge_attr, len(BOND_FIELDS), "edge_attr", dtype)
    _check_widths(atoms.rows, bonds.rows, widths)
    if count is None:
        count = int(batch.max()) + 1 if len(batch) else 0
    return GraphBatch(atoms, bonds, edge_index[0], edge_index[1], batch, count)


def _table_of_categories(values: Tensor, width: int, name: str, dtype: torch.dtype) -> FeatureTable:
    check_width(values, width, name)
    rows, ids = torch.unique(values, dim=0, return_inverse=True)
    return FeatureTable((dense_atoms if name == "x" else dense_bonds)(rows, dtype), ids)


def _table_of_features(values: Tensor) -> FeatureTable:
    if values.requires_grad or len(values) == 0:
        return FeatureTable(values, None if len(values) else torch.zeros(0, dtype=torch.long, device=values.device))
    rows, ids = torch.unique(values, dim=0, return_inverse=True)
    return FeatureTable(rows, ids)


def _check_widths(atoms: Tensor, bonds: Tensor, widths: tuple[int, int]) -> None:
    for name, features, width in (("x", atoms, widths[0]), ("edge_attr", bonds, widths[1])):
        if features.ndim != 2 or features.shape[1] != width:
            raise ValueError(
                f"{name} must have {width} features, as the model was built for, got {tuple(features.shape)}"
            )
