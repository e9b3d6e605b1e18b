"""Atoms and bonds become the paper's features, and nothing is lost by holding them as categories."""

from __future__ import annotations

import pytest
import torch

Chem = pytest.importorskip("rdkit.Chem")

from apmax.data.molecules.building import build_chunk  # noqa: E402
from apmax.data.molecules.dataset import MoleculeBatch  # noqa: E402
from apmax.data.molecules.featurise import featurise, parse_smiles  # noqa: E402
from apmax.data.molecules.vocabulary import ATOM_WIDTH, BOND_WIDTH, dense_atoms, dense_bonds  # noqa: E402

SMILES = [
    "CCO",
    "c1ccccc1C(=O)[O-]",
    "C[C@H](N)C(=O)O",
    "C/C=C/C",
    "C/C=C\\C",
    "[2H]C([2H])Cl",
    "[13CH3]O",
    "FS(F)(F)(F)(F)F",
    "[NH3][Pt](Cl)(Cl)[NH3]",
    "N->[Fe]",
    "[Na+].[Cl-]",
    "*CC#N",
    "[Fe+3]",
    "O=[Md]",
    "FP(F)(F)(F)F",
    "[SiH4]",
]


def one_hot(value, choices):
    slots = [0.0] * (len(choices) + 1)
    slots[choices.index(value) if value in choices else -1] = 1.0
    return slots


def reference_atom(atom):
    hybrids = [getattr(Chem.HybridizationType, name) for name in ("SP", "SP2", "SP3", "SP3D", "SP3D2")]
    return (
        one_hot(atom.GetAtomicNum(), list(range(1, 101)))
        + one_hot(atom.GetTotalDegree(), [0, 1, 2, 3, 4, 5])
        + one_hot(atom.GetFormalCharge(), [-1, -2, 1, 2, 0])
        + one_hot(int(atom.GetChiralTag()), [0, 1, 2, 3])
        + one_hot(atom.GetTotalNumHs(), [0, 1, 2, 3, 4])
        + one_hot(atom.GetHybridization(), hybrids)
        + [float(atom.GetIsAromatic()), atom.GetMass() / 100]
    )


def reference_bond(bond):
    kinds = [getattr(Chem.BondType, name) for name in ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")]
    flags = [float(bond.GetBondType() == kind) for kind in kinds]
    rest = [float(bond.GetIsConjugated()), float(bond.IsInRing())]
    return [0.0, *flags, *rest, *one_hot(int(bond.GetStereo()), [0, 1, 2, 3, 4, 5])]


@pytest.mark.parametrize("smiles", SMILES)
def test_dense_atoms_are_the_papers_one_hots(smiles):
    molecule = parse_smiles(smiles)
    expected = torch.tensor([reference_atom(atom) for atom in molecule.GetAtoms()])
    found = dense_atoms(torch.tensor(featurise(molecule).atoms))
    assert found.shape == (molecule.GetNumAtoms(), ATOM_WIDTH) == (molecule.GetNumAtoms(), 133)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-7)


@pytest.mark.parametrize("smiles", [text for text in SMILES if parse_smiles(text).GetNumBonds()])
def test_dense_bonds_are_the_papers_one_hots(smiles):
    molecule = parse_smiles(smiles)
    expected = torch.tensor([reference_bond(bond) for bond in molecule.GetBonds()])
    found = dense_bonds(torch.tensor(featurise(molecule).bonds))
    assert found.shape[1] == BOND_WIDTH == 14
    assert torch.equal(found, expected)


def test_batch_holds_every_bond_in_both_directions():
    batch = MoleculeBatch(build_chunk(0, ["CCO", "[Na+]", "C=C"]).store)
    assert sorted(map(tuple, batch.edge_index.T.tolist())) == [(0, 1), (1, 0), (1, 2), (2, 1), (4, 5), (5, 4)]
    assert batch.batch.tolist() == [0, 0, 0, 1, 2, 2]


@pytest.mark.parametrize(
    ("smiles", "reason"),
    [
        ("C(C", "extra open parentheses"),
        ("CN(C)(C)(C)C", "valence"),
        ("c1cccc1", "kekulize"),
        ("", "no SMILES"),
        ("not a molecule", "SMILES Parse Error"),
    ],
)
def test_unreadable_molecule_is_reported_with_rdkits_reason(smiles, reason):
    with pytest.raises(ValueError, match=f"(?i){reason}"):
        parse_smiles(smiles)


def test_rdkit_writes_nothing_to_the_terminal(capfd):
    build_chunk(0, ["C(C", "CN(C)(C)(C)C", "c1cccc1"])
    out, err = capfd.readouterr()
    assert out == err == ""
