"""Predictions: scores that are not finite, calibrated probabilities, and names that look like markup."""

from __future__ import annotations

import csv
import json
import shlex
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from apmax.train import fit_platt
from apmax.workflows import Overrides, evaluate_source, load_model, train_job
from commands import SHORT, SHORT_MOLECULES, run
from model_folders import copy_model, renew_manifest
from small_files import SMILES, client_rows, read_csv, write_csv

QUICK = Overrides(epochs=1, settings={"stages.0.epochs": 1, "accelerator": "cpu"})


def spoil(source, folder, name, row=None):
    """Copy a model and set a weight (of one output) to NaN."""
    copy_model(source, folder)
    weights = torch.load(folder / "model.pt", weights_only=True)
    weights[name][slice(None) if row is None else row] = np.nan
    torch.save(weights, folder / "model.pt")
    renew_manifest(folder)


@pytest.mark.parametrize("options", [[], ["--sort"], ["--top", "3"], ["--probability"]])
def test_scores_that_are_not_finite_are_an_error_and_nothing_is_written(client_folder, tmp_path, capsys, options):
    spoil(client_folder / "run", tmp_path / "r", "head.bias")
    out = tmp_path / "o.csv"
    out.write_text("from before")
    assert run("predict", tmp_path / "r", client_folder / "test.csv", *options, "--out", out) == 1
    error = capsys.readouterr().err
    assert "not finite in 200 of 200 rows (counted from 0): 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …" in error
    assert error.count("\n") == 1
    assert out.read_text() == "from before"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.csv", "r"]


def test_single_row_without_a_finite_score_is_named_in_all_chunks(client_folder, tmp_path, monkeypatch):
    from apmax.data import reading

    monkeypatch.setattr(reading, "BLOCK_BYTES", 512)
    model = load_model(client_folder / "run")
    file = client_folder / "test.csv"
    worst = float(model.score(file).max())
    network = model.network

    class Overflow(torch.nn.Module):
        def forward(self, inputs):
            scores = network(inputs)
            return torch.where(scores >= worst - 1e-6, torch.inf, scores)

    row = int(model.score(file).argmax())
    spoilt = replace(model, network=Overflow())
    with pytest.raises(ValueError, match=rf"not finite in 1 of \d+ rows \(counted from 0\): {row};"):
        spoilt.score(file)
    with pytest.raises(ValueError, match="not finite"):
        evaluate_source(*spoilt.open(file))


def test_every_target_must_be_finite_and_unreadable_rows_are_no_error(molecule_folder, tmp_path):
    copy_model(molecule_folder / "two", tmp_path)
    weights = torch.load(tmp_path / "model.pt", weights_only=True)
    heads = [name for name, value in weights.items() if value.shape == (2,)]
    spoil(molecule_folder / "two", tmp_path, heads[-1], row=1)
    with pytest.raises(ValueError, match=r"the scores of 'toxic' are not finite in 2 of 2 rows .* 0, 2;"):
        load_model(tmp_path).score([SMILES[0], "C(C", SMILES[1]])
    assert np.isnan(load_model(molecule_folder / "two").score([SMILES[0], "C(C"])[1]).all()


def test_probabilities_are_calibrated_and_keep_the_ranking(client_folder, tmp_path, capsys):
    file = client_folder / "test.csv"
    assert run("predict", client_folder / "run", file, "--probability", "--sort", "--out", tmp_path / "o.csv") == 0
    assert "'score' and 'probability' in" in capsys.readouterr().out
    rows = read_csv(tmp_path / "o.csv")
    probability = np.array([float(row["probability"]) for row in rows])
    assert (np.diff(probability) <= 0).all()
    assert ((probability > 0) & (probability < 1)).all()
    positive = np.mean([row["bought"] == "yes" for row in rows])
    assert probability.mean() == pytest.approx(positive, abs=0.06)
    model = load_model(client_folder / "run")
    assert np.sort(model.score(file, probability=True))[::-1] == pytest.approx(probability, abs=1e-6)


