"""Reports of model folders: what is collected from a training and from files, and the command."""

from __future__ import annotations

import base64
import json
import shutil
from xml.etree import ElementTree

import numpy as np
import pytest

from apmax.metrics import average_precision
from apmax.report import (
    attach_tables,
    learning_curves,
    load_report,
    permutation_importance,
    report_folder,
)
from apmax.report.importance import _draw_rows
from apmax.report.pictures import atom_effects, draw_molecule, draw_thumbnail, masked_smiles
from apmax.train import EpochMetrics, Record
from apmax.workflows import load_model, load_scored_rows, train_job
from commands import run
from small_files import client_rows, write_csv, write_csv_with_commas


@pytest.fixture(scope="module")
def client_report(client_folder):
    assert run("report", client_folder / "run", "--by", "city") == 0
    return load_report(client_folder / "run" / "report.json")


def test_report_of_a_training_has_the_metrics_of_its_scores(client_folder, client_report):
    (target,) = client_report.targets
    assert [part.name for part in target.parts] == ["test", "validation"]
    for part in target.parts:
        scored = load_scored_rows(client_folder / "run")[part.name]
        assert part.ap.estimate == pytest.approx(average_precision(scored.scores, scored.labels).item())
        assert part.calibration_fitted == (part.name == "validation")
        assert part.calibration
    assert target.verdict[0].startswith(f"Average precision {target.parts[0].ap.estimate:.3f}")
    assert (client_report.title, target.name, target.positive) == ("run", "bought", "yes")
    assert "[data]" in client_report.configuration
    assert "torch" in client_report.versions


def test_examples_are_rows_of_the_file(client_folder, client_report):
    rows = client_rows(200, seed=1)
    top, missed = client_report.targets[0].examples
    assert [each.rank for each in top.rows] == list(range(1, 25))
    assert [each.score for each in top.rows] == sorted((each.score for each in top.rows), reverse=True)
    assert all(each.positive for each in missed.rows)
    assert [each.rank for each in missed.rows] == sorted((each.rank for each in missed.rows), reverse=True)
    for table in (top, missed):
        for each in table.rows:
            row = rows[int(each.cells[0])]
            assert (row["bought"] == "yes") == each.positive
            assert each.cells[1:] == tuple(row[name] for name in table.columns[1:])


def test_positives_that_no_ranking_has_higher_are_not_missed(client_folder, tmp_path):
    model = load_model(client_folder / "run")
    rows = client_rows(200, seed=1)
    best = np.argsort(-model.score(write_csv(tmp_path / "all.csv", rows)))
    for place, row in enumerate(best):
        rows[row]["bought"] = "yes" if place < 8 or place == 50 else "no"
    content = report_folder(client_folder / "run", data=write_csv(tmp_path / "labelled.csv", rows))
    assert [each.rank for each in content.targets[0].examples[1].rows] == [51]
    rows[best[50]]["bought"] = "no"
    content = report_folder(client_folder / "run", data=write_csv(tmp_path / "perfect.csv", rows))
    assert [table.title for table in content.targets[0].examples] == ["Top-ranked rows"]


def test_report_on_other_rows_leaves_out_those_of_weight_zero_and_says_so(tmp_path):
    rows = [{**row, "weight": k % 4} for k, row in enumerate(client_rows(400))]
    file = write_csv(tmp_path / "a.csv", rows)
    for name, more in (("weighted", {"weight": "weight"}), ("plain", {"columns": {"weight": "drop"}})):
        data = {"train": file, "target": "bought", **more}
        train_job({"data": data, "committee": {"members": ["linear_ce"], "effort": "quick"}}, out=tmp_path / name)
    content = report_folder(tmp_path / "weighted", data=file, against=tmp_path / "plain")
    (target,) = content.targets
    assert "left out: 100 rows of weight 0" in content.warnings
    assert [part.rows for part in target.parts] == [300, 300]
    assert target.verdict[1].startswith("Against plain on the same a.csv rows: ")
    assert target.importance.rows == 300
    examples = [each for table in target.examples for each in table.rows]
    assert all(rows[int(each.cells[0])]["weight"] for each in examples)
    assert max(each.rank for each in examples) <= 300


def test_subgroups_add_up(client_report):
    (table,) = client_report.targets[0].subgroups
    assert {each.value for each in table.each} == {"rome", "oslo", "bern"}
    assert sum(each.rows for each in table.each) == 200


