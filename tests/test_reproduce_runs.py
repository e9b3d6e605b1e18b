"""Runs of a plan on a tiny CIFAR-10: shared first stages, tuning by validation, claims, kills and resumes."""

from __future__ import annotations

import io
import json
import multiprocessing
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from apmax.reproduce import Results, WorkerError, Workspace, plan_searches, run_plan
from apmax.reproduce.results import RESULTS_FILE, append_line
from apmax.reproduce.run import (
    TRACE_FILE,
    epoch_history,
    is_traced,
    precision_recall_points,
    read_scores,
    read_trace,
    run_trial,
    score_metrics,
)
from apmax.reproduce.workers import missing_prerequisites, run_worker
from apmax.train import load_checkpoint
from small_experiments import TINY_CELL, result_lines, tiny_grid, write_tiny_images

CELLS = [TINY_CELL]


@pytest.fixture(scope="module")
def data_dir(tmp_path_factory):
    return write_tiny_images(tmp_path_factory.mktemp("data"))


def workspace_in(tmp_path, data_dir):
    return Workspace(tmp_path / "work", data_dir, {"version": "test"})


def run_here(plan, tmp_path, data_dir):
    """Run a plan in this process, and return the results and all progress that was reported."""
    results, reported = Results(tmp_path / "results"), []
    run_worker(plan, results, workspace_in(tmp_path, data_dir), report=reported.append)
    return results, reported


def started_runs(reported):
    """Return the labels of the runs that were started, in order."""
    return [progress.label for progress in reported if progress.label and progress.most == 0]


@pytest.mark.slow
def test_every_kind_of_row_comes_to_a_result(tmp_path, data_dir):
    methods = [
        "ce",
        "soap",
        "auc_m",
        "ldam",
        "apmax",
        "ce_joint",
        "ce_mined",
        "ce_continued",
        "ce_averaged",
        "exact_head",
        "ce_ensemble",
    ]
    plan = plan_searches(tiny_grid(), CELLS, methods)
    results, _ = run_here(plan, tmp_path, data_dir)
    final = {search.method: results.get(search.final(results.lines)[0].key) for search in plan}
    assert all(line["test"]["positives"] == 5 and line["test"]["rows"] == 30 for line in final.values())
    assert {line["method"] for line in final.values()} == set(methods)
    # An ensemble's other members are runs of their own.
    assert sum(line["method"] == "ce" for line in results.lines.values()) == 4


def test_the_first_stage_is_trained_once_for_all_methods(tmp_path, data_dir):
    plan = plan_searches(tiny_grid(), CELLS, ["soap", "focal", "minmax"])
    _, reported = run_here(plan, tmp_path, data_dir)
    assert started_runs(reported) == [f"cifar10 narrow {method} seed 0" for method in ("ce", "soap", "focal", "minmax")]


def test_a_second_stage_begins_from_the_first_stages_best_weights_with_a_new_head(tmp_path, data_dir):
    # With a rate of nearly nothing the body stays what the first stage left.
    grid, workspace = tiny_grid(lr=1e-12, weight_decay=0.0), workspace_in(tmp_path, data_dir)
    run_here(plan_searches(grid, CELLS, ["ce"]), tmp_path, data_dir)
    trial = plan_searches(grid, CELLS, ["focal"])[0].tuning[0]
    assert not missing_prerequisites(trial, workspace)
    run_trial(trial, workspace)
    first, second = (
        torch.load(workspace.run_folder(each) / "model.pt", weights_only=True) for each in (trial.first, trial)
    )
    torch.testing.assert_close(second["layer4.1.conv2.weight"], first["layer4.1.conv2.weight"])
    assert not torch.allclose(second["fc.weight"], first["fc.weight"])


def test_finished_runs_are_not_repeated(tmp_path, data_dir):
    plan = plan_searches(tiny_grid(), CELLS, ["ce", "soap"])
    run_here(plan, tmp_path, data_dir)
    before = (tmp_path / "results" / RESULTS_FILE).read_bytes()
    _, reported = run_here(plan, tmp_path, data_dir)
    assert [progress.label for progress in reported] == [None]
    assert (tmp_path / "results" / RESULTS_FILE).read_bytes() == before


def test_validation_chooses_and_other_seeds_take_the_choice(tmp_path, data_dir):
    plan = plan_searches(tiny_grid(), CELLS, ["soap"], budget=3, seeds=2)
    results, _ = run_here(plan, tmp_path, data_dir)
    tried = [line for line in results.lines.values() if line["method"] == "soap" and line["seed"] == 0]
    assert sorted(line["candidate"] for line in tried) == [0, 1, 2]
    best = max(tried, key=lambda line: (line["valid"]["ap"], -line["candidate"]))
    others = [line for line in results.lines.values() if line["method"] == "soap" and line["seed"] == 1]
    assert [line["candidate"] for line in others] == [best["candidate"]]
    assert others[0]["settings"] == best["settings"]


