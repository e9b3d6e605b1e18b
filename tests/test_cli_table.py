"""The commands on tables: output, files and exit codes."""

from __future__ import annotations

import dataclasses
import json
import re

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from sklearn.metrics import average_precision_score, roc_auc_score

from apmax.workflows import prediction
from commands import SHORT, run
from small_files import client_rows, read_csv, write_csv


def train(folder, *options):
    """Train on the clients of a folder and return the exit code."""
    return run("train", folder / "train.csv", "--target", "bought", *options)


def test_train_prints_validation_and_test_metrics(client_folder, tmp_path, capsys):
    assert train(client_folder, "--test", client_folder / "test.csv", *SHORT, "--out", tmp_path / "r") == 0
    shown = capsys.readouterr().out
    results = json.loads((tmp_path / "r" / "results.json").read_text())
    for part in ("valid", "test"):
        for metric in ("ap", "auprc", "auroc"):
            assert f"{results[part][metric]['estimate']:.4f}" in shown
        assert f"{results[part]['no_skill']:.4f}" in shown
    assert "left out: 'id' (a different whole number in every row" in shown
    assert "400 rows, 40 positive (10.00%; bought = yes)" in shown


def test_training_learns(client_folder):
    results = json.loads((client_folder / "run" / "results.json").read_text())
    assert results["test"]["ap"]["low"] > 2 * results["test"]["no_skill"]


def test_predict_keeps_every_column_and_row_and_adds_the_score(client_folder, tmp_path):
    assert run("predict", client_folder / "run", client_folder / "test.csv", "--out", tmp_path / "scored.csv") == 0
    scored = read_csv(tmp_path / "scored.csv")
    assert [{k: v for k, v in row.items() if k != "score"} for row in scored] == read_csv(client_folder / "test.csv")
    assert all(np.isfinite(float(row["score"])) for row in scored)


def test_sorted_prediction_holds_the_same_rows_best_first(client_folder, tmp_path, monkeypatch):
    monkeypatch.setattr(prediction, "BUCKET_ROWS", 17)
    run("predict", client_folder / "run", client_folder / "test.csv", "--out", tmp_path / "plain.csv")
    run("predict", client_folder / "run", client_folder / "test.csv", "--sort", "--out", tmp_path / "sorted.csv")
    plain, ranked = read_csv(tmp_path / "plain.csv"), read_csv(tmp_path / "sorted.csv")
    assert ranked == sorted(plain, key=lambda row: -float(row["score"]))


@pytest.mark.parametrize("top", [1, 7, 1000])
def test_top_is_the_beginning_of_the_sorted_rows(client_folder, tmp_path, monkeypatch, top):
    monkeypatch.setattr(prediction, "BUCKET_ROWS", 5)
    run("predict", client_folder / "run", client_folder / "test.csv", "--sort", "--out", tmp_path / "sorted.csv")
    run("predict", client_folder / "run", client_folder / "test.csv", "--top", top, "--out", tmp_path / "top.csv")
    assert read_csv(tmp_path / "top.csv") == read_csv(tmp_path / "sorted.csv")[:top]


def test_scores_do_not_depend_on_the_kind_of_file(client_folder, tmp_path):
    table = read_csv(client_folder / "test.csv")
    typed = {name: [row[name] for row in table] for name in table[0]}
    typed["age"] = [float(value) for value in typed["age"]]
    typed["income"] = [float(value) if value else None for value in typed["income"]]
    pq.write_table(pa.table(typed), tmp_path / "test.parquet", row_group_size=30)
    run("predict", client_folder / "run", tmp_path / "test.parquet", "--out", tmp_path / "a.parquet")
    run("predict", client_folder / "run", client_folder / "test.csv", "--out", tmp_path / "b.csv.gz")
    run("predict", client_folder / "run", tmp_path / "b.csv.gz", "--name", "again", "--out", tmp_path / "c.parquet")
    ours, theirs = pq.read_table(tmp_path / "a.parquet"), pq.read_table(tmp_path / "c.parquet")
    assert ours.column("score").to_pylist() == theirs.column("again").to_pylist()
    assert ours.drop_columns(["score"]).to_pydict() == typed


