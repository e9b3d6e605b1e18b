"""Jobs of tables: preparation of the data, settings and overrides."""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from apmax.data import TableFile
from apmax.data.tables import TableEncoder
from apmax.metrics import average_precision
from apmax.workflows import (
    DATA_TYPES,
    DataConfig,
    Job,
    ModelConfig,
    Overrides,
    TableData,
    evaluate_source,
    load_scored_rows,
    parse_settings,
    plan_job,
    train_job,
)
from apmax.workflows.data_types import LabelledRows, TableType
from apmax.workflows.job import job_from_table, job_to_table, read_data_config
from apmax.workflows.prepare import prepare_data
from apmax.workflows.row_split import split_rows
from small_files import client_rows, write_csv, write_csv_with_commas

QUICK = Overrides(epochs=2, settings={"stages.0.epochs": 3, "accelerator": "cpu"})


@pytest.fixture
def file(tmp_path):
    generator = np.random.default_rng(0)
    lines = ["x,patient,day,y"]
    for k in range(300):
        label = int(generator.random() < 0.2)
        day = np.datetime64("2024-01-01") + np.timedelta64(int(generator.integers(0, 300)), "D")
        lines.append(f"{generator.normal() + label:.4f},p{k % 40},{day},{label if k % 50 else ''}")
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def prepare(file, seed=0, **more):
    return prepare_data(TableData(str(file), "y", **more), seed=seed)


def test_rows_without_a_target_are_left_out_and_counted(file):
    prepared = prepare(file)
    assert prepared.train_rows + len(prepared.data.valid) == 294
    assert "6 rows without a 'y' are left out" in prepared.warnings


def test_one_row_that_is_left_out_is_one_row(file):
    lines = [line for line in file.read_text().splitlines() if not line.endswith(",")]
    weights = ["weight", *("0" if k == 5 else "1" for k in range(1, len(lines)))]
    rows = [f"{line},{weight}" for line, weight in zip(lines, weights, strict=True)]
    file.write_text("\n".join([*rows, "0.5,p1,2024-01-01,,1"]) + "\n")
    assert prepare(file, weight="weight").warnings == [
        "1 row without a 'y' is left out",
        "1 row of weight 0 is left out",
    ]


@pytest.mark.parametrize("column", ["group", "time"])
def test_column_of_the_split_is_no_feature(file, column):
    name = {"group": "patient", "time": "day"}[column]
    assert name in prepare(file).encoder.names
    assert name not in prepare(file, **{column: name}).encoder.names


@pytest.mark.parametrize("seed", range(3))
def test_groups_stay_whole_in_every_part(seed):
    generator = np.random.default_rng(seed)
    patients = np.array([f"p{k}" for k in generator.integers(0, 40, 300)])
    labels = (generator.random(300) < 0.2).astype(np.float32)
    rows = LabelledRows(pa.table({"x": generator.normal(size=300), "patient": patients}), labels)
    parts = split_rows(rows, TableType(TableData("a", "y", group="patient", test_share=0.2)), seed=seed)
    numbers = [parts.train, parts.valid, parts.test]
    assert sorted(np.concatenate(numbers).tolist()) == list(range(300))
    assert sum(len(set(patients[part])) for part in numbers) == len(set(patients))


def test_groups_of_the_test_that_are_in_training_too_are_counted(file, tmp_path):
    file.write_text(file.read_text() + "0.5,,2024-02-01,0\n")
    test = tmp_path / "test.csv"
    test.write_text("x,patient,day,y\n5,p1,2024-02-01,1\n1,p1,2024-02-01,0\n0.1,new,2024-02-02,0\n2,,2024-02-02,0\n")
    warnings = prepare(file, group="patient", test=str(test)).warnings
    line = "test.csv: 2 of 4 rows have a 'patient' that is in a.csv too: figures on them are better than on new ones"
    assert line in warnings
    assert not any("that is in a.csv too" in each for each in prepare(file, test=str(test)).warnings)


def test_rows_without_a_group_are_counted(file):
    line = "5 rows without a 'patient' count as one group"
    assert line not in prepare(file, group="patient").warnings
    file.write_text(file.read_text() + "0.5,,2024-02-01,0\n" * 5)
    assert line in prepare(file, group="patient").warnings


