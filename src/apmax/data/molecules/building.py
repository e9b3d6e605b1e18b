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
from apmax.data.caching import cache_folder, cached_folder, ordered, with_progress
from apmax.data.molecules.cliques import JunctionTree, junction_tree
from apmax.data.molecules.descriptors import (
    DESCRIPTOR_COUNT,
    MAX_DESCRIPTOR_ATOMS,
    NORMALISATIONS,
    normalise_descriptors,
    raw_descriptors,
)
from apmax.data.molecules.featurise import (
    MAX_SMILES_LENGTH,
    canonical_hash,
    featurise,
    largest_fragment,
    parse_smiles,
)
from apmax.data.molecules.fingerprints import (
    FINGERPRINT_VERSION,
    PROPERTY_NAMES,
    cheap_properties,
    morgan_counts,
    scaffold_hash,
)
from apmax.data.molecules.store import Array, Fingerprints, Levels, Ragged, Store, narrow
from apmax.data.molecules.vocabulary import ATOM_FIELDS, BOND_FIELDS, FEATURISER_VERSION
from apmax.data.reading import ON_ERROR, UnreadableRow, describe_unreadable

_SHOWN = 1_000
"""Characters of an unreadable SMILES that are kept."""
_KEY_VERSION = 2
"""Version of the key of a cache; that of the featuriser is also one of models, which the key does not concern."""
MOLECULES_PER_CHUNK = 512
"""Molecules per task of a process: many enough to make sending them cheap, few enough for the memory."""


@dataclass(frozen=True)
class MoleculeChunk:
    """Some rows of a table.

    Attributes:
        store: The molecules that RDKit reads.
        unreadable: The unreadable rows.
        reduced: The number of molecules that were reduced to their largest fragment.
    """

    store: Store
    unreadable: list[UnreadableRow]
    reduced: int = 0