def test_prediction_never_holds_the_whole_file(client_folder, tmp_path, monkeypatch):
    from apmax.data import TableFile, reading

    monkeypatch.setattr(reading, "BLOCK_BYTES", 512)
    monkeypatch.setattr(prediction, "BUCKET_ROWS", 25)
    monkeypatch.setattr(TableFile, "read", lambda *_: pytest.fail("read at once"))
    largest, add = [], prediction._with_columns
    monkeypatch.setattr(prediction, "_with_columns", lambda t, *rest: largest.append(t.num_rows) or add(t, *rest))
    for option in ([], ["--sort"]):
        assert (
            run("predict", client_folder / "run", client_folder / "test.csv", *option, "--out", tmp_path / "out.csv")
            == 0
        )
        assert len(read_csv(tmp_path / "out.csv")) == 200
    assert max(largest) <= 25


def test_evaluate_agrees_with_scikit_learn(client_folder, tmp_path, capsys):
    run("predict", client_folder / "run", client_folder / "test.csv", "--out", tmp_path / "scored.csv")
    capsys.readouterr()
    assert run("evaluate", client_folder / "run", client_folder / "test.csv", "--json") == 0
    result = json.loads(capsys.readouterr().out)
    scored = read_csv(tmp_path / "scored.csv")
    labels, scores = [row["bought"] == "yes" for row in scored], [float(row["score"]) for row in scored]
    assert result["ap"]["estimate"] == pytest.approx(average_precision_score(labels, scores), abs=1e-9)
    assert result["auroc"]["estimate"] == pytest.approx(roc_auc_score(labels, scores), abs=1e-9)
    best = np.argsort(scores)[::-1][:10]
    assert result["precision_at"]["10"]["estimate"] == pytest.approx(np.mean(np.array(labels)[best]))
    assert result["no_skill"] == np.mean(labels)


def test_evaluate_agrees_with_the_test_metrics_of_the_training(client_folder, capsys):
    run("evaluate", client_folder / "run", client_folder / "test.csv", "--json")
    assert (
        json.loads(capsys.readouterr().out) == json.loads((client_folder / "run" / "results.json").read_text())["test"]
    )


def test_evaluate_prints_a_table(client_folder, capsys):
    assert run("evaluate", client_folder / "run", client_folder / "test.csv") == 0
    shown = capsys.readouterr().out
    assert "AUPRC" in shown
    assert "no skill" in shown
    assert re.search(r"^10 .*–.*–", shown, re.MULTILINE)  # precision and recall with intervals


def test_unseen_categories_and_missing_columns_are_reported(client_folder, tmp_path, capsys):
    table = [{**row, "city": "paris"} for row in client_rows(20)]
    for row in table:
        del row["income"]
    write_csv(tmp_path / "new.csv", table)
    assert run("predict", client_folder / "run", tmp_path / "new.csv", "--out", tmp_path / "out.csv") == 0
    errors = capsys.readouterr().err
    assert "column 'income' is missing" in errors
    assert "column 'city': 20 of 20 rows have a value that is not in the training rows: 'paris'" in errors


def test_run_file_repeats_the_training_bit_for_bit(client_folder, tmp_path):
    assert run("train", client_folder / "run" / "run.toml", "--out", tmp_path / "again") == 0
    assert (tmp_path / "again" / "results.json").read_text() == (client_folder / "run" / "results.json").read_text()
    assert (tmp_path / "again" / "run.toml").read_text() == (client_folder / "run" / "run.toml").read_text()


