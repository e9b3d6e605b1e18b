"""Atoms and bonds become the paper's features, and nothing is lost by holding them as categories."""

from __future__ import annotations

from math import comb, log2

import numpy as np
import pytest
import torch

Chem = pytest.importorskip("rdkit.Chem")

from rdkit.Chem import Descriptors  # noqa: E402

from apmax.data.molecules import descriptors  # noqa: E402
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


def test_there_are_200_descriptors_in_alphabetical_order():
    assert len(set(descriptors.NAMES)) == 200
    assert list(descriptors.NAMES) == sorted(descriptors.NAMES)


def test_descriptors_are_shares_of_the_reference_population():
    table = descriptors.normalise(
        [descriptors.raw(parse_smiles(text)) for text in ("C", "CCO", "c1ccccc1C(=O)NCCN", "C" * 200)]
    )
    assert table.min() >= 0
    assert table.max() <= 1
    weight = table[:, descriptors.NAMES.index("MolWt")]
    assert (np.diff(weight) >= 0).all()
    assert weight[0] == 0
    assert weight[-1] == 1


def test_median_of_the_reference_is_normalised_to_one_half():
    reference = np.load(descriptors.QUANTILES, allow_pickle=False)
    for name in ("MolWt", "TPSA", "MolLogP"):
        row = np.full((1, 200), np.nan)
        row[0, descriptors.NAMES.index(name)] = reference[descriptors.NAMES.index(name), 50]
        assert descriptors.normalise(row)[0, descriptors.NAMES.index(name)] == pytest.approx(0.5, abs=0.011)


def test_unknown_descriptor_is_one_half_and_an_infinite_one_is_an_end():
    row = np.full((1, 200), np.nan)
    row[0, 0] = np.inf
    shares = descriptors.normalise(row)
    assert shares[0, 0] == 1
    assert (shares[0, 1:] == 0.5).all()


@pytest.mark.parametrize("smiles", ["CCO", "C1CCCCC1", "CC(C)(C)CO", "CC.CCC", "[Na+].[Cl-]", "C" * 60])
def test_information_content_without_odd_rings_is_rdkits(smiles):
    molecule = parse_smiles(smiles)
    expected = Descriptors.Ipc(molecule)
    assert descriptors.information_content(molecule) == pytest.approx(expected, rel=1e-10)


def test_information_content_of_a_long_chain_is_exact():
    # A path of n atoms has n-k over k matchings of k bonds, which are the coefficients.
    size = 260
    counts = [comb(size - k, k) for k in range(size // 2 + 1)]
    total = sum(counts)
    entropy = -sum(count / total * log2(count / total) for count in counts)
    values = descriptors.raw(parse_smiles("C" * size))
    assert values[descriptors.NAMES.index("Ipc")] == pytest.approx(total * entropy, rel=1e-9)
