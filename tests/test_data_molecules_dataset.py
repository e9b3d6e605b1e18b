"""Batches of molecules: gathered at once, and equal to molecules joined one by one."""

from __future__ import annotations

import math
import pickle

import numpy as np
import pytest
import torch
from torch.utils.data import ConcatDataset, DataLoader, Subset

pytest.importorskip("rdkit")

from apmax import Indexed, PositiveBatchSampler
from apmax.data.molecules.building import build_chunk, featurise_all
from apmax.data.molecules.dataset import MoleculeDataset

SMILES = ["CCO", "c1ccccc1", "[Na+].[Cl-]", "C[C@H](N)C(=O)O", "CC1CC1C#N", "C", "C/C=C/C", "CC(C)(C)O"] * 3
LABELS = [1, 0, 0, 0, 1, 0, 0, 0] * 3
TENSORS = ("x", "edge_index", "edge_attr", "batch", "y", "row")


@pytest.fixture(scope="module")
def data():
    return MoleculeDataset(build_chunk(0, SMILES, levels=True).store, LABELS)


def assert_same(one, two, names=TENSORS):
    for name in names:
        assert torch.equal(getattr(one, name), getattr(two, name)), name


def joined(dataset, rows):
    """Join single molecules one by one: the reference for the gather."""
    items = [dataset.collate([dataset[row]]) for row in rows]
    starts = np.cumsum([0] + [len(item.x) for item in items])[:-1]
    return {
        "x": torch.cat([item.x for item in items]),
        "edges": {
            (a, b, tuple(bond))
            for item, start in zip(items, starts, strict=True)
            for (a, b), bond in zip((item.edge_index.T + int(start)).tolist(), item.edge_attr.tolist(), strict=True)
        },
        "batch": [k for k, item in enumerate(items) for _ in range(len(item.x))],
    }


def test_batch_is_its_molecules_one_after_the_other(data):
    rows = [7, 2, 4, 2, 0]
    batch, expected = data.collate(data.__getitems__(rows)), joined(data, rows)
    assert torch.equal(batch.x, expected["x"])
    edges = zip(batch.edge_index.T.tolist(), batch.edge_attr.tolist(), strict=True)
    assert {(a, b, tuple(bond)) for (a, b), bond in edges} == expected["edges"]
    assert batch.batch.tolist() == expected["batch"]
    assert batch.row.tolist() == rows
    assert batch.y.tolist() == [LABELS[row] for row in rows]


def test_distinct_rows_of_a_batch_are_few(data):
    batch = data.collate(data.__getitems__([0, 0, 0, 5]))
    assert len(batch.atom_rows) == len(batch.x.unique(dim=0)) == 4
    assert len(batch.bond_rows) == 1


def test_loader_needs_no_collate_function(data):
    batch = next(iter(DataLoader(data, batch_size=5)))
    assert_same(batch, data.collate(data.__getitems__(range(5))))


def test_indexed_writes_the_row(data):
    rows = [6, 1, 3]
    part = Indexed(Subset(data, [9, 8, 7, 6, 5, 4, 3]))
    batch = next(iter(DataLoader(part, batch_sampler=[rows])))
    assert batch.row.tolist() == rows
    assert torch.equal(batch.x, data.collate(data.__getitems__([3, 8, 6])).x)


def test_subset_counts_its_own_rows(data):
    part = data.subset([4, 0, 9])
    assert part.labels.tolist() == [1, 1, 0]
    batch = part.collate(part.__getitems__([2, 0]))
    assert batch.row.tolist() == [2, 0]
    assert torch.equal(batch.x, data.collate(data.__getitems__([9, 4])).x)


def test_concatenated_data_sets_join(data):
    other = MoleculeDataset(build_chunk(0, ["CCBr", "N"], levels=True).store, [1, 0])
    batch = next(iter(DataLoader(ConcatDataset([data, other]), batch_sampler=[[1, 25, 24]])))
    assert batch.batch.bincount().tolist() == [6, 1, 3]
    assert batch.x[7:, 0].tolist() == [5, 5, 34]