def test_resumed_training_ends_like_an_uninterrupted_one(client_folder, tmp_path):
    common = ["--loss", "ce", "--test", client_folder / "test.csv"]
    assert train(client_folder, *common, "--epochs", "2", "--out", tmp_path / "a") == 0
    assert train(client_folder, *common, "--epochs", "4", "--out", tmp_path / "a", "--resume") == 0
    assert train(client_folder, *common, "--epochs", "4", "--out", tmp_path / "b") == 0
    for name in ("results.json", "run.toml", "encoder.json"):
        assert (tmp_path / "a" / name).read_text() == (tmp_path / "b" / name).read_text()
    epochs = [json.loads(line)["epoch"] for line in (tmp_path / "a" / "records.jsonl").read_text().splitlines()]
    assert epochs == [1, 2, 3, 4]


def test_refused_resuming_changes_nothing(client_folder, tmp_path, capsys):
    common = ["--loss", "ce", "--epochs", "2", "--out", tmp_path / "a"]
    assert train(client_folder, *common) == 0
    before = {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()}
    assert train(client_folder, *common, "--lr", "0.5", "--resume") == 1
    assert "differs from the checkpoint" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "a").iterdir()} == before


def test_resuming_with_another_model_is_refused(client_folder, tmp_path, capsys):
    common = ["--loss", "ce", "--epochs", "2", "--out", tmp_path / "a"]
    assert train(client_folder, *common) == 0
    assert train(client_folder, *common, "--model", "linear", "--resume") == 1
    assert "model was" in capsys.readouterr().err


def test_resume_in_an_empty_folder_starts_a_training(client_folder, tmp_path):
    assert train(client_folder, *SHORT, "--resume", "--out", tmp_path / "new") == 0
    assert (tmp_path / "new" / "model.pt").exists()


def test_folder_that_is_not_empty_is_refused_and_unchanged(client_folder, tmp_path, capsys):
    (tmp_path / "thesis.txt").write_text("dear")
    assert train(client_folder, "--out", tmp_path) == 1
    assert "is not empty" in capsys.readouterr().err
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_options_reach_the_run(client_folder, tmp_path):
    command = ["--set", "stages.0.epochs=1", "--loss", "focal", "--epochs", 2, "--batch-size", 32, "--num-pos", 3]
    command += ["--lr", 0.003, "--seed", 5, "--model", "linear"]
    command += ["--set", "stages.1.options.focal.focusing=1.5", "--set", "stages.1.momentum=0.5", "--group", "city"]
    command += ["--column", "age=category", "--share", 0.4, "--out", tmp_path / "r"]
    assert train(client_folder, *command) == 0
    from apmax.workflows import load_model

    job = load_model(tmp_path / "r").job
    first, last = job.run.stages
    assert (first.epochs, last.epochs, dict(last.loss), job.run.seed) == (1, 2, {"focal": 1.0}, 5)
    assert (first.sampler.batch_size, last.sampler.batch_size, last.sampler.num_pos) == (32, 32, 3)
    assert (first.optimizer.lr, last.optimizer.lr, last.optimizer.momentum) == (0.003, 0.001, 0.5)
    assert last.options == {"focal": {"focusing": 1.5}}
    assert (job.model.name, job.data.group, job.data.share, job.data.columns) == (
        "linear",
        "city",
        0.4,
        {"age": "category"},
    )


def test_ensemble_scores_are_the_mean_of_its_members(client_folder, tmp_path):
    assert train(client_folder, *SHORT, "--ensemble", 2, "--quiet", "--out", tmp_path / "r") == 0
    from apmax.workflows import load_model

    model, file = load_model(tmp_path / "r"), client_folder / "test.csv"
    members = [dataclasses.replace(model, network=member).score(file) for member in model.network.members]
    assert model.score(file) == pytest.approx(np.mean(members, 0), abs=1e-6)
    assert not np.allclose(*members)


def test_file_is_found_in_the_data_directory(client_folder, tmp_path):
    command = ["train", "train.csv", "--data-dir", client_folder, "--target", "bought", *SHORT, "--out", tmp_path / "r"]
    assert run(*command) == 0


