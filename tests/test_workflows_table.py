"""From a job's files to training and validation rows."""

from __future__ import annotations

import numpy as np
import pytest

from apmax.workflows.data_types import KINDS
from apmax.workflows.rows import prepare
from apmax.workflows.spec import DataSpec, Job, ModelSpec, dumps, loads, resolve
from apmax.workflows.wishes import Wishes


@pytest.fixture
def file(tmp_path):
    generator = np.random.default_rng(0)
    lines = ["x,patient,day,y"]
    for k in range(300):
        label = int(generator.random() < 0.2)
        day = np.datetime64("2024-01-01") + int(generator.integers(0, 300))
        lines.append(f"{generator.normal() + label:.4f},p{k % 40},{day},{label if k % 50 else ''}")
    path = tmp_path / "a.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def spec(file, **more):
    return DataSpec(train=str(file), target="y", **more)


def test_rows_without_a_target_are_left_out_and_counted(file):
    prepared = prepare(spec(file), seed=0)
    assert prepared.train_rows + len(prepared.data.valid) == 294
    assert "6 rows without a 'y' are left out" in prepared.warnings


@pytest.mark.parametrize("column", ["group", "time"])
def test_column_of_the_split_is_no_feature(file, column):
    name = {"group": "patient", "time": "day"}[column]
    assert name in prepare(spec(file), seed=0).encoder.names
    assert name not in prepare(spec(file, **{column: name}), seed=0).encoder.names


def test_validation_file_is_taken_whole_and_encoded_as_training_was(file, tmp_path):
    other = tmp_path / "b.csv"
    other.write_text("x,patient,day,y\n5,p1,2024-02-01,1\n0.1,new,2024-02-02,0\n")
    prepared = prepare(spec(file, valid=str(other)), seed=0)
    alone = prepare(spec(file), seed=0)
    assert (len(prepared.data.valid), prepared.train_rows) == (2, 294)
    assert prepared.data.valid_labels.tolist() == [1, 0]
    assert prepared.encoder.names == alone.encoder.names


def test_encoder_knows_nothing_of_the_rows_held_out(file):
    encoders = {}
    for extreme in ("0.5", "9999"):
        text = file.read_text() + f"{extreme},p1,2025-06-01,1\n0.2,p2,2025-06-01,0\n"
        file.with_name("c.csv").write_text(text)
        prepared = prepare(spec(file.with_name("c.csv"), time="day", share=0.01), seed=0)
        encoders[extreme] = prepared.encoder.to_table()
    assert encoders["0.5"] == encoders["9999"]


def test_split_follows_the_seed(file):
    first, again, other = (prepare(spec(file), seed=seed).data.valid_labels for seed in (0, 0, 1))
    assert len(first) == len(again) == len(other)
    inputs = [prepare(spec(file), seed=seed).data.valid.tensors[0] for seed in (0, 0, 1)]
    assert inputs[0].equal(inputs[1])
    assert not inputs[0].equal(inputs[2])


def test_job_survives_toml():
    data = DataSpec(train="a.csv", target="y", columns={"zip": "category"}, group="g")
    run = resolve({}, Wishes(seed=3, ensemble=2), data, rows=5000, positives=50).run
    job = Job(data, ModelSpec("mlp", {"hidden": [8, 8], "dropout": 0.1}), run)
    assert loads(dumps(job)) == job


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("rows", "positives"), [(20, 1), (2000, 20), (10**7, 10**5)])
def test_default_stages_suit_every_size(kind, rows, positives):
    for model in KINDS[kind].models:
        stages = KINDS[kind].stages(rows, positives, model)
        assert stages[-1].sampler.num_pos <= positives
        assert all(stage.epochs >= 3 for stage in stages)


@pytest.mark.parametrize(
    ("loss", "stages"), [("ce", ["ce"]), ("ap", ["ce", "ap"]), ("ap+ce", ["ce", "ap + ce"]), ("focal", ["ce", "focal"])]
)
def test_loss_is_the_last_stages_after_cross_entropy(loss, stages):
    data = DataSpec(train="a.csv", target="y")
    run = resolve({}, Wishes(loss=loss), data, rows=5000, positives=50).run
    assert [stage.name for stage in run.stages] == stages


def test_stages_of_the_job_are_kept_and_changed_by_wishes():
    table = {"stage": [{"loss": "focal", "epochs": 7, "optimizer": {"lr": 0.5}}], "seed": 4}
    wishes = Wishes(epochs=9, changes=("stages.0.lr=0.25", "checkpoints.share=0.5"))
    run = resolve(table, wishes, DataSpec(train="a.csv", target="y"), rows=10, positives=2).run
    assert (run.seed, run.stages[0].name, run.stages[0].epochs, run.stages[0].optimizer.lr) == (4, "focal", 9, 0.25)
    assert run.checkpoints.share == 0.5
    assert table["stage"][0]["epochs"] == 7