def build_chunk(
    first: int,
    smiles: Sequence[str],
    *,
    levels: bool = False,
    normalisation: str = "quantiles",
    fingerprints: bool = False,
    graphs: bool = True,
    identify: bool = True,
    fragment: bool = False,
    max_length: int = MAX_SMILES_LENGTH,
) -> MoleculeChunk:
    """Read SMILES; longer ones than `max_length` are unreadable.

    Args:
        first: The row of the first of them in its table.
        smiles: The SMILES.
        levels: Cliques and descriptors as well; then molecules of more than `MAX_DESCRIPTOR_ATOMS` are unreadable.
        normalisation: Of the descriptors, as in `featurise_all`.
        fingerprints: Morgan counts and properties as well.
        graphs: Atoms and bonds; without them molecules have none, which is enough for models that read fingerprints.
        identify: Make the canonical SMILES, which identify duplicates, and scaffolds; otherwise all of them are 0.
        fragment: Keep only the largest fragment of each molecule.
        max_length: The most characters of a SMILES.

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
    counts: list[list[tuple[int, int]]] = []
    properties: list[list[float]] = []
    scaffolds: list[int] = []
    reduced = 0
    for row, text in enumerate(smiles, start=first):
        try:
            molecule = parse_smiles(text, max_length=max_length)
            whole = molecule
            if fragment:
                molecule = largest_fragment(whole)
            atoms_found = molecule.GetNumAtoms()
            if levels and atoms_found > MAX_DESCRIPTOR_ATOMS:
                raise ValueError(f"{atoms_found:,} atoms, more than {MAX_DESCRIPTOR_ATOMS:,}, too many for descriptors")
        except ValueError as error:
            unreadable.append(UnreadableRow(row, _shortened(text), str(error)))
            continue
        reduced += molecule is not whole
        rows.append(row)
        identity.append(canonical_hash(molecule) if identify else 0)
        if graphs:
            graph = featurise(molecule)
            sizes.append((len(graph.atoms), len(graph.bonds)))
            atoms.extend(atom_ids.setdefault(atom, len(atom_ids)) for atom in graph.atoms)
            bonds.extend(
                (bond_ids.setdefault(bond, len(bond_ids)), *ends)
                for bond, ends in zip(graph.bonds, graph.ends, strict=True)
            )
        if levels:
            trees.append(junction_tree(molecule))
            values.append(raw_descriptors(molecule, normalisation=normalisation))
        if fingerprints:
            counts.append(morgan_counts(molecule))
            properties.append(cheap_properties(molecule))
            scaffolds.append(scaffold_hash(molecule) if identify else 0)
    lengths = np.array(sizes if graphs else [(0, 0)] * len(rows), dtype=np.int64).reshape(-1, 2)
    store = Store(
        atom_rows=_table(atom_ids, len(ATOM_FIELDS), np.int32),
        bond_rows=_table(bond_ids, len(BOND_FIELDS), np.uint8),
        atoms=Ragged.of(narrow(np.array(atoms, dtype=np.int64)), lengths[:, 0]),
        bonds=Ragged.of(narrow(np.array(bonds, dtype=np.int64).reshape(-1, 3)), lengths[:, 1]),
        rows=np.array(rows, dtype=np.int64),
        identity=np.array(identity, dtype=np.uint64),
        levels=_levels(trees, values, normalisation) if levels else None,
        fingerprints=_fingerprints(counts, properties, scaffolds) if fingerprints else None,
    )
    return MoleculeChunk(store, unreadable, reduced)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


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


def _fingerprints(
    counts: Sequence[Sequence[tuple[int, int]]], properties: Sequence[Sequence[float]], scaffolds: Sequence[int]
) -> Fingerprints:
    table = np.array(properties, dtype=np.float32).reshape(-1, len(PROPERTY_NAMES))
    return Fingerprints(_pairs(counts), table, np.array(scaffolds, dtype=np.uint64))


def _pairs(parts: Sequence[Sequence[tuple[int, int]]]) -> Ragged:
    joined = [pair for part in parts for pair in part]
    return Ragged.of(narrow(np.array(joined, dtype=np.int64).reshape(-1, 2)), [len(part) for part in parts])


def build_chunks(
    smiles: Iterable[str],
    *,
    levels: bool = False,
    normalisation: str = "quantiles",
    fingerprints: bool = False,
    graphs: bool = True,
    identify: bool = True,
    fragment: bool = False,
    max_length: int = MAX_SMILES_LENGTH,
    workers: int = 1,
    chunk: int = MOLECULES_PER_CHUNK,
) -> Iterator[MoleculeChunk]:
    """Yield the chunks of a stream of SMILES in order; only a few are in memory at a time.

    The arguments are those of `build_chunk`, the number of processes, and the molecules of a chunk.
    """

    def parts() -> Iterator[tuple[int, list[str]]]:
        rest, first = iter(smiles), 0
        while part := list(islice(rest, chunk)):
            yield first, part
            first += len(part)

    build = _Build(levels, normalisation, fingerprints, graphs, identify, fragment, max_length)
    return ordered(build, parts(), workers=workers)


@dataclass(frozen=True)
class _Build:
    levels: bool
    normalisation: str
    fingerprints: bool
    graphs: bool
    identify: bool
    fragment: bool
    max_length: int

    def __call__(self, part: tuple[int, list[str]]) -> MoleculeChunk:
        return build_chunk(*part, **vars(self))


@dataclass(frozen=True)
class Featurised:
    """The molecules that RDKit reads, the unreadable rows, and how many were reduced to their largest fragment."""

    store: Store
    unreadable: list[UnreadableRow]
    reduced: int = 0


def molecule_cache_key(
    smiles: Sequence[str],
    *,
    levels: bool = False,
    normalisation: str = "quantiles",
    fingerprints: bool = False,
    fragment: bool = False,
    max_length: int = MAX_SMILES_LENGTH,
) -> str:
    """Return the key of the cache of these SMILES, which depends on texts, options, featuriser and RDKit's version.

    >>> molecule_cache_key(["C", "CC"]) == molecule_cache_key(["CC", "C"])
    False
    """
    rdkit = extras.load("rdkit", "molecules").__version__
    options = f"{normalisation} {MAX_DESCRIPTOR_ATOMS}" if levels else "no levels"
    options += f" fingerprints {FINGERPRINT_VERSION}" if fingerprints else ""
    versions = f"{_KEY_VERSION} {FEATURISER_VERSION} {rdkit}"
    digest = blake2b(f"{versions} {options} {fragment} {max_length}".encode(), digest_size=16)
    for text in smiles:
        content = text.encode()
        # With its length: a text may itself contain any separator.
        digest.update(b"\n%d " % len(content))
        digest.update(content)
    return digest.hexdigest()


def featurise_all(
    smiles: Sequence[str],
    cache: str | PathLike[str] | None = None,
    *,
    levels: bool = False,
    normalisation: str = "quantiles",
    fingerprints: bool = False,
    graphs: bool = True,
    fragment: bool = False,
    max_length: int = MAX_SMILES_LENGTH,
    on_error: str = "skip",
    workers: int = 2,
    progress: bool | None = None,
) -> Featurised:
    """Return the molecules of these SMILES, from the cache if they were read before.

    Args:
        smiles: One text per row.
        cache: The folder of caches; by default `cache_directory()`.
        levels: Cliques and descriptors as well, for ML-MPNN. (Descriptors take 25 times as long as all else, and
            molecules of more than `MAX_DESCRIPTOR_ATOMS` (500) count as unreadable.)
        normalisation: Of the descriptors: "quantiles", or "descriptastorus" for those of the package of this name.
        fingerprints: Morgan counts, cheap properties and scaffolds as well, for committees.
        graphs: Atoms and bonds, which only networks read and which take a third of the time; a cache that has them
            serves without as well.
        fragment: Keep only the largest fragment of each molecule: salts and solvents are stripped.
        max_length: The most characters of a SMILES (5,000); longer ones count as unreadable.
        on_error: "skip" to leave unreadable molecules out and report them, or "raise".
        workers: The number of processes that read; small lists are read by this one.
        progress: Show a progress bar; by default where the error stream is a terminal.

    Raises:
        ValueError: No molecule can be read, or any cannot with `on_error="raise"`.
    """
    validation.choice("on_error", on_error, ON_ERROR)
    validation.choice("normalisation", normalisation, NORMALISATIONS)
    validation.whole("workers", workers, 1)
    validation.whole("max_length", max_length, 1)
    if len(smiles) == 0:
        raise ValueError("smiles must hold at least one molecule, got none")
    workers = workers if len(smiles) > 2 * MOLECULES_PER_CHUNK else 1
    options: Any = {
        "levels": levels,
        "normalisation": normalisation,
        "fingerprints": fingerprints,
        "fragment": fragment,
        "max_length": max_length,
    }
    name = f"molecules-{molecule_cache_key(smiles, **options)}"
    if not graphs and not cache_folder(name, cache).exists():
        name += "-without-graphs"
    folder, unreadable = cached_folder(
        name,
        lambda folder: _write_store(
            folder, smiles, build_chunks(smiles, **options, graphs=graphs, workers=workers), progress=progress
        ),
        cache,
    )
    message = describe_unreadable(unreadable, len(smiles), "molecules")
    if unreadable and on_error == "raise":
        raise ValueError(message)
    store = Store.open(folder)
    if len(store) == 0:
        raise ValueError(f"smiles: no molecule could be read. {message}")
    return Featurised(store, unreadable, int((folder / _REDUCED).read_text(encoding="utf-8")))


_REDUCED = "reduced.txt"


def _write_store(
    folder: Path, smiles: Sequence[str], built: Iterator[MoleculeChunk], *, progress: bool | None
) -> list[UnreadableRow]:
    def size(chunk: MoleculeChunk) -> int:
        return len(chunk.store) + len(chunk.unreadable)

    shown = with_progress(
        built, len(smiles), label="reading molecules", size=size, progress=progress, extra="molecules"
    )
    chunks = list(shown)
    Store.join([chunk.store for chunk in chunks]).save(folder)
    (folder / _REDUCED).write_text(str(sum(chunk.reduced for chunk in chunks)), encoding="utf-8")
    return [item for chunk in chunks for item in chunk.unreadable]
