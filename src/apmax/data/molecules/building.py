"""Stores of molecules built from SMILES, in chunks by several processes, and their cache on disk."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from hashlib import blake2b
from itertools import islice
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict

import numpy as np

from apmax import extras, validation
from apmax.data.caching import cache_folder, cached_folder
from apmax.data.molecules.cliques import junction_tree
from apmax.data.molecules.descriptors import (
    DESCRIPTOR_COUNT,
    MAX_DESCRIPTOR_ATOMS,
    NORMALISATIONS,
    normalise_descriptors,
    raw_descriptors,
)
from apmax.data.molecules.featurise import (
    MAX_SMILES_LENGTH,
    AtomRow,
    BondRow,
    MoleculeGraph,
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
from apmax.data.molecules.store import Fingerprints, Levels, Ragged, Store, narrow
from apmax.data.molecules.vocabulary import ATOM_FIELDS, BOND_FIELDS, FEATURISER_VERSION
from apmax.data.parallel import ordered, with_progress
from apmax.data.reading import ON_ERROR, UnreadableRow, describe_unreadable

if TYPE_CHECKING:
    from typing_extensions import Unpack

_SHOWN = 1_000
"""Characters of an unreadable SMILES that are kept."""
_KEY_VERSION = 2
"""Version of the key of a cache; that of the featuriser is also one of models, which the key does not concern."""
MOLECULES_PER_CHUNK = 512
"""Molecules per task of a process: many enough to make sending them cheap, few enough for the memory."""


class BuildOptions(TypedDict, total=False):
    """Options of `build_chunk`."""

    levels: bool
    normalisation: str
    fingerprints: bool
    graphs: bool
    identify: bool
    fragment: bool
    max_length: int


@dataclass(frozen=True)
class Featurised:
    """Molecules with their features.

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
) -> Featurised:
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
    molecules: list[Any] = []
    reduced = 0
    for row, text in enumerate(smiles, start=first):
        try:
            whole = parse_smiles(text, max_length=max_length)
            molecule = largest_fragment(whole) if fragment else whole
            atoms = molecule.GetNumAtoms()
            if levels and atoms > MAX_DESCRIPTOR_ATOMS:
                raise ValueError(f"{atoms:,} atoms, more than {MAX_DESCRIPTOR_ATOMS:,}, too many for descriptors")
        except ValueError as error:
            unreadable.append(UnreadableRow(row, _shortened(text), str(error)))
            continue
        reduced += molecule is not whole
        rows.append(row)
        molecules.append(molecule)
    store = Store(
        rows=np.array(rows, dtype=np.int64),
        identity=np.array([canonical_hash(each) if identify else 0 for each in molecules], dtype=np.uint64),
        **_graphs([featurise(each) if graphs else MoleculeGraph([], [], []) for each in molecules]),
        levels=_levels(molecules, normalisation) if levels else None,
        fingerprints=_fingerprints(molecules, identify=identify) if fingerprints else None,
    )
    return Featurised(store, unreadable, reduced)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def _graphs(graphs: Sequence[MoleculeGraph]) -> dict[str, Any]:
    """Return the distinct rows of categories and what refers to them, by the names of `Store`."""
    atom_ids: dict[AtomRow, int] = {}
    bond_ids: dict[BondRow, int] = {}
    atoms = [atom_ids.setdefault(atom, len(atom_ids)) for graph in graphs for atom in graph.atoms]
    bonds = [
        (bond_ids.setdefault(bond, len(bond_ids)), *ends)
        for graph in graphs
        for bond, ends in zip(graph.bonds, graph.ends, strict=True)
    ]
    return {
        "atom_rows": np.array(list(atom_ids), dtype=np.int32).reshape(-1, len(ATOM_FIELDS)),
        "bond_rows": np.array(list(bond_ids), dtype=np.uint8).reshape(-1, len(BOND_FIELDS)),
        "atoms": Ragged.of(narrow(np.array(atoms, dtype=np.int64)), [len(graph.atoms) for graph in graphs]),
        "bonds": Ragged.of(
            narrow(np.array(bonds, dtype=np.int64).reshape(-1, 3)), [len(graph.bonds) for graph in graphs]
        ),
    }


def _levels(molecules: Sequence[Any], normalisation: str) -> Levels:
    trees = [junction_tree(molecule) for molecule in molecules]
    values = [raw_descriptors(molecule, normalisation=normalisation) for molecule in molecules]
    kinds = [kind for tree in trees for kind in tree.kinds]
    members = [[(clique, atom) for clique, atoms in enumerate(tree.members) for atom in atoms] for tree in trees]
    table = np.array(values, dtype=np.float64).reshape(-1, DESCRIPTOR_COUNT)
    return Levels(
        cliques=Ragged.of(narrow(np.array(kinds, dtype=np.int64)), [len(tree.kinds) for tree in trees]),
        members=_pairs(members),
        tree=_pairs([tree.edges for tree in trees]),
        descriptors=normalise_descriptors(table, normalisation=normalisation),
    )


def _fingerprints(molecules: Sequence[Any], *, identify: bool) -> Fingerprints:
    counts = [morgan_counts(molecule) for molecule in molecules]
    properties = [cheap_properties(molecule) for molecule in molecules]
    scaffolds = [scaffold_hash(molecule) if identify else 0 for molecule in molecules]
    table = np.array(properties, dtype=np.float32).reshape(-1, len(PROPERTY_NAMES))
    return Fingerprints(_pairs(counts), table, np.array(scaffolds, dtype=np.uint64))


def _pairs(parts: Sequence[Sequence[tuple[int, int]]]) -> Ragged:
    joined = [pair for part in parts for pair in part]
    return Ragged.of(narrow(np.array(joined, dtype=np.int64).reshape(-1, 2)), [len(part) for part in parts])


def build_chunks(
    smiles: Iterable[str], *, workers: int = 1, chunk: int = MOLECULES_PER_CHUNK, **options: Unpack[BuildOptions]
) -> Iterator[Featurised]:
    """Yield the chunks of a stream of SMILES in order; only a few are in memory at a time.

    Args:
        smiles: The SMILES.
        workers: The number of processes.
        chunk: Molecules per chunk.
        **options: Options of `build_chunk`: `levels`, `normalisation`, `fingerprints`, `graphs`, `identify`,
            `fragment`, `max_length`.
    """

    def parts() -> Iterator[tuple[int, list[str]]]:
        rest, first = iter(smiles), 0
        while part := list(islice(rest, chunk)):
            yield first, part
            first += len(part)

    return ordered(partial(_build_part, options=options), parts(), workers=workers)


def _build_part(part: tuple[int, list[str]], *, options: BuildOptions) -> Featurised:
    return build_chunk(*part, **options)


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
    folder: Path, smiles: Sequence[str], built: Iterator[Featurised], *, progress: bool | None
) -> list[UnreadableRow]:
    def size(chunk: Featurised) -> int:
        return len(chunk.store) + len(chunk.unreadable)

    shown = with_progress(
        built, len(smiles), label="reading molecules", size=size, progress=progress, extra="molecules"
    )
    chunks = list(shown)
    Store.join([chunk.store for chunk in chunks]).save(folder)
    (folder / _REDUCED).write_text(str(sum(chunk.reduced for chunk in chunks)), encoding="utf-8")
    return [item for chunk in chunks for item in chunk.unreadable]
