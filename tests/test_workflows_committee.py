"""Committees by files: what is planned, trained, saved, resumed and scored."""

from __future__ import annotations

import json
import re
import shutil

import numpy as np
import pytest

from apmax.committee import save_result
from apmax.decide import decide_folder, read_decisions
from apmax.folders import FolderError, read_manifest, write_manifest
from apmax.metrics import average_precision
from apmax.workflows import (
    CommitteeJob,
    JobPlan,
    Overrides,
    RowReport,
    evaluate_source,
    load_model,
    load_scored_rows,
    plan_training,
    train_job,
)
from apmax.workflows.job import job_from_table, job_to_table
from commands import interrupted_after, run
from small_files import client_rows, read_csv, write_csv, write_csv_with_commas, write_xy

MEMBERS = ["gbdt", "linear", "linear_ce"]


@pytest.fixture(scope="module")
def committee(tmp_path_factory):
    """A folder with files and the committee that was trained from them."""
    folder = tmp_path_factory.mktemp("committee")
    write_csv(folder / "train.csv", client_rows(400))
    write_csv(folder / "test.csv", client_rows(200, seed=1))
    result = train_job(table(folder), out=folder / "run")
    return folder, result


def table(folder, **committee):
    data = {"train": str(folder / "train.csv"), "test": str(folder / "test.csv"), "target": "bought"}
    return {"data": data, "committee": {"members": MEMBERS, **committee}}


@pytest.mark.parametrize(
    ("more", "overrides"),
    [
        ({"model": {"name": "mlp"}}, {}),
        ({"recipe": "default"}, {}),
        ({}, {"loss": "ce"}),
        ({}, {"epochs": 2}),
        ({}, {"ensemble": 2}),
        ({}, {"settings": {"stages.0.lr": 1e-3}}),
        ({}, {"settings": {"model.hidden": [8]}}),
        ({"data": {"valid": True}}, {}),
    ],
)
def test_settings_of_a_network_ask_for_one(more, overrides, tmp_path):
    file = str(write_xy(tmp_path / "a.csv"))
    data = {"train": file, "target": "y", **({"valid": file} if "data" in more else {})}
    job = {**more, "data": data}
    assert isinstance(plan_training(job, Overrides(**overrides)), JobPlan)
    with pytest.raises(ValueError, match=r"effort and .* exclude each other"):
        plan_training({**job, "committee": {"effort": "quick"}}, Overrides(**overrides))


def test_a_committee_is_the_default_of_tables(tmp_path):
    data = {"train": str(write_xy(tmp_path / "a.csv")), "target": "y"}
    job = plan_training({"data": data}, Overrides(seed=7, settings={"data.share": 0.3}))
    assert isinstance(job, CommitteeJob)
    assert (job.committee.effort, job.committee.seed, job.data.share) == ("standard", 7, 0.3)
    assert job_from_table(job_to_table(job)) == job


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"effort": "much"}, "effort must be one of quick, standard, best"),
        ({"members": ["gbdt", "svm"]}, "members must be one of"),
        ({"members": ["gbdt", "gbdt"]}, "'gbdt' twice"),
        ({"time_limit": 0}, "time_limit must lie"),
        ({"seed": 2**31}, "seed must be at most"),
        ({"folds": 3}, "unknown key 'folds'"),
    ],
)
def test_wrong_settings_of_a_committee(settings, message, tmp_path):
    data = {"train": str(write_xy(tmp_path / "a.csv")), "target": "y"}
    with pytest.raises(ValueError, match=message):
        plan_training({"data": data, "committee": settings})


def test_a_loaded_committee_scores_as_the_trained_one(committee):
    folder, result = committee
    loaded = load_model(folder / "run")
    scores = loaded.score(folder / "test.csv")
    np.testing.assert_array_equal(scores, result.model.score(folder / "test.csv"))
    probability = loaded.score(folder / "test.csv", probability=True)
    assert (np.argsort(-probability, kind="stable") == np.argsort(-scores, kind="stable")).all()
    assert 0.05 < probability.mean() < 0.2
    own = loaded.with_member("gbdt").score(folder / "test.csv")
    assert np.corrcoef(own, scores)[0, 1] < 0.999
    with pytest.raises(ValueError, match="probability and member exclude each other"):
        loaded.with_member("gbdt").score(folder / "test.csv", probability=True)
    with pytest.raises(ValueError, match="member must be one of gbdt, linear, linear_ce"):
        loaded.with_member("mlp")


