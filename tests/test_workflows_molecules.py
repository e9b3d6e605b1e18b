"""Jobs of molecules: preparation of the data, encoder and predictions."""

from __future__ import annotations

import json
import time

import numpy as np
import pyarrow as pa
import pytest

pytest.importorskip("rdkit")

from apmax.data import TableFile, Targets
from apmax.data.molecules import MoleculeDataset, build_chunk, scaffolds
from apmax.data.targets import Target
from apmax.models.graphs import GINE
from apmax.train import Run
from apmax.workflows import Job, ModelConfig, MoleculeData, Overrides, RowReport, SavedNetwork, TableData
from apmax.workflows.data_types import LabelledRows, MoleculeType
from apmax.workflows.data_types.molecules import MoleculeEncoder
from apmax.workflows.job import job_from_table, job_to_table, read_data_config
from apmax.workflows.prediction import RANK, errors_file, write_predictions
from apmax.workflows.prepare import prepare_committee_rows, prepare_data
from apmax.workflows.row_split import split_rows
from small_files import ARMS, CORES

SMILES = [arm + core for arm in ARMS for core in CORES]
BROMIDE = SMILES.index("BrC" + CORES[0])


@pytest.fixture
def file(tmp_path, monkeypatch):
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    lines = [f"{k},{text},{int('Br' in text)},{'' if k % 3 else int('N' in text)}" for k, text in enumerate(SMILES)]
    path = tmp_path / "a.csv"
    path.write_text("\n".join(["id,smiles,active,toxic", *lines]) + "\n")
    return path


def prepare(file, target="active", seed=0, **more):
    return prepare_data(MoleculeData(str(file), target, **more), seed=seed)


def with_lines(file, *lines):
    file.write_text(file.read_text() + "\n".join(lines) + "\n")
    return file


def test_molecules_that_cannot_be_read_are_left_out_and_named_by_row(file):
    with_lines(file, "x,C(C,1,")
    prepared = prepare(file)
    assert prepared.train_rows + len(prepared.data.valid) == len(SMILES)
    assert any(f"row {len(SMILES)} 'C(C'" in line for line in prepared.warnings)


@pytest.mark.parametrize(
    ("data", "warned"),
    [
        ({}, True),
        ({"split": "stratified"}, True),
        ({"split": "random"}, True),
        ({"split": "scaffold"}, False),
        ({"group": "id"}, False),
        ({"time": "id"}, False),
        ({"duplicates": "join"}, False),
    ],
)
def test_repeated_molecules_are_warned_of_where_rows_are_divided_one_by_one(file, data, warned):
    with_lines(file, f"96,{SMILES[3]},{int('Br' in SMILES[3])},", f"97,{SMILES[BROMIDE]},1,")
    network = prepare(file, **data).warnings
    committee = prepare_committee_rows(MoleculeData(str(file), "active", **data), seed=0).warnings
    for warnings in (network, committee):
        found = [line for line in warnings if "4 of 98 rows have the molecule of another row" in line]
        assert len(found) == warned


def test_molecules_that_occur_once_are_not_warned_of(file):
    assert not prepare(file).warnings


def test_unreadable_molecules_stop_the_job_with_on_error_raise(file):
    with pytest.raises(ValueError, match="1 of 97 molecules cannot be read: row 96"):
        prepare(with_lines(file, "x,C(C,1,"), on_error="raise")


def test_molecules_of_the_test_that_are_in_training_too_are_counted(file, tmp_path):
    lines = file.read_text().splitlines()
    test = tmp_path / "test.csv"
    # The second is written in another way, the last is new.
    test.write_text("\n".join([lines[0], *lines[1:4], "x,C(Br)c1ccccc1,1,", "y,BrCCCCCCCCCCCC,1,"]) + "\n")
    prepared = prepare(file, test=str(test))
    assert prepared.warnings == [
        "test.csv: 4 of 5 rows have a molecule that is in a.csv too: figures on them are better than on new ones"
    ]


def test_file_of_other_molecules_gives_no_warning(file, tmp_path):
    test = tmp_path / "test.csv"
    test.write_text("id,smiles,active,toxic\n1,BrCCCCCCCCCCCC,1,\n2,CCCCCCCCCCCCCCCC,0,\n")
    assert prepare(file, test=str(test)).warnings == []


def test_same_molecule_with_contradictory_labels_is_reported(file):
    with_lines(file, f"x,{SMILES[BROMIDE]},0,")
    assert f"1 molecule with contradictory labels: rows {BROMIDE}, 96" in prepare(file).warnings


