"""From SMILES to a store: in this process, or by several that each read chunks of the list."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from apmax.data.caching import ordered
from apmax.data.molecules.cliques import JunctionTree, junction_tree
from apmax.data.molecules.descriptors import DESCRIPTOR_COUNT, normalise_descriptors, raw_descriptors
from apmax.data.molecules.featurise import Unreadable, featurise, fingerprint, read
from apmax.data.molecules.store import Array, Levels, Ragged, Store, narrow
from apmax.data.molecules.vocabulary import ATOM_FIELDS, BOND_FIELDS

CHUNK = 512
"""Molecules that a process reads at a time: many enough that sending them back costs nothing, few for the memory."""


@dataclass(frozen=True)
class Chunk:
    """Some rows of a table: what could be read, and what could not."""

    store: Store
    unreadable: list[Unreadable]


def build_chunk(first: int, smiles: Sequence[str], *, levels: bool = False, identify: bool = True) -> Chunk:
    """Read some SMILES, the first of which is row `first` of its table.

    Without `identify` the canonical SMILES, by which duplicates are found, are not made: all identities are 0.

    >>> chunk = build_chunk(10, ["CCO", "C(C", "c1ccccc1"])
    >>> chunk.store.rows.tolist(), chunk.unreadable[0].row, chunk.unreadable[0].reason
    ([10, 12], 11, 'SMILES Parse Error: extra open parentheses')
    """
    unreadable: list[Unreadable] = []
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
            molecule = read(text)
        except ValueError as error:
            unreadable.append(Unreadable(row, text, str(error)))
            continue
        graph = featurise(molecule)
        rows.append(row)
        identity.append(fingerprint(molecule) if identify else 0)
        sizes.append((len(graph.atoms), len(graph.bonds)))
        atoms.extend(atom_ids.setdefault(atom, len(atom_ids)) for atom in graph.atoms)
        bonds.extend(
            (bond_ids.setdefault(bond, len(bond_ids)), *ends)
            for bond, ends in zip(graph.bonds, graph.ends, strict=True)
        )
        if levels:
            trees.append(junction_tree(molecule))
            values.append(raw_descriptors(molecule))
    counts = np.array(sizes, dtype=np.int64).reshape(-1, 2)
    store = Store(
        atom_rows=_table(atom_ids, len(ATOM_FIELDS), np.int32),
        bond_rows=_table(bond_ids, len(BOND_FIELDS), np.uint8),
        atoms=Ragged.of(narrow(np.array(atoms, dtype=np.int64)), counts[:, 0]),
        bonds=Ragged.of(narrow(np.array(bonds, dtype=np.int64).reshape(-1, 3)), counts[:, 1]),
        rows=np.array(rows, dtype=np.int64),
        identity=np.array(identity, dtype=np.uint64),
        levels=_levels(trees, values) if levels else None,
    )
    return Chunk(store, unreadable)


def _table(ids: dict[Any, int], width: int, dtype: Any) -> Array:
    return np.array(list(ids), dtype=dtype).reshape(-1, width)


def _levels(trees: Sequence[JunctionTree], values: Sequence[Sequence[float]]) -> Levels:
    kinds = [kind for tree in trees for kind in tree.kinds]
    members = [[(clique, atom) for clique, atoms in enumerate(tree.members) for atom in atoms] for tree in trees]
    return Levels(
        cliques=Ragged.of(narrow(np.array(kinds, dtype=np.int64)), [len(tree.kinds) for tree in trees]),
        members=_pairs(members),
        tree=_pairs([tree.edges for tree in trees]),
        descriptors=normalise_descriptors(np.array(values, dtype=np.float64).reshape(-1, DESCRIPTOR_COUNT)),
    )


def _pairs(parts: Sequence[Sequence[tuple[int, int]]]) -> Ragged:
    joined = [pair for part in parts for pair in part]
    return Ragged.of(narrow(np.array(joined, dtype=np.int64).reshape(-1, 2)), [len(part) for part in parts])


def build_chunks(
    smiles: Iterable[str], *, levels: bool = False, identify: bool = True, workers: int = 1, chunk: int = CHUNK
) -> Iterator[Chunk]:
    """Yield a stream of SMILES as chunks, in order; a few chunks are in memory at a time, however long the stream."""

    def parts() -> Iterator[tuple[int, list[str]]]:
        rest, first = iter(smiles), 0
        while part := list(islice(rest, chunk)):
            yield first, part
            first += len(part)

    return ordered(_Build(levels, identify), parts(), workers=workers)


@dataclass(frozen=True)
class _Build:
    levels: bool
    identify: bool

    def __call__(self, part: tuple[int, list[str]]) -> Chunk:
        return build_chunk(*part, levels=self.levels, identify=self.identify)
