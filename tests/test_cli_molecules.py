"""The commands on molecules: output, files and exit codes."""

from __future__ import annotations

import json

import pytest

from commands import SHORT, SHORT_MOLECULES, run
from model_folders import copy_model, renew_manifest
from small_files import SMILES, read_csv, write_xy

pytest.importorskip("rdkit")

from apmax.data import reading
from apmax.workflows import load_model
from apmax.workflows.tuning import open_study


def test_training_writes_metrics_with_intervals(molecule_folder):
    results = json.loads((molecule_folder / "one" / "results.json").read_text())
    for part in ("valid", "test"):
        ap = results[part]["ap"]
        assert 0 <= ap["low"] <= ap["estimate"] <= ap["high"] <= 1


def test_run_file_repeats_the_training_bit_for_bit(molecule_folder, tmp_path):
    assert run("train", molecule_folder / "two" / "run.toml", "--quiet", "--out", tmp_path / "again") == 0
    assert (tmp_path / "again" / "results.json").read_text() == (molecule_folder / "two" / "results.json").read_text()


@pytest.mark.parametrize("model", ["mpnn", "ml-mpnn"])
def test_every_network_trains_and_ranks(molecule_folder, tmp_path, model):
    command = ["train", molecule_folder / "train.csv", "--smiles", "smiles", "--target", "active", "--model", model]
    assert run(*command, *SHORT_MOLECULES, "--quiet", "--split", "scaffold", "--out", tmp_path / "r") == 0
    assert run("predict", tmp_path / "r", molecule_folder / "library.smi", "--out", tmp_path / "o.csv") == 0
    assert len({row["score"] for row in read_csv(tmp_path / "o.csv")}) > 10


def test_new_columns_of_several_targets_are_listed(molecule_folder, tmp_path, capsys):
    command = ["predict", molecule_folder / "two", molecule_folder / "library.smi", "--probability"]
    assert run(*command, "--out", tmp_path / "o.csv") == 0
    listed = "'score active', 'score toxic', 'probability active' and 'probability toxic' in "
    assert listed in capsys.readouterr().out


def test_what_holds_for_every_target_is_said_once(molecule_folder, tmp_path, capsys):
    data = [molecule_folder / "train.csv", "--smiles", "smiles", "--target", "active", "--target", "toxic"]
    assert run("train", *data, "--effort", "quick", "--no-report", "--out", tmp_path / "r") == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line[:30] for line in lines if "were fitted again to all rows" in line] == [
        "The members were fitted again "
    ]


def test_top_is_the_best_first_of_the_rows_that_can_be_read(molecule_folder, tmp_path, capsys):
    command = ["predict", molecule_folder / "one", molecule_folder / "library.csv", "--smiles", "SMI"]
    assert run(*command, "--out", tmp_path / "all.csv") == 0
    assert run(*command, "--top", 7, "--out", tmp_path / "ranked.csv") == 0
    everything, top = read_csv(tmp_path / "all.csv"), read_csv(tmp_path / "ranked.csv")
    assert len(everything) == len(SMILES)
    assert [row["SMI"] for row in everything] == SMILES
    assert top == sorted(everything, key=lambda row: -float(row["score"]))[:7]
    assert "1 that cannot be read in" in capsys.readouterr().out


def test_unreadable_rows_are_written_to_a_file_of_errors(molecule_folder, tmp_path):
    run(
        "predict",
        molecule_folder / "one",
        molecule_folder / "library.csv",
        "--smiles",
        "SMI",
        "--sort",
        "--out",
        tmp_path / "r.csv",
    )
    (error,) = read_csv(tmp_path / "r.errors.csv")
    assert (error["row"], error["value"]) == ("30", "c1cc")
    assert error["reason"]


def test_file_of_errors_of_an_earlier_prediction_is_removed(molecule_folder, tmp_path):
    (tmp_path / "r.errors.csv").write_text("row,value,reason\n1,C,old\n")
    assert run("predict", molecule_folder / "one", molecule_folder / "library.smi", "--out", tmp_path / "r.csv") == 0
    assert not (tmp_path / "r.errors.csv").exists()


def test_scores_do_not_depend_on_the_size_of_chunks(molecule_folder, tmp_path, monkeypatch):
    for rows in (1000, 7):
        monkeypatch.setattr(reading, "CHUNK_ROWS", rows)
        assert (
            run("predict", molecule_folder / "one", molecule_folder / "library.smi", "--out", tmp_path / f"{rows}.csv")
            == 0
        )
    whole, cut = ([float(row["score"]) for row in read_csv(tmp_path / f"{rows}.csv")] for rows in (1000, 7))
    assert cut == pytest.approx(whole, abs=1e-5)