def test_the_test_part_decides_nothing(tmp_path, data_dir):
    search = plan_searches(tiny_grid(), CELLS, ["soap"], budget=2)[0]
    keys = [trial.key for trial in search.tuning]
    lines = {
        keys[0]: {"valid": {"ap": 0.2}, "test": {"ap": 0.9}},
        keys[1]: {"valid": {"ap": 0.3}, "test": {"ap": 0.1}},
    }
    assert search.chosen(lines).candidate == 1


def test_a_diverged_configuration_is_never_chosen():
    search = plan_searches(tiny_grid(), CELLS, ["soap"], budget=2)[0]
    keys = [trial.key for trial in search.tuning]
    lines = {keys[0]: {"valid": None, "diverged": "…"}, keys[1]: {"valid": {"ap": 0.0}}}
    assert search.chosen(lines).candidate == 1


def test_a_diverging_run_is_a_result_that_says_so(tmp_path, data_dir):
    plan = plan_searches(tiny_grid(first_lr=1e30), CELLS, ["ce"])
    results, _ = run_here(plan, tmp_path, data_dir)
    line = results.get(plan[0].tuning[0].key)
    assert line["test"] is None
    assert "finite" in line["diverged"]


@pytest.mark.parametrize("method", ["soap", "ce_ensemble", "soap_consistency"])
def test_run_that_begins_from_a_diverged_run_has_no_value(method, tmp_path, data_dir):
    plan = plan_searches(tiny_grid(first_lr=1e30), CELLS, [method])
    results, reported = run_here(plan, tmp_path, data_dir)
    (trial,) = plan[0].final(results.lines)
    assert results.get(trial.key)["test"] is None
    assert "cifar10 narrow ce seed 0, which it begins from, diverged" in results.get(trial.key)["diverged"]
    started = started_runs(reported)
    assert len(started) == len(set(started))


def test_weights_of_an_unfinished_first_stage_are_not_used(tmp_path, data_dir):
    (search,) = plan_searches(tiny_grid(), CELLS, ["soap"])
    trial, workspace = search.tuning[0], workspace_in(tmp_path, data_dir)

    def leave(epoch, most):
        raise MemoryError

    with pytest.raises(MemoryError):
        run_trial(trial.first, workspace, report=leave)
    assert (workspace.run_folder(trial.first) / "model.pt").exists()
    assert missing_prerequisites(trial, workspace) == [trial.first]


def test_an_ensemble_averages_its_members_scores(tmp_path, data_dir):
    plan = plan_searches(tiny_grid(), CELLS, ["ce_ensemble"])
    results, _ = run_here(plan, tmp_path, data_dir)
    trial, workspace = plan[0].final(results.lines)[0], workspace_in(tmp_path, data_dir)
    each = [read_scores(workspace.run_folder(member))["test"] for member in trial.members]
    assert len(each) == 4
    torch.testing.assert_close(read_scores(workspace.run_folder(trial))["test"], sum(each) / 4)


def test_traced_methods_have_a_test_value_for_every_epoch(tmp_path, data_dir):
    plan = plan_searches(tiny_grid(), CELLS, ["soap", "focal"])
    results, _ = run_here(plan, tmp_path, data_dir)
    histories = results.histories()
    assert [history["method"] for history in histories.values()] == ["soap"]
    (history,) = histories.values()
    assert len(history["test_auprc"]) == len(history["steps"]) == 2
    assert None not in history["test_auprc"]
    assert (workspace_in(tmp_path, data_dir).run_folder(plan[0].tuning[0]) / TRACE_FILE).exists()


def test_an_epoch_that_was_checkpointed_but_not_traced_is_traced_when_the_run_goes_on(tmp_path, data_dir):
    run_here(plan_searches(tiny_grid(), CELLS, ["ce"]), tmp_path, data_dir)
    trial, workspace = plan_searches(tiny_grid(), CELLS, ["soap"])[0].tuning[0], workspace_in(tmp_path, data_dir)
    run_trial(trial, workspace, trace=True)
    whole = read_trace(workspace.run_folder(trial))
    text = (workspace.run_folder(trial) / TRACE_FILE).read_text()
    (workspace.run_folder(trial) / TRACE_FILE).write_text(text.splitlines(keepends=True)[0])
    run_trial(trial, workspace, trace=True)
    assert load_checkpoint(workspace.run_folder(trial) / "checkpoint.pt")["epoch"] == 2
    assert list(whole) == [1, 2]
    assert read_trace(workspace.run_folder(trial)) == whole


