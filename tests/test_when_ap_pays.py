"""The study of when AP training pays: its problems against scipy's densities, its runs, and its page."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path

import numpy as np
import pytest
from benchmarks.when_ap_pays import study
from benchmarks.when_ap_pays.page import (
    AP_METHODS,
    CE_METHODS,
    LINES,
    PAGE,
    best_by_validation,
    comparable_lines,
    page_block,
    summarise_cell,
)
from benchmarks.when_ap_pays.problems import TOPS, Cell, make_problem
from benchmarks.when_ap_pays.study import load_parts, plan, read_study, run_study
from scipy import stats
from sklearn.metrics import average_precision_score

ROOT = Path(__file__).parent.parent


@pytest.mark.parametrize("top", TOPS)
def test_log_odds_are_those_of_the_densities(top):
    generator = np.random.default_rng(0)
    problem = make_problem(Cell(top, "linear"), generator)
    points = problem.sample(50, generator).features
    densities = {
        kind: sum(
            part.mass * stats.multivariate_normal(part.mean).pdf(points)
            for part in problem.components
            if (part.kind == "positive") == (kind == "positive")
        )
        for kind in ("positive", "negative")
    }
    assert problem.log_odds(points) == pytest.approx(np.log(densities["positive"] / densities["negative"]), rel=1e-9)


@pytest.mark.parametrize("top", TOPS)
@pytest.mark.parametrize("prevalence", [0.001, 0.1])
def test_masses_and_samples_have_the_prevalence(top, prevalence):
    generator = np.random.default_rng(1)
    problem = make_problem(Cell(top, "linear", prevalence=prevalence), generator)
    assert sum(part.mass for part in problem.components) == pytest.approx(1)
    assert problem.prevalence == pytest.approx(prevalence)
    rows = problem.sample(5_000, generator)
    assert rows.labels.mean() == pytest.approx(max(2, round(5_000 * prevalence)) / 5_000)
    test = problem.sample_test(generator)
    assert (test.weight * test.labels).sum() / test.weight.sum() == pytest.approx(prevalence)


def test_problem_without_room_for_the_bulk_is_refused():
    with pytest.raises(ValueError, match=r"prevalence 0.4 leaves no room"):
        make_problem(Cell("linear", "linear", prevalence=0.4), np.random.default_rng(0))


def test_nonlinear_cue_is_invisible_to_a_line_and_separates_the_top():
    problem = make_problem(Cell("nonlinear", "linear", clusters=1), np.random.default_rng(0))
    means = {
        kind: np.mean([part.mean for part in problem.components if part.kind == kind], axis=0)
        for kind in ("positive", "contested")
    }
    assert means["positive"] == pytest.approx(means["contested"])
    test = problem.sample_test(np.random.default_rng(1))
    top = test.cluster >= 0
    within = average_precision_score(test.labels[top], problem.log_odds(test.features[top]))
    assert within > 0.8


def test_wrong_labels_are_rows_of_the_bulk():
    problem = make_problem(Cell("linear", "linear", noise=0.2), np.random.default_rng(0))
    rows = problem.sample(10_000, np.random.default_rng(1))
    positive = rows.cluster[rows.labels == 1]
    assert len(positive) == 200
    assert (positive == -1).sum() == 40


def test_models_and_steps_share_rows_and_seeds_do_not():
    first = load_parts(Cell("linear", "linear", rows=500), 0)
    other = load_parts(Cell("linear", "wide", rows=500, steps=10), 0)
    assert np.array_equal(first.train.features, other.train.features)
    assert np.array_equal(first.test.features, other.test.features)
    assert not np.array_equal(first.train.features, load_parts(Cell("linear", "linear", rows=500), 1).train.features)


def test_plan_begins_with_the_map_and_names_no_run_twice():
    runs = [(cell, seed, method) for cell, seed, methods in plan() for method in methods]
    assert len(runs) == len(set(runs))
    assert {cell.model for cell, *_ in runs[:40]} == {"linear", "medium"}
    assert {cell.rows for cell, *_ in runs} == {1_000, 10_000, 100_000}
    assert {cell.prevalence for cell, *_ in runs} >= {0.001, 0.2}


@pytest.mark.slow
def test_stopped_study_continues_with_the_missing_methods(tmp_path, monkeypatch):
    cell, path, reports = Cell("linear", "linear", rows=400, prevalence=0.1, steps=8), tmp_path / "map.jsonl", []
    methods = [name for name in study.METHODS if name != "ce_then_ap"]
    monkeypatch.setattr(study, "plan", lambda: iter([(cell, 0, methods)]))
    run_study(path, seconds=60, origin={"commit": "abc"}, report=reports.append)
    assert len(reports) == len(methods)
    whole = path.read_bytes()
    kept = whole.splitlines(keepends=True)[:3]
    path.write_bytes(b"".join(kept) + b'{"top": "lin')
    run_study(path, seconds=60, origin={"commit": "abc"}, report=reports.append)
    assert len(reports) == 2 * len(methods) - 3

    def without_seconds(raw):
        return [{k: v for k, v in json.loads(line).items() if k != "seconds"} for line in raw.splitlines()]

    assert without_seconds(path.read_bytes()) == without_seconds(whole)


def test_processes_share_the_runs_without_overlap(tmp_path, monkeypatch):
    cells = [Cell("linear", "linear", rows=400, prevalence=0.1, steps=8, clusters=number) for number in (1, 2, 3)]
    monkeypatch.setattr(study, "plan", lambda: iter([(cell, 0, ["logistic"]) for cell in cells]))
    found = []
    for number in range(2):
        reports = []
        run_study(tmp_path / "map.jsonl", seconds=60, origin={}, report=reports.append, share=(number, 2))
        found.append(len(reports))
    assert found == [2, 1]
    assert [cell for cell, *_ in read_study(tmp_path / "map.jsonl")] == [cells[0], cells[2], cells[1]]


def small_lines(values):
    """Return lines of one cell: {(seed, method): (validation AP, test AP)}."""
    cell = Cell("linear", "medium")
    return cell, {
        (cell, seed, method): {
            **asdict(cell),
            "seed": seed,
            "method": method,
            "setting": study.RATES[-1],
            "valid": {f"{rate:g}": 0.0 for rate in study.RATES} | {f"{study.RATES[-1]:g}": valid},
            "test": test,
            "best_possible": 1.0,
        }
        for (seed, method), (valid, test) in values.items()
    }


def test_validation_chooses_the_method_on_both_sides():
    values = {(0, "ce"): (0.5, 0.3), (0, "ce_averaged"): (0.6, 0.4)}
    values |= {(0, "ap"): (0.9, 0.45), (0, "ap_ce"): (0.7, 0.99), (0, "ap_exact"): (0.1, 0.2)}
    cell, lines = small_lines(values)
    own = comparable_lines(lines, cell, 0)
    assert best_by_validation(own, CE_METHODS)["method"] == "ce_averaged"
    assert best_by_validation(own, AP_METHODS)["method"] == "ap"
    summary = summarise_cell(lines, cell)
    assert summary.gains["best_ap"].difference == pytest.approx(0.05)
    assert summary.gains["ap_ce"].difference == pytest.approx(0.59)


def test_methods_with_other_rates_are_not_compared():
    values = {(0, method): (0.5, 0.3) for method in (*CE_METHODS[:2], *AP_METHODS)}
    cell, lines = small_lines(values)
    del lines[cell, 0, "ap"]["valid"]["0.001"]
    assert summarise_cell(lines, cell) is None
    cell, lines = small_lines(values)
    lines[cell, 0, "ap_exact"]["setting"] = 0.001
    assert summarise_cell(lines, cell) is None, "the exact layer is of another model than averaged CE"


@pytest.mark.slow
def test_results_with_fewer_rates_are_completed(tmp_path, monkeypatch):
    cell, path = Cell("linear", "linear", rows=400, prevalence=0.1, steps=8), tmp_path / "map.jsonl"
    monkeypatch.setattr(study, "plan", lambda: iter([(cell, 0, ["ce_averaged", "ap_exact"])]))
    rates = study.RATES
    monkeypatch.setattr(study, "RATES", rates[:1])
    run_study(path, seconds=60, origin={}, report=str)
    monkeypatch.setattr(study, "RATES", rates[:2])
    run_study(path, seconds=60, origin={}, report=str)
    completed = read_study(path)
    path.unlink()
    run_study(path, seconds=60, origin={}, report=str)
    at_once = read_study(path)
    for line in [*completed.values(), *at_once.values()]:
        del line["seconds"]
    assert completed == at_once
    assert set(completed[cell, 0, "ce_averaged"]["valid"]) == {f"{rate:g}" for rate in rates[:2]}


def test_seeds_with_missing_methods_are_left_out():
    cell, lines = small_lines({(0, "ce"): (0.5, 0.3), (0, "ce_averaged"): (0.6, 0.4), (0, "ap"): (0.9, 0.45)})
    assert summarise_cell(lines, cell) is None


def test_page_is_made_from_the_results_alone():
    text = (ROOT / PAGE).read_text(encoding="utf-8")
    assert page_block(read_study(ROOT / LINES)) in text, "run: python -m benchmarks.when_ap_pays --write"
