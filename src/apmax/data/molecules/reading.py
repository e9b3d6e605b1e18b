"""From a file of SMILES to a data set, and what was found on the way."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any

import numpy as np

from apmax.data.molecules.cache import describe_unreadable, featurise_all
from apmax.data.molecules.dataset import MoleculeDataset
from apmax.data.molecules.featurise import Unreadable
from apmax.data.molecules.store import Array
from apmax.data.molecules.table import Table, read_table


@dataclass(frozen=True)
class Report:
    """What a reader of molecules should know. Rows count within the table, from 0.

    Attributes:
        total: Rows of the table.
        unreadable: Molecules that RDKit refused, left out.
        unmeasured: Rows without any label, left out.
        duplicates: Groups of rows that hold the same molecule.
        conflicts: Those of the groups whose labels contradict each other.
    """

    total: int
    unreadable: list[Unreadable]
    unmeasured: int
    duplicates: list[list[int]]
    conflicts: list[list[int]]

    def lines(self, *, most: int = 5) -> list[str]:
        """Return what is worth saying, a line each; nothing if all is well."""
        found = []
        if self.unreadable:
            found.append(describe_unreadable(self.unreadable, self.total, most=most))
        if self.unmeasured:
            found.append(f"{self.unmeasured} of {self.total} molecules have no label and are left out")
        for groups, what in ((self.duplicates, "occur more than once"), (self.conflicts, "have contradictory labels")):
            if groups:
                shown = "; ".join("rows " + ", ".join(map(str, group[:most])) for group in groups[:most])
                more = f"; and {len(groups) - most} more" if len(groups) > most else ""
                found.append(f"{len(groups)} molecules {what}: {shown}{more}")
        return found


def read_molecules(
    path: str | PathLike[str],
    smiles: str = "smiles",
    *,
    targets: Sequence[str] = (),
    cache: str | PathLike[str] | None = None,
    levels: bool = False,
    on_error: str = "skip",
    workers: int = 2,
    progress: bool | None = None,
) -> tuple[MoleculeDataset, Report]:
    r"""Read a table of molecules (see `read_table`) through the cache (see `featurise_all`).

    Rows without any label are left out where `targets` are given. One target gives labels (n,), several (n, tasks).

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("smiles,active\nCCO,1\nOCC,0\nC(C,0\nCC,\nC,0\n")
    >>> data, report = read_molecules(folder / "a.csv", targets=["active"], cache=folder)
    >>> data.table_rows.tolist(), report.unreadable[0].row, report.unmeasured, report.conflicts
    ([0, 1, 4], 2, 1, [[0, 1]])
    """
    table = read_table(path, smiles, targets=targets)
    return from_table(table, cache=cache, levels=levels, on_error=on_error, workers=workers, progress=progress)


def from_table(
    table: Table,
    *,
    cache: str | PathLike[str] | None = None,
    levels: bool = False,
    on_error: str = "skip",
    workers: int = 2,
    progress: bool | None = None,
) -> tuple[MoleculeDataset, Report]:
    """Return the data set of a table, and what was found.

    Raises:
        ValueError: No molecule is left.
    """
    found = featurise_all(table.smiles, cache, levels=levels, on_error=on_error, workers=workers, progress=progress)
    store = found.store
    labels = table.labels[store.rows]
    places = np.arange(len(store))
    if table.tasks:
        places = np.flatnonzero(~np.isnan(labels).all(axis=1))
        if len(places) == 0:
            raise ValueError(f"targets: no molecule has a label in {', '.join(table.tasks)}")
    groups = _same(store.identity[places])
    duplicates = [[int(store.rows[places[k]]) for k in group] for group in groups]
    conflicts = [rows for rows, group in zip(duplicates, groups, strict=True) if _contradict(labels[places[group]])]
    report = Report(len(table.smiles), found.unreadable, len(store) - len(places), duplicates, conflicts)
    every: Any = None
    if table.tasks:
        every = labels[:, 0] if len(table.tasks) == 1 else labels
    return MoleculeDataset(store, every, places=places), report


def _same(identity: Array) -> list[Array]:
    """Return the positions of equal values, a group each, for values that occur more than once."""
    order = np.argsort(identity, kind="stable")
    starts = np.flatnonzero(np.diff(identity[order])) + 1
    groups = [group for group in np.split(order, starts) if len(group) > 1]
    return sorted(groups, key=lambda group: int(group[0]))


def _contradict(labels: Array) -> bool:
    return bool(((labels == 0).any(axis=0) & (labels == 1).any(axis=0)).any())
