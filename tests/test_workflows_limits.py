"""Job files of unknown origin: numbers and types that are refused before anything is allocated."""

from __future__ import annotations

import pytest

from apmax.train import Run, Stage
from apmax.workflows import load_model, train_job
from commands import run
from model_folders import copy_model, renew_manifest
from small_files import SMILES, write_xy


@pytest.fixture
def train(tmp_path):
    """Return a function that trains a job whose tables are changed."""
    data = {"train": str(write_xy(tmp_path / "a.csv")), "target": "y"}

    def call(**tables):
        own = tables.pop("data", {})
        joined = {**data, **own} if isinstance(own, dict) else own
        train_job({"accelerator": "cpu", **tables, "data": joined}, out=tmp_path / "r")

    yield call
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"ensemble": 30_000_000}, "ensemble must be at most 1,000, got 30,000,000"),
        ({"workers": 10**6}, "workers must be at most 1,000"),
        ({"devices": 10**7}, "devices must be at most"),
        ({"seed": 10**40}, "seed must be at most"),
        ({"eval_batch_size": 10**30}, "eval_batch_size must be at most"),
        ({"stage": [{"sampler": {"batch_size": 10**12}}]}, r"sampler\.batch_size must be at most"),
        ({"stage": [{"smooth": 10**12 + 1}]}, "smooth must be at most"),
        ({"stage": [{"loss": "fast_ap", "options": {"fast_ap": {"bins": 10**12}}}]}, r"options\.fast_ap\.bins must be"),
        ({"model": {"hidden": [10**6, 10**6]}}, r"mlp with hidden = \[1000000, 1000000\] would have more than"),
        ({"model": {"hidden": [10**30]}}, "hidden = .* would have more than 2,000,000,000 parameters"),
        ({"data": {"kind": "images", "size": 10**9}}, "size must lie in"),
    ],
)
def test_number_that_would_fill_the_memory_is_refused(train, tables, message):
    with pytest.raises(ValueError, match=message):
        train(**tables)


def test_ensemble_that_would_fill_the_memory_is_refused(train, monkeypatch):
    monkeypatch.setattr("apmax.workflows.training.LARGEST_NETWORK", 10**6)
    with pytest.raises(ValueError, match=r"ensemble: 10 models of 161,601 parameters have more than 1,000,000"):
        train(model={"hidden": [400, 400]}, ensemble=10)


def test_graph_network_that_would_fill_the_memory_is_refused(tmp_path, data_cache, monkeypatch):
    monkeypatch.setattr("apmax.workflows.data_types.networks.LARGEST_NETWORK", 10**6)
    (tmp_path / "a.csv").write_text("smiles,y\n" + "".join(f"{text},{int('Br' in text)}\n" for text in SMILES))
    data = {"train": str(tmp_path / "a.csv"), "target": "y", "smiles": "smiles"}
    with pytest.raises(ValueError, match="hidden = 1000 would have more than 1,000,000"):
        train_job({"data": data, "model": {"hidden": 1000}}, out=tmp_path / "r")


def test_number_in_a_folder_that_would_fill_the_memory_is_refused(client_folder, tmp_path):
    copy_model(client_folder / "run", tmp_path)
    text = (tmp_path / "run.toml").read_text()
    assert "[model]\n" in text
    (tmp_path / "run.toml").write_text(text.replace("[model]\n", "[model]\nhidden = [1000000, 1000000]\n"))
    renew_manifest(tmp_path)
    with pytest.raises(ValueError, match="would have more than"):
        load_model(tmp_path)


@pytest.mark.parametrize(
    ("tables", "message"),
    [
        ({"data": 5}, r"data must be a table \(\[data\]\), got 5"),
        ({"model": 5}, "model must be a table"),
        ({"model": {"name": 5}}, "model must be a text, got 5"),
        ({"model": {"pretrained": 5}}, "pretrained must be a text"),
        ({"model": {"hidden": 5}}, "mlp with hidden = 5 cannot be built"),
        ({"model": {"dropout": "x"}}, "dropout must be a number"),
        ({"stage": 5}, r"stage must be a list of tables \(\[\[stage\]\]\), got 5"),
        ({"stage": [5]}, "stage must be a list of tables"),
        ({"stage": [{"loss": 5}]}, "loss must be a text or a table"),
        ({"stage": [{"options": 5}]}, "options must be a table of tables"),
        ({"stage": [{"options": {"ce": 5}}]}, "options must be a table of tables"),
        ({"stage": [{"reset": [5]}]}, "reset must be a list of texts"),
        ({"stage": [{"keep": "no"}]}, "keep must be true or false"),
        ({"stage": [{"optimizer": {"betas": ["a", "b"]}}]}, "betas must be a list of numbers"),
        ({"recipe": "default", "recipe_options": 5}, "recipe_options must be a table"),
        ({"accelerator": 5}, "accelerator must be a text"),
        ({"data": {"train": 5}}, "train must be a text"),
        ({"data": {"target": 5}}, "target must be a text or a list of texts"),
        ({"data": {"target": ["y", 5]}}, "target must be a text or a list of texts"),
        ({"data": {"columns": 5}}, "columns must be a table of texts"),
        ({"data": {"columns": {"x": 5}}}, "columns must be a table of texts"),
        ({"data": {"group": 5}}, "group must be a text"),
        ({"data": {"kind": 5}}, "kind must be a text"),
        ({"data": {"kind": "molecules", "smiles": 5}}, "smiles must be a text"),
    ],
)
def test_value_of_another_type_is_named_with_its_key(train, tables, message):
    with pytest.raises((TypeError, ValueError), match=message):
        train(**tables)


def test_job_file_of_another_form_is_one_line(tmp_path, capsys):
    (tmp_path / "run.toml").write_text("data = 5\n")
    assert run("train", tmp_path / "run.toml", "--out", tmp_path / "r") == 1
    error = capsys.readouterr().err
    assert "data must be a table ([data]), got 5" in error
    assert error.count("\n") == 1


def test_positive_value_may_be_a_number_in_a_job_file(tmp_path):
    from apmax.workflows.job import read_data_config

    assert read_data_config({"data": {"train": "a.csv", "target": "y", "positive": 1}}).positive == "1"


def test_usual_numbers_are_within_the_limits():
    Run(stages=(Stage(smooth=101),), ensemble=100, workers=64, devices=8, eval_batch_size=65536, seed=2**32)
