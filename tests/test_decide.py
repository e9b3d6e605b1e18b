"""Decisions: thresholds against loops over all of them, bounds against scipy, coverage, and the model's folder."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
from benchmarks import decisions
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from apmax.decide import assess_threshold, choose_threshold, decide_folder, read_decisions
from apmax.folders import FolderError, read_manifest
from apmax.workflows import load_model, load_scored_rows, train_job
from commands import run
from model_folders import copy_model
from small_files import client_rows, read_csv, write_csv


def sample(rows=400, seed=0, shift=2.0):
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < 0.1).astype(int)
    return (rng.normal(size=rows) + shift * labels).round(1), labels


def every_threshold(scores, labels, prevalence=None):
    """Return (threshold, recall, false positive rate, precision, share) of every distinct score, the best first."""
    scores, labels = np.asarray(scores), np.asarray(labels)
    prevalence = labels.mean() if prevalence is None else prevalence
    rows = []
    for cut in sorted(set(scores.tolist()), reverse=True):
        recall, false = (scores[labels == 1] >= cut).mean(), (scores[labels == 0] >= cut).mean()
        share = prevalence * recall + (1 - prevalence) * false
        rows.append((cut, recall, false, prevalence * recall / share if share else 0.0, share))
    return rows


rows = st.lists(st.tuples(st.integers(-5, 5), st.booleans()), min_size=2, max_size=40).filter(
    lambda rows: {label for _, label in rows} == {False, True}
)
prevalences = st.one_of(st.none(), st.floats(0.01, 0.9))


@settings(deadline=None, max_examples=60)
@given(rows=rows, prevalence=prevalences, wanted=st.floats(0.05, 1.0))
def test_precision_and_recall_choose_the_threshold_of_a_loop(rows, prevalence, wanted):
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    table = every_threshold(scores, labels, prevalence)
    enough = [cut for cut, _, _, precision, _ in table if precision >= wanted - 1e-12]
    if enough:
        found = choose_threshold(scores, labels, precision=wanted, prevalence=prevalence)
        assert found.threshold == min(enough)
    else:
        with pytest.raises(ValueError, match="precision: no threshold has an estimated precision"):
            choose_threshold(scores, labels, precision=wanted, prevalence=prevalence)
    found = choose_threshold(scores, labels, recall=wanted, prevalence=prevalence)
    assert found.threshold == max(cut for cut, recall, *_ in table if recall >= wanted - 1e-12)


@settings(deadline=None, max_examples=60)
@given(rows=rows, prevalence=prevalences, costs=st.tuples(st.integers(0, 5), st.integers(1, 50)))
def test_cost_is_the_least_of_a_loop_and_of_taking_no_row(rows, prevalence, costs):
    scores, labels = (np.array(column) for column in zip(*rows, strict=True))
    found = choose_threshold(scores, labels, cost=costs, prevalence=prevalence)
    share = found.prevalence
    each = [costs[1] * share * (1 - r) + costs[0] * (1 - share) * f for _, r, f, *_ in every_threshold(scores, labels)]
    assert found.cost.estimate == pytest.approx(min([*each, costs[1] * share]), abs=1e-12)
    assert found.cost.estimate <= found.cost.bound + 1e-12
    assert found.costs_without == pytest.approx((costs[1] * share, costs[0] * (1 - share)))


def test_top_takes_at_most_so_many_rows_of_a_batch():
    scores, labels = sample()
    for top, of in ((1, None), (37, None), (400, None), (10, 1000)):
        found = choose_threshold(scores, labels, top=top, rows=of)
        share = top / (of or 400)
        fitting = [row for row in every_threshold(scores, labels) if row[4] <= share + 1e-12]
        assert found.threshold == (fitting[-1][0] if fitting else scores.max())


def test_a_budget_limits_the_rows_of_the_least_cost():
    scores, labels = sample()
    free, limited = (choose_threshold(scores, labels, cost=(1, 20), budget=k) for k in (None, 20))
    assert limited.share * 400 <= 20 < free.share * 400
    assert limited.cost.estimate > free.cost.estimate
    generous = choose_threshold(scores, labels, cost=(1, 20), budget=400)
    assert generous.threshold == free.threshold


@pytest.mark.parametrize(("scores", "rows", "least"), [(np.ones(400), None, "400"), (sample()[0], 10_000, "25")])
def test_a_budget_that_no_threshold_keeps_is_refused(scores, rows, least):
    labels = sample()[1]
    with pytest.raises(
        ValueError, match=rf"budget: no threshold takes at most 5 of .* the best score alone .* {least}:"
    ):
        choose_threshold(scores, labels, cost=(1, 50), budget=5, rows=rows)
    assert choose_threshold(scores, labels, cost=(1, 50), budget=int(least), rows=rows).threshold == scores.max()


def test_negatives_whose_share_of_the_weight_rounds_to_zero_have_decisions():
    scores, labels = sample()
    weight = np.where(labels == 1, 1.0, 1e-30)
    for rule in ({"precision": 0.9}, {"recall": 0.8}, {"top": 20}, {"cost": (1, 20)}):
        found = choose_threshold(scores, labels, sample_weight=weight, **rule)
        assert found.prevalence == found.precision.estimate == 1
        assert 0 < found.precision.bound <= 1
        assert 0 < found.recall.bound < found.recall.estimate


def test_bounds_are_those_of_clopper_and_pearson():
    scores, labels = sample()
    found = choose_threshold(scores, labels, top=30)
    hits, taken = labels[scores >= found.threshold].sum(), (scores >= found.threshold).sum()
    assert found.precision.bound == pytest.approx(stats.beta.ppf(0.05, hits, taken - hits + 1), rel=1e-9)
    assert found.recall.bound == pytest.approx(stats.beta.ppf(0.05, hits, labels.sum() - hits + 1), rel=1e-9)


def test_another_prevalence_multiplies_the_odds_of_precision_and_of_its_bound():
    scores, labels = sample()
    own, other = (assess_threshold(scores, labels, 1.5, prevalence=each) for each in (None, 0.01))
    ratio = (0.01 / 0.99) / (labels.mean() / (1 - labels.mean()))
    for before, after in zip(own.precision, other.precision, strict=True):
        assert after / (1 - after) == pytest.approx(before / (1 - before) * ratio)
    assert own.recall == other.recall
    assert other.expected_counts(1000)["hits"] == pytest.approx(10 * own.recall.estimate)


def test_a_guarantee_is_a_bound_that_reaches_what_is_wanted():
    scores, labels = sample(4000)
    plain, sure = (choose_threshold(scores, labels, precision=0.5, guarantee=each) for each in (False, True))
    assert plain.precision.bound < 0.5 <= sure.precision.bound
    assert sure.threshold > plain.threshold
    plain, sure = (choose_threshold(scores, labels, recall=0.8, guarantee=each) for each in (False, True))
    assert plain.recall.bound < 0.8 <= sure.recall.bound
    assert sure.threshold < plain.threshold


def end_of_the_tests(scores, labels, wanted, prevalence, confidence):
    """Return the lowest threshold that a sequence of binomial tests reaches; the starts share the error."""
    table = every_threshold(scores, labels, prevalence)
    taken = [(scores >= cut).sum() for cut, *_ in table]
    hits = [labels[scores >= cut].sum() for cut, *_ in table]
    # Among rows as they are in the sample, the precision that is `wanted` at the prevalence.
    own = labels.mean() / (1 - labels.mean())
    odds = wanted / (1 - wanted) * own / (prevalence / (1 - prevalence))
    tested = odds / (1 + odds)
    error, starts = 1 - confidence, [float(math.ceil(math.log((1 - confidence) / 8) / math.log(tested)))]
    while starts[-1] * 4 <= len(scores):
        starts.append(starts[-1] * 4)
    reached = []
    for size in starts:
        while size <= len(scores):
            number = next(k for k, rows in enumerate(taken) if rows >= size)
            if stats.binom.sf(hits[number] - 1, taken[number], tested) > error / len(starts):
                break
            reached.append(table[number][0])
            size = max(size + 1, size * 1.05)
    return min(reached)


@pytest.mark.parametrize(
    ("wanted", "prevalence", "confidence"), [(0.5, None, 0.95), (0.2, 0.02, 0.95), (0.8, 0.3, 0.9), (0.3, None, 0.99)]
)
def test_a_guaranteed_precision_ends_a_sequence_of_tests_at_the_prevalence(wanted, prevalence, confidence):
    for seed in range(3):
        labels = sample(1500, seed)[1]
        # Without ties, so that every number of rows is a threshold.
        scores = np.random.default_rng(seed + 10).normal(size=1500) + 2 * labels
        found = choose_threshold(
            scores, labels, precision=wanted, guarantee=True, prevalence=prevalence, confidence=confidence
        )
        share = labels.mean() if prevalence is None else prevalence
        assert found.threshold == end_of_the_tests(scores, labels, wanted, share, confidence)


def test_rules_that_the_same_rows_chose_use_a_part_of_the_error():
    scores, labels = sample()
    for rule, precision, recall in (
        ({"precision": 0.5}, 1 / 2, 1 / 2),
        ({"recall": 0.8}, 1, 1),
        ({"cost": (1, 20)}, 1 / 6, 1 / 16),
    ):
        found = choose_threshold(scores, labels, **rule)
        taken, hits = (scores >= found.threshold).sum(), labels[scores >= found.threshold].sum()
        missed = labels.sum() - hits
        assert found.precision.bound == pytest.approx(stats.beta.ppf(0.05 * precision, hits, taken - hits + 1))
        assert found.recall.bound == pytest.approx(stats.beta.ppf(0.05 * recall, hits, missed + 1))


def test_the_bound_of_the_least_cost_uses_a_third_of_the_error_of_that_of_a_given_threshold():
    scores, labels = sample()
    found = choose_threshold(scores, labels, cost=(1, 20))
    same = assess_threshold(scores, labels, found.threshold, cost=(1, 20), confidence=1 - 0.05 / 3)
    assert found.cost.estimate == same.cost.estimate
    assert found.cost.bound == pytest.approx(same.cost.bound)


@pytest.mark.parametrize("quantity", ["recall", "cost"])
def test_bounds_of_the_least_cost_hold_without_skill_where_all_thresholds_cost_the_same(quantity):
    missed = decisions.missed("cost 1:19", 0.0, 2000, trials=200)
    assert missed[quantity] <= 0.05


@pytest.mark.parametrize("prevalence", [None, 0.02])
def test_the_bound_of_a_cost_shares_the_error_between_both_kinds_of_mistake(prevalence):
    scores, labels = sample()
    found = assess_threshold(scores, labels, 1.5, cost=(1, 20), prevalence=prevalence)
    share = labels.mean() if prevalence is None else prevalence
    hits, false = labels[scores >= 1.5].sum(), (1 - labels)[scores >= 1.5].sum()
    negatives = len(labels) - labels.sum()
    recall = stats.beta.ppf(0.025, hits, labels.sum() - hits + 1)
    false_rate = stats.beta.ppf(0.975, false + 1, negatives - false)
    assert found.cost.bound == pytest.approx(20 * share * (1 - recall) + (1 - share) * false_rate, rel=1e-9)


def test_a_guaranteed_recall_is_the_first_whose_bound_reaches_it():
    scores, labels = sample(4000)
    cuts = sorted(set(scores.tolist()), reverse=True)
    bounds = [assess_threshold(scores, labels, cut).recall.bound for cut in cuts]
    for wanted in (0.3, 0.8, 0.95):
        found = choose_threshold(scores, labels, recall=wanted, guarantee=True)
        assert found.threshold == next(cut for cut, bound in zip(cuts, bounds, strict=True) if bound >= wanted)


def test_whole_weights_estimate_as_repeated_rows_and_equal_ones_as_none():
    scores, labels = sample()
    times = np.random.default_rng(1).integers(0, 4, size=400)
    weighted = choose_threshold(scores, labels, precision=0.5, sample_weight=times)
    repeated = choose_threshold(scores.repeat(times), labels.repeat(times), precision=0.5)
    assert weighted.threshold == repeated.threshold
    assert weighted.precision.estimate == pytest.approx(repeated.precision.estimate)
    assert weighted.recall.bound < repeated.recall.bound
    assert choose_threshold(scores, labels, recall=0.5, sample_weight=[0.3] * 400) == choose_threshold(
        scores, labels, recall=0.5
    )


def test_bounds_of_weighted_rows_are_those_of_kishs_effective_numbers():
    scores, labels = sample()
    weight = np.random.default_rng(1).exponential(size=400)
    found = assess_threshold(scores, labels, 1.5, sample_weight=weight)
    size, taken = {}, {}
    for value in (0, 1):
        own = weight[labels == value]
        size[value] = own.sum() ** 2 / (own**2).sum()
        taken[value] = size[value] * weight[(labels == value) & (scores >= 1.5)].sum() / own.sum()
    assert found.recall.bound == pytest.approx(stats.beta.ppf(0.05, taken[1], size[1] - taken[1] + 1), rel=1e-9)
    low = stats.beta.ppf(0.05, taken[1], taken[0] + 1)
    # From the odds among effective rows to those at the share of the weight that is positive.
    share = weight[labels == 1].sum() / weight.sum()
    odds = low / (1 - low) * share / (1 - share) * size[0] / size[1]
    assert found.precision.bound == pytest.approx(odds / (1 + odds), rel=1e-9)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"give exactly one of precision=P, recall=R, top=K and cost=\(FP, FN\); got none"),
        ({"precision": 0.5, "top": 3}, "got precision=0.5 and top=3"),
        ({"precision": 1.2}, "precision must lie in"),
        ({"recall": 0}, "recall must lie in"),
        ({"top": 401}, "top must be at most the number of rows, 400, got 401"),
        ({"cost": (0, 0)}, "cost must be finite and not 0"),
        ({"cost": (1, 2, 3)}, "cost must be two numbers"),
        ({"cost": 5}, "cost must be two numbers, of a false positive and of a false negative, got 5"),
        ({"top": 5, "budget": 4}, r"budget needs cost=\(FP, FN\)"),
        ({"budget": 4}, r"budget needs cost=\(FP, FN\)"),
        ({"recall": 0.5, "rows": 4}, "rows needs top=K or budget=K"),
        ({"top": 5, "guarantee": True}, "guarantee needs precision=P or recall=R, got top=5"),
        ({"recall": 0.5, "prevalence": 1.0}, "prevalence must lie in"),
        ({"recall": 0.5, "confidence": 1}, "confidence must lie in"),
        ({"precision": 1.0, "guarantee": True}, "guarantee: no threshold has a precision of 1"),
        ({"recall": 0.99, "guarantee": True}, "it takes 299 of them"),
        ({"recall": 1.0, "guarantee": True}, "no number of them shows it: ask for less"),
    ],
)
def test_errors_name_the_argument(options, message):
    scores, labels = sample()
    with pytest.raises(ValueError, match=message):
        choose_threshold(scores, labels, **options)


@pytest.mark.parametrize("threshold", [float("nan"), float("inf"), None, "0.5"])
def test_a_threshold_that_is_no_finite_number_is_refused(threshold):
    scores, labels = sample()
    with pytest.raises((TypeError, ValueError), match=r"threshold must be a (finite )?number"):
        assess_threshold(scores, labels, threshold)


def test_one_class_is_an_error():
    with pytest.raises(ValueError, match="labels must have both classes"):
        choose_threshold([1.0, 2.0], [1, 1], recall=0.5)


@pytest.mark.slow
@pytest.mark.parametrize("rule", decisions.RULES)
@pytest.mark.parametrize("shift", decisions.SHIFTS)
def test_bounds_hold_as_often_as_they_claim(rule, shift):
    result = decisions.missed(rule, shift, 400, trials=300)
    for name in ("precision", "recall", "cost"):
        assert result.get(name, 0.0) <= 0.08


def test_the_precision_of_a_guarantee_is_rarely_missed():
    assert decisions.missed("precision 0.3, guarantee", 2.5, 400, trials=60)["precision"] <= 0.1


@pytest.mark.slow
def test_a_decision_is_stored_and_used_by_predict(client_folder, tmp_path, capsys):
    copy_model(client_folder / "run", tmp_path / "run")
    folder, data = tmp_path / "run", client_folder / "test.csv"
    run("predict", folder, data, "--out", tmp_path / "before.csv")
    assert "decision" not in read_csv(tmp_path / "before.csv")[0]
    assert run("decide", folder, "--recall", 0.7) == 0
    assert "Take the rows with a score of at least" in capsys.readouterr().out
    decision = read_decisions(folder)["bought"]
    assert (decision.rule, decision.requested) == ("recall", 0.7)
    assert load_model(folder).thresholds == {"bought": decision.threshold}
    run("predict", folder, data, "--out", tmp_path / "after.csv", "--sort")
    scored = read_csv(tmp_path / "after.csv")
    assert {row["decision"] for row in scored} == {"0", "1"}
    assert all((float(row["score"]) >= decision.threshold) == (row["decision"] == "1") for row in scored)
    capsys.readouterr()
    assert run("decide", folder, "--cost", "1:5", "--rows", 1000, "--json") == 0
    printed = json.loads(capsys.readouterr().out)
    assert printed["decision"]["threshold"] == read_decisions(folder)["bought"].threshold
    read_manifest(folder, kind="model").verify()


def test_threshold_that_takes_no_test_row_has_no_precision_there(capsys):
    from apmax.cli._console import output, show_table
    from apmax.cli.decide import _table
    from apmax.decide import FolderDecision

    decision = choose_threshold(np.arange(10.0), np.arange(10) >= 7, precision=0.9)
    test = assess_threshold(np.arange(5.0), np.arange(5) == 4, decision.threshold)
    show_table(_table(FolderDecision("y", "held-out", decision, test, 10)), output())
    lines = capsys.readouterr().out.splitlines()
    (precision,) = [line for line in lines if line.startswith("share of positives")]
    assert precision.endswith("none taken")


@pytest.mark.slow
def test_a_threshold_for_arrays_needs_torch_and_numpy_only():
    code = (
        "import sys; sys.modules.update(dict.fromkeys(['pyarrow', 'filelock', 'scipy', 'sklearn', 'lightgbm']))\n"
        "from apmax.decide import choose_threshold; print(choose_threshold([3, 2, 1], [1, 0, 0], recall=1).threshold)"
    )
    shown = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert shown == "3.0\n"


def test_a_decision_on_a_folder_counts_the_weights_of_its_rows(tmp_path):
    rows = [{**row, "w": 1 + number % 3} for number, row in enumerate(client_rows(200))]
    data = {"train": write_csv(tmp_path / "a.csv", rows), "target": "bought", "weight": "w"}
    train_job({"data": data, "committee": {"members": ["linear_ce"], "effort": "quick"}}, out=tmp_path / "run")
    (part,) = load_scored_rows(tmp_path / "run").values()
    expected = choose_threshold(part.scores, part.labels, recall=0.5, sample_weight=part.sample_weight)
    assert decide_folder(tmp_path / "run", recall=0.5).decision == expected
    assert choose_threshold(part.scores, part.labels, recall=0.5) != expected


def test_evaluate_measures_the_stored_threshold_on_the_new_rows_that_count(tmp_path, capsys):
    rows = [{**row, "w": number % 3} for number, row in enumerate(client_rows(300))]
    data = {"train": write_csv(tmp_path / "a.csv", rows[:200]), "target": "bought", "weight": "w"}
    folder, new = tmp_path / "run", write_csv(tmp_path / "b.csv", rows[200:])
    train_job({"data": data, "committee": {"members": ["linear_ce"], "effort": "quick"}}, out=folder)
    options = ("evaluate", folder, new, "--no-report")
    run(*options)
    assert "stored" not in capsys.readouterr().out
    threshold = decide_folder(folder, recall=0.5).decision.threshold
    weight = np.array([row["w"] for row in rows[200:]], float)
    scores, labels = load_model(folder).score(str(new)), np.array([row["bought"] == "yes" for row in rows[200:]])
    taken = scores >= threshold
    precision, recall = (weight @ (taken & labels) / (weight @ group) for group in (taken, labels))
    capsys.readouterr()
    run(*options)
    shown = capsys.readouterr().out
    assert f"The stored decision: score >= {threshold:.6g} takes" in shown
    assert f"precision {precision:.3f} (at least" in shown
    assert f"recall {recall:.3f} (at least" in shown
    run(*options, "--json")
    decision = json.loads(capsys.readouterr().out)["decision"]
    assert decision["positives"] == (labels & (weight > 0)).sum()
    assert decision["recall"][0] == pytest.approx(recall)
    run(*options, "--member", "linear_ce")
    assert "stored" not in capsys.readouterr().out


@pytest.mark.slow
def test_a_refused_decision_changes_nothing_and_a_changed_file_is_found(client_folder, tmp_path, capsys):
    copy_model(client_folder / "run", tmp_path / "run")
    folder = tmp_path / "run"
    before = (folder / "manifest.json").read_bytes()
    assert run("decide", folder, "--top", 10**6) == 1
    assert "--top must be at most" in capsys.readouterr().err
    assert (folder / "manifest.json").read_bytes() == before
    assert not (folder / "decision.json").exists()
    decide_folder(folder, top=5)
    (folder / "decision.json").write_bytes((folder / "decision.json").read_bytes().replace(b"top", b"tip"))
    with pytest.raises(FolderError, match=r"decision.json has changed"):
        load_model(folder)


@pytest.mark.slow
def test_a_model_does_not_differ_from_itself(client_folder, capsys):
    folder, data = client_folder / "run", client_folder / "test.csv"
    assert run("evaluate", folder, data, "--against", folder, "--json") == 0
    result = json.loads(capsys.readouterr().out)
    assert result["first"] == result["second"]
    assert result["difference"]["estimate"] == result["difference"]["low"] == 0
    assert run("evaluate", folder, data, "--against", folder) == 0
    assert "no difference can be told" in capsys.readouterr().out


@pytest.mark.slow
def test_a_comparison_names_the_working_folder(client_folder, tmp_path, capsys, monkeypatch):
    copy_model(client_folder / "run", tmp_path / "other")
    monkeypatch.chdir(client_folder / "run")
    assert run("evaluate", ".", client_folder / "test.csv", "--against", tmp_path / "other") == 0
    assert "\nrun " in capsys.readouterr().out


def test_an_assessed_threshold_between_two_scores_is_kept_as_it_was_given():
    found = assess_threshold([4.0, 3.0, 2.0, 1.0], [1, 0, 1, 0], 2.5)
    assert (found.threshold, found.requested, found.share) == (2.5, 2.5, 0.5)


def test_no_row_is_taken_where_that_is_cheapest():
    found = choose_threshold([3.0, 2.0, 1.0], [0, 0, 1], cost=(100, 1))
    assert found.share == found.recall.estimate == 0
    assert found.threshold > 3
    assert math.isnan(found.precision.estimate)
    assert math.isnan(found.precision.bound)
    assert str(found) == "score >= 3.0000000000000004 takes no row: recall 0.000"