def test_results_are_those_of_the_stored_scores(committee):
    folder, result = committee
    stored, results = load_scored_rows(folder / "run"), json.loads((folder / "run" / "results.json").read_text())
    for part, key in (("cross-fitted", "cross_fitted"), ("test", "test")):
        scored = stored[part]
        ap = average_precision(scored.scores[:, 0], scored.labels[:, 0]).item()
        assert results[key]["ap"]["estimate"] == pytest.approx(ap, abs=1e-6)
    cross_fitted = stored["cross-fitted"]
    labels = [row["bought"] == "yes" for row in read_csv(folder / "train.csv")]
    assert cross_fitted.rows.tolist() == list(range(400))
    assert (cross_fitted.labels[:, 0] == labels).all()
    for row in results["leaderboard"][:-1]:
        member = average_precision(cross_fitted.members[row["name"]][:, 0], cross_fitted.labels[:, 0]).item()
        assert row["ap"]["estimate"] == pytest.approx(member, abs=1e-6)
    assert [verdict["ap_member"] for verdict in results["verdicts"]] == ["linear"]
    assert list(result.leaderboards) == ["bought"]


def test_an_interrupted_training_continues_to_the_same_scores(committee, tmp_path, monkeypatch):
    """After a stop at the n-th fit, only the others are fitted, and every score is the same to the bit."""
    from apmax.workflows import committee_training

    folder, result = committee
    expected = result.model.score(folder / "test.csv")
    for stop in (1, 4):
        out, kept = tmp_path / str(stop), []
        monkeypatch.setattr(committee_training, "save_result", interrupted_after(stop, kept))
        with pytest.raises(KeyboardInterrupt):
            train_job(table(folder), out=out)
        with pytest.raises(FileNotFoundError, match="is not finished"):
            load_model(out)
        with pytest.raises(FileExistsError, match="not empty"):
            train_job(table(folder), out=out)
        fitted = []
        monkeypatch.setattr(
            committee_training, "save_result", lambda *a, fitted=fitted: fitted.append(a[1].task) or save_result(*a)
        )
        resumed = train_job(table(folder), out=out, resume=True)
        assert not set(fitted) & set(kept)
        assert len(fitted) + len(kept) == 5 * len(MEMBERS)
        np.testing.assert_array_equal(resumed.model.score(folder / "test.csv"), expected)
        np.testing.assert_array_equal(load_model(out).score(folder / "test.csv"), expected)


def test_resuming_a_finished_training_keeps_its_decision(committee, tmp_path, monkeypatch):
    folder, out = committee[0], tmp_path / "run"
    shutil.copytree(folder / "run", out)
    monkeypatch.setattr("apmax.workflows.committee_training.save_result", interrupted_after(0))  # nothing is fitted
    threshold = decide_folder(out, top=20).decision.threshold
    before = read_manifest(out, kind="model")
    resumed = train_job(table(folder), out=out, resume=True)
    assert load_model(out).thresholds == {"bought": threshold}
    assert read_manifest(out, kind="model").files["decision.json"] == before.files["decision.json"]
    np.testing.assert_array_equal(
        resumed.model.score(folder / "test.csv"), committee[1].model.score(folder / "test.csv")
    )
    # Other rows to test on are no other model.
    write_csv(tmp_path / "other.csv", client_rows(100, seed=2))
    job = table(folder)
    train_job({**job, "data": {**job["data"], "test": str(tmp_path / "other.csv")}}, out=out, resume=True)
    assert read_decisions(out)["bought"].threshold == threshold


@pytest.mark.parametrize("change", ["incomplete", "other model", "other scores", "changed decision"])
def test_a_decision_of_other_models_is_removed_when_a_training_is_resumed(change, committee, tmp_path):
    folder, out = committee[0], tmp_path / "run"
    shutil.copytree(folder / "run", out)
    decide_folder(out, top=20)
    files = read_manifest(out, kind="model").files
    if change == "incomplete":
        write_manifest(out, files, kind="model", complete=False)
    elif change == "changed decision":
        (out / "decision.json").write_bytes((out / "decision.json").read_bytes().replace(b"top", b"tip"))
    else:
        # The manifest of an earlier training with another model, or with another blend of the same ones.
        name = "members/gbdt/fold-0.txt" if change == "other model" else "scores-cross-fitted.npz"
        content = (out / name).read_bytes()
        (out / name).write_bytes(b"other")
        write_manifest(out, files, kind="model")
        (out / name).write_bytes(content)
    train_job(table(folder), out=out, resume=True)
    assert load_model(out).thresholds == {}
    assert not (out / "decision.json").exists()
    manifest = read_manifest(out, kind="model")
    assert manifest.complete
    assert manifest.files.keys() == files.keys() - {"decision.json"}


