"""Stores built from SMILES and their cache: written atomically, the same for any chunks and processes."""

from __future__ import annotations

import errno
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import fields
from unittest import mock

import filelock
import numpy as np
import pytest

pytest.importorskip("rdkit")

from apmax.cli._console import keywords_to_flags
from apmax.data import UnreadableRow
from apmax.data.molecules import building, scaffolds
from apmax.data.molecules.building import build_chunk, build_chunks, featurise_all, molecule_cache_key, ordered
from apmax.data.molecules.featurise import bonds_in_order, featurise, parse_smiles
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


def test_line_breaks_in_a_text_do_not_give_the_key_of_more_rows(tmp_path):
    assert molecule_cache_key(["CCO\nCCN", "C"]) != molecule_cache_key(["CCO", "CCN\nC"])
    assert molecule_cache_key(["C\nCC"]) != molecule_cache_key(["C", "CC"])
    assert len(featurise_all(["CCO\nCCN", "C"], tmp_path).store) == 2
    assert len(featurise_all(["CCO", "CCN", "C"], tmp_path).store) == 3


def _build(folder):
    return len(featurise_all(SMILES * 20, folder).store)


@pytest.mark.slow
def test_concurrent_writers_leave_one_whole_cache(tmp_path):
    with multiprocessing.get_context("spawn").Pool(2) as pool:
        assert pool.map(_build, [str(tmp_path)] * 4) == [120] * 4
    assert len(list(tmp_path.iterdir())) == 1


def test_callers_that_want_the_same_molecules_at_once_read_them_once(tmp_path, monkeypatch):
    original, calls, begun = building.build_chunks, [], threading.Event()

    def counted(smiles, **options):
        calls.append(len(smiles))
        begun.set()
        time.sleep(0.3)  # the second caller arrives meanwhile
        return original(smiles, **options)

    monkeypatch.setattr(building, "build_chunks", counted)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(_build, tmp_path)
        begun.wait()
        second = pool.submit(_build, tmp_path)
        assert (first.result(), second.result()) == (120, 120)
    assert calls == [7 * 20]
    assert len(list(tmp_path.iterdir())) == 1, "no lock file stays"


@pytest.mark.parametrize(
    "error",
    [NotImplementedError(), OSError(errno.ENOLCK, "No locks available"), PermissionError(errno.EACCES, "not yours")],
    ids=["no locks", "no locks on a network drive", "lock file of another user"],
)
def test_second_writer_discards_its_own_copy_where_files_cannot_be_locked(error, tmp_path, monkeypatch):
    monkeypatch.setattr(filelock.FileLock, "acquire", mock.Mock(side_effect=error))
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


CHAIN = "C" * 20_000


def test_smiles_beyond_the_limit_is_an_unreadable_row_with_the_reason(tmp_path):
    found = featurise_all(["CCO", CHAIN, "C"], tmp_path)
    assert found.store.rows.tolist() == [0, 2]
    assert found.unreadable == [UnreadableRow(1, "C" * 1000 + "…", "a SMILES of 20,000 characters, more than 5,000")]


def test_limit_of_smiles_is_an_argument_on_which_the_cache_depends(tmp_path):
    assert [item.row for item in featurise_all(["CCO", "CCCC"], tmp_path, max_length=3).unreadable] == [1]
    assert featurise_all(["CCO", "CCCC"], tmp_path).unreadable == []


def test_molecule_too_large_for_descriptors_is_unreadable_with_levels_only():
    smiles = ["CCO", "C" * 501]
    assert build_chunk(0, smiles, levels=True).unreadable[0].reason.startswith("501 atoms, more than 500")
    assert build_chunk(0, smiles).unreadable == []


@pytest.mark.parametrize("smiles", ["C1CC1" * 400, "CC(C)" * 400])
def test_bonds_of_large_molecules_are_in_rdkits_order(smiles):
    molecule = parse_smiles(smiles)
    bonds = list(bonds_in_order(molecule))
    assert [bond.GetIdx() for bond in bonds] == list(range(molecule.GetNumBonds()))
    assert len(bonds) > 1000


def test_large_molecule_is_read_without_iterating_over_rdkits_bonds():
    # RDKit's own iteration is quadratic.
    class WithoutIteration:
        def __init__(self, molecule):
            self.molecule = molecule

        def __getattr__(self, name):
            assert name != "GetBonds"
            return getattr(self.molecule, name)

    assert len(featurise(WithoutIteration(parse_smiles("C" * 2000))).bonds) == 1999


DUPLICATED = "smiles,a,b\nCCO,1,\nOCC,1,0\nCC,0,1\nC-C,1,1\nCCC,0,\nC(C)C,1,\nN,0,0\nN,,\n"


