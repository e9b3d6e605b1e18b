"""Junction tree of a molecule: rings, bonds, bridged ring systems and branching atoms as the nodes of a tree."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations
from typing import Any

from apmax.data.molecules.featurise import bonds_in_order, chemistry

RING, BOND, BRIDGED, ATOM = range(4)
"""The kinds of cliques, positions in `vocabulary.CLIQUE_KINDS`."""

_REQUIRED = 99
"""Weight of edges that the spanning tree must contain; larger than any number of shared atoms."""


@dataclass(frozen=True)
class JunctionTree:
    """Junction tree (a forest where the molecule has several components).

    Attributes:
        kinds: Kind of each clique.
        members: Atoms of each clique.
        edges: Pairs of adjacent cliques.
    """

    kinds: list[int]
    members: list[tuple[int, ...]]
    edges: list[tuple[int, int]]


def junction_tree(molecule: Any) -> JunctionTree:
    """Return the tree decomposition of a molecule (Jin, Barzilay and Jaakkola 2018, section 2 and appendix).

    Cliques are the rings of the symmetrised smallest set, and every bond outside of rings. Rings that share more than
    two atoms are one bridged clique. An atom that is shared by three bonds, by two bonds and a ring, or by three rings
    of more than four atoms becomes a clique of its own, adjacent to these. The tree is a maximum spanning tree of the
    clique graph, whose edges are weighted by the number of shared atoms. An atom without bonds is a clique too, so
    that every atom belongs to one.

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
    cliques_of: list[list[int]] = [[] for _ in range(molecule.GetNumAtoms())]
    for clique, atoms in enumerate(members):
        for atom in atoms:
            cliques_of[atom].append(clique)
    weights = _clique_graph(cliques_of, kinds, members)
    return JunctionTree(kinds, members, _spanning_tree(weights, len(kinds)))


def _merge_bridged(rings: list[set[int]]) -> list[tuple[set[int], int]]:
    merged: list[tuple[set[int], int]] = []
    for ring in rings:
        current, kind = set(ring), RING
        while True:
            overlapping = next((k for k, (other, _) in enumerate(merged) if len(other & current) > 2), None)
            if overlapping is None:
                break
            current |= merged.pop(overlapping)[0]
            kind = BRIDGED
        merged.append((current, kind))
    return merged


def _clique_graph(
    cliques_of: list[list[int]], kinds: list[int], members: list[tuple[int, ...]]
) -> dict[tuple[int, int], int]:
    """Return the edge weights of the clique graph; append branching and isolated atoms to `kinds` and `members`."""
    weights: dict[tuple[int, int], int] = {}
    for atom, cliques in enumerate(cliques_of):
        bonds = sum(kinds[clique] == BOND for clique in cliques)
        rings = sum(len(members[clique]) > 4 for clique in cliques)
        branching = bonds > 2 or (bonds == 2 and len(cliques) > 2)
        if not cliques or branching or rings > 2:
            kinds.append(ATOM)
            members.append((atom,))
            for clique in cliques:
                weights[clique, len(kinds) - 1] = 1 if branching else _REQUIRED
            continue
        for first, second in combinations(cliques, 2):
            weights[first, second] = len(set(members[first]) & set(members[second]))
    return weights


def _spanning_tree(weights: dict[tuple[int, int], int], cliques: int) -> list[tuple[int, int]]:
    parent = list(range(cliques))

    def root(clique: int) -> int:
        while parent[clique] != clique:
            parent[clique] = parent[parent[clique]]
            clique = parent[clique]
        return clique

    edges = []
    for first, second in sorted(weights, key=lambda edge: -weights[edge]):
        if (root_of_first := root(first)) != (root_of_second := root(second)):
            parent[root_of_first] = root_of_second
            edges.append((first, second))
    return sorted(edges)
