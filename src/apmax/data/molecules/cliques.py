"""The junction tree of a molecule: rings, bonds, bridged ring systems and branching atoms, joined to a tree."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from apmax.data.molecules.featurise import bonds_in_order, chemistry

RING, BOND, BRIDGED, ATOM = range(4)
"""The kinds of cliques, positions in `vocabulary.CLIQUE_KINDS`."""

_STRONG = 99


@dataclass(frozen=True)
class JunctionTree:
    """Cliques by kind and atoms, and the tree's edges (a forest where the molecule has several parts)."""

    kinds: list[int]
    members: list[tuple[int, ...]]
    edges: list[tuple[int, int]]


def junction_tree(molecule: Any) -> JunctionTree:
    """Return the tree decomposition of a molecule (Jin, Barzilay and Jaakkola 2018, section 2 and appendix).

    Cliques are the rings of the smallest set, and every bond outside of rings. Rings with more than two atoms in
    common are one bridged clique. An atom in which three bonds, two bonds and a ring, or three rings of more than four
    atoms meet becomes a clique of its own, between them. The tree is a maximum spanning tree of the clique graph,
    whose weights are the numbers of atoms in common. An atom without bonds is a clique as well, so that every atom
    belongs to one.

    >>> tree = junction_tree(chemistry().MolFromSmiles("c1ccccc1CC"))
    >>> tree.kinds, tree.members[1:], tree.edges
    ([0, 1, 1], [(5, 6), (6, 7)], [(0, 1), (1, 2)])
    """
    rings = _merge_bridged([set(ring) for ring in chemistry().GetSymmSSSR(molecule)])
    kinds = [kind for _, kind in rings]
    members: list[tuple[int, ...]] = [tuple(sorted(ring)) for ring, _ in rings]
    for bond in bonds_in_order(molecule):
        if not bond.IsInRing():
            kinds.append(BOND)
            members.append((bond.GetBeginAtomIdx(), bond.GetEndAtomIdx()))
    where: list[list[int]] = [[] for _ in range(molecule.GetNumAtoms())]
    for clique, atoms in enumerate(members):
        for atom in atoms:
            where[atom].append(clique)
    weights = _clique_graph(where, kinds, members)
    return JunctionTree(kinds, members, _spanning_tree(weights, len(kinds)))


def _merge_bridged(rings: list[set[int]]) -> list[tuple[set[int], int]]:
    merged: list[tuple[set[int], int]] = []
    for ring in rings:
        current, kind = set(ring), RING
        while True:
            near = next((k for k, (other, _) in enumerate(merged) if len(other & current) > 2), None)
            if near is None:
                break
            current |= merged.pop(near)[0]
            kind = BRIDGED
        merged.append((current, kind))
    return merged


def _clique_graph(
    where: list[list[int]], kinds: list[int], members: list[tuple[int, ...]]
) -> dict[tuple[int, int], int]:
    """Return the weights of the clique graph; branching and lone atoms are added to `kinds` and `members`."""
    weights: dict[tuple[int, int], int] = {}
    for atom, cliques in enumerate(where):
        bonds = sum(kinds[clique] == BOND for clique in cliques)
        rings = sum(len(members[clique]) > 4 for clique in cliques)
        branching = bonds > 2 or (bonds == 2 and len(cliques) > 2)
        if not cliques or branching or rings > 2:
            kinds.append(ATOM)
            members.append((atom,))
            for clique in cliques:
                weights[clique, len(kinds) - 1] = 1 if branching else _STRONG
            continue
        for one, two in combinations(cliques, 2):
            weights[one, two] = len(set(members[one]) & set(members[two]))
    return weights


def _spanning_tree(weights: dict[tuple[int, int], int], cliques: int) -> list[tuple[int, int]]:
    parent = list(range(cliques))

    def root(clique: int) -> int:
        while parent[clique] != clique:
            parent[clique] = parent[parent[clique]]
            clique = parent[clique]
        return clique

    edges = []
    for one, two in sorted(weights, key=lambda edge: -weights[edge]):
        first, second = root(one), root(two)
        if first != second:
            parent[first] = second
            edges.append((one, two))
    return sorted(edges)
