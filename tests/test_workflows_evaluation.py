"""Evaluation: metrics with intervals, by target."""

from __future__ import annotations

import numpy as np
import pytest

from apmax import metrics
from apmax.workflows import compare_models, evaluate_scores, evaluate_source, evaluate_targets, load_model, train_job
from small_files import client_rows, write_csv, write_csv_with_commas


def sample(rows=300, shift=1.0, seed=0):
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < 0.2).astype(int)
    return np.round(generator.normal(size=rows) + shift * labels, 1), labels


@pytest.mark.parametrize("scores", [[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
def test_perfect_or_reversed_ranking_of_few_rows_has_a_wide_interval(scores):
    auroc = evaluate_scores(np.array(scores), np.array([1, 1, 0, 0])).auroc
    assert auroc.estimate in (auroc.low, auroc.high)
    assert auroc.high - auroc.low > 0.5


def test_precision_is_reported_at_the_number_of_positives_and_at_no_k_beyond_the_rows():
    for rows in (50, 60):
        scores, labels = sample(rows)
        found = evaluate_scores(scores, labels)
        assert list(found.precision_at) == list(found.recall_at) == sorted({10, 50, int(labels.sum())})


def test_every_metric_but_those_of_k_rows_counts_the_weights():
    scores, labels = sample()
    weight = np.random.default_rng(1).exponential(size=300)
    found, plain = evaluate_scores(scores, labels, weight), evaluate_scores(scores, labels)
    assert found.no_skill == pytest.approx(np.average(labels, weights=weight))
    expected = {
        "ap": metrics.average_precision(scores, labels, sample_weight=weight),
        "auprc": metrics.auprc(scores, labels, sample_weight=weight),
        "auroc": metrics.auroc(scores, labels, sample_weight=weight),
        "bedroc": metrics.bedroc(scores, labels, sample_weight=weight),
        "enrichment": metrics.enrichment_factor(scores, labels, sample_weight=weight),
    }
    for name, value in expected.items():
        assert getattr(found, name).estimate == pytest.approx(value.item()), name
        assert getattr(found, name).estimate != pytest.approx(getattr(plain, name).estimate), name
    assert (found.precision_at, found.recall_at) == (plain.precision_at, plain.recall_at)


def test_metrics_without_negatives_are_null_in_json():
    table = evaluate_scores(np.array([0.1, 0.2]), np.array([1, 1])).to_table()
    assert table["auroc"]["estimate"] is None
    assert table["ap"]["estimate"] == 1.0


def test_target_without_both_classes_has_no_evaluation():
    labels = np.array([[1, 1, np.nan], [0, 1, np.nan], [np.nan, np.nan, np.nan]])
    scores = np.array([[2.0, 1.0, 0.0], [1.0, 2.0, 0.0], [3.0, 3.0, 3.0]])
    result = evaluate_targets(scores, labels, ["a", "b", "c"])
    assert list(result.each) == ["a"]
    assert result.to_table()["mean_ap"] == result.each["a"].ap.estimate == 1.0


def test_mean_ap_is_that_over_the_targets():
    labels = np.array([[1, 0], [0, 1], [0, 0], [0, 0]])
    result = evaluate_targets(np.array([[4.0, 4.0], [3.0, 3.0], [2.0, 2.0], [1.0, 1.0]]), labels, ["a", "b"])
    assert [part.ap.estimate for part in result.each.values()] == [1.0, 0.5]
    assert result.to_table()["mean_ap"] == result.mean_ap == 0.75


def test_row_without_a_score_is_not_evaluated():
    result = evaluate_targets(np.array([np.nan, 1.0, 2.0]), np.array([1.0, 1.0, 0.0]), ["a"])
    assert (result.each["a"].rows, result.each["a"].ap.estimate) == (2, 0.5)


def test_bad_weight_is_reported_with_its_row_in_the_file(tmp_path, monkeypatch):
    from apmax.data import reading

    rows = [{**row, "weight": 1} for row in client_rows(200)]
    data = {"train": write_csv(tmp_path / "train.csv", rows), "target": "bought", "weight": "weight"}
    train_job({"data": data, "committee": {"members": ["linear_ce"], "effort": "quick"}}, out=tmp_path / "run")
    rows[150]["weight"] = rows[151]["weight"] = -1
    monkeypatch.setattr(reading, "BLOCK_BYTES", 512)
    model, source = load_model(tmp_path / "run").open(write_csv(tmp_path / "test.csv", rows))
    assert max(chunk.num_rows for chunk in source.chunks()) < 100
    with pytest.raises(
        ValueError, match=r"column 'weight' of test.csv .* \(counted from 0\): 150 \('-1'\), 151 \('-1'\)$"
    ):
        evaluate_source(model, source)


def test_weights_may_have_decimal_commas(tmp_path):
    rows = [{**row, "weight": str(0.5 + k % 3)} for k, row in enumerate(client_rows(200))]
    points = write_csv(tmp_path / "points.csv", rows)
    commas = write_csv_with_commas(tmp_path / "commas.csv", rows, names=["weight"])
    found = []
    for name, file in (("points", points), ("commas", commas)):
        data = {"train": file, "target": "bought", "weight": "weight"}
        committee = {"members": ["linear_ce"], "effort": "quick"}
        train_job({"data": data, "committee": committee}, out=tmp_path / name)
        model, source = load_model(tmp_path / name).open(file)
        found.append(evaluate_source(model, source)[0].to_table())
    assert found[0] == found[1]


def test_rows_of_weight_zero_are_left_out(tmp_path):
    rows = [{**row, "weight": k % 4} for k, row in enumerate(client_rows(400))]
    kept = [row for row in rows if row["weight"]]
    data = {"train": write_csv(tmp_path / "train.csv", rows), "target": "bought", "weight": "weight"}
    train_job({"data": data, "committee": {"members": ["linear_ce"], "effort": "quick"}}, out=tmp_path / "run")
    model = load_model(tmp_path / "run")
    found, expected = (
        evaluate_source(*model.open(write_csv(tmp_path / name, each)))
        for name, each in (("all.csv", rows), ("kept.csv", kept))
    )
    assert found[0].to_table() == expected[0].to_table()
    assert (found[1], expected[1]) == (["left out: 100 rows of weight 0"], [])
    nothing = write_csv(tmp_path / "nothing.csv", [{**row, "weight": 0} for row in rows])
    with pytest.raises(ValueError, match=r"weight: column 'weight' of nothing\.csv is 0 in every row"):
        evaluate_source(*model.open(nothing))
    no_positive = [{**row, "weight": int(row["bought"] == "no")} for row in rows]
    with pytest.raises(ValueError, match="has no row whose 'bought' is 'yes' and whose weight is above 0"):
        evaluate_source(*model.open(write_csv(tmp_path / "no_positive.csv", no_positive)))


def test_models_with_and_without_weights_are_compared_on_the_rows_that_have_one(tmp_path):
    rows = [{**row, "weight": k % 4} for k, row in enumerate(client_rows(400))]
    file = write_csv(tmp_path / "all.csv", rows)
    for name, more in (("weighted", {"weight": "weight"}), ("plain", {"columns": {"weight": "drop"}})):
        data = {"train": file, "target": "bought", **more}
        train_job({"data": data, "committee": {"members": ["linear_ce"], "effort": "quick"}}, out=tmp_path / name)
    one, other = (load_model(tmp_path / name).open(file) for name in ("weighted", "plain"))
    found, lines = compare_models(*one, *other)
    assert [part.each["bought"].rows for part in (found.first, found.second)] == [300, 300]
    difference = found.first.each["bought"].ap.estimate - found.second.each["bought"].ap.estimate
    assert found.differences["bought"].estimate == pytest.approx(difference, abs=1e-9)
    assert "left out: 100 rows of weight 0" in lines


@pytest.mark.parametrize(
    ("other", "message"),
    [
        ({"target": "bought", "positive": "no"}, r"against: the models differ in which rows are positive \(bought\)"),
        ({"target": "late"}, "against: the models have no target in common: bought and late"),
    ],
)
def test_models_of_another_target_are_not_compared(other, message, tmp_path):
    rows = [{**row, "late": int(k % 5 == 0)} for k, row in enumerate(client_rows(200))]
    file, opened = write_csv(tmp_path / "a.csv", rows), []
    for name, target in (("first", {"target": "bought", "positive": "yes"}), ("second", other)):
        job = {"data": {"train": file, **target}, "committee": {"members": ["linear_ce"], "effort": "quick"}}
        train_job(job, out=tmp_path / name)
        opened += load_model(tmp_path / name).open(file)
    with pytest.raises(ValueError, match=message):
        compare_models(*opened)