@pytest.mark.slow
def test_workers_give_the_same_batches(data):
    rows = [[3, 1], [0, 23, 5]]
    alone = list(DataLoader(data, batch_sampler=rows))
    by_workers = list(DataLoader(data, batch_sampler=rows, num_workers=2))
    for one, two in zip(alone, by_workers, strict=True):
        assert_same(one, two, (*TENSORS, "cliques", "members", "tree", "descriptors"))


def test_positive_sampler_draws_from_the_labels(data):
    for batch in DataLoader(data, batch_sampler=PositiveBatchSampler(data, batch_size=6, num_pos=2)):
        assert batch.y.sum() == 2


def test_mapped_store_is_sent_by_name(tmp_path):
    store = featurise_all(SMILES * 50, tmp_path).store
    data = MoleculeDataset(store, LABELS * 50)
    sent = pickle.dumps(data.store)
    assert len(sent) < 1000
    assert np.array_equal(pickle.loads(sent).atoms.values, store.atoms.values)


def test_store_in_memory_is_sent_whole(data):
    again = pickle.loads(pickle.dumps(data))
    assert_same(again.collate(again.__getitems__([4, 1])), data.collate(data.__getitems__([4, 1])))


def test_labels_of_several_tasks_keep_what_was_not_measured():
    labels = [[1, math.nan], [math.nan, 0], [0, 1]]
    data = MoleculeDataset(build_chunk(0, SMILES[:3]).store, labels)
    batch = data.collate(data.__getitems__([1, 2]))
    assert torch.equal(batch.y.isnan(), torch.tensor([[True, False], [False, False]]))


def test_data_set_without_labels_gives_batches_without():
    data = MoleculeDataset(build_chunk(0, SMILES[:3]).store)
    assert data.collate(data.__getitems__([1])).y is None


def test_rows_of_the_table_are_found_and_missing_ones_left_out():
    data = MoleculeDataset(build_chunk(10, ["C", "C(C", "CC", "CCC"]).store, [0, 1, 0])
    part = data.at_table_rows([13, 11, 10, 99])
    assert part.table_rows.tolist() == [13, 10]
    assert part.labels.tolist() == [0, 0]


def test_cliques_of_a_batch_point_to_their_own_atoms(data):
    batch = data.collate(data.__getitems__([4, 2, 1]))
    clique, atom = batch.members
    assert torch.equal(batch.clique_batch[clique], batch.batch[atom])
    assert torch.equal(batch.clique_batch[batch.tree[0]], batch.clique_batch[batch.tree[1]])
    assert set(atom.tolist()) == set(range(len(batch.x)))
    assert batch.descriptors.shape == (3, 200)


def test_mask_is_not_taken_for_rows_of_molecules(data):
    with pytest.raises(IndexError, match="of a mask take"):
        data.subset(data.labels.numpy() == 1)


def test_mask_is_not_taken_for_places_of_the_store(data):
    with pytest.raises(IndexError, match="places must be whole numbers, got bool; of a mask take"):
        MoleculeDataset(data.store, places=np.ones(len(data.store), bool))


def test_row_beyond_the_data_set_is_an_error(data):
    with pytest.raises(IndexError, match="row 24 of a data set of 24 rows"):
        data[24]


@pytest.mark.parametrize(("labels", "message"), [([1, 0], "one row per molecule"), ([2] * 24, "must be 0 or 1")])
def test_bad_labels_are_refused(data, labels, message):
    with pytest.raises(ValueError, match=message):
        MoleculeDataset(data.store, labels)


def test_single_molecule_shows_its_tensors(data):
    item = data[0]
    assert item.x.shape == (3, 8)
    assert item.edge_index.shape == (2, 4)
    assert item.edge_attr.shape == (4, 4)
    assert item.to_dict()["y"] == 1