def test_calibration_is_platts_of_the_validation_rows(client_folder, tmp_path):
    rows = client_rows()
    table = {"train": write_csv(tmp_path / "a.csv", rows[:300]), "valid": write_csv(tmp_path / "b.csv", rows[300:])}
    model = train_job({"data": {**table, "target": "bought"}}, QUICK, out=tmp_path / "r").model
    labels = np.array([float(row["bought"] == "yes") for row in rows[300:]])
    curve = fit_platt(model.score(tmp_path / "b.csv").astype(np.float64), labels, np.ones(100))
    assert model.calibration[0] == pytest.approx(curve, rel=1e-6)
    assert load_model(tmp_path / "r").calibration == model.calibration


def test_few_positives_of_a_perfect_ranking_have_moderate_probabilities(client_folder):
    model = load_model(client_folder / "run")
    scores = np.array([5.0, 1.0, 0.0, -1.0, -2.0], np.float32)
    probability = model.calibrated(scores, np.array([1.0, 0, 0, 0, 0], np.float32)).probabilities(scores)
    assert 0.5 < probability[0] < 0.9
    assert (probability > 0).all()


def test_several_targets_have_a_probability_each(molecule_folder, tmp_path):
    library = molecule_folder / "library.smi"
    command = ["predict", molecule_folder / "two", library, "--probability", "--name", "risk"]
    assert run(*command, "--out", tmp_path / "o.csv") == 0
    names = ["risk active", "risk toxic", "risk probability active", "risk probability toxic"]
    assert list(read_csv(tmp_path / "o.csv")[0])[-4:] == names
    scores = load_model(molecule_folder / "two").score([SMILES[0], "C(C"], probability=True)
    assert scores.shape == (2, 2)
    assert np.isnan(scores[1]).all()


def test_target_without_validation_rows_has_no_probability(client_folder, molecule_folder):
    model = load_model(molecule_folder / "two")
    labels = np.array([[1, np.nan], [0, np.nan]], np.float32)
    model = model.calibrated(np.zeros((2, 2), np.float32), labels)
    with pytest.raises(ValueError, match="there is none of 'toxic', which had no validation row"):
        model.score(SMILES[:2], probability=True)


@pytest.mark.parametrize("content", ["{}", "[]", '{"targets": 5}', '{"targets": [{"slope": "x", "intercept": 0}]}'])
def test_foreign_calibration_is_a_clear_error(client_folder, tmp_path, content):
    copy_model(client_folder / "run", tmp_path)
    (tmp_path / "calibration.json").write_text(content)
    renew_manifest(tmp_path)
    with pytest.raises(ValueError, match=r"calibration\.json was not written by apmax"):
        load_model(tmp_path)


@pytest.mark.parametrize(("column", "options"), [("score", []), ("probability", ["--probability"])])
def test_column_of_an_added_name_is_an_error_with_the_remedy(client_folder, tmp_path, capsys, column, options):
    data = write_csv(tmp_path / "a.csv", [{**row, column: 1} for row in client_rows(5)])
    command = ["predict", client_folder / "run", data, *options, "--out", tmp_path / "o.csv"]
    assert run(*command) == 1
    assert f"has a column '{column}' already: choose another name for the new one (--name" in capsys.readouterr().err
    assert run(*command, "--name", "risk") == 0


MARKUP = ["[/x]", "o[red]q", ":smile: [bold]"]


@pytest.mark.parametrize("name", MARKUP)
def test_names_that_look_like_markup_are_shown_as_they_are(tmp_path, monkeypatch, capsys, name):
    monkeypatch.setenv("COLUMNS", "200")
    rows = [{name if key == "bought" else key: value for key, value in row.items()} for row in client_rows(120)]
    file = name.replace("/", "")
    data = write_csv(tmp_path / f"{file}.csv", rows)
    folder, out = tmp_path / f"r{file}", tmp_path / f"r{file}.csv"
    assert run("train", data, "--target", name, *SHORT, "--out", folder) == 0
    shown = capsys.readouterr().out
    assert f"; {name} = yes)" in shown
    assert f"apmax predict {shlex.quote(str(folder))} DATA" in shown
    assert run("predict", folder, data, "--name", name + "s", "--out", out) == 0
    assert f"'{name}s' in {out}" in capsys.readouterr().out
    with out.open(newline="") as opened:
        assert list(csv.DictReader(opened).fieldnames)[-1] == name + "s"
    assert run("evaluate", folder, data) == 0
    assert run("evaluate", folder, tmp_path / f"{file}-missing.csv") == 1
    assert f"{file}-missing.csv" in capsys.readouterr().err