def test_labels_follow_their_molecules_through_the_split(file):
    prepared = prepare(file, test_share=0.2, seed=3)
    for dataset, labels in (
        (prepared.data.train, prepared.data.labels),
        (prepared.data.valid, prepared.data.valid_labels),
    ):
        assert [float("Br" in SMILES[row]) for row in dataset.table_rows] == labels.tolist()
    rows = [int(text) for text in prepared.test.table.column("id").to_pylist()]
    every = {*prepared.data.train.table_rows, *prepared.data.valid.table_rows, *rows}
    assert len(every) == prepared.train_rows + len(prepared.data.valid) + len(rows) == len(SMILES)


def test_scaffold_split_leaves_no_scaffold_on_two_sides(file):
    prepared = prepare(file, split="scaffold", test_share=0.2, share=0.3)
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
    smiles = ["C" * (k % 40 + 1) + "1" + "C" * (k // 50 + 3) + "1" for k in range(1000)]
    rows = LabelledRows(pa.table({"smiles": smiles}), labels, MoleculeDataset(build_chunk(0, smiles).store))
    data_type = MoleculeType(MoleculeData("a", "y", split=split, share=0.25, test_share=0.25))
    parts = split_rows(rows, data_type, seed=1)
    assert [len(parts.valid), len(parts.test)] == pytest.approx([250, 250], abs=60)


def test_rows_measured_for_any_target_are_kept_with_gaps(file):
    with_lines(file, "x,CCCCCCN,,", "y,CCCCCCCN,,1")
    prepared = prepare(file, target=["active", "toxic"])
    assert prepared.train_rows + len(prepared.data.valid) == len(SMILES) + 1
    assert prepared.data.labels.shape == (prepared.train_rows, 2)
    assert np.isnan(prepared.data.labels[:, 1]).any()
    assert not np.isnan(prepared.data.labels).all(1).any()


def test_data_type_follows_from_a_column_of_smiles_or_the_ending_of_the_file():
    def kind(**data):
        return read_data_config({"data": {"target": "y", **data}}).kind

    assert kind(train="a.csv", smiles="s") == kind(train="a.sdf") == "molecules"
    assert kind(train="a.csv") == "table"


def test_multi_level_network_has_its_levels_computed():
    table = {"data": {"train": "a.csv", "target": "y", "smiles": "s"}, "model": {"name": "ml-mpnn"}}
    assert read_data_config(table).levels
    assert not read_data_config({"data": table["data"]}).levels
    assert read_data_config({"data": table["data"]}, Overrides(settings={"model.name": "ml-mpnn"})).levels


def test_job_of_several_targets_survives_its_plain_table():
    data = MoleculeData("a.csv", ["x", "y"], smiles="s", split="scaffold", test_share=0.1)
    job = Job(data, ModelConfig("gine", {"hidden": 8}), Run())
    assert job_from_table(job_to_table(job)) == job


@pytest.mark.parametrize(
    ("config", "fields", "message"),
    [
        (TableData, {"split": "scaffold"}, "split must be one of stratified, random; got 'scaffold'"),
        (TableData, {"target": ["a", "b"]}, "data of kind table have one target, got a, b"),
        (MoleculeData, {"target": ["a", "a"]}, "target must name every column once"),
        (MoleculeData, {"on_error": "ignore"}, "on_error must be one of skip, raise"),
        (MoleculeData, {"valid": "b.csv", "split": "random"}, "valid and split exclude each other"),
        (MoleculeData, {"test": "b.csv", "test_share": 0.1}, "test and test_share exclude each other"),
        (MoleculeData, {"share": 0.6, "test_share": 0.4}, "leave no rows to train on"),
        (MoleculeData, {"train": "a.smi"}, "a .smi file holds no labels"),
    ],
)
def test_settings_that_exclude_each_other_are_refused_by_name(config, fields, message):
    with pytest.raises(ValueError, match=message):
        config(**{"train": "a.csv", "target": "y", **fields})


def test_encoder_counts_unreadable_rows_through_the_chunks_of_a_file():
    encoder, report = MoleculeType.restore_encoder(MoleculeEncoder().to_table()), RowReport()
    for texts in (["C", "C(C"], ["CC", "CCC", "c1cc"]):
        (encoded,) = encoder.encode(pa.table({"smiles": texts}), report)
    assert [item.row for item in report.unreadable_rows] == [1, 4]
    assert encoded.rows.tolist() == [0, 1]


def saved_model():
    job = Job(MoleculeData("a.csv", "active"), ModelConfig("gine"), Run())
    return SavedNetwork(job, MoleculeEncoder(), Targets((Target("active", "1", "0"),)), (), GINE(8))


def test_column_without_any_molecule_is_named(tmp_path):
    (tmp_path / "a.csv").write_text("smiles\naspirin\nglue\n")
    with pytest.raises(ValueError, match="no molecule could be read in column 'smiles', which begins with 'aspirin'"):
        saved_model().score(tmp_path / "a.csv")


def test_encoder_of_other_features_is_refused():
    table = json.loads(json.dumps(MoleculeEncoder().to_table()))
    with pytest.raises(ValueError, match="version 0 of the featuriser"):
        MoleculeType.restore_encoder({**table, "featuriser": 0})


@pytest.mark.parametrize("name", ["ranked.csv", "ranked.csv.gz", "ranked.parquet"])
def test_file_of_errors_is_beside_the_predictions(tmp_path, name):
    assert errors_file(tmp_path / name) == tmp_path / "ranked.errors.csv"


@pytest.mark.parametrize("sort", [True, False])
def test_report_of_predictions_accounts_for_the_time(file, tmp_path, sort):
    begin = time.perf_counter()
    report = write_predictions(saved_model(), TableFile(file), tmp_path / "out.csv", sort=sort)
    passed = time.perf_counter() - begin
    assert list(report.seconds) == ["reading", "features", "model", "writing"]
    assert 0.5 * passed < sum(report.seconds.values()) <= passed
    assert report.timing().startswith("96 rows in ")


def test_time_is_added_to_the_activity_that_ends(monkeypatch):
    clock = iter([11.0, 13.0, 17.0])
    monkeypatch.setattr(time, "perf_counter", lambda: next(clock))
    report = RowReport(last=10.0)
    for activity in ("features", "network", "features"):
        report.add_time(activity)
    assert report.seconds == {"features": 5.0, "network": 2.0}


def test_joined_labels_of_several_targets_are_trained_on(file):
    with_lines(file, f"x,{SMILES[1]},,1")  # not measured in row 1 for this target
    prepared = prepare(file, ("active", "toxic"), duplicates="join")
    labels = {
        int(row): label.tolist()
        for data, part in (
            (prepared.data.train, prepared.data.labels),
            (prepared.data.valid, prepared.data.valid_labels),
        )
        for row, label in zip(data.table_rows, part, strict=True)
    }
    assert len(labels) == len(SMILES)
    assert labels[1] == [0, 1]
    assert any(
        "1 molecule occurs more than once, joined to one row each (1 row fewer)" in line for line in prepared.warnings
    )


def test_contradictory_molecules_are_dropped_from_every_part(file):
    with_lines(file, f"x,{SMILES[BROMIDE]},0,")
    prepared = prepare(file, duplicates="drop")
    assert BROMIDE not in {*prepared.data.train.table_rows.tolist(), *prepared.data.valid.table_rows.tolist()}
    assert prepared.train_rows + len(prepared.data.valid) == len(SMILES) - 1


def test_largest_fragment_is_taken_in_training_and_kept_in_the_encoder(file):
    with_lines(file, "x,CCCCN.Cl,0,")
    prepared = prepare(file, largest_fragment=True)
    assert any("1 of 97 molecules have several fragments" in line for line in prepared.warnings)
    encoder = MoleculeType.restore_encoder(json.loads(json.dumps(prepared.encoder.to_table())))
    report = RowReport()
    salt, parent = (
        next(encoder.encode(pa.table({"smiles": [text]}), report)).dataset[0].x for text in ("CCCCN.Cl", "CCCCN")
    )
    assert salt.tolist() == parent.tolist()
    assert report.lines() == ["1 of 2 molecules have several fragments: the largest is scored"]


def test_options_of_molecules_survive_the_plain_table_of_a_job(file):
    config = MoleculeData(str(file), "active", duplicates="join", largest_fragment=True)
    job = Job(config, ModelConfig("gine"), Run())
    assert job_from_table(job_to_table(job)).data == config


def test_column_called_like_the_one_that_sorts_is_kept(tmp_path):
    lines = [f"{text},{k},kept" for k, text in enumerate(SMILES[:4])]
    (tmp_path / "b.csv").write_text("\n".join([f"smiles,{RANK},{RANK}_", *lines]) + "\n")
    write_predictions(saved_model(), TableFile(tmp_path / "b.csv"), tmp_path / "out.csv", sort=True)
    table = TableFile(tmp_path / "out.csv").read()
    assert sorted(table.column(RANK).to_pylist()) == ["0", "1", "2", "3"]
    assert table.column_names == ["smiles", RANK, f"{RANK}_", "score"]
