"""Store of molecules in flat arrays: a molecule is a slice, a batch is a gather.

Atoms and bonds take few distinct values (about 200 and 20 in a real set), so that each distinct row of categories is
kept once, and an atom is a two-byte number of its row.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from typing_extensions import Self

Array = npt.NDArray[Any]


@dataclass(frozen=True, eq=False)
class Ragged:
    """Sequences of different lengths, one after the other in `values`; sequence i begins at `starts[i]`.

    >>> letters = Ragged(np.array(list("abcde")), np.array([0, 2, 5]))
    >>> turned = letters.take(np.array([1, 0]))
    >>> "".join(turned.values), turned.starts.tolist()
    ('cdeab', [0, 3, 5])
    """

    values: Array
    starts: Array

    def take(self, rows: Array) -> Ragged:
        """Return the sequences at `rows`, in that order."""
        starts = self.starts[rows]
        counts = self.starts[rows + 1] - starts
        before = np.cumsum(counts) - counts
        index = np.arange(counts.sum()) + np.repeat(starts - before, counts)
        return Ragged.of(self.values[index], counts)

    @staticmethod
    def of(values: Array, counts: Sequence[int] | Array) -> Ragged:
        """Return the sequences of these lengths, one after the other in `values`."""
        return Ragged(values, np.concatenate([[0], np.cumsum(counts, dtype=np.int64)]))

    @staticmethod
    def join(parts: Sequence[Ragged]) -> Ragged:
        """Return the sequences of all parts, one part after the other."""
        counts = np.concatenate([np.diff(part.starts) for part in parts])
        return Ragged.of(np.concatenate([part.values for part in parts]), counts)


class PerMolecule:
    """Base class of dataclasses all of whose fields have an entry for each molecule."""

    def take(self, rows: Array) -> Self:
        """Return the entries of the molecules at `rows`, in that order."""
        return type(self)(
            *(each.take(rows) if isinstance(each, Ragged) else each[rows] for each in vars(self).values())
        )

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Return the entries of all parts, one part after the other."""
        fields = zip(*(vars(part).values() for part in parts), strict=True)
        return cls(*(Ragged.join(each) if isinstance(each[0], Ragged) else np.concatenate(each) for each in fields))


@dataclass(frozen=True, eq=False)
class Levels(PerMolecule):
    """Cliques and descriptors of molecules, the further inputs of ML-MPNN.

    Attributes:
        cliques: Per molecule, the kinds of the junction tree's cliques.
        members: Per molecule, pairs (clique, atom).
        tree: Per molecule, pairs of neighbouring cliques.
        descriptors: (n, 200) float32, normalised.
    """

    cliques: Ragged
    members: Ragged
    tree: Ragged
    descriptors: Array


@dataclass(frozen=True, eq=False)
class Fingerprints(PerMolecule):
    """Fingerprints of molecules, the inputs of models of tables.

    Attributes:
        counts: Per molecule, pairs (column, count) of the Morgan fingerprint, by column.
        properties: (n, len(`PROPERTY_NAMES`)) float32.
        scaffolds: (n,) uint64, equal for molecules of the same scaffold.
    """

    counts: Ragged
    properties: Array
    scaffolds: Array