def test_members_of_unknown_rows_are_not_taken_over(committee, tmp_path):
    folder, out = committee[0], tmp_path / "run"
    shutil.copytree(folder / "run", out)
    (out / "manifest.json").unlink()
    write_csv(tmp_path / "train.csv", client_rows(400, seed=7))
    shutil.copy(folder / "test.csv", tmp_path)
    before = {file.name for file in out.iterdir()}
    with pytest.raises(FolderError, match=r"it holds members of a committee and no manifest\.json"):
        train_job(table(tmp_path), out=out, resume=True)
    assert {file.name for file in out.iterdir()} == before


@pytest.mark.parametrize("same", [True, False])
def test_a_decision_on_one_split_of_version_0_2_is_kept_if_the_scores_are_the_same(same, tmp_path):
    write_csv(tmp_path / "clients.csv", client_rows(300, seed=1))
    job = {"data": {"train": str(tmp_path / "clients.csv"), "target": "bought"}, "committee": {"effort": "quick"}}
    out = tmp_path / "run"
    train_job(job, out=out)
    threshold = decide_folder(out, top=20).decision.threshold
    files = read_manifest(out, kind="model").files
    # It called the scores cross-fitted.
    (out / "scores-held-out.npz").rename(out / "scores-cross-fitted.npz")
    if not same:
        (out / "scores-cross-fitted.npz").write_bytes(b"other")
    names = [name.replace("held-out", "cross-fitted") for name in files]
    write_manifest(out, names, kind="model")
    train_job(job, out=out, resume=True)
    assert load_model(out).thresholds == ({"bought": threshold} if same else {})
    kept = files.keys() if same else files.keys() - {"decision.json"}
    assert read_manifest(out, kind="model").files.keys() == kept
    assert not (out / "scores-cross-fitted.npz").exists()


def test_the_stored_plan_is_followed_and_other_settings_or_rows_are_refused(tmp_path):
    write_csv(tmp_path / "train.csv", client_rows(120))
    write_csv(tmp_path / "test.csv", client_rows(200, seed=1))
    train_job(table(tmp_path, effort="quick"), out=tmp_path / "run")
    before = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    other = write_csv(tmp_path / "other.csv", client_rows(121))
    for changed, message in (
        (table(tmp_path, effort="standard"), "effort was quick in .* and is standard now"),
        (table(tmp_path, effort="quick", seed=1), "seed was 0"),
        (table(tmp_path, effort="quick", members=[]), f"members was {', '.join(MEMBERS)} in .* and is not set now"),
        ({**table(tmp_path, effort="quick"), "data": {"train": other, "target": "bought"}}, "other rows"),
        ({"data": table(tmp_path)["data"], "model": {"name": "mlp"}}, "holds a committee"),
    ):
        with pytest.raises(ValueError, match=message):
            train_job(changed, out=tmp_path / "run", resume=True)
    after = {path.name: path.read_bytes() for path in (tmp_path / "run").iterdir() if path.is_file()}
    assert after == before
    assert json.loads(before["plan.json"])["plan"]["folds"] == 1


def test_too_few_positives_for_folds_give_one_split_and_say_so(tmp_path):
    rows = client_rows(200)
    positive = [row for row in rows if row["bought"] == "yes"]
    for number, row in enumerate(positive):
        row["patient"] = "a" if number < 3 else "b"
    for number, row in enumerate(row for row in rows if row["bought"] == "no"):
        row["patient"] = f"c{number % 9}"
    lines = []
    job = {
        "data": {"train": write_csv(tmp_path / "a.csv", rows), "target": "bought", "group": "patient"},
        "committee": {"members": ["linear_ce"]},
    }
    train_job(job, out=tmp_path / "two", notify=lambda facts, _: lines.extend(facts))
    assert any("on 2 folds" in line for line in lines)
    for row in positive:
        row["patient"] = "a"
    write_csv(tmp_path / "a.csv", rows)
    with pytest.raises(
        ValueError, match=r"splitting by the .* groups leaves no positive row to hold out: choose another"
    ):
        train_job(job, out=tmp_path / "one")
    assert not (tmp_path / "one").exists()