@pytest.mark.parametrize(
    ("column", "columns"),
    [(pa.array(["a", "b"] * 60).dictionary_encode(), {}), (pa.nulls(120), {"first": "category"})],
    ids=["of categories", "declared, without values"],
)
def test_first_column_of_any_type_is_looked_through_for_copies_of_rows(column, columns, tmp_path):
    rows = {"first": column, "x": np.arange(120) / 7, "y": [1] * 40 + [0] * 80}
    pq.write_table(pa.table(rows), tmp_path / "rows.parquet")
    warnings = prepare(tmp_path / "rows.parquet", columns=columns).warnings
    assert not any("repeated" in line for line in warnings)


def test_validation_file_is_taken_whole_and_encoded_as_training_was(file, tmp_path):
    other = tmp_path / "b.csv"
    other.write_text("x,patient,day,y\n5,p1,2024-02-01,1\n0.1,new,2024-02-02,0\n")
    prepared = prepare(file, valid=str(other))
    alone = prepare(file)
    assert (len(prepared.data.valid), prepared.train_rows) == (2, 294)
    assert prepared.data.valid_labels.tolist() == [1, 0]
    assert prepared.encoder.names == alone.encoder.names


def test_encoder_does_not_depend_on_held_out_rows(file):
    encoders = {}
    for extreme in ("0.5", "9999"):
        text = file.read_text() + f"{extreme},p1,2025-06-01,1\n0.2,p2,2025-06-01,0\n"
        file.with_name("c.csv").write_text(text)
        prepared = prepare(file.with_name("c.csv"), time="day", share=0.01)
        encoders[extreme] = prepared.encoder.to_table()
    assert encoders["0.5"] == encoders["9999"]


def test_split_follows_the_seed(file):
    first, again, other = (prepare(file, seed=seed).data.valid_labels for seed in (0, 0, 1))
    assert len(first) == len(again) == len(other)
    inputs = [prepare(file, seed=seed).data.valid.tensors[0] for seed in (0, 0, 1)]
    assert inputs[0].equal(inputs[1])
    assert not inputs[0].equal(inputs[2])


@pytest.fixture
def plan(file):
    """Return a function that plans a job on the file."""
    data = {"train": str(file), "target": "y"}

    def make(table=None, **overrides):
        table = table or {}
        return plan_job({**table, "data": {**data, **table.get("data", {})}}, Overrides(**overrides))

    return make


def run_of(plan, rows=5000, positives=50):
    return plan.resolve(plan.data, rows=rows, positives=positives).run


def test_job_survives_its_plain_table(plan):
    data = TableData(train="a.csv", target="y", columns={"zip": "category"}, group="g")
    job = Job(data, ModelConfig("mlp", {"hidden": [8, 8], "dropout": 0.1}), run_of(plan(seed=3, ensemble=2)))
    assert job_from_table(job_to_table(job)) == job


@pytest.mark.parametrize("kind", DATA_TYPES)
@pytest.mark.parametrize(("rows", "positives"), [(20, 1), (2000, 20), (10**7, 10**5)])
def test_default_stages_suit_every_size(kind, rows, positives):
    data_type = DATA_TYPES[kind](DATA_TYPES[kind].config_class("a", "y"))
    for model in data_type.models:
        stages = data_type.default_stages(rows, positives, model)
        assert stages[-1].sampler.num_pos <= positives
        assert all(stage.epochs >= 3 for stage in stages)


@pytest.mark.parametrize(
    ("loss", "stages"), [("ce", ["ce"]), ("ap", ["ce", "ap"]), ("ap+ce", ["ce", "ap + ce"]), ("focal", ["ce", "focal"])]
)
def test_loss_is_that_of_the_last_stage_after_cross_entropy(plan, loss, stages):
    assert [stage.name for stage in run_of(plan(loss=loss)).stages] == stages