def test_several_targets_have_a_score_each_and_are_sorted_by_one(molecule_folder, tmp_path):
    command = ["predict", molecule_folder / "two", molecule_folder / "library.smi", "--by", "toxic", "--sort"]
    assert run(*command, "--out", tmp_path / "r.csv") == 0
    rows = read_csv(tmp_path / "r.csv")
    assert list(rows[0]) == ["smiles", "name", "score active", "score toxic"]
    scores = [float(row["score toxic"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) > 10


def test_evaluation_of_several_targets_is_by_target(molecule_folder, capsys):
    assert run("evaluate", molecule_folder / "two", molecule_folder / "train.csv", "--json") == 0
    output = capsys.readouterr()
    table = json.loads(output.out)
    assert (table["targets"]["active"]["rows"], table["targets"]["toxic"]["rows"]) == (96, 32)
    assert "row 5 'C(C'" in output.err


@pytest.mark.slow
def test_search_over_several_targets_is_by_their_mean_ap(molecule_folder, tmp_path):
    command = [
        "tune",
        molecule_folder / "train.csv",
        "--smiles",
        "smiles",
        "--target",
        "active",
        "--target",
        "toxic",
        *(word for word in SHORT_MOLECULES if word != "--no-report"),
    ]
    command += ["--space", "stages.1.lr=1e-4,1e-2", "--trials", 2, "--out", tmp_path / "t"]
    assert run(*command) == 0
    values = [trial.value for trial in open_study(tmp_path / "t" / "study.db").trials]
    assert run("train", tmp_path / "t" / "run.toml", "--quiet", "--out", tmp_path / "r") == 0
    results = json.loads((tmp_path / "r" / "results.json").read_text())["valid"]
    assert results["mean_ap"] == pytest.approx(max(values), abs=1e-6)
    assert len(results["targets"]) == 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["predict", "TWO", "LIST", "--sort", "--out", "OUT"],
            "--by: there are several targets to sort by, active, toxic: choose one",
        ),
        (["predict", "ONE", "LIST", "--by", "active", "--out", "OUT"], "it needs --sort or --top K"),
        (
            ["predict", "ONE", "CSV", "--out", "OUT"],
            "has no column 'smiles'; its columns are 'id', 'SMI'",
        ),
        (["predict", "ONE", "CSV", "--smiles", "SMI", "--on-error", "raise", "--out", "OUT"], "row 30 cannot be read"),
        (["evaluate", "ONE", "LIST"], "apmax: target: "),
        (
            ["train", "TRAIN", "--smiles", "smiles", "--target", "active", "--model", "mlp", "--out", "NEW"],
            "gine, mpnn",
        ),
        (["train", "TRAIN", "--target", "active", "--split", "scaffold", "--out", "NEW"], "stratified, random; got"),
        (["train", "LIST", "--target", "active", "--out", "NEW"], "a .smi file holds no labels"),
        (
            ["train", "TRAIN", "--smiles", "smiles", "--target", "active", "--duplicates", "merge", "--out", "NEW"],
            "--duplicates must be one of keep, join, drop; got 'merge'",
        ),
    ],
)
def test_mistake_is_one_line_and_leaves_nothing(molecule_folder, tmp_path, capsys, arguments, message):
    names = {"ONE": "one", "TWO": "two", "LIST": "library.smi", "CSV": "library.csv", "TRAIN": "train.csv"}
    places = {
        **{name: molecule_folder / file for name, file in names.items()},
        "OUT": tmp_path / "o.csv",
        "NEW": tmp_path / "n",
    }
    capsys.readouterr()
    assert run(*[places.get(word, word) for word in arguments]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_ensemble_of_the_default_network_is_trained(molecule_folder, tmp_path):
    data = [molecule_folder / "train.csv", "--smiles", "smiles", "--target", "active"]
    assert run("train", *data, *SHORT_MOLECULES, "--ensemble", 2, "--quiet", "--out", tmp_path / "r") == 0
    assert len(load_model(tmp_path / "r").network.members) == 2


def test_model_of_other_features_is_refused(molecule_folder, tmp_path, capsys):
    copy_model(molecule_folder / "one", tmp_path)
    facts = json.loads((tmp_path / "encoder.json").read_text())
    facts["encoder"]["featuriser"] += 1
    (tmp_path / "encoder.json").write_text(json.dumps(facts))
    renew_manifest(tmp_path)
    assert run("predict", tmp_path, molecule_folder / "library.smi", "--out", tmp_path / "o.csv") == 1
    assert "of the featuriser" in capsys.readouterr().err


def test_column_of_molecules_is_no_option_of_a_model_of_tables(tmp_path, capsys):
    command = ["train", write_xy(tmp_path / "a.csv"), "--target", "y", *SHORT, "--quiet", "--out", tmp_path / "r"]
    assert run(*command) == 0
    assert run("predict", tmp_path / "r", tmp_path / "a.csv", "--smiles", "x", "--out", tmp_path / "o.csv") == 1
    assert "--smiles is for models of molecules; this one is of kind table" in capsys.readouterr().err


def test_handling_of_duplicates_and_salts_is_part_of_the_job(tmp_path):
    from apmax.cli._options import JobOptions

    options = JobOptions(data=str(tmp_path / "a.csv"), smiles="s", duplicates="join", largest_fragment=True)
    table = options.job_table()["data"]
    assert (table["duplicates"], table["largest_fragment"]) == ("join", True)