def test_learning_curves_follow_the_records(client_report):
    (curve,) = client_report.learning
    assert curve.stage == ("ce", "ce", "ce", "ap + ce", "ap + ce")
    assert 1 <= curve.chosen <= 5
    assert all(0 <= value <= 1 for value in (*curve.valid_ap, *curve.valid_objective))


def test_learning_curves_of_an_ensemble_are_separate():
    metrics = EpochMetrics(0.5, 0.5, 0.5, -0.4)
    records = [Record("ce", 0, epoch, 1, 0.1, 0.2, None, metrics, 1.0, member) for member in (0, 1) for epoch in (1, 2)]
    first, second = learning_curves(records, [{"stage": 0, "epoch": 2}, {}])
    assert (first.name, first.chosen, second.chosen) == ("network 1", 2, 0)
    assert first.valid_objective == (0.4, 0.4)
    assert np.isnan(first.objective).all()


def test_stored_report_needs_no_data_and_no_model(client_folder, client_report, tmp_path):
    shutil.copy(client_folder / "run" / "report.json", tmp_path)
    assert run("report", tmp_path, "--out", tmp_path / "page.html") == 0
    assert client_report.targets[0].verdict[0] in (tmp_path / "page.html").read_text()


def test_report_on_other_rows_leaves_the_stored_one(client_folder, client_report, tmp_path):
    write_csv(tmp_path / "later.csv", client_rows(150, seed=5))
    before = (client_folder / "run" / "report.json").read_bytes()
    options = ["--data", tmp_path / "later.csv", "--against", client_folder / "run", "--out", tmp_path / "page.html"]
    assert run("report", client_folder / "run", *options) == 0
    assert (client_folder / "run" / "report.json").read_bytes() == before
    text = (tmp_path / "page.html").read_text()
    assert "run on later.csv" in text
    assert "Against run on the same later.csv rows: +0.000 (+0.000 to +0.000): no difference can be told." in text


def test_evaluate_writes_a_report_unless_told_not_to(client_folder, tmp_path, capsys):
    write_csv(tmp_path / "march.csv", client_rows(150, seed=5))
    page = client_folder / "run" / "report-march.html"
    assert run("evaluate", client_folder / "run", tmp_path / "march.csv", "--no-report") == 0
    assert not page.exists()
    assert run("evaluate", client_folder / "run", tmp_path / "march.csv") == 0
    assert "<h1>run on march.csv</h1>" in page.read_text()
    assert f"Report: {page}" in capsys.readouterr().out
    page.unlink()


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (PermissionError(13, "Permission denied", "run/report-may.html"), "run/report-may.html: Permission denied"),
        (ValueError("against: the other model has other targets"), "--against: the other model has other targets"),
    ],
)
def test_report_that_cannot_be_written_is_a_warning_in_the_words_of_an_error(
    client_folder, error, message, tmp_path, monkeypatch, capsys
):
    def fail(*_, **__):
        raise error

    write_csv(tmp_path / "may.csv", client_rows(150, seed=5))
    monkeypatch.setattr("apmax.report.write_report", fail)
    assert run("evaluate", client_folder / "run", tmp_path / "may.csv") == 0
    assert capsys.readouterr().err == f"warning: no report was written: {message}\n"


def test_train_writes_a_report_with_the_warnings(tmp_path):
    rows = client_rows(300)
    for row in rows:
        row["refund"] = int(row["bought"] == "yes")
    data = [write_csv(tmp_path / "a.csv", rows), "--target", "bought", "--model", "mlp", "--quiet"]
    short = ["--set", "stages.0.epochs=1", "--epochs", 1, "--set", "accelerator=cpu"]
    assert run("train", *data, *short, "--out", tmp_path / "r") == 0
    content = load_report(tmp_path / "r" / "report.json")
    assert any("possible leakage: column 'refund'" in line for line in content.warnings)
    assert any("300 rows" in line for line in content.facts)
    assert "possible leakage" in (tmp_path / "r" / "report.html").read_text()
    write_csv(tmp_path / "a.csv", [*rows, *rows])
    for _ in range(2):
        assert run("report", tmp_path / "r", "--by", "city") == 0
        again = load_report(tmp_path / "r" / "report.json")
        assert len(set(again.warnings)) == len(again.warnings)
    write_csv(tmp_path / "a.csv", rows)
    again = report_folder(tmp_path / "r", by=["city"])
    assert set(again.warnings) >= set(content.warnings)
    assert again.facts == content.facts


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--by", "planet"], "--by: there is no column 'planet'; the columns are 'id', 'age'"),
        (["--against", "other"], "--against: the rows to compare on are needed: name their file (--data FILE)"),
        (["--data", "no.csv"], "no.csv"),
    ],
)
def test_misuse_is_an_error_that_names_the_flag(client_folder, client_report, options, message, capsys):
    before = sorted(path.name for path in (client_folder / "run").iterdir())
    assert run("report", client_folder / "run", *options) == 1
    assert message in capsys.readouterr().err
    assert sorted(path.name for path in (client_folder / "run").iterdir()) == before