def test_rows_are_scored_only_by_models_of_earlier_times(tmp_path):
    """With times the first block has no cross-fitted scores, and test rows are the latest."""
    rows = [{**row, "day": f"2024-{1 + k // 40:02d}-01"} for k, row in enumerate(client_rows(400))]
    job = {
        "data": {
            "train": write_csv(tmp_path / "a.csv", rows),
            "target": "bought",
            "time": "day",
            "test_share": 0.2,
        },
        "committee": {"members": ["linear_ce", "trees"]},
    }
    train_job(job, out=tmp_path / "r")
    parts = load_scored_rows(tmp_path / "r")
    assert parts["test"].rows.min() == 320
    assert parts["cross-fitted"].rows.min() >= 40
    assert parts["cross-fitted"].rows.max() == 319


def test_a_damaged_member_is_refused(committee, tmp_path):
    import shutil

    folder, _ = committee
    shutil.copytree(folder / "run", tmp_path / "run")
    file = tmp_path / "run" / "members" / "gbdt" / "fold-0.txt"
    file.write_bytes(file.read_bytes().replace(b"leaf_value", b"leaf_valve", 1))
    with pytest.raises(FolderError, match=r"members/gbdt/fold-0.txt has changed"):
        load_model(tmp_path / "run")


def test_weights_go_through_the_committee(tmp_path):
    """Rows of weight 2 count twice in the blend's AP."""
    rows = [{**row, "w": 1 + number % 2} for number, row in enumerate(client_rows(200))]
    data = {"train": write_csv(tmp_path / "a.csv", rows), "target": "bought", "weight": "w"}
    result = train_job({"data": data, "committee": {"members": ["linear_ce"]}}, out=tmp_path / "r")
    scored = load_scored_rows(tmp_path / "r")["cross-fitted"]
    assert scored.sample_weight.tolist() == [row["w"] for row in rows]
    ap = average_precision(scored.scores[:, 0], scored.labels[:, 0], sample_weight=scored.sample_weight).item()
    assert result.leaderboards["bought"].blend.ap.estimate == pytest.approx(ap, abs=1e-9)
    assert result.valid.each["bought"].ap.estimate == pytest.approx(ap, abs=1e-6)


def test_the_command_line_shows_plan_leaderboard_and_verdict(committee, tmp_path, capsys):
    folder, _ = committee
    members = [word for name in MEMBERS for word in ("--member", name)]
    data = [folder / "train.csv", "--target", "bought", "--time-limit", "10m", *members]
    assert run("train", *data, "--out", tmp_path / "r") == 0
    shown = capsys.readouterr().out
    for text in ("plan (standard): gbdt, linear, linear_ce on 5 folds", "cross-fitted", "blend", " MB."):
        assert text in shown
    assert "Linear trained by AP against cross-entropy: " in shown
    assert run("evaluate", tmp_path / "r", folder / "test.csv", "--member", "gbdt") == 0
    assert run("predict", tmp_path / "r", folder / "test.csv", "--probability", "--out", tmp_path / "s.csv") == 0
    assert set(read_csv(tmp_path / "s.csv")[0]) >= {"score", "probability"}
    capsys.readouterr()
    assert run("train", *data, "--model", "mlp", "--out", tmp_path / "n") == 1
    assert "exclude each other" in capsys.readouterr().err
    assert run("train", tmp_path / "r" / "run.toml", "--quiet", "--out", tmp_path / "again") == 0
    np.testing.assert_array_equal(
        load_model(tmp_path / "again").score(folder / "test.csv"), load_model(tmp_path / "r").score(folder / "test.csv")
    )


def test_scores_of_one_split_are_called_held_out(tmp_path, capsys):
    write_csv(tmp_path / "a.csv", client_rows(200))
    assert run("train", tmp_path / "a.csv", "--target", "bought", "--effort", "quick", "--out", tmp_path / "r") == 0
    shown = capsys.readouterr().out
    assert "cross-fitted" not in shown
    assert [line.split()[0] for line in shown.splitlines() if line.startswith("held-out")] == ["held-out"] * 2
    assert list(load_scored_rows(tmp_path / "r")) == ["held-out"]
    assert "held_out" in json.loads((tmp_path / "r" / "results.json").read_text())
    assert load_model(tmp_path / "r").committees[0].leaderboard.part == "held-out"