@dataclass(frozen=True, eq=False)
class Store:
    """Flat arrays of n molecules.

    Attributes:
        atom_rows: (distinct, 8) int32, the distinct rows of atoms' categories.
        bond_rows: (distinct, 4) uint8, those of bonds.
        atoms: Per molecule, positions in `atom_rows`.
        bonds: Per molecule and once per bond: (position in `bond_rows`, one atom, other atom), within the molecule.
        rows: (n,) int64, the row of each molecule in the table it was read from.
        identity: (n,) uint64 of the canonical SMILES: equal for equal molecules.
        levels: Cliques and descriptors, or None.
        fingerprints: Morgan counts, properties and scaffolds, or None.
        directory: The folder of memory-mapped arrays, or None; other processes are sent its path instead of the arrays.
    """

    atom_rows: Array
    bond_rows: Array
    atoms: Ragged
    bonds: Ragged
    rows: Array
    identity: Array
    levels: Levels | None = None
    fingerprints: Fingerprints | None = None
    directory: Path | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def __reduce__(self) -> Any:
        if self.directory is not None:
            return Store.open, (self.directory,)
        return super().__reduce__()

    def take(self, rows: Array) -> Store:
        """Return a store, in memory, of the molecules at `rows`, in that order; distinct rows are shared."""
        return Store(
            atom_rows=self.atom_rows,
            bond_rows=self.bond_rows,
            atoms=self.atoms.take(rows),
            bonds=self.bonds.take(rows),
            rows=self.rows[rows],
            identity=self.identity[rows],
            levels=None if self.levels is None else self.levels.take(rows),
            fingerprints=None if self.fingerprints is None else self.fingerprints.take(rows),
        )

    @property
    def nbytes(self) -> int:
        """The number of bytes of all arrays."""
        return sum(array.nbytes for _, array in self._arrays())

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        parts = dict(vars(self))
        for name in ("levels", "fingerprints"):
            optional = parts.pop(name)
            parts |= {} if optional is None else vars(optional)
        del parts["directory"]
        for name, part in parts.items():
            if isinstance(part, Ragged):
                yield name, part.values
                yield f"{name}.starts", part.starts
            else:
                yield name, part

    def save(self, directory: Path) -> None:
        """Write one .npy file per array into `directory`, which must exist."""
        for name, array in self._arrays():
            np.save(directory / f"{name}.npy", array, allow_pickle=False)

    @classmethod
    def open(cls, directory: Path) -> Store:
        """Return the store saved in `directory`, memory-mapped.

        Raises:
            FileNotFoundError: An array is missing.
        """

        def load(name: str) -> Array:
            array: Array = np.load(directory / f"{name}.npy", mmap_mode="r", allow_pickle=False)
            return array

        def ragged(name: str) -> Ragged:
            return Ragged(load(name), load(f"{name}.starts"))

        levels = None
        if (directory / "descriptors.npy").exists():
            levels = Levels(ragged("cliques"), ragged("members"), ragged("tree"), load("descriptors"))
        fingerprints = None
        if (directory / "counts.npy").exists():
            fingerprints = Fingerprints(ragged("counts"), load("properties"), load("scaffolds"))
        return cls(
            atom_rows=load("atom_rows"),
            bond_rows=load("bond_rows"),
            atoms=ragged("atoms"),
            bonds=ragged("bonds"),
            rows=load("rows"),
            identity=load("identity"),
            levels=levels,
            fingerprints=fingerprints,
            directory=directory,
        )

    @classmethod
    def join(cls, parts: Sequence[Store]) -> Store:
        """Return one store of the molecules of all parts, whose distinct rows are merged."""
        atom_rows, atom_ids = _merge([part.atom_rows for part in parts])
        bond_rows, bond_ids = _merge([part.bond_rows for part in parts])
        atoms, bonds = [], []
        for part, atom_id, bond_id in zip(parts, atom_ids, bond_ids, strict=True):
            atoms.append(replace(part.atoms, values=narrow(atom_id[part.atoms.values])))
            renamed = np.column_stack([bond_id[part.bonds.values[:, 0]], part.bonds.values[:, 1:]])
            bonds.append(replace(part.bonds, values=narrow(renamed)))
        found = [part.levels for part in parts if part.levels is not None]
        prints = [part.fingerprints for part in parts if part.fingerprints is not None]
        return cls(
            atom_rows=atom_rows,
            bond_rows=bond_rows,
            atoms=Ragged.join(atoms),
            bonds=Ragged.join(bonds),
            rows=np.concatenate([part.rows for part in parts]),
            identity=np.concatenate([part.identity for part in parts]),
            levels=Levels.join(found) if len(found) == len(parts) else None,
            fingerprints=Fingerprints.join(prints) if len(prints) == len(parts) else None,
        )


def narrow(values: Array) -> Array:
    """Return whole numbers as uint16 if they fit, else as uint32.

    >>> narrow(np.array([1, 65_535])).dtype, narrow(np.array([1, 65_536])).dtype
    (dtype('uint16'), dtype('uint32'))
    """
    return values.astype(np.uint16 if values.size == 0 or values.max() < 2**16 else np.uint32)


def _merge(tables: Sequence[Array]) -> tuple[Array, list[Array]]:
    joined, places = np.unique(np.concatenate(tables), axis=0, return_inverse=True)
    return joined, np.split(places.reshape(-1), np.cumsum([len(table) for table in tables])[:-1])