def test_epochs_of_two_stages_are_traced_apart(tmp_path, data_dir):
    trial, workspace = plan_searches(tiny_grid(), CELLS, ["apmax"])[0].tuning[0], workspace_in(tmp_path, data_dir)
    run_trial(trial, workspace, trace=True)
    first, second = (stage.epochs for stage in trial.stages)
    assert list(read_trace(workspace.run_folder(trial))) == list(range(1, first + second + 1))
    assert len(set(epoch_history(trial, workspace)["test_auprc"])) > max(first, second)


def test_only_runs_of_the_convergence_figure_are_traced():
    shown = [("cifar10", "narrow", "soap"), ("aicures", "gine", "minmax")]
    others = [("cifar10", "narrow", "ce"), ("aicures", "ml-mpnn", "soap"), ("hiv", "gine", "soap")]
    traced = [is_traced(plan_searches(tiny_grid(), [(d, n)], [m])[0].tuning[0]) for d, n, m in shown + others]
    assert traced == [True, True, False, False, False]


def test_a_result_that_another_command_had_first_is_not_written_twice(tmp_path, data_dir):
    plan, results = plan_searches(tiny_grid(), CELLS, ["ce"]), Results(tmp_path / "results")
    key = plan[0].tuning[0].key

    def outrun(progress):
        if progress.label and key not in Results(tmp_path / "results").lines:
            append_line(tmp_path / "results" / RESULTS_FILE, {"key": key, "test": {"ap": 0.5}, "valid": {"ap": 0.5}})

    (tmp_path / "results").mkdir()
    run_worker(plan, results, workspace_in(tmp_path, data_dir), report=outrun)
    assert len((tmp_path / "results" / RESULTS_FILE).read_text().splitlines()) == 1


def test_a_lost_work_folder_is_made_again_where_others_need_it(tmp_path, data_dir):
    first = plan_searches(tiny_grid(), CELLS, ["ce"])
    results, _ = run_here(first, tmp_path, data_dir)
    lines = dict(results.lines)
    run_worker(
        plan_searches(tiny_grid(), CELLS, ["soap"]),
        results,
        Workspace(tmp_path / "elsewhere", data_dir, {"version": "test"}),
        report=lambda progress: None,
    )
    assert len(results.lines) == 2
    assert all(results.lines[key] == line for key, line in lines.items())
    assert len((tmp_path / "results" / RESULTS_FILE).read_text().splitlines()) == 2


def test_metrics_of_scores_worked_out_by_hand():
    scores, labels = torch.tensor([0.9, 0.8, 0.7, 0.6]), torch.tensor([1.0, 0.0, 1.0, 0.0])
    found = score_metrics(scores, labels)
    # AP = (1 + 2/3)/2; trapezoid through (0, 1), (.5, 1), (.5, .5), (1, 2/3); AUROC: 3 of 4 pairs.
    assert (found["rows"], found["positives"]) == (4, 2)
    assert found["ap"] == pytest.approx(5 / 6, abs=1e-6)
    assert found["auprc"] == pytest.approx(0.5 + 0.5 * (0.5 + 2 / 3) / 2, abs=1e-6)
    assert found["auroc"] == pytest.approx(0.75, abs=1e-6)


def test_curve_is_the_best_precision_at_or_beyond_each_recall():
    points = dict(
        map(tuple, precision_recall_points(torch.tensor([4.0, 3.0, 2.0, 1.0]), torch.tensor([0.0, 1.0, 1.0, 0.0])))
    )
    assert points[0.0] == 1.0
    assert points[0.5] == points[1.0] == pytest.approx(2 / 3, abs=1e-4)


@pytest.mark.slow
def test_workers_share_a_plan_and_run_nothing_twice(tmp_path, data_dir):
    plan = plan_searches(tiny_grid(), CELLS, ["ce", "soap", "focal", "cb_ce"])
    results = Results(tmp_path / "results")
    states = list(run_plan(plan, results, workspace_in(tmp_path, data_dir), workers=2))
    assert states[-1].done == states[-1].total == 4
    lines = [json.loads(line) for line in (tmp_path / "results" / RESULTS_FILE).read_text().splitlines()]
    assert sorted(line["method"] for line in lines) == ["cb_ce", "ce", "focal", "soap"]


