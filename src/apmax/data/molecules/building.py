"""Stores of molecules built from SMILES, in chunks by several processes, and their cache on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from apmax import extras, validation
from apmax.data.caching import cached_folder, ordered, with_progress
from apmax.data.molecules.cliques import JunctionTree, junction_tree
from apmax.data.molecules.descriptors import (
    DESCRIPTOR_COUNT,
    NORMALISATIONS,
    normalise_descriptors,
    raw_descriptors,
)
from apmax.data.molecules.featurise import canonical_hash, featurise, parse_smiles
from apmax.data.molecules.store import Array, Levels, Ragged, Store, narrow
from apmax.data.molecules.vocabulary import ATOM_FIELDS, BOND_FIELDS, FEATURISER_VERSION
from apmax.data.reading import ON_ERROR, UnreadableRow, describe_unreadable

CHUNK = 512
"""Molecules per task of a process: many enough to make sending them cheap, few enough for the memory."""


@dataclass(frozen=True)
class MoleculeChunk:
    """Some rows of a table: the molecules that RDKit reads, and the unreadable rows."""

    store: Store
    unreadable: list[UnreadableRow]


def build_chunk(
    first: int,
    smiles: Sequence[str],
    *,
    levels: bool = False,
    normalisation: str = "quantiles",
    identify: bool = True,
) -> MoleculeChunk:
    """Read SMILES, the first of which is row `first` of its table.

    Without `identify` the canonical SMILES, which identify duplicates, are not made: all identities are 0.

    >>> chunk = build_chunk(10, ["CCO", "C(C", "c1ccccc1"])
    >>> chunk.store.rows.tolist(), chunk.unreadable[0].row, chunk.unreadable[0].reason
    ([10, 12], 11, 'SMILES Parse Error: extra open parentheses')
    """
    unreadable: list[UnreadableRow] = []
    rows: list[int] = []
    identity: list[int] = []
    atom_ids: dict[Any, int] = {}
    bond_ids: dict[Any, int] = {}
    atoms: list[int] = []
    bonds: list[tuple[int, int, int]] = []
    sizes: list[tuple[int, int]] = []
    trees: list[JunctionTree] = []
    values: list[list[float]] = []
    for row, text in enumerate(smiles, start=first):
        try:
            molecule = parse_smiles(text)
        except ValueError as error:
            unreadable.append(UnreadableRow(row, text, str(error)))
            continue
        graph = featurise(molecule)
        rows.append(row)
        identity.append(canonical_hash(molecule) if identify else 0)
        sizes.append((len(graph.atoms), len(graph.bonds)))
        atoms.extend(atom_ids.setdefault(atom, len(atom_ids)) for atom in graph.atoms)
        bonds.extend(
            (bond_ids.setdefault(bond, len(bond_ids)), *ends)
            for bond, ends in zip(graph.bonds, graph.ends, strict=True)
        )
        if levels:
            trees.append(junction_tree(molecule))
            values.append(raw_descriptors(molecule, normalisation=normalisation))
    counts = np.array(sizes, dtype=np.int64).reshape(-1, 2)
    store = Store(
        atom_rows=_table(atom_ids, len(ATOM_FIELDS), np.int32),
        bond_rows=_table(bond_ids, len(BOND_FIELDS), np.uint8),
        atoms=Ragged.of(narrow(np.array(atoms, dtype=np.int64)), counts[:, 0]),
        bonds=Ragged.of(narrow(np.array(bonds, dtype=np.int64).reshape(-1, 3)), counts[:, 1]),
        rows=np.array(rows, dtype=np.int64),
        identity=np.array(identity, dtype=np.uint64),
        levels=_levels(trees, values, normalisation) if levels else None,
    )
    return MoleculeChunk(store, unreadable)


def _table(ids: dict[Any, int], width: int, dtype: Any) -> Array:
    return np.array(list(ids), dtype=dtype).reshape(-1, width)


def _levels(trees: Sequence[JunctionTree], values: Sequence[Sequence[float]], normalisation: str) -> Levels:
    kinds = [kind for tree in trees for kind in tree.kinds]
    members = [[(clique, atom) for clique, atoms in enumerate(tree.members) for atom in atoms] for tree in trees]
    table = np.array(values, dtype=np.float64).reshape(-1, DESCRIPTOR_COUNT)
    return Levels(
        cliques=Ragged.of(narrow(np.array(kinds, dtype=np.int64)), [len(tree.kinds) for tree in trees]),
        members=_pairs(members),
        tree=_pairs([tree.edges for tree in trees]),
        descriptors=normalise_descriptors(table, normalisation=normalisation),
    )


def _pairs(parts: Sequence[Sequence[tuple[int, int]]]) -> Ragged:
    joined = [pair for part in parts for pair in part]
    return Ragged.of(narrow(np.array(joined, dtype=np.int64).reshape(-1, 2)), [len(part) for part in parts])


def build_chunks(
    smiles: Iterable[str],
    *,
    levels: bool = False,
    normalisation: str = "quantiles",
    identify: bool = True,
    workers: int = 1,
    chunk: int = CHUNK,
) -> Iterator[MoleculeChunk]:
    """Yield the chunks of a stream of SMILES in order; only a few are in memory at a time."""

    def parts() -> Iterator[tuple[int, list[str]]]:
        rest, first = iter(smiles), 0
        while part := list(islice(rest, chunk)):
            yield first, part
            first += len(part)

    return ordered(_Build(levels, normalisation, identify), parts(), workers=workers)


@dataclass(frozen=True)
class _Build:
    levels: bool
    normalisation: str
    identify: bool

    def __call__(self, part: tuple[int, list[str]]) -> MoleculeChunk:
        return build_chunk(*part, levels=self.levels, normalisation=self.normalisation, identify=self.identify)


@dataclass(frozen=True)
class Featurised:
    """The molecules that RDKit reads, and the unreadable rows."""

    store: Store
    unreadable: list[UnreadableRow]


def molecule_cache_key(smiles: Sequence[str], *, levels: bool = False, normalisation: str = "quantiles") -> str:
    """Return the key of the cache of these SMILES, which depends on the texts, the featuriser and RDKit's version.

    >>> molecule_cache_key(["C", "CC"]) == molecule_cache_key(["CC", "C"])
    False
    """
    rdkit = extras.load("rdkit", "molecules").__version__
    contents = f"{levels}" if normalisation == "quantiles" or not levels else f"{levels} {normalisation}"
    digest = blake2b(f"{FEATURISER_VERSION} {rdkit} {contents}".encode(), digest_size=16)
    for text in smiles:
        digest.update(b"\n")
        digest.update(text.encode())
    return digest.hexdigest()


def featurise_all(
    smiles: Sequence[str],
    cache: str | PathLike[str] | None = None,
    *,
    levels: bool = False,
    normalisation: str = "quantiles",
    on_error: str = "skip",
    workers: int = 2,
    progress: bool | None = None,
) -> Featurised:
    """Return the molecules of these SMILES, from the cache if they were read before.

    Args:
        smiles: One text per row.
        cache: The folder of caches; by default `cache_directory()`.
        levels: Cliques and descriptors as well, for ML-MPNN. (Descriptors take 25 times as long as all else.)
        normalisation: Of the descriptors: "quantiles", or "descriptastorus" for those of the package of this name.
        on_error: "skip" to leave unreadable molecules out and report them, or "raise".
        workers: The number of processes that read; small lists are read by this one.
        progress: Show a progress bar; by default where the error stream is a terminal.

    Raises:
        ValueError: No molecule can be read, or any cannot with `on_error="raise"`.
    """
    validation.choice("on_error", on_error, ON_ERROR)
    validation.choice("normalisation", normalisation, NORMALISATIONS)
    validation.whole("workers", workers, 1)
    if len(smiles) == 0:
        raise ValueError("smiles must hold at least one molecule, got none")
    workers = workers if len(smiles) > 2 * CHUNK else 1
    folder, unreadable = cached_folder(
        f"molecules-{molecule_cache_key(smiles, levels=levels, normalisation=normalisation)}",
        lambda folder: _write_store(
            folder, smiles, levels=levels, normalisation=normalisation, workers=workers, progress=progress
        ),
        cache,
    )
    message = describe_unreadable(unreadable, len(smiles), "molecules")
    if unreadable and on_error == "raise":
        raise ValueError(message)
    store = Store.open(folder)
    if len(store) == 0:
        raise ValueError(f"smiles: no molecule could be read. {message}")
    return Featurised(store, unreadable)


def _write_store(
    folder: Path, smiles: Sequence[str], *, levels: bool, normalisation: str, workers: int, progress: bool | None
) -> list[UnreadableRow]:
    def size(chunk: MoleculeChunk) -> int:
        return len(chunk.store) + len(chunk.unreadable)

    built = build_chunks(smiles, levels=levels, normalisation=normalisation, workers=workers)
    shown = with_progress(
        built, len(smiles), label="reading molecules", size=size, progress=progress, extra="molecules"
    )
    chunks = list(shown)
    Store.join([chunk.store for chunk in chunks]).save(folder)
    return [item for chunk in chunks for item in chunk.unreadable]