def test_a_column_that_is_left_out_is_read_by_no_fold(tmp_path):
    """Over all rows the whole numbers fill half of their range, as row numbers do; in a fold they do not."""
    rng = np.random.default_rng(0)
    code = rng.choice(540, 300, replace=False)
    rows = [{"x": x, "code": c, "y": int(c > 440)} for x, c in zip(rng.normal(size=300), code.tolist(), strict=True)]
    facts = []
    train_job(
        {
            "data": {"train": write_csv(tmp_path / "a.csv", rows), "target": "y"},
            "committee": {"members": ["linear_ce"]},
        },
        out=tmp_path / "r",
        notify=lambda lines, _: facts.extend(lines),
    )
    assert "left out: 'code' (a different whole number in every row: an id?)" in facts
    model = load_model(tmp_path / "r")
    assert [fold.features.encoder.names for fold in model.committees[0].folds] == [["x"]] * 5


def test_rows_of_the_training_file_are_no_evidence_and_a_warning_says_so(tmp_path):
    write_csv(tmp_path / "train.csv", client_rows(200))
    job = {"data": {"train": str(tmp_path / "train.csv"), "target": "bought"}, "committee": {"members": ["linear_ce"]}}
    warnings = []
    job["data"]["test"] = str(tmp_path / "." / "train.csv")
    train_job(job, out=tmp_path / "r", notify=lambda _, lines: warnings.extend(lines))
    assert warnings[0] == "test: train.csv is the file of the training rows: its figures say nothing about new rows"
    model, source = load_model(tmp_path / "r").open(tmp_path / "train.csv")
    assert "train.csv is what the model was trained on" in evaluate_source(model, source)[1][0]
    other = write_csv(tmp_path / "other.csv", client_rows(200, seed=2))
    assert not evaluate_source(*load_model(tmp_path / "r").open(other))[1]
    job["data"]["test"] = other
    train_job(job, out=tmp_path / "s", notify=lambda _, lines: warnings.extend(lines))
    assert len(warnings) == 1


@pytest.mark.parametrize("kind", [{"committee": {"members": ["linear_ce"]}}, {"model": {"name": "linear"}}])
def test_decimal_commas_are_read_as_numbers_in_training_and_prediction(kind, tmp_path):
    rows, new = client_rows(300), client_rows(60, seed=1)
    notes = []
    commas = write_csv_with_commas(tmp_path / "commas.csv", rows)
    few = Overrides(epochs=2, settings={"stages.0.epochs": 2}) if "model" in kind else Overrides()
    trained = train_job(
        {"data": {"train": commas, "target": "bought"}, **kind},
        few,
        out=tmp_path / "r",
        notify=lambda *lines: notes.extend(lines[0] + lines[1]),
    )
    assert "numbers with a decimal comma: 'age', 'income'" in notes
    assert not any("which are not read as numbers" in line for line in notes)
    points = {"data": {"train": write_csv(tmp_path / "points.csv", rows), "target": "bought"}, **kind}
    expected = train_job(points, few, out=tmp_path / "s").model.score(write_csv(tmp_path / "new.csv", new))
    model = load_model(tmp_path / "r")
    for file in (write_csv_with_commas(tmp_path / "new;.csv", new), tmp_path / "new.csv"):
        np.testing.assert_array_equal(model.score(file), expected)
    whole = [{**row, "age": row["age"].partition(".")[0], "income": "140"} for row in new]
    report = RowReport()
    reader, source = model.open(write_csv_with_commas(tmp_path / "whole.csv", whole))
    np.testing.assert_array_equal(
        reader.score_table(source.read(), report), model.score(write_csv(tmp_path / "w.csv", whole))
    )
    assert report.lines() == []
    assert trained.model.job.data.decimal_comma == ("age", "income")


def test_points_and_commas_in_one_value_are_not_read_as_numbers(tmp_path):
    rows = [{**row, "income": f"1.{k % 900 + 100},{k % 90 + 10}"} for k, row in enumerate(client_rows(200))]
    notes = []
    job = {
        "data": {"train": write_csv_with_commas(tmp_path / "a.csv", rows, ("age",)), "target": "bought"},
        "committee": {"members": ["linear_ce"]},
    }
    train_job(job, out=tmp_path / "r", notify=lambda *lines: notes.extend(lines[0] + lines[1]))
    assert "numbers with a decimal comma: 'age'" in notes
    assert any(line.startswith("left out: ") and "'income'" in line for line in notes)