def test_stages_of_the_table_are_kept_and_overridden(plan):
    table = {"stage": [{"loss": "focal", "epochs": 7, "optimizer": {"lr": 0.5}}], "seed": 4}
    settings = parse_settings(["stages.0.lr=0.25", "checkpoints.share=0.5"])
    run = run_of(plan(table, epochs=9, settings=settings), rows=10, positives=2)
    assert (run.seed, run.stages[0].name, run.stages[0].epochs, run.stages[0].optimizer.lr) == (4, "focal", 9, 0.25)
    assert run.checkpoints.share == 0.5
    assert table["stage"][0]["epochs"] == 7


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        ({"loss": "focall"}, "did you mean 'focal'"),
        ({"settings": {"stages.7.lr": 1}}, "counted from 0 to 1"),
        ({"settings": {"stages.1.lrr": 1}}, "did you mean 'lr'"),
        ({"settings": {"stages.1.lr": "fast"}}, "lr must be a number"),
        ({"settings": {"stages.1.options.ap.margn": 1}}, "did you mean 'margin'"),
        ({"settings": {"stages.1": 3}}, "names no single value"),
        ({"settings": {"seed.a.b": 1}}, "seed.a.b names no single value"),
        ({"settings": {"stages.1.epochs.a.b": 1}}, "epochs.a.b names no single value"),
        ({"settings": {"data.target.a.b": 1}}, "target.a.b names no single value"),
        ({"settings": {"model.hiden": [3]}}, "did you mean 'hidden'"),
        ({"settings": {"model.name": "forest"}}, "model must be one of mlp, linear"),
        ({"settings": {"data.sharee": 0.3}}, "did you mean 'share'"),
        ({"settings": {"sed": 3}}, "did you mean 'seed'"),
    ],
)
def test_mistake_in_settings_is_raised_before_data_are_read(file, tmp_path, monkeypatch, overrides, message):
    monkeypatch.setattr("apmax.workflows.training.prepare_data", lambda *_, **__: pytest.fail("data were read"))
    with pytest.raises((ValueError, TypeError), match=message):
        train_job({"data": {"train": str(file), "target": "y"}}, Overrides(**overrides), out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


def test_batch_size_below_the_positives_of_an_unsized_recipe_is_no_mistake(plan):
    assert run_of(plan(batch_size=12), rows=300).stages[-1].sampler.batch_size == 12


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"smiles": "s", "kind": "table"}, "smiles is for data of kind molecules; these are of kind table"),
        ({"fit": "crop"}, "fit is for data of kind images; these are of kind table"),
        ({"on_error": "skip"}, "on_error is for data of kind molecules or images; these are of kind table"),
        ({"kind": "molecules", "columns": {"a": "drop"}}, "columns is for data of kind table; these are of kind mol"),
        ({"kind": "molecules", "path": "p"}, "path is for data of kind images; these are of kind molecules"),
        ({"kind": "sound"}, "kind must be one of table, molecules, images"),
        ({"target": None}, "target: name the column to predict"),
        ({"train": None}, "train: a data file is needed"),
    ],
)
def test_key_of_another_data_type_is_refused_with_the_type_that_has_it(fields, message):
    with pytest.raises(ValueError, match=message):
        read_data_config({"data": {"train": "a.csv", "target": "y", **fields}})


def test_no_configuration_carries_a_field_of_another_type():
    common = {each.name for each in dataclasses.fields(DataConfig)}
    own = [{each.name for each in dataclasses.fields(kind.config_class)} - common for kind in DATA_TYPES.values()]
    assert [sorted(fields) for fields in own] == [
        ["columns", "decimal_comma"],
        ["duplicates", "fingerprints", "graphs", "largest_fragment", "levels", "on_error", "smiles"],
        ["augment", "ending", "fit", "mirror", "on_error", "path", "root", "size", "upside_down"],
    ]


def test_column_of_lists_in_new_rows_is_named_with_its_file(tmp_path):
    encoder = TableEncoder.fit(pa.table({"city": ["a", "b", "a", "b"]}))
    pq.write_table(pa.table({"city": [["a"], ["b"]]}), tmp_path / "new.parquet")
    with pytest.raises(ValueError, match=r"data: column 'city' of .*new\.parquet is of type list"):
        TableType(TableData("a.csv", "y")).encoder_for(encoder, TableFile(tmp_path / "new.parquet"), {})


def test_target_of_lists_is_named_with_its_file(tmp_path):
    pq.write_table(pa.table({"x": [1, 2], "y": [[0], [1]]}), tmp_path / "a.parquet")
    with pytest.raises(ValueError, match=r"target: column 'y' of .*a\.parquet is of type list"):
        prepare_data(TableData(str(tmp_path / "a.parquet"), "y"), seed=0)