def test_positive_value_and_leak_are_named(tmp_path, capsys):
    table = [{**row, "state": "closed" if row["bought"] == "yes" else "open"} for row in client_rows(150)]
    for row in table:
        row["bought"] = {"yes": "A", "no": "B"}[row["bought"]]
    data = write_csv(tmp_path / "a.csv", table)
    assert run("train", data, "--target", "bought", "--out", tmp_path / "r") == 1
    assert "'b' (135 rows), 'a' (15 rows): name the positive value (--positive VALUE)" in capsys.readouterr().err
    assert run("train", data, "--target", "bought", "--positive", "A", *SHORT, "--out", tmp_path / "r") == 0
    assert "possible leakage: column 'state' alone separates the classes" in " ".join(capsys.readouterr().err.split())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--target", "bougth"], "has no column 'bougth'"),
        (["--target", "city"], "'city' must have two different values, got"),
        ([], "--target: name the column to predict"),
        (["--target", "bought", "--loss", "focall"], "did you mean 'focal'?"),
        (["--target", "bought", "--set", "stages.7.lr=1"], "counted from 0 to 1"),
        (["--target", "bought", "--set", "stages.1.lrr=1"], "did you mean 'lr'?"),
        (["--target", "bought", "--set", "stages.1.lr"], "--set must be written PATH=VALUE"),
        (["--target", "bought", "--set", "model.hiden=[3]"], "did you mean 'hidden'?"),
        (["--target", "bought", "--set", "data.sharee=0.3"], "did you mean 'share'?"),
        (["--target", "bought", "--group", "city", "--time", "age"], "--group and --time exclude each other"),
        (["--target", "bought", "--valid", "nothing.csv"], "no such file: nothing.csv"),
        (["--target", "bought", "--kind", "sound"], "--kind must be one of table"),
        (["--target", "bought", "--num-pos", "64"], "--num-pos must be below batch_size"),
    ],
)
def test_mistake_is_one_line_with_code_1_and_nothing_is_written(client_folder, tmp_path, capsys, arguments, message):
    assert run("train", client_folder / "train.csv", *arguments, "--out", tmp_path / "r") == 1
    captured = capsys.readouterr()
    assert message in captured.err
    assert captured.err.startswith("apmax: ")
    assert captured.err.count("\n") == 1
    assert not (tmp_path / "r").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["predict", "RUN", "DATA", "--out", "DATA"], "another file than the data"),
        (["predict", "RUN", "DATA", "--out", "out.xlsx"], "must end in one of"),
        (["predict", "RUN", "DATA", "--name", "age", "--out", "out.csv"], "has a column 'age' already"),
        (["predict", "FOLDER", "DATA", "--out", "out.csv"], "holds no model"),
        (["evaluate", "RUN", "NOTARGET"], "has no column 'bought'"),
    ],
)
def test_mistaken_prediction_is_refused(client_folder, tmp_path, monkeypatch, capsys, arguments, message):
    monkeypatch.chdir(tmp_path)
    table = client_rows(5)
    for row in table:
        del row["bought"]
    names = {"RUN": client_folder / "run", "DATA": client_folder / "test.csv", "FOLDER": tmp_path}
    names["NOTARGET"] = write_csv(tmp_path / "n.csv", table)
    assert run(*[names.get(word, word) for word in arguments]) == 1
    assert message in capsys.readouterr().err


def test_unfinished_training_is_refused_with_a_hint_to_resume(client_folder, tmp_path, monkeypatch, capsys):
    def stop(*_, **__):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("apmax.workflows.training.fit", stop)
        assert train(client_folder, *SHORT, "--out", tmp_path / "r") == 130
    assert run("predict", tmp_path / "r", client_folder / "test.csv", "--out", tmp_path / "o.csv") == 1
    assert "is not finished" in capsys.readouterr().err


def test_table_without_rows_gives_predictions_without_rows(client_folder, tmp_path):
    header = (client_folder / "test.csv").read_text().splitlines()[0]
    (tmp_path / "none.csv").write_text(header + "\n")
    for name, option in (("a.csv", []), ("b.csv", ["--sort"])):
        assert run("predict", client_folder / "run", tmp_path / "none.csv", "--out", tmp_path / name, *option) == 0
        assert (tmp_path / name).read_text() == header + ",score\n"
