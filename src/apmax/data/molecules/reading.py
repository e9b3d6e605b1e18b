"""Molecules of a file as a data set, with a report of duplicates and unreadable rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from apmax import validation
from apmax.data import parsing
from apmax.data.molecules.building import featurise_all
from apmax.data.molecules.dataset import MoleculeDataset
from apmax.data.molecules.store import Array
from apmax.data.reading import UnreadableRow, describe_unreadable, open_table
from apmax.data.targets import Targets, read_labelled

if TYPE_CHECKING:
    from typing_extensions import Unpack

DUPLICATES = ("keep", "join", "drop")
"""What to do with rows of the same molecule, by its canonical SMILES."""
_HANDLING = {
    "keep": ("", ""),
    "join": (", joined to one row each", ", which are left out (with the molecule, if it has no other label)"),
    "drop": (", reduced to the first row", ", left out"),
}
"""Descriptions of repeated and of contradictory molecules."""


class ReadOptions(TypedDict, total=False):
    """Options of `featurise_all`, beside the fragment."""

    cache: str | PathLike[str] | None
    levels: bool
    normalisation: str
    fingerprints: bool
    graphs: bool
    max_length: int
    on_error: str
    workers: int
    progress: bool | None


@dataclass(frozen=True)
class MoleculeReport:
    """Findings of reading molecules. Rows count within the file, from 0.

    Attributes:
        total: Rows of the file.
        unreadable: Molecules that RDKit cannot read, left out.
        unmeasured: Rows without any label, left out.
        duplicates: Groups of rows with the same molecule.
        conflicts: Those of the groups whose labels contradict each other.
        targets: The meaning of the labels, where they were read from a file.
        handling: What was done with duplicates, one of `DUPLICATES`.
        removed: Rows that were left out for it.
        reduced: Molecules that were reduced to their largest fragment.
    """

    total: int
    unreadable: list[UnreadableRow]
    unmeasured: int
    duplicates: list[list[int]]
    conflicts: list[list[int]]
    targets: Targets | None = None
    handling: str = "keep"
    removed: int = 0
    reduced: int = 0

    def lines(self, *, most: int = 5) -> list[str]:
        """Return one line per finding, none if there are none."""
        found = []
        if self.unreadable:
            found.append(describe_unreadable(self.unreadable, self.total, "molecules", most=most))
        if self.unmeasured:
            found.append(f"{self.unmeasured} of {self.total} molecules have no label and are left out")
        if self.reduced:
            found.append(f"{self.reduced:,} of {self.total:,} molecules have several fragments: the largest is taken")
        repeated, contradictory = _HANDLING[self.handling]
        keep, count, conflicts = self.handling == "keep", len(self.duplicates), len(self.conflicts)
        occur = f"{validation.plural(count, 'molecule')} {'occurs' if count == 1 else 'occur'} more than once"
        removed = "" if keep else f" ({validation.plural(self.removed, 'row')} fewer)"
        remedy = " (duplicates='join' or duplicates='drop' makes one row of each)" if keep else ""
        disagree = validation.plural(conflicts, "molecule") if keep else f"{conflicts:,} of them"
        for groups, what, hint in (
            (self.duplicates, f"{occur}{repeated}{removed}", remedy),
            (self.conflicts, f"{disagree} with contradictory labels{contradictory}", ""),
        ):
            if groups:
                shown = "; ".join("rows " + ", ".join(map(str, group[:most])) for group in groups[:most])
                more = f"; and {len(groups) - most} more" if len(groups) > most else ""
                found.append(f"{what}: {shown}{more}{hint}")
        return found


def read_molecules(
    path: str | PathLike[str],
    smiles: str = "smiles",
    *,
    targets: Sequence[str] | Targets = (),
    positive: str | None = None,
    duplicates: str = "keep",
    largest_fragment: bool = False,
    **options: Unpack[ReadOptions],
) -> tuple[MoleculeDataset, MoleculeReport]:
    r"""Read a file of molecules (see `open_table`) through the cache (see `featurise_all`).

    Args:
        path: A csv, csv.gz, parquet, smi, smi.gz, sdf or sdf.gz file.
        smiles: The column of SMILES; the name to give it in an .smi or .sdf file.
        targets: The target columns: two values each, empty where not measured (see `Target`); or the `targets` of
            another file's report. One target gives labels (n,), several (n, tasks). Rows without any are left out.
        positive: The value of the positives; may be None for such as 0/1, no/yes, inactive/active.
        duplicates: What to do with rows of the same molecule, by its canonical SMILES. "keep" keeps them all. "join"
            makes one row of them, the first: a label is positive or negative if all its rows that have one agree,
            otherwise not measured; molecules without any label left are left out. "drop" leaves molecules with a
            contradiction in any target out, and keeps the first row of the others as it is. With one target "join"
            and "drop" give the same. The report counts all of them.
        largest_fragment: Keep only the largest fragment of each molecule (`apmax.data.molecules.largest_fragment`):
            salts and solvents are stripped, before duplicates are looked for.
        **options: Options of `featurise_all`: `cache`, `levels`, `normalisation`, `fingerprints`, `graphs`,
            `max_length`, `on_error`, `workers`, `progress`.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: A column is missing, a target has not two values, or no molecule is left.

    >>> import tempfile, pathlib
    >>> folder = pathlib.Path(tempfile.mkdtemp())
    >>> _ = (folder / "a.csv").write_text("smiles;active\nCCO;yes\nOCC;no\nC(C;no\nCC;\nC;no\n")
    >>> data, report = read_molecules(folder / "a.csv", targets=["active"], cache=folder)
    >>> data.table_rows.tolist(), report.unreadable[0].row, report.unmeasured, report.conflicts
    ([0, 1, 4], 2, 1, [[0, 1]])
    """
    source = open_table(path, smiles_column=smiles)
    source.check_column(smiles, "smiles")
    table, labels, fitted = read_labelled(source, targets, [smiles], positive=positive)
    return molecule_dataset(
        parsing.cells(table.column(smiles)),
        labels,
        targets=fitted,
        duplicates=duplicates,
        largest_fragment=largest_fragment,
        **options,
    )


def molecule_dataset(
    smiles: Sequence[str],
    labels: Array | None = None,
    *,
    targets: Targets | None = None,
    duplicates: str = "keep",
    largest_fragment: bool = False,
    **options: Unpack[ReadOptions],
) -> tuple[MoleculeDataset, MoleculeReport]:
    """Return the data set of SMILES with labels (n, tasks) or without, and a report.

    The other arguments are those of `read_molecules`.

    Raises:
        ValueError: No molecule is left.
    """
    validation.choice("duplicates", duplicates, DUPLICATES)
    found = featurise_all(smiles, fragment=largest_fragment, **options)
    store = found.store
    places = np.arange(len(store))
    own = np.empty((len(store), 0), np.float32) if labels is None else labels[store.rows]
    if own.shape[1]:
        places = np.flatnonzero(~np.isnan(own).all(axis=1))
        if len(places) == 0:
            columns = f" in {', '.join(targets.names)}" if targets is not None else ""
            raise ValueError(f"targets: no molecule has a label{columns}")
    groups = _equal_groups(store.identity[places])
    repeated = [[int(store.rows[places[k]]) for k in group] for group in groups]
    conflicts = [rows for rows, group in zip(repeated, groups, strict=True) if _contradict(own[places[group]])]
    kept = places
    if duplicates != "keep":
        own, kept = _without_duplicates(own, places, groups, join=duplicates == "join")
        if len(kept) == 0:
            raise ValueError(f"duplicates={duplicates!r}: the labels of every molecule contradict each other")
    report = MoleculeReport(
        total=len(smiles),
        unreadable=found.unreadable,
        unmeasured=len(store) - len(places),
        duplicates=repeated,
        conflicts=conflicts,
        targets=targets,
        handling=duplicates,
        removed=len(places) - len(kept),
        reduced=found.reduced,
    )
    every: Any = None
    if own.shape[1]:
        every = own[:, 0] if own.shape[1] == 1 else own
    return MoleculeDataset(store, every, places=kept), report


def _without_duplicates(labels: Array, places: Array, groups: list[Array], *, join: bool) -> tuple[Array, Array]:
    """Return the labels of the store and the places that are kept, one for each molecule.

    Args:
        labels: (molecules of the store, targets), NaN where not measured.
        places: The molecules with a label.
        groups: Positions in `places` of equal molecules.
        join: Join the labels of equal molecules; otherwise leave contradictory ones out.
    """
    labels, keep = labels.copy(), np.ones(len(places), dtype=bool)
    for group in groups:
        rows = labels[places[group]]
        keep[group[1:]] = False
        if join:
            joined = np.full(rows.shape[1], np.nan, rows.dtype)
            positive, negative = (rows == 1).any(axis=0), (rows == 0).any(axis=0)
            joined[positive & ~negative] = 1
            joined[negative & ~positive] = 0
            labels[places[group[0]]] = joined
            keep[group[0]] = rows.shape[1] == 0 or not np.isnan(joined).all()
        else:
            keep[group[0]] = not _contradict(rows)
    return labels, places[keep]


def _equal_groups(identity: Array) -> list[Array]:
    """Return the positions of each value that occurs more than once."""
    order = np.argsort(identity, kind="stable")
    starts = np.flatnonzero(np.diff(identity[order])) + 1
    groups = [group for group in np.split(order, starts) if len(group) > 1]
    return sorted(groups, key=lambda group: int(group[0]))


def _contradict(labels: Array) -> bool:
    return bool(((labels == 0).any(axis=0) & (labels == 1).any(axis=0)).any())