@pytest.mark.slow
def test_runs_that_another_command_finishes_in_other_cells_are_not_printed(tmp_path, data_dir):
    from rich.console import Console

    from apmax.cli.progress import show_progress

    results, shown = Results(tmp_path / "results"), io.StringIO()
    foreign = next(iter(result_lines("aicures", "gine", "ce", {"fold0": 0.3}).values()))
    (tmp_path / "results").mkdir()
    append_line(tmp_path / "results" / RESULTS_FILE, foreign)
    console, before = Console(file=shown, width=200), signal.getsignal(signal.SIGTERM)
    show_progress(
        console,
        plan_searches(tiny_grid(), CELLS, ["ce"]),
        results,
        workspace_in(tmp_path, data_dir),
        workers=1,
        threads=1,
    )
    assert signal.getsignal(signal.SIGTERM) is before
    assert len(results.lines) == 2
    assert [line.split(":")[:2] for line in shown.getvalue().splitlines()] == [["1 of 1", " cifar10 narrow ce seed 0"]]


@pytest.mark.slow
def test_data_that_is_not_there_ends_the_plan_with_its_reason(tmp_path):
    plan = plan_searches(tiny_grid(), CELLS, ["ce"])
    with pytest.raises(WorkerError, match="cifar"):
        list(run_plan(plan, Results(tmp_path / "results"), workspace_in(tmp_path, tmp_path / "nowhere"), workers=2))
    assert not (tmp_path / "results").exists()


@pytest.mark.slow
def test_a_run_that_fails_is_named_and_its_traceback_kept(tmp_path):
    (tmp_path / "cifar10").mkdir()
    np.savez(tmp_path / "cifar10" / "cifar10_imbalanced.npz", x_train=np.zeros(3))
    plan = plan_searches(tiny_grid(), CELLS, ["ce"])
    with pytest.raises(WorkerError, match=r"cifar10 narrow ce seed 0: \w+Error: .*traceback is in .*traceback.txt"):
        list(run_plan(plan, Results(tmp_path / "results"), workspace_in(tmp_path, tmp_path), workers=1))
    assert "load_trial_data" in (tmp_path / "work" / "traceback.txt").read_text()


def stop_the_worker(states):
    others = set(multiprocessing.active_children())
    for state in states:
        if state.workers[0].epoch == 1:
            (worker,) = set(multiprocessing.active_children()) - others
            os.kill(worker.pid, signal.SIGTERM)


@pytest.mark.slow
def test_a_stopped_worker_does_not_count_as_finished(tmp_path, data_dir):
    plan = plan_searches(tiny_grid(first_epochs=10**6), CELLS, ["ce"])
    states = run_plan(plan, Results(tmp_path / "results"), workspace_in(tmp_path, data_dir), workers=1)
    with pytest.raises(WorkerError, match="a worker process was killed"):
        stop_the_worker(states)


PROGRAM = """
import sys
sys.path.insert(0, {tests!r})
from pathlib import Path
from apmax.reproduce import Results, Workspace, plan_searches
from apmax.reproduce.workers import run_worker
from small_experiments import TINY_CELL, tiny_grid
plan = plan_searches(tiny_grid(), [TINY_CELL], ["ce", "soap"])
workspace = Workspace(Path({work!r}), {data!r}, {{"version": "test"}})
run_worker(plan, Results({results!r}), workspace, report=lambda progress: print(progress, flush=True))
"""


@pytest.mark.slow
def test_a_killed_run_goes_on_and_ends_the_same(tmp_path, data_dir):
    plan = plan_searches(tiny_grid(), CELLS, ["ce", "soap"])
    whole, _ = run_here(plan, tmp_path / "whole", data_dir)
    paths = {"results": str(tmp_path / "results"), "work": str(tmp_path / "work"), "data": str(data_dir)}
    program = PROGRAM.format(tests=str(Path(__file__).parent), **paths)
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    # Killed after so many reports: before the first epoch, and after the first epoch of each of the two runs.
    for reports in (1, 2, 3, 2, None):
        process = subprocess.Popen([sys.executable, "-c", program], env=environment, stdout=subprocess.PIPE)
        for count, _ in enumerate(process.stdout, 1):
            if count == reports:
                process.kill()
                break
        process.stdout.close()
        assert process.wait() == (0 if reports is None else -signal.SIGKILL)
    killed = Results(tmp_path / "results")
    assert killed.lines.keys() == whole.lines.keys()
    for key, line in whole.lines.items():
        assert killed.get(key)["test"] == line["test"]
        assert killed.get(key)["chosen"] == line["chosen"]