def test_weights_count_in_training_calibration_and_metrics(tmp_path):
    """A row of weight 2 is two rows in the validation AP; rows of weight 0 are left out."""
    rows = client_rows(300)
    for number, row in enumerate(rows):
        row["w"] = [2, 1, 0][number % 3]
    train, valid = write_csv(tmp_path / "a.csv", rows[:200]), write_csv(tmp_path / "b.csv", rows[200:])
    table = {"data": {"train": train, "valid": valid, "target": "bought", "weight": "w"}}
    notes = []
    result = train_job(table, QUICK, out=tmp_path / "r", notify=lambda facts, warnings: notes.extend(warnings))
    scored = load_scored_rows(tmp_path / "r")["validation"]
    expected = [row["w"] for row in rows[200:] if row["w"]]
    assert scored.sample_weight.tolist() == expected
    assert scored.rows.tolist() == [number for number in range(100) if rows[200 + number]["w"]]
    ap = average_precision(scored.scores[:, 0], scored.labels[:, 0], sample_weight=scored.sample_weight).item()
    assert result.valid.each["bought"].ap.estimate == pytest.approx(ap, abs=1e-9)
    assert "66 rows of weight 0 are left out" in notes
    assert "w" not in result.model.encoder.names
    weight = np.array([row["w"] for row in rows[:200] if row["w"]])
    data = prepare_data(TableData(train, "bought", valid=valid, weight="w"), seed=0).data
    np.testing.assert_allclose(data.sample_weight, weight / weight.mean(), rtol=1e-6)
    columns = (scored.scores[:, 0].astype(np.float32), scored.labels[:, 0], scored.sample_weight)
    assert result.model.calibrated(*columns).calibration == result.model.calibration
    again = evaluate_source(*result.model.open(valid))[0]
    assert again.each["bought"].ap.estimate == pytest.approx(ap, abs=1e-6)


@pytest.mark.parametrize("value", ["-1", "", "much"])
def test_a_weight_that_is_no_weight_is_an_error_with_its_row(value, tmp_path):
    rows = [{**row, "w": value if number == 7 else 1} for number, row in enumerate(client_rows(60))]
    table = {"data": {"train": write_csv(tmp_path / "a.csv", rows), "target": "bought", "weight": "w"}}
    message = rf"weight: column 'w' of a.csv must hold numbers .* \(counted from 0\): 7 \('{value}'\)$"
    with pytest.raises(ValueError, match=message):
        train_job(table, QUICK, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize("column", ["weight", "time"])
def test_thousands_between_commas_are_no_decimal_commas(column, tmp_path):
    rows = [{**row, "n": f"{900 + 10 * number:,}"} for number, row in enumerate(client_rows(60))]
    with pytest.raises(ValueError, match=rf"{column}: column 'n' .*50 .*'1,000'"):
        prepare_data(TableData(write_csv(tmp_path / "a.csv", rows), "bought", **{column: "n"}), seed=0)
    file = write_csv_with_commas(tmp_path / "b.csv", [{**row, "n": row["n"].replace(",", ".")} for row in rows], ["n"])
    prepare_data(TableData(file, "bought", **{column: "n"}), seed=0)


def test_networks_of_an_ensemble_begin_at_the_log_odds_of_the_prior_by_their_own_seeds(file, tmp_path):
    data, still = {"data": {"train": str(file), "target": "y"}}, Overrides(loss="ce", epochs=1, lr=1e-12)
    alone = train_job(data, still, out=tmp_path / "one").model.network
    ensemble = train_job(data, dataclasses.replace(still, ensemble=3), out=tmp_path / "three").model.network
    first, *others = (member.state_dict() for member in ensemble.members)
    assert all(torch.equal(value, first[name]) for name, value in alone.state_dict().items())
    for member in others:
        torch.testing.assert_close(member["head.bias"], first["head.bias"])
        assert not torch.allclose(member["head.weight"], first["head.weight"])


@pytest.mark.parametrize("settings", [QUICK, None])
def test_a_time_that_is_no_time_is_an_error_with_its_value(settings, tmp_path):
    rows = [{**row, "day": "soon" if number == 7 else "2024-01-31"} for number, row in enumerate(client_rows(60))]
    table = {"data": {"train": write_csv(tmp_path / "a.csv", rows), "target": "bought", "time": "day"}}
    with pytest.raises(ValueError, match=r"time: column 'day' must hold a date or a number .* such as '.+'$"):
        train_job(table, settings, out=tmp_path / "r")
    assert not (tmp_path / "r").exists()
