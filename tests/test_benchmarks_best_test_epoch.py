"""The check of the best epoch by the test part."""

from __future__ import annotations

import inspect
from collections import Counter

import pytest
from benchmarks.best_test_epoch import WORK, measure, planned_trials, run_missing

from apmax.cli.reproduce import reproduce_command
from apmax.reproduce import Workspace, plan_searches
from apmax.reproduce.results import read_lines
from apmax.reproduce.run import read_trace
from small_experiments import TINY_CELL, tiny_grid, write_tiny_images


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return write_tiny_images(tmp_path_factory.mktemp("data"))


@pytest.fixture
def tiny_trial():
    return plan_searches(tiny_grid(), [TINY_CELL], ["ce"])[0].tuning[0]


def test_every_seed_or_split_of_a_cell_is_run_once():
    trials = planned_trials()
    assert Counter((trial.data, trial.model) for trial in trials) == {
        **{(data, model): 10 for data in ("aicures", "aicures-random") for model in ("gine", "mpnn")},
        **{("hiv", model): 3 for model in ("gine", "mpnn", "ml-mpnn")},
    }
    assert len({trial.key for trial in trials}) == len(trials)
    assert {trial.data for trial in planned_trials(["hiv"])} == {"hiv"}


def test_a_run_has_its_chosen_epoch_the_last_and_the_best(tmp_path, data_dir, tiny_trial):
    workspace = Workspace(tmp_path, data_dir, {"version": "test"})
    found = measure(tiny_trial, workspace)
    trace = read_trace(workspace.run_folder(tiny_trial))
    assert list(trace) == [1, 2]
    assert found["last"] == {"epoch": 2, "auprc": trace[2]}
    assert found["best"]["auprc"] == max(trace.values())
    assert found["chosen"]["auprc"] == pytest.approx(trace[found["chosen"]["epoch"]], abs=1e-5)


def test_runs_of_apmax_reproduce_whose_epochs_have_no_test_scores_are_not_continued():
    assert inspect.signature(reproduce_command).parameters["work"].default != WORK


def test_runs_that_the_file_has_are_not_repeated(tmp_path, data_dir, tiny_trial, monkeypatch):
    monkeypatch.setenv("APMAX_DATA", str(data_dir))
    for _ in range(2):
        run_missing([tiny_trial], tmp_path / "lines.jsonl", tmp_path / "work")
    assert len(read_lines(tmp_path / "lines.jsonl")) == 1
