"""The check of the best epoch by the test part."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
from benchmarks import best_test_epoch
from benchmarks.best_test_epoch import BLOCK, PAGE, check_table, measure, planned_trials, run_missing

from apmax.reproduce import Results, Workspace, plan_searches
from apmax.reproduce.results import read_lines
from apmax.reproduce.run import read_trace
from small_experiments import TINY_CELL, tiny_grid, write_tiny_images

ROOT = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return write_tiny_images(tmp_path_factory.mktemp("data"))


@pytest.fixture
def tiny_trial():
    return plan_searches(tiny_grid(), [TINY_CELL], ["ce"])[0].tuning[0]


def line(epoch_by, data="hiv", model="gine", seed=0):
    epochs = {name: {"epoch": 1, "auprc": value} for name, value in epoch_by.items()}
    return {"data": data, "model": model, "split": None, "seed": seed, **epochs}


def test_page_has_the_table_of_the_committed_runs():
    table = check_table(read_lines(ROOT / best_test_epoch.LINES), Results(ROOT / best_test_epoch.LINES.parent))
    block = f"<!-- {BLOCK} -->\n\n{table}\n\n<!-- /{BLOCK} -->"
    assert block in (ROOT / PAGE).read_text(encoding="utf-8"), "run: python -m benchmarks.best_test_epoch --write"


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


def test_runs_that_the_file_has_are_not_repeated(tmp_path, data_dir, tiny_trial, monkeypatch):
    monkeypatch.setenv("APMAX_DATA", str(data_dir))
    for _ in range(2):
        run_missing([tiny_trial], tmp_path / "lines.jsonl", tmp_path / "work")
    assert len(read_lines(tmp_path / "lines.jsonl")) == 1


def test_table_has_the_means_of_a_cell_and_no_last_epoch_where_a_run_lacks_it(tmp_path):
    both = [
        line({"chosen": 0.25, "best": 0.5, "last": 0.125}),
        line({"chosen": 0.75, "best": 1.0, "last": 0.375}, seed=1),
    ]
    lacks = [line({"chosen": 0.25, "best": 0.5}, "aicures", "mpnn")]
    rows = check_table([*both, *lacks], Results(tmp_path)).splitlines()[2:]
    assert rows == [
        "| AICURES | MPNN | CE | 1 | 0.250 | — | 0.500 | 0.6282 ± 0.0634 |",
        "| HIV | GINE | CE | 2 | 0.500 | 0.250 | 0.750 | 0.2774 ± 0.0101 |",
    ]
