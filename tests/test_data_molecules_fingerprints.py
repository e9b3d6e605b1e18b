"""Fingerprints of molecules: Morgan counts, properties and scaffolds in the store and its cache."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("rdkit")

from rdkit.Chem import Descriptors, rdFingerprintGenerator

from apmax.data.molecules import MoleculeDataset, Store, build_chunk, featurise_all, molecule_dataset, scaffolds
from apmax.data.molecules.building import molecule_cache_key
from apmax.data.molecules.featurise import parse_smiles
from apmax.data.molecules.fingerprints import MORGAN_SIZE, PROPERTY_NAMES

SMILES = ["CCO", "c1ccccc1CC(=O)NC", "C[N+](C)(C)CC(=O)[O-]", "OC[C@H]1CCC(=O)N1", "C1CC2CCC1CC2", "[Na+].[Cl-]"]


def test_counts_are_those_of_rdkit():
    prints = build_chunk(0, SMILES, fingerprints=True).store.fingerprints
    generator = rdFingerprintGenerator.GetMorganGenerator(radius=2, fpSize=MORGAN_SIZE)
    for row, text in enumerate(SMILES):
        expected = generator.GetCountFingerprintAsNumPy(parse_smiles(text))
        pairs = prints.counts.take(np.array([row])).values
        found = np.zeros(MORGAN_SIZE, int)
        found[pairs[:, 0]] = pairs[:, 1]
        np.testing.assert_array_equal(found, expected)
        assert (np.diff(pairs[:, 0].astype(int)) > 0).all()


def test_properties_are_the_descriptors_of_their_names():
    """Every property that RDKit lists as a descriptor has that descriptor's value."""
    prints = build_chunk(0, SMILES, fingerprints=True).store.fingerprints
    functions = dict(Descriptors.descList)
    compared = [name for name in PROPERTY_NAMES if name in functions]
    assert len(compared) >= len(PROPERTY_NAMES) - 3
    for name in compared:
        expected = [functions[name](parse_smiles(text)) for text in SMILES]
        np.testing.assert_allclose(prints.properties[:, PROPERTY_NAMES.index(name)], expected, rtol=1e-5, err_msg=name)
    assert prints.properties[2, PROPERTY_NAMES.index("FormalCharge")] == 0
    assert np.isfinite(prints.properties).all()


def test_scaffolds_are_equal_where_the_texts_are():
    smiles = ["Cc1ccccc1", "OCc1ccccc1", "CCC", "CCN", "C1CCCCC1"]
    found = build_chunk(0, smiles, fingerprints=True).store.fingerprints.scaffolds
    texts = np.array(scaffolds(smiles))
    np.testing.assert_array_equal(found[:, None] == found, texts[:, None] == texts)


def test_fingerprints_do_not_depend_on_graphs():
    plain, bare = (build_chunk(0, [*SMILES, "C(C"], fingerprints=True, graphs=graphs) for graphs in (True, False))
    assert len(bare.store.atoms.values) == len(bare.store.bonds.values) == 0
    assert bare.unreadable == plain.unreadable
    np.testing.assert_array_equal(bare.store.rows, plain.store.rows)
    np.testing.assert_array_equal(bare.store.identity, plain.store.identity)
    joined = Store.join([bare.store, bare.store]).take(np.arange(len(SMILES)))
    np.testing.assert_array_equal(joined.fingerprints.counts.values, plain.store.fingerprints.counts.values)
    np.testing.assert_array_equal(joined.fingerprints.properties, plain.store.fingerprints.properties)


def test_scoring_makes_no_scaffolds():
    assert not build_chunk(0, SMILES, fingerprints=True, identify=False).store.fingerprints.scaffolds.any()


def test_fingerprints_follow_their_molecules_through_cache_join_and_take(tmp_path):
    whole = build_chunk(0, SMILES, fingerprints=True).store
    joined = Store.join([build_chunk(4 * k, SMILES[4 * k : 4 * k + 4], fingerprints=True).store for k in range(2)])
    cached = featurise_all([*SMILES, "C(C"], tmp_path, fingerprints=True).store
    order = np.array([5, 0, 3])
    for store in (joined, cached):
        ours, theirs = store.take(order).fingerprints, whole.take(order).fingerprints
        np.testing.assert_array_equal(ours.counts.values, theirs.counts.values)
        np.testing.assert_array_equal(ours.counts.starts, theirs.counts.starts)
        np.testing.assert_array_equal(ours.properties, whole.fingerprints.properties[order])
        np.testing.assert_array_equal(ours.scaffolds, whole.fingerprints.scaffolds[order])


def test_graph_caches_without_fingerprints_stay_valid(tmp_path):
    plain = featurise_all(SMILES, tmp_path).store
    before = {path.name for path in tmp_path.iterdir()}
    more = featurise_all(SMILES, tmp_path, fingerprints=True).store
    assert plain.fingerprints is None
    assert more.fingerprints is not None
    assert before < {path.name for path in tmp_path.iterdir()}
    assert molecule_cache_key(SMILES) != molecule_cache_key(SMILES, fingerprints=True)
    np.testing.assert_array_equal(plain.atoms.values, more.atoms.values)


def test_a_cache_without_graphs_has_the_fingerprints_of_one_with_them(tmp_path):
    texts = [*SMILES, "C(C"]
    bare, whole = (featurise_all(texts, tmp_path, fingerprints=True, graphs=graphs) for graphs in (False, True))
    assert len(bare.store.atoms.values) == 0 < len(whole.store.atoms.values)
    assert bare.unreadable == whole.unreadable
    for ours, theirs in (
        (bare.store.rows, whole.store.rows),
        (bare.store.identity, whole.store.identity),
        (bare.store.fingerprints.counts.values, whole.store.fingerprints.counts.values),
        (bare.store.fingerprints.counts.starts, whole.store.fingerprints.counts.starts),
        (bare.store.fingerprints.properties, whole.store.fingerprints.properties),
        (bare.store.fingerprints.scaffolds, whole.store.fingerprints.scaffolds),
    ):
        np.testing.assert_array_equal(ours, theirs)


def test_a_cache_with_graphs_serves_without_them(tmp_path):
    featurise_all(SMILES, tmp_path, fingerprints=True)
    before = sorted(tmp_path.iterdir())
    again = featurise_all(SMILES, tmp_path, fingerprints=True, graphs=False).store
    assert sorted(tmp_path.iterdir()) == before == [again.directory]


def test_a_batch_of_molecules_without_graphs_is_refused(tmp_path):
    data, _ = molecule_dataset(SMILES, cache=tmp_path, fingerprints=True, graphs=False)
    with pytest.raises(ValueError, match="read them with graphs=True"):
        data.collate([data[0], data[1]])


def test_a_data_set_is_known_by_its_molecules_and_their_order(tmp_path):
    data, _ = molecule_dataset(SMILES, cache=tmp_path)
    again = MoleculeDataset(build_chunk(0, SMILES).store)
    assert data.fingerprint == again.fingerprint
    assert data.subset([0, 1]).fingerprint == again.subset([0, 1]).fingerprint != again.subset([1, 0]).fingerprint