@pytest.mark.parametrize("role", ["number", "category"])
def test_a_declared_type_decides_about_decimal_commas(role, tmp_path):
    rows = [{**row, "code": "none yet" if k == 3 else f"{k % 5},5"} for k, row in enumerate(client_rows(200))]
    file = write_csv_with_commas(tmp_path / "a.csv", rows)
    job = {"data": {"train": file, "target": "bought", "columns": {"code": role}}, "committee": {"members": ["gbdt"]}}
    found = train_job(job, out=tmp_path / "r").model.encoder.summary()
    assert "code" in found[role]


@pytest.mark.parametrize(
    ("values", "line"),
    [
        ([f"CC(=O)Oc1ccccc1C(=O)N{'C' * k}" for k in range(40)], "looks like SMILES, .*: smiles='text' does"),
        ([*(f"CC(=O)Oc1ccccc1C(=O)N{'C' * k}" for k in range(38)), "no name", "?!"], "looks like SMILES"),
        ([f"{k},{k % 7}5" for k in range(40)], "decimal comma, such as '0,05', which are not read as numbers"),
        ([f"{1900 + 37 * k:,}.50" for k in range(40)], "looks like numbers such as '1,900.50', which are not read"),
        ([f"scan-{k}.png" for k in range(40)], "names images, .*: path='text' does"),
        ([f"C-{100 + k}" for k in range(40)], None),
        ([f"person {k}" for k in range(40)], None),
    ],
)
def test_columns_that_a_table_does_not_read_are_named(values, line, tmp_path):
    rows = [{"text": text, "y": k % 4 == 0, "x": (k * 7) % 11 / 3} for k, text in enumerate(values)]
    data = {"train": write_csv(tmp_path / "a.csv", rows), "target": "y"}
    warnings = []
    job = {"data": data, "committee": {"members": ["linear_ce"]}}
    train_job(job, out=tmp_path / "r", notify=lambda _, lines: warnings.extend(lines))
    assert [bool(re.search(line or "column 'text'", each)) for each in warnings] == ([True] if line else [])
    write_csv(tmp_path / "a.csv", [{"text": row["text"], "y": row["y"]} for row in rows])
    with pytest.raises(ValueError, match=f"no column is left to learn from: 'text'.*{line or ''}"):
        train_job(job, out=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_copies_of_positive_rows_are_reported_unless_groups_keep_them_together(tmp_path):
    plain = [{**row, "case": k, "x": f"{k / 7:.3f}", "few": k % 3} for k, row in enumerate(client_rows(200))]
    copies = [row for row in plain for _ in range(2)]
    numbered = [{**row, "case": f"case {k}"} for k, row in enumerate(copies)]
    for name, rows in {"plain": plain, "copies": copies, "numbered": numbered}.items():
        write_csv(tmp_path / f"{name}.csv", rows)
    few = [{"few": row["few"], "more": k % 5, "bought": row["bought"]} for k, row in enumerate(plain)]
    write_csv(tmp_path / "few.csv", few)

    def warnings(name, **data):
        lines = []
        data = {"train": str(tmp_path / f"{name}.csv"), "target": "bought", **data}
        job = {"data": data, "committee": {"members": ["linear_ce"]}}
        train_job(job, out=tmp_path / f"{name}-{len(data)}", notify=lambda _, found: lines.extend(found))
        return [line for line in lines if "repeated" in line]

    assert re.match("40 of 40 positive rows are repeated, equal in all columns: .*group=COLUMN", *warnings("copies"))
    assert warnings("copies", group="case") == warnings("plain") == warnings("few") == warnings("numbered") == []


@pytest.mark.parametrize("column", ["group", "time"])
def test_other_groups_or_times_are_not_resumed(column, tmp_path, monkeypatch):
    """They are no features, but decide which rows a fold holds out."""
    from apmax.workflows import committee_training

    def job(order):
        rows = [{**row, column: 2000 + order[k] // 10} for k, row in enumerate(client_rows(200))]
        data = {"train": write_csv(tmp_path / "a.csv", rows), "target": "bought", column: column}
        return {"data": data, "committee": {"members": ["linear_ce", "linear"]}}

    monkeypatch.setattr(committee_training, "save_result", interrupted_after(2))
    with pytest.raises(KeyboardInterrupt):
        train_job(job(range(200)), out=tmp_path / "r")
    monkeypatch.setattr(committee_training, "save_result", save_result)
    with pytest.raises(ValueError, match=f"was of other {column}s: their fingerprint differs"):
        train_job(job(range(199, -1, -1)), out=tmp_path / "r", resume=True)
    train_job(job(range(200)), out=tmp_path / "r", resume=True)