def test_targets_that_look_like_markup_are_shown_as_they_are(tmp_path, data_cache, monkeypatch, capsys):
    monkeypatch.setenv("COLUMNS", "200")
    lines = [f"{text},{int('Br' in text)},{int('N' in text)}" for text in SMILES]
    (tmp_path / "a.csv").write_text("\n".join(["smiles,[/x],o[red]q", *lines]) + "\n")
    targets = ["--target", "[/x]", "--target", "o[red]q"]
    data = [tmp_path / "a.csv", "--smiles", "smiles", *targets, *SHORT_MOLECULES]
    assert run("train", *data, "--out", tmp_path / "r") == 0
    shown = capsys.readouterr().out
    for name in ("  [/x]", "  o[red]q"):
        assert name in shown
    assert run("evaluate", tmp_path / "r", tmp_path / "a.csv") == 0
    shown = capsys.readouterr().out
    assert "\n[/x]\n" in shown  # above its precision and recall
    assert "\no[red]q\n" in shown


def test_settings_that_look_like_markup_are_shown_in_the_table_of_trials(capsys):
    from apmax.cli import _console, tune
    from apmax.workflows.tuning import SearchResult

    settings = {"model.[/x]": "[red]a", "stages.1.lr": 0.1}
    result = SearchResult([(0, 0.5, settings)], 0, 0, {"model.[/x]": 0.25})
    _console.output().print(tune._trials_table(result))
    shown = capsys.readouterr().out
    for text in ("[/x]", "[red]a", "importance", "25%"):
        assert text in shown


@pytest.mark.parametrize("command", ["train", "tune"])
def test_existing_folder_is_refused_before_torch_is_imported(tmp_path, command):
    (tmp_path / "thesis.txt").touch()
    code = (
        "import sys, json\nfrom apmax.cli.main import main\n"
        f"try: main(['{command}', 'a.csv', '--target', 'y', '--out', {str(tmp_path)!r}])\n"
        "except SystemExit as ended: print(json.dumps([ended.code, 'torch' in sys.modules]))"
    )
    ended = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(ended.stdout) == [1, False]
    assert "is not empty: continue with --resume, or choose another folder" in ended.stderr


@pytest.mark.parametrize("options", [[], ["--sort"]])
def test_sigterm_leaves_no_temporary_files(client_folder, tmp_path, monkeypatch, capsys, options):
    file, before = write_csv(tmp_path / "a.csv", client_rows(50)), signal.getsignal(signal.SIGTERM)

    def end(*_):
        assert len(list(tmp_path.iterdir())) == 2 + len(options)
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr("apmax.data.writing.CsvWriter.write", end)
    assert run("predict", client_folder / "run", file, *options, "--out", tmp_path / "b.csv") == 143
    assert capsys.readouterr().err == "apmax: terminated\n"
    assert [path.name for path in tmp_path.iterdir()] == ["a.csv"]
    assert signal.getsignal(signal.SIGTERM) is before


@pytest.mark.parametrize("options", [[], ["--sort"]])
def test_data_in_the_file_for_unreadable_rows_are_refused_and_stay(client_folder, tmp_path, capsys, options):
    source = tmp_path / "ranked.errors.csv"
    source.write_bytes((client_folder / "test.csv").read_bytes())
    (tmp_path / "link").mkdir()
    (tmp_path / "link" / "ranked.errors.csv").symlink_to(source)
    for folder in (tmp_path, tmp_path / "link"):
        assert run("predict", client_folder / "run", source, *options, "--out", folder / "ranked.csv") == 1
        error = capsys.readouterr().err
        assert "--out: rows that cannot be read are written to" in error
        assert "ranked.errors.csv, which is the data" in error
        assert "choose another name" in error
        assert not (folder / "ranked.csv").exists()
        assert source.read_bytes() == (client_folder / "test.csv").read_bytes()
