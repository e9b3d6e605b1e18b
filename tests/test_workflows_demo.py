"""The demonstration: its cells, methods, paired differences and picture."""

from __future__ import annotations

import shlex

import numpy as np
import pytest
import torch
from scipy import stats

from apmax.metrics import average_precision, compare
from apmax.workflows import demo, load_model
from apmax.workflows.demo import DEMO_METHODS, DEMO_TASKS, draw_cell
from commands import run


@pytest.mark.parametrize("task", DEMO_TASKS)
def test_cell_has_the_stated_prevalence_in_all_parts(task):
    cell = DEMO_TASKS[task].cells(True)[0]()
    for _, labels in (cell.train, cell.valid, cell.test):
        assert labels.mean().item() == pytest.approx(DEMO_TASKS[task].prevalence, abs=0.01)


def test_parts_of_a_cell_share_no_row():
    cell = draw_cell(torch.arange(1000.0)[:, None], torch.arange(1000) % 2 == 0, 0.1, seed=3)
    rows = torch.cat([features[:, 0] for features, _ in (cell.train, cell.valid, cell.test)])
    assert len(rows.unique()) == len(rows)


@pytest.mark.parametrize("name", DEMO_METHODS)
def test_every_method_learns(name, monkeypatch):
    monkeypatch.setattr(demo, "STEPS", 200)
    method, grid = DEMO_METHODS[name]
    generator = torch.Generator().manual_seed(0)
    positive = torch.arange(1000) < 100
    features = torch.randn(1000, 4, generator=generator) + 1.5 * positive[:, None]
    cell = draw_cell(features, positive, 0.1, seed=0)
    scores = method(cell, 0, grid[1]).test_scores
    assert scores.shape == cell.test[1].shape
    assert average_precision(scores, cell.test[1]).item() > 0.7


def test_validation_rows_tune_every_method_over_as_many_values():
    assert len({len(grid) for _, grid in DEMO_METHODS.values()}) == 1


def test_the_value_with_the_best_validation_ap_is_taken(monkeypatch):
    fits = {0.1: demo.DemoFit(0.3, torch.tensor([1.0])), 0.2: demo.DemoFit(0.9, torch.tensor([2.0]))}
    monkeypatch.setitem(demo.DEMO_METHODS, "fake", (lambda cell, seed, value: fits[value], (0.1, 0.2)))
    assert demo.tuned_scores("fake", None, 0).item() == 2.0


def test_paired_interval_is_the_t_test_of_the_differences():
    generator = np.random.default_rng(0)
    a, b = generator.random(12), generator.random(12)
    got = compare(list(a), list(b))
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (got.low, got.high) == pytest.approx((low, high), abs=1e-8)


@pytest.mark.slow
def test_demo_prints_both_tables_and_draws_the_curves(tmp_path, capsys):
    assert run("demo", "--quick", "--out", tmp_path) == 0
    shown = capsys.readouterr().out
    assert all(shown.count(f"│ {name} ") == len(DEMO_TASKS) for name in DEMO_METHODS)
    assert "Linear trained by AP against cross-entropy" in shown
    (command,) = [line for line in shown.splitlines() if line.startswith("$ apmax train ")]
    folder = tmp_path / "again"
    words = [folder if word == str(tmp_path / "model") else word for word in shlex.split(command)[2:]]
    assert run(*words, "--no-report", "--quiet") == 0
    names = [set(load_model(each).committees[0].table) for each in (folder, tmp_path / "model")]
    assert names[0] == names[1] == {"gbdt", "linear", "linear_ce"}
    assert (tmp_path / "model" / "manifest.json").is_file()
    assert (tmp_path / "demo_pr_curves.png").stat().st_size > 10_000
