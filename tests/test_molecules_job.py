"""From a file of SMILES to training and validation rows, and to ranked files."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest

from apmax.data import SmilesFile, TableFile
from apmax.data.molecules.scaffolds import scaffolds
from apmax.models.graphs import GINE
from apmax.workflows import data_types as kinds
from apmax.workflows.data_types import KINDS, RowReport
from apmax.workflows.data_types.molecules import MoleculeEncoder
from apmax.workflows.evaluation import evaluate_targets
from apmax.workflows.holding import hold_out
from apmax.workflows.ranking import errors_file, rank
from apmax.workflows.rows import prepare
from apmax.workflows.spec import DataSpec, data_spec, dumps, loads, resolve
from apmax.workflows.trained import Trained
from apmax.workflows.wishes import Wishes

pytest.importorskip("rdkit")

CORES = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccoc1", "C1CCNCC1", "c1ccc2ccccc2c1", "C1CCOC1", "c1ccsc1"]
ARMS = ["C", "CC", "CCC", "OC", "NC", "FC", "BrC", "ClC", "CO", "CN", "CCCC", "CCO"]
SMILES = [arm + core for arm in ARMS for core in CORES]
BROMIDE = SMILES.index("BrC" + CORES[0])


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    lines = [f"{k},{text},{int('Br' in text)},{'' if k % 3 else int('N' in text)}" for k, text in enumerate(SMILES)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["id,smiles,active,toxic", *lines]) + "\n")
    return path


def spec(file, target="active", **more):
    return DataSpec(train=str(file), target=target, kind="molecules", smiles="smiles", **more)


def with_lines(file, *lines):
    file.write_text(file.read_text() + "\n".join(lines) + "\n")
    return file


def test_molecules_that_cannot_be_read_are_left_out_and_named_by_row(file):
    with_lines(file, "x,C(C,1,")
    prepared = prepare(spec(file), seed=0)
    assert prepared.train_rows + len(prepared.data.valid) == len(SMILES)
    assert any(f"row {len(SMILES)} 'C(C'" in line for line in prepared.warnings)


def test_unreadable_molecules_stop_the_job_where_that_is_asked_for(file):
    with pytest.raises(ValueError, match="1 of 97 molecules cannot be read: row 96"):
        prepare(spec(with_lines(file, "x,C(C,1,"), on_error="raise"), seed=0)


def test_same_molecule_with_contradictory_labels_is_reported(file):
    with_lines(file, f"x,{SMILES[BROMIDE]},0,")
    assert f"1 molecules have contradictory labels: rows {BROMIDE}, 96" in prepare(spec(file), seed=0).warnings


def test_labels_follow_their_molecules_through_the_split(file):
    prepared = prepare(spec(file, test_share=0.2), seed=3)
    for dataset, labels in (
        (prepared.data.train, prepared.data.labels),
        (prepared.data.valid, prepared.data.valid_labels),
    ):
        assert [float("Br" in SMILES[row]) for row in dataset.table_rows] == labels.tolist()
    rows = [int(text) for text in prepared.test.table.column("id").to_pylist()]
    every = {*prepared.data.train.table_rows, *prepared.data.valid.table_rows, *rows}
    assert len(every) == prepared.train_rows + len(prepared.data.valid) + len(rows) == len(SMILES)


def test_scaffold_split_leaves_no_scaffold_on_two_sides(file):
    prepared = prepare(spec(file, split="scaffold", test_share=0.2, share=0.3), seed=0)
    names = scaffolds(SMILES)
    parts = [
        {names[row] for row in prepared.data.train.table_rows},
        {names[row] for row in prepared.data.valid.table_rows},
        {names[int(text)] for text in prepared.test.table.column("id").to_pylist()},
    ]
    assert sum(map(len, parts)) == len(set(names)) == len(CORES)
    assert prepared.test.positives > 0


@pytest.mark.parametrize("split", ["stratified", "random", "scaffold", None])
def test_shares_are_of_all_rows(split):
    labels = np.tile([1, 0, 0, 0], 250).astype(np.float32)
    table = pa.table({"smiles": ["C" * (k % 40 + 1) + "1" + "C" * (k // 50 + 3) + "1" for k in range(1000)]})
    chosen = DataSpec("a", "y", kind="molecules", split=split, share=0.25, test_share=0.25)
    parts = hold_out(table, labels, chosen, seed=1)
    assert [len(parts.valid), len(parts.test)] == pytest.approx([250, 250], abs=60)


def test_rows_measured_for_any_target_are_kept_with_gaps(file):
    with_lines(file, "x,CCCCCCN,,", "y,CCCCCCCN,,1")
    prepared = prepare(spec(file, target=["active", "toxic"]), seed=0)
    assert prepared.train_rows + len(prepared.data.valid) == len(SMILES) + 1
    assert prepared.data.labels.shape == (prepared.train_rows, 2)
    assert np.isnan(prepared.data.labels[:, 1]).any()
    assert not np.isnan(prepared.data.labels).all(1).any()


def test_kind_is_told_by_the_option_smiles():
    table = {"data": {"train": "a.csv", "target": ["y"], "smiles": "s"}}
    assert data_spec(table, Wishes()).kind == "molecules"
    assert data_spec({"data": {"train": "a.csv", "target": "y"}}, Wishes()).kind == "table"


def test_multi_level_network_has_its_levels_read_whoever_names_it():
    table = {"data": {"train": "a.csv", "target": "y", "smiles": "s"}, "model": {"name": "ml-mpnn"}}
    assert data_spec(table, Wishes()).levels
    assert not data_spec({"data": table["data"]}, Wishes()).levels
    assert data_spec({"data": table["data"]}, Wishes(changes=("model.name=ml-mpnn",))).levels


def test_job_of_several_targets_survives_toml():
    data = DataSpec("a.csv", ["x", "y"], kind="molecules", smiles="s", split="scaffold", test_share=0.1)
    job = resolve({}, Wishes(), data, rows=1000, positives=10)
    assert loads(dumps(job)) == job


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"smiles": "s"}, "--smiles is for data of kind molecules; these are of kind table"),
        ({"split": "scaffold"}, "data.split must be one of stratified, random; got 'scaffold'"),
        ({"target": ["a", "b"]}, "data of kind table have one target, got a, b"),
        ({"kind": "molecules", "columns": {"a": "drop"}}, "--column is for data of kind table"),
        ({"kind": "molecules", "target": ["a", "a"]}, "target must name every column once"),
        ({"kind": "molecules", "on_error": "ignore"}, "data.on_error must be one of skip, raise"),
        ({"kind": "molecules", "valid": "b.csv", "split": "random"}, "valid and split exclude each other"),
        ({"kind": "molecules", "test": "b.csv", "test_share": 0.1}, "test and test_share exclude each other"),
        ({"kind": "molecules", "share": 0.6, "test_share": 0.4}, "leave no rows to train on"),
        ({"kind": "molecules", "train": "a.smi"}, "a .smi file holds no labels"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        DataSpec(**{"train": "a.csv", "target": "y", **fields})


def test_encoder_counts_refused_rows_through_the_chunks_of_a_file():
    encoder, report = KINDS["molecules"].restore(kinds.molecules.MoleculeEncoder().to_table()), RowReport()
    for texts in (["C", "C(C"], ["CC", "CCC", "c1cc"]):
        encoded = encoder.encode(pa.table({"smiles": texts}), report)
    assert [item.row for item in report.refused] == [1, 4]
    assert encoded.rows.tolist() == [0, 1]


def test_column_without_any_molecule_is_named():
    with pytest.raises(ValueError, match="no molecule could be read in column 'smiles', which begins with 'aspirin'"):
        kinds.molecules.MoleculeEncoder().encode(pa.table({"smiles": ["aspirin", "glue"]}))


def test_encoder_of_other_features_is_refused():
    table = json.loads(json.dumps(kinds.molecules.MoleculeEncoder().to_table()))
    with pytest.raises(ValueError, match="version 0 of the featuriser"):
        KINDS["molecules"].restore({**table, "featuriser": 0})


def test_list_of_smiles_reads_as_a_table(tmp_path):
    path = tmp_path / "a.smi"
    path.write_text("CCO ethyl alcohol\n\nC\n")
    source = SmilesFile(path, "SMILES")
    assert source.read().to_pylist() == [{"SMILES": "CCO", "name": "ethyl alcohol"}, {"SMILES": "C", "name": ""}]
    assert source.read(["SMILES"]).column_names == source.columns[:1]


def test_target_without_both_classes_has_no_evaluation():
    labels = np.array([[1, 1, np.nan], [0, 1, np.nan], [np.nan, np.nan, np.nan]])
    scores = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [3.0, 3.0, 3.0]])
    result = evaluate_targets(scores, labels, ["a", "b", "c"])
    assert list(result.each) == ["a"]
    assert result.to_table()["mean_ap"] == result.each["a"].ap.estimate == 1.0


def test_row_without_a_score_is_not_evaluated():
    result = evaluate_targets(np.array([np.nan, 1.0, 2.0]), np.array([1.0, 1.0, 0.0]), ["a"])
    assert (result.each["a"].rows, result.each["a"].ap.estimate) == (2, 0.5)


@pytest.mark.parametrize("name", ["ranked.csv", "ranked.csv.gz", "ranked.parquet"])
def test_file_of_errors_stands_beside_the_ranking(tmp_path, name):
    assert errors_file(tmp_path / name) == tmp_path / "ranked.errors.csv"


@pytest.mark.parametrize("sort", [True, False])
def test_ranking_tells_where_all_of_its_time_went(file, tmp_path, sort):
    job, target = SimpleNamespace(data=SimpleNamespace(kind="molecules")), SimpleNamespace(names=["active"], each=[1])
    model = Trained(job, MoleculeEncoder(), target, GINE(8))
    begin = time.perf_counter()
    report = rank(model, TableFile(file), tmp_path / "out.csv", sort=sort)
    passed = time.perf_counter() - begin
    assert list(report.seconds) == ["reading", "features", "network", "writing"]
    assert 0.5 * passed < sum(report.seconds.values()) <= passed
    assert report.pace().startswith("96 rows in ")


def test_time_between_laps_is_counted_where_it_went(monkeypatch):
    clock = iter([11.0, 13.0, 17.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    report = RowReport(last=10.0)
    for what in ("features", "network", "features"):
        report.lap(what)
    assert report.seconds == {"features": 5.0, "network": 2.0}
