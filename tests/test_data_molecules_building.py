"""Stores built from SMILES and their cache: written atomically, the same for any chunks and processes."""

from __future__ import annotations

import multiprocessing
import os
from dataclasses import fields

import numpy as np
import pytest

pytest.importorskip("rdkit")

from apmax.data.molecules import building
from apmax.data.molecules.building import build_chunks, featurise_all, molecule_cache_key, ordered
from apmax.data.molecules.reading import read_molecules
from apmax.data.molecules.store import Ragged, Store

SMILES = ["CCO", "c1ccccc1", "C(C", "[Na+].[Cl-]", "C[C@H](N)C(=O)O", "OCC", "CC1CC1C#N"]


def flat(store):
    found = {}
    for field in fields(store):
        value = getattr(store, field.name)
        if field.name == "levels" and value is not None:
            found |= {f"levels.{name}": part for name, part in vars(value).items()}
        elif field.name not in ("levels", "directory"):
            found[field.name] = value
    arrays = {}
    for name, value in found.items():
        parts = {"": value} if not isinstance(value, Ragged) else {".values": value.values, ".starts": value.starts}
        arrays |= {name + suffix: np.asarray(array) for suffix, array in parts.items()}
    return arrays


def assert_same(one, two):
    one, two = flat(one), flat(two)
    assert one.keys() == two.keys()
    for name in one:
        assert np.array_equal(one[name], two[name]), name


@pytest.mark.parametrize("levels", [False, True])
def test_store_read_back_is_the_store_that_was_built(tmp_path, levels):
    built = Store.join([chunk.store for chunk in build_chunks(SMILES, levels=levels)])
    found = featurise_all(SMILES, tmp_path, levels=levels)
    assert_same(built, found.store)
    assert isinstance(found.store.atoms.values, np.memmap)
    again = featurise_all(SMILES, tmp_path, levels=levels)
    assert_same(built, again.store)
    assert [item.row for item in again.unreadable] == [2]


def test_without_identities_nothing_else_is_different():
    [known], [unknown] = build_chunks(SMILES), build_chunks(SMILES, identify=False)
    assert known.store.identity.all()
    assert not unknown.store.identity.any()
    arrays = dict(known.store._arrays())
    assert [n for n, array in unknown.store._arrays() if not np.array_equal(array, arrays[n])] == ["identity"]


@pytest.mark.slow
def test_chunks_and_processes_do_not_change_the_store():
    whole = Store.join([chunk.store for chunk in build_chunks(SMILES)])
    by_two = Store.join([chunk.store for chunk in build_chunks(SMILES, chunk=2, workers=2)])
    assert_same(whole, by_two)


def test_second_reading_does_not_read_molecules(tmp_path, monkeypatch):
    featurise_all(SMILES, tmp_path)
    monkeypatch.setattr(building, "build_chunks", None)
    assert len(featurise_all(SMILES, tmp_path).store) == 6


def test_key_depends_on_content_and_featuriser(monkeypatch):
    key = molecule_cache_key(SMILES)
    assert key != molecule_cache_key(SMILES[:-1])
    assert key != molecule_cache_key(["CCOc1ccccc1", *SMILES[2:]])
    assert key != molecule_cache_key(SMILES, levels=True)
    monkeypatch.setattr(building, "FEATURISER_VERSION", building.FEATURISER_VERSION + 1)
    assert key != molecule_cache_key(SMILES)


def _build(folder):
    return len(featurise_all(SMILES * 20, folder).store)


@pytest.mark.slow
def test_concurrent_writers_leave_one_whole_cache(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_build, [str(tmp_path)] * 4) == [120] * 4
    assert len(list(tmp_path.iterdir())) == 1


def test_second_writer_discards_its_own_copy(tmp_path, monkeypatch):
    original = building.build_chunks

    def overtaken(smiles, **options):
        if not any(entry.name.startswith("molecules-") for entry in tmp_path.iterdir()):
            monkeypatch.setattr(building, "build_chunks", original)
            featurise_all(smiles, tmp_path)
        return original(smiles, **options)

    monkeypatch.setattr(building, "build_chunks", overtaken)
    assert len(featurise_all(SMILES, tmp_path).store) == 6
    assert len(list(tmp_path.iterdir())) == 1


def test_failed_build_leaves_nothing(tmp_path, monkeypatch):
    def broken(*_, **__):
        raise MemoryError
        yield

    monkeypatch.setattr(building, "build_chunks", broken)
    with pytest.raises(MemoryError):
        featurise_all(SMILES, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_on_error_raise_names_row_and_reason(tmp_path):
    with pytest.raises(ValueError, match=r"1 of 7 molecules cannot be read: row 2 'C\(C' \(SMILES Parse Error"):
        featurise_all(SMILES, tmp_path, on_error="raise")


def test_no_readable_molecule_is_an_error(tmp_path):
    with pytest.raises(ValueError, match="no molecule could be read"):
        featurise_all(["C(C"], tmp_path)


def _die(item):
    if item == 2:
        os._exit(1)
    return item


@pytest.mark.slow
def test_process_that_dies_is_an_error_and_no_hang():
    with pytest.raises(Exception, match="process"):
        list(ordered(_die, range(8), workers=2))


def test_report_names_duplicates_and_conflicts(tmp_path):
    file = tmp_path / "a.csv"
    file.write_text("id,smiles,active\n1,CCO,1\n2,OCC,0\n3,CC,0\n4,C-C,0\n5,C(C,1\n6,CCC,\n")
    data, report = read_molecules(file, targets=["active"], cache=tmp_path)
    assert report.duplicates == [[0, 1], [2, 3]]
    assert report.conflicts == [[0, 1]]
    assert report.unmeasured == 1
    assert data.table_rows.tolist() == [0, 1, 2, 3]
    assert data.labels.tolist() == [1, 0, 0, 0]
    assert len(report.lines()) == 4
