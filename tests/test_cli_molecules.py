"""The commands on molecules, as typed: what they print, write and return."""

from __future__ import annotations

import csv
import json

import pytest

from apmax.data import reading
from apmax.workflows.tuning import open_study
from commands import run

pytest.importorskip("rdkit")

CORES = ["c1ccccc1", "c1ccncc1", "C1CCCCC1", "c1ccoc1", "C1CCNCC1", "c1ccc2ccccc2c1", "C1CCOC1", "c1ccsc1"]
ARMS = ["C", "CC", "CCC", "OC", "NC", "FC", "BrC", "ClC", "CO", "CN", "CCCC", "CCO"]
SMILES = [arm + core for core in CORES for arm in ARMS]
SHORT = ["--set", "stages.0.epochs=2", "--epochs", "1", "--set", "accelerator=cpu", "--set", "model.hidden=8"]


def read(path):
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.fixture(autouse=True, scope="module")
def cache(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APMAX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("molecules")
    lines = [f"{text},{int('Br' in text)},{'' if k % 3 else int('N' in text)}" for k, text in enumerate(SMILES)]
    lines.insert(5, "C(C,0,")
    (folder / "train.csv").write_text("\n".join(["smiles,active,toxic", *lines]) + "\n")
    library = [f"{k},{text}" for k, text in enumerate([*SMILES[:30], "c1cc", *SMILES[30:]])]
    (folder / "library.csv").write_text("\n".join(["id,SMI", *library]) + "\n")
    (folder / "library.smi").write_text("".join(f"{text} m{k}\n" for k, text in enumerate(SMILES)))
    data = [folder / "train.csv", "--smiles", "smiles", *SHORT, "--quiet"]
    assert run("train", *data, "--target", "active", "--test-share", "0.2", "--out", folder / "one") == 0
    assert run("train", *data, "--target", "active", "--target", "toxic", "--out", folder / "two") == 0
    return folder


def test_training_leaves_figures_with_intervals(folder):
    results = json.loads((folder / "one" / "results.json").read_text())
    for part in ("valid", "test"):
        ap = results[part]["ap"]
        assert 0 <= ap["low"] <= ap["estimate"] <= ap["high"] <= 1


def test_job_file_does_it_again_to_the_bit(folder, tmp_path):
    assert run("train", folder / "two" / "run.toml", "--quiet", "--out", tmp_path / "again") == 0
    assert (tmp_path / "again" / "results.json").read_text() == (folder / "two" / "results.json").read_text()


@pytest.mark.parametrize("model", ["mpnn", "ml-mpnn"])
def test_every_network_trains_and_ranks(folder, tmp_path, model):
    command = ["train", folder / "train.csv", "--smiles", "smiles", "--target", "active", "--model", model]
    assert run(*command, *SHORT, "--quiet", "--split", "scaffold", "--out", tmp_path / "r") == 0
    assert run("predict", tmp_path / "r", folder / "library.smi", "--out", tmp_path / "o.csv") == 0
    assert len({row["score"] for row in read(tmp_path / "o.csv")}) > 10


def test_top_is_the_best_first_of_the_rows_that_can_be_read(folder, tmp_path, capsys):
    command = ["predict", folder / "one", folder / "library.csv", "--smiles", "SMI"]
    assert run(*command, "--out", tmp_path / "all.csv") == 0
    assert run(*command, "--top", 7, "--out", tmp_path / "ranked.csv") == 0
    everything, top = read(tmp_path / "all.csv"), read(tmp_path / "ranked.csv")
    assert len(everything) == len(SMILES)
    assert [row["SMI"] for row in everything] == SMILES
    assert top == sorted(everything, key=lambda row: -float(row["score"]))[:7]
    assert "1 that cannot be read in" in capsys.readouterr().out


def test_unreadable_rows_are_kept_apart_with_row_and_reason(folder, tmp_path):
    run("predict", folder / "one", folder / "library.csv", "--smiles", "SMI", "--sort", "--out", tmp_path / "r.csv")
    (error,) = read(tmp_path / "r.errors.csv")
    assert (error["row"], error["value"]) == ("30", "c1cc")
    assert error["reason"]


def test_file_of_errors_of_another_time_does_not_stay(folder, tmp_path):
    (tmp_path / "r.errors.csv").write_text("row,value,reason\n1,C,old\n")
    assert run("predict", folder / "one", folder / "library.smi", "--out", tmp_path / "r.csv") == 0
    assert not (tmp_path / "r.errors.csv").exists()


def test_scores_do_not_depend_on_how_the_library_is_cut(folder, tmp_path, monkeypatch):
    for rows in (1000, 7):
        monkeypatch.setattr(reading, "CHUNK_ROWS", rows)
        assert run("predict", folder / "one", folder / "library.smi", "--out", tmp_path / f"{rows}.csv") == 0
    whole, cut = ([float(row["score"]) for row in read(tmp_path / f"{rows}.csv")] for rows in (1000, 7))
    assert cut == pytest.approx(whole, abs=1e-5)


def test_several_targets_have_a_score_each_and_are_sorted_by_one(folder, tmp_path):
    command = ["predict", folder / "two", folder / "library.smi", "--by", "toxic", "--sort"]
    assert run(*command, "--out", tmp_path / "r.csv") == 0
    rows = read(tmp_path / "r.csv")
    assert list(rows[0]) == ["smiles", "name", "score active", "score toxic"]
    scores = [float(row["score toxic"]) for row in rows]
    assert scores == sorted(scores, reverse=True)
    assert len(set(scores)) > 10


def test_evaluation_of_several_targets_is_by_target(folder, capsys):
    assert run("evaluate", folder / "two", folder / "train.csv", "--json") == 0
    said = capsys.readouterr()
    table = json.loads(said.out)
    assert (table["targets"]["active"]["rows"], table["targets"]["toxic"]["rows"]) == (96, 32)
    assert "row 5 'C(C'" in said.err


def test_search_over_several_targets_is_by_their_mean_ap(folder, tmp_path):
    command = ["tune", folder / "train.csv", "--smiles", "smiles", "--target", "active", "--target", "toxic", *SHORT]
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
        (["predict", "TWO", "LIST", "--sort", "--out", "OUT"], "several targets to sort by: say which, --by active"),
        (["predict", "ONE", "LIST", "--by", "active", "--out", "OUT"], "it needs sort or top"),
        (["predict", "ONE", "CSV", "--out", "OUT"], "has no column 'smiles'; its columns are 'id', 'SMI'"),
        (["predict", "ONE", "CSV", "--smiles", "SMI", "--on-error", "raise", "--out", "OUT"], "row 30 cannot be read"),
        (["evaluate", "ONE", "LIST"], "target: "),
        (
            ["train", "TRAIN", "--smiles", "smiles", "--target", "active", "--model", "mlp", "--out", "NEW"],
            "gine, mpnn",
        ),
        (["train", "TRAIN", "--target", "active", "--split", "scaffold", "--out", "NEW"], "stratified, random; got"),
        (["train", "LIST", "--target", "active", "--out", "NEW"], "a .smi file holds no labels"),
    ],
)
def test_mistake_is_one_line_and_leaves_nothing(folder, tmp_path, capsys, arguments, message):
    names = {"ONE": "one", "TWO": "two", "LIST": "library.smi", "CSV": "library.csv", "TRAIN": "train.csv"}
    places = {**{name: folder / file for name, file in names.items()}, "OUT": tmp_path / "o.csv", "NEW": tmp_path / "n"}
    capsys.readouterr()
    assert run(*[places.get(word, word) for word in arguments]) == 1
    assert message in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_model_of_other_features_is_refused(folder, tmp_path, capsys):
    for name in ("run.toml", "encoder.json", "model.pt"):
        (tmp_path / name).write_bytes((folder / "one" / name).read_bytes())
    facts = json.loads((tmp_path / "encoder.json").read_text())
    facts["encoder"]["featuriser"] += 1
    (tmp_path / "encoder.json").write_text(json.dumps(facts))
    assert run("predict", tmp_path, folder / "library.smi", "--out", tmp_path / "o.csv") == 1
    assert "of the featuriser" in capsys.readouterr().err


def test_column_of_molecules_is_no_option_of_a_model_of_tables(tmp_path, capsys):
    rows = [f"{k % 7},{int(k % 10 == 0)}" for k in range(80)]
    (tmp_path / "a.csv").write_text("\n".join(["x,y", *rows]) + "\n")
    command = ["train", tmp_path / "a.csv", "--target", "y", *SHORT[:6], "--quiet", "--out", tmp_path / "r"]
    assert run(*command) == 0
    assert run("predict", tmp_path / "r", tmp_path / "a.csv", "--smiles", "x", "--out", tmp_path / "o.csv") == 1
    assert "--smiles is for models of molecules; this one is of kind table" in capsys.readouterr().err