def test_changed_file_of_the_training_is_noticed(client_folder):
    model, scored = load_model(client_folder / "run"), load_scored_rows(client_folder / "run")
    original = (client_folder / "test.csv").read_text()
    try:
        (client_folder / "test.csv").write_text("\n".join(original.splitlines()[:50]))
        parts, readers, lines = attach_tables(model, [scored["test"]])
        assert parts[0].table is None
        assert readers == {}
        assert "no examples of the test rows" in lines[0]
        (client_folder / "test.csv").unlink()
        assert "it is not there any more" in attach_tables(model, [scored["test"]])[2][0]
    finally:
        (client_folder / "test.csv").write_text(original)


def test_repeated_rows_are_a_warning(client_folder, tmp_path):
    rows = client_rows(100, seed=8)
    write_csv(tmp_path / "twice.csv", rows + rows)
    content = report_folder(client_folder / "run", data=tmp_path / "twice.csv")
    assert "100 of 200 twice.csv rows repeat the features of another twice.csv row" in content.warnings


def test_importance_is_that_of_the_columns_that_decide():
    pa = pytest.importorskip("pyarrow")
    generator = np.random.default_rng(0)
    signal, noise, some = generator.normal(size=(3, 3000))
    labels = (signal + 0.5 * some + generator.normal(size=3000) > 2.5).astype(float)

    def score(table):
        return table.column("signal").to_numpy() + 0.5 * table.column("some").to_numpy()

    table = pa.table({"noise": noise, "some": some, "signal": signal})
    found = permutation_importance(score, table, labels, ["noise", "some", "signal", "absent"], part="test")
    assert [each.column for each in found.each] == ["signal", "some", "noise"]
    assert found.rows == 2000
    first, second, last = (each.loss for each in found.each)
    assert first.low > second.high
    assert second.low > 0
    assert (last.estimate, last.low, last.high) == (0, 0, 0)


def test_importance_of_a_wide_table_scores_few_values_and_finds_the_column(monkeypatch):
    pa = pytest.importorskip("pyarrow")
    rng = np.random.default_rng(3)
    labels = (rng.random(1500) < 0.1).astype(float)
    columns = {f"c{number}": rng.normal(size=1500) for number in range(60)} | {"signal": labels + rng.normal(size=1500)}
    scored = 0

    def score(table):
        nonlocal scored
        scored += table.num_rows * table.num_columns
        return table.column("signal").to_numpy()

    monkeypatch.setattr("apmax.report.importance._MOST_VALUES", 1_000_000)
    found = permutation_importance(score, pa.table(columns), labels, list(columns), part="test")
    assert found.each[0].column == "signal"
    # A pass over all columns, one over those that are listed, and the rows as they are.
    assert scored < 2_100_000
    assert found.rows == 273


def test_drawn_rows_keep_the_prevalence():
    labels = (np.arange(50_000) % 500 == 0).astype(float)
    rows, weight = _draw_rows(labels, np.ones(50_000), 2000, np.random.default_rng(0))
    assert len(rows) == len(set(rows.tolist())) == 2000
    assert weight @ labels[rows] / weight.sum() == pytest.approx(labels.mean())


def test_an_atom_that_decides_is_found():
    pytest.importorskip("rdkit")
    (effects,) = atom_effects(["BrCc1ccncc1"], lambda texts: np.array([float("Br" in text) for text in texts]))
    assert effects.tolist() == [1.0, 0, 0, 0, 0, 0, 0, 0]
    assert len(masked_smiles("BrCc1ccncc1")) == 8
    none, large = atom_effects(["C(C", "C" * 101], lambda texts: np.zeros(len(texts)))
    assert len(none) == len(large) == 0


