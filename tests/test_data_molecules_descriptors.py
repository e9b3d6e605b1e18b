"""The 200 RDKit descriptors and their two normalisations."""

from __future__ import annotations

from math import comb, log2

import numpy as np
import pytest

pytest.importorskip("rdkit")

from apmax.data.molecules import featurise_all
from apmax.data.molecules.descriptors import (
    DESCRIPTOR_NAMES,
    QUANTILES,
    information_content,
    normalise_descriptors,
    raw_descriptors,
)
from apmax.data.molecules.featurise import parse_smiles


def test_there_are_200_descriptors_in_alphabetical_order():
    assert len(set(DESCRIPTOR_NAMES)) == 200
    assert list(DESCRIPTOR_NAMES) == sorted(DESCRIPTOR_NAMES)


def test_descriptors_are_shares_of_the_reference_population():
    table = normalise_descriptors(
        [raw_descriptors(parse_smiles(text)) for text in ("C", "CCO", "c1ccccc1C(=O)NCCN", "C" * 200)]
    )
    assert table.min() >= 0
    assert table.max() <= 1
    weight = table[:, DESCRIPTOR_NAMES.index("MolWt")]
    assert (np.diff(weight) >= 0).all()
    assert weight[0] == 0
    assert weight[-1] == 1


def test_median_of_the_reference_is_normalised_to_one_half():
    reference = np.load(QUANTILES, allow_pickle=False)
    for name in ("MolWt", "TPSA", "MolLogP"):
        row = np.full((1, 200), np.nan)
        row[0, DESCRIPTOR_NAMES.index(name)] = reference[DESCRIPTOR_NAMES.index(name), 50]
        assert normalise_descriptors(row)[0, DESCRIPTOR_NAMES.index(name)] == pytest.approx(0.5, abs=0.011)


def test_unknown_descriptor_is_one_half_and_an_infinite_one_is_an_end():
    row = np.full((1, 200), np.nan)
    row[0, 0] = np.inf
    shares = normalise_descriptors(row)
    assert shares[0, 0] == 1
    assert (shares[0, 1:] == 0.5).all()


def test_descriptastorus_normalisation_is_that_packages():
    module = pytest.importorskip("descriptastorus.descriptors.rdNormalizedDescriptors")
    texts = ["CCO", "CCCCCCCCO", "c1ccccc1C(=O)NCCN", "CC(C)(C)c1ccc(O)cc1", "O=S(=O)(c1ccncc1)N1CCCC1"]
    expected = [module.RDKit2DNormalized().calculateMol(parse_smiles(text), text) for text in texts]
    raw = [raw_descriptors(parse_smiles(text), normalisation="descriptastorus") for text in texts]
    found = normalise_descriptors(raw, normalisation="descriptastorus")
    np.testing.assert_allclose(found, np.array(expected, dtype=float), atol=1e-6)


def test_descriptastorus_normalisation_of_an_unknown_descriptor_is_zero():
    pytest.importorskip("descriptastorus.descriptors.rdNormalizedDescriptors")
    assert not normalise_descriptors(np.full((1, 200), np.nan), normalisation="descriptastorus").any()


def test_unknown_normalisation_is_an_error():
    with pytest.raises(ValueError, match="normalisation"):
        normalise_descriptors(np.zeros((1, 200)), normalisation="ranks")


def test_data_sets_of_the_two_normalisations_differ_in_their_descriptors_alone(tmp_path):
    pytest.importorskip("descriptastorus.descriptors.rdNormalizedDescriptors")
    ours, theirs = (
        featurise_all(["CCO", "c1ccccc1"], tmp_path, levels=True, normalisation=normalisation).store
        for normalisation in ("quantiles", "descriptastorus")
    )
    assert ours.directory != theirs.directory
    np.testing.assert_array_equal(ours.levels.members.values, theirs.levels.members.values)
    expected = normalise_descriptors(
        [raw_descriptors(parse_smiles(text), normalisation="descriptastorus") for text in ("CCO", "c1ccccc1")],
        normalisation="descriptastorus",
    )
    np.testing.assert_array_equal(theirs.levels.descriptors, expected)
    assert not np.array_equal(ours.levels.descriptors, expected)


@pytest.mark.parametrize("smiles", ["CCO", "C1CCCCC1", "CC(C)(C)CO", "CC.CCC", "[Na+].[Cl-]", "C" * 60])
def test_information_content_without_odd_rings_is_rdkits(smiles):
    molecule = parse_smiles(smiles)
    expected = pytest.importorskip("rdkit.Chem.Descriptors").Ipc(molecule)
    assert information_content(molecule) == pytest.approx(expected, rel=1e-10)


def test_information_content_of_a_long_chain_is_exact():
    # A path of n atoms has n-k over k matchings of k bonds, which are the coefficients.
    size = 260
    counts = [comb(size - k, k) for k in range(size // 2 + 1)]
    total = sum(counts)
    entropy = -sum(count / total * log2(count / total) for count in counts)
    values = raw_descriptors(parse_smiles("C" * size))
    assert values[DESCRIPTOR_NAMES.index("Ipc")] == pytest.approx(total * entropy, rel=1e-9)
