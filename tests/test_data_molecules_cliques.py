"""The junction tree: rings, bonds, bridged rings and branching atoms, joined to a tree."""

from __future__ import annotations

import pytest

Chem = pytest.importorskip("rdkit.Chem")

from apmax.data.molecules.cliques import ATOM, BOND, BRIDGED, RING, junction_tree  # noqa: E402
from apmax.data.molecules.featurise import parse_smiles  # noqa: E402

SMILES = [
    "CCO",
    "CC(C)(C)C",
    "c1ccccc1CC(=O)O",
    "c1ccc2ccccc2c1",
    "C1CC2CCC1C2",
    "C1CC2(C1)CCC2",
    "CC(C)c1ccc(C2CC2)cc1",
    "C1CC2CC3CC(C1)C23",
    "OC(c1ccccc1)(c1ccccc1)c1ccncc1",
    "CC1=C2C=CC3=CC=CC(=C23)C=C1",
    "C12C3C4C1C5C2C3C45",
    "CCO.c1ccccc1",
]


@pytest.mark.parametrize("smiles", SMILES)
def test_cliques_and_tree_are_those_of_torch_geometric(smiles):
    geometric = pytest.importorskip("torch_geometric.utils")
    molecule = parse_smiles(smiles)
    edges, pairs, count, kinds = geometric.tree_decomposition(molecule, return_vocab=True)
    theirs = [(int(kinds[k]), tuple(sorted(pairs[0][pairs[1] == k].tolist()))) for k in range(count)]
    tree = junction_tree(molecule)
    ours = [(kind, tuple(sorted(atoms))) for kind, atoms in zip(tree.kinds, tree.members, strict=True)]
    assert sorted(ours) == sorted(theirs)
    # Spanning trees of equal weight may differ: compare how many atoms neighbours have in common.
    common = sorted(len(set(ours[a][1]) & set(ours[b][1])) for a, b in tree.edges)
    one_way = [(a, b) for a, b in edges.T.tolist() if a < b]
    assert common == sorted(len(set(theirs[a][1]) & set(theirs[b][1])) for a, b in one_way)


@pytest.mark.parametrize("smiles", SMILES)
def test_tree_has_one_edge_fewer_than_cliques_for_each_part(smiles):
    tree = junction_tree(parse_smiles(smiles))
    assert len(tree.edges) == len(tree.kinds) - len(Chem.GetMolFrags(parse_smiles(smiles)))


def test_kinds_are_ring_bond_bridged_and_atom():
    assert junction_tree(parse_smiles("c1ccccc1")).kinds == [RING]
    assert junction_tree(parse_smiles("CC")).kinds == [BOND]
    assert junction_tree(parse_smiles("C1CC2CCC1C2")).kinds == [BRIDGED]
    assert junction_tree(parse_smiles("CC(C)C")).kinds == [BOND, BOND, BOND, ATOM]


def test_atom_without_bonds_is_a_clique():
    tree = junction_tree(parse_smiles("[Na+].[Cl-]"))
    assert (tree.kinds, tree.members, tree.edges) == ([ATOM, ATOM], [(0,), (1,)], [])