@pytest.mark.parametrize(
    ("duplicates", "rows", "labels"),
    [
        ("keep", [0, 1, 2, 3, 4, 5, 6], None),
        ("join", [0, 2, 6], [[1, 0], [np.nan, 1], [0, 0]]),
        ("drop", [0, 6], [[1, np.nan], [0, 0]]),
    ],
)
def test_duplicates_of_several_targets_are_kept_joined_or_dropped(tmp_path, duplicates, rows, labels):
    (tmp_path / "a.csv").write_text(DUPLICATED)
    data, report = read_molecules(tmp_path / "a.csv", targets=["a", "b"], duplicates=duplicates, cache=tmp_path)
    assert data.table_rows.tolist() == rows
    assert report.removed == 7 - len(rows)
    assert report.duplicates == [[0, 1], [2, 3], [4, 5]]
    assert report.conflicts == [[2, 3], [4, 5]]
    if labels is not None:
        np.testing.assert_array_equal(data.labels.numpy(), labels)


@pytest.mark.parametrize("duplicates", ["join", "drop"])
def test_duplicates_of_one_target_agree_or_are_left_out_and_counted(tmp_path, duplicates):
    (tmp_path / "a.csv").write_text(DUPLICATED)
    data, report = read_molecules(tmp_path / "a.csv", targets=["a"], duplicates=duplicates, cache=tmp_path)
    assert data.table_rows.tolist() == [0, 6]
    assert data.labels.tolist() == [1, 0]
    assert any("3 molecules occur more than once" in line and "5 rows fewer" in line for line in report.lines())
    assert any("2 of them with contradictory labels" in line for line in report.lines())


def test_without_labels_duplicates_are_one_row(tmp_path):
    (tmp_path / "a.smi").write_text("CCO\nOCC\nC\n")
    data, _ = read_molecules(tmp_path / "a.smi", duplicates="join", cache=tmp_path)
    assert data.table_rows.tolist() == [0, 2]


def test_only_contradictions_leave_nothing_and_are_an_error(tmp_path):
    (tmp_path / "a.csv").write_text("smiles,a\nCCO,1\nOCC,0\n")
    with pytest.raises(ValueError, match="every molecule contradict"):
        read_molecules(tmp_path / "a.csv", targets=["a"], duplicates="join", cache=tmp_path)


def test_unknown_handling_of_duplicates_is_refused(tmp_path):
    (tmp_path / "a.smi").write_text("C\n")
    with pytest.raises(ValueError, match="duplicates must be one of keep, join, drop"):
        read_molecules(tmp_path / "a.smi", duplicates="merge", cache=tmp_path)


def test_largest_fragment_has_the_features_of_the_parent_molecule():
    salts = build_chunk(0, ["CC(=O)[O-].[Na+]", "Cl.CCc1ccccc1N.O", "CCO"], fragment=True)
    parents = build_chunk(0, ["CC(=O)[O-]", "CCc1ccccc1N", "CCO"])
    assert salts.reduced == 2
    np.testing.assert_array_equal(salts.store.identity, parents.store.identity)
    np.testing.assert_array_equal(
        salts.store.atom_rows[salts.store.atoms.values], parents.store.atom_rows[parents.store.atoms.values]
    )
    np.testing.assert_array_equal(salts.store.bonds.values, parents.store.bonds.values)


def test_salts_of_one_molecule_are_duplicates_and_the_count_survives_the_cache(tmp_path):
    (tmp_path / "a.csv").write_text("smiles,a\nCCN.Cl,1\nNCC.Br,1\nCCC,0\n")
    for _ in range(2):
        data, report = read_molecules(
            tmp_path / "a.csv", targets=["a"], duplicates="join", largest_fragment=True, cache=tmp_path
        )
        assert data.table_rows.tolist() == [0, 2]
        assert report.reduced == 2
        assert any("2 of 3 molecules have several fragments" in line for line in report.lines())


def test_scaffold_is_that_of_the_largest_fragment():
    salt = "CCCCCCCCCCCCCCCC(=O)[O-].c1cc[nH+]cc1"
    assert scaffolds([salt]) == ["c1cc[nH+]cc1"]
    assert scaffolds([salt], fragment=True) == [""]


def test_scaffold_of_a_very_large_molecule_is_the_molecule_itself():
    # RDKit takes the third power of the atoms in time: minutes for these.
    started = time.perf_counter()
    chain, ring = "C" * 4000, "C" * 4000 + "c1ccccc1"
    assert scaffolds([chain, ring, "c1ccccc1" + "C" * 4000]) == ["", ring, ring]
    assert time.perf_counter() - started < 10
    assert scaffolds(["C" * 400 + "c1ccccc1"]) == ["c1ccccc1"]


def test_kept_duplicates_are_listed_with_the_remedy(tmp_path):
    (tmp_path / "a.csv").write_text(DUPLICATED)
    _, report = read_molecules(tmp_path / "a.csv", targets=["a"], cache=tmp_path)
    (line,) = (line for line in report.lines() if "occur more than once" in line)
    assert keywords_to_flags(line).endswith("rows 4, 5 (--duplicates join or --duplicates drop makes one row of each)")