def test_molecule_is_drawn_as_svg_with_its_atoms_coloured():
    pytest.importorskip("rdkit")
    picture = draw_molecule("BrCC", np.array([1.0, 0.0, -0.5]))
    assert picture.startswith("data:image/svg+xml;base64,")
    root = ElementTree.fromstring(base64.b64decode(picture.partition(",")[2]))
    marked = {each.get("class") for each in root.iter("{http://www.w3.org/2000/svg}ellipse")}
    assert marked == {"atom-0", "atom-2"}
    assert draw_molecule("C(C", np.empty(0)) == ""


def test_molecules_have_pictures(molecule_folder):
    content = report_folder(molecule_folder / "one")
    top, missed = content.targets[0].examples
    assert all(each.picture.startswith("data:image/svg+xml") for each in (*top.rows, *missed.rows))
    assert content.targets[0].importance is None


def test_several_targets_have_a_report_each(molecule_folder):
    content = report_folder(molecule_folder / "two")
    assert [target.name for target in content.targets] == ["active", "toxic"]
    assert content.targets[1].parts[0].rows < content.targets[0].parts[0].rows


def test_images_have_thumbnails(image_folder, tmp_path):
    for name in ("one", "two"):
        content = report_folder(image_folder / name)
        pictures = [each.picture for table in content.targets[0].examples for each in table.rows]
        assert pictures
        assert all(picture.startswith("data:image/jpeg") for picture in pictures)
    assert draw_thumbnail(str(tmp_path / "no.png")) == ""


@pytest.fixture(scope="module")
def quick_folder(tmp_path_factory):
    """A folder with train.csv, and in `run` the committee of one member on one split."""
    folder = tmp_path_factory.mktemp("quick")
    write_csv(folder / "train.csv", client_rows(300))
    data = [folder / "train.csv", "--target", "bought", "--effort", "quick"]
    assert run("train", *data, "--quiet", "--out", folder / "run") == 0
    return folder


def test_rows_of_one_split_are_held_out_and_not_cross_fitted(quick_folder, capsys):
    (target,) = load_report(quick_folder / "run" / "report.json").targets
    assert target.leaderboard_title == "Members of the committee, by held-out AP"
    assert [part.name for part in target.parts] == ["held-out"]
    assert (target.importance.part, target.parts[0].calibration_fitted) == ("held-out", True)
    page = (quick_folder / "run" / "report.html").read_text(encoding="utf-8")
    note = next(line for line in page.splitlines() if "Average precision that is lost" in line)
    assert "over 60 held-out rows" in note
    assert "The models that score new rows were fitted to these rows, too, so that the loss is too large." in note
    assert run("decide", quick_folder / "run", "--recall", "0.7") == 0
    assert "Chosen on 60 held-out rows" in capsys.readouterr().out


def test_verdicts_on_one_split_name_the_held_out_rows(tmp_path):
    write_csv(tmp_path / "a.csv", client_rows(300))
    members = ["--member", "linear", "--member", "linear_ce"]
    data = [tmp_path / "a.csv", "--target", "bought", "--effort", "quick", *members]
    assert run("train", *data, "--quiet", "--out", tmp_path / "r") == 0
    (target,) = load_report(tmp_path / "r" / "report.json").targets
    assert any(line.startswith("On held-out rows, linear trained by AP") for line in target.verdict)


def test_the_blend_of_one_member_is_not_listed(quick_folder):
    (target,) = load_report(quick_folder / "run" / "report.json").targets
    assert [each.name for each in target.leaderboard] == ["gbdt"]
    assert "blend" not in target.leaderboard_note


def test_subgroups_of_numbers_with_decimal_commas_are_quarters(tmp_path):
    file = write_csv_with_commas(tmp_path / "a.csv", client_rows(300))
    assert run("train", file, "--target", "bought", "--effort", "quick", "--quiet", "--out", tmp_path / "r") == 0
    (table,) = report_folder(tmp_path / "r", by=["age"]).targets[0].subgroups
    assert len(table.each) == 4


def test_content_is_strict_json(client_folder, client_report):
    text = (client_folder / "run" / "report.json").read_text()
    json.loads(text, parse_constant=lambda name: pytest.fail(name))
