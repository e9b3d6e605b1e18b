"""Fits of committees: threads, one split, times, progress, and the rows of folds."""

from __future__ import annotations

import queue
import subprocess
import sys
import threading
import time
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

pytest.importorskip("lightgbm")

from apmax.committee import (
    ArrayFeatures,
    FitProgress,
    FitTask,
    crossfit,
    find_members,
    fit_committee,
    tasks,
)
from apmax.committee.crossfit import make_folds, number_of_folds
from apmax.committee.members import Cost, Member
from apmax.committee.storage import load_committee, save_committee
from apmax.committee.table_members import LinearMember
from apmax.committee.tasks import FINAL, FoldRows
from apmax.metrics import average_precision
from small_committees import FAST, shifted_table, training_rows


class TestThreads:
    @pytest.mark.parametrize("folds", [1, 2])
    def test_scores_do_not_depend_on_the_number_of_threads(self, folds):
        X, y = shifted_table()
        one, two = (fit_committee(training_rows(X, y), find_members(FAST), folds=folds, n_jobs=n) for n in (1, 2))
        assert np.array_equal(one.score(X, n_jobs=1), two.score(X, n_jobs=3))

    @pytest.mark.slow
    def test_scores_do_not_depend_on_the_number_of_processes(self):
        X, y = shifted_table(rows=120)
        members = find_members(["linear", "mlp", "mlp_ce"])
        scores = [fit_committee(training_rows(X, y), members, folds=2, n_jobs=n).score(X) for n in (1, 2, 4)]
        assert np.array_equal(scores[0], scores[1])
        assert np.array_equal(scores[0], scores[2])

    def test_the_longest_fits_of_a_fold_begin_first(self):
        begun = []

        def member(name, seconds):
            def fit(data):
                begun.append((data.seed, name))
                return LinearMember((0, 0, 0), np.ones(3), 0.0)

            return Member(fit, None, "", Cost(seconds, 0, 0))

        X, y = shifted_table()
        members = {name: member(name, seconds) for name, seconds in {"short": 1, "long": 3, "middle": 2}.items()}
        fit_committee(training_rows(X, y), members, folds=2, n_jobs=1)
        assert begun == [(fold, name) for fold in (0, 1) for name in ("long", "middle", "short")]

    def test_an_error_in_a_thread_is_raised(self):
        def fail(data):
            raise RuntimeError("no such model")

        X, y = shifted_table()
        members = {**find_members(["linear"]), "bad": Member(fail, None, "", Cost(1, 0, 0))}
        with pytest.raises(RuntimeError, match="no such model"):
            fit_committee(training_rows(X, y), members, folds=2, n_jobs=2)

    @pytest.mark.slow
    @pytest.mark.parametrize("kept", [False, True])
    def test_an_interrupted_program_ends_while_torch_fits_in_a_thread(self, kept):
        # With the traceback kept, as by an interactive session, the generator of results is not closed before the exit.
        program = f"""
import sys, numpy as np, torch
from apmax.committee.tasks import *
from apmax.committee.members import Cost, Member
begun = threading.Event()
def train(data):
    layers = torch.nn.Sequential(*(torch.nn.Linear(4, 4) for _ in range(100)))
    while True:
        begun.set()
        layers(torch.ones(8, 4)).sum().backward()
def fail(data):
    begun.wait()
    raise KeyboardInterrupt
members = {{"net": Member(train, None, "", Cost(1, 0, 0), serial=True), "other": Member(fail, None, "", Cost(1, 0, 0))}}
class Rows:
    encoded = release = lambda self: None
    seconds = lambda self, member: 1.0
    data = lambda self, *_: (None, None)
try:
    list(run_tasks([FitTask(0, "net"), FitTask(0, "other")], members, {{0: Rows()}}, n_jobs=2))
except KeyboardInterrupt as error:
    kept = error if {kept} else None
    sys.exit(130)
"""
        for _ in range(3):
            ended = subprocess.run(
                [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
            )
            assert (ended.returncode, ended.stderr) == (130, "")

    def test_threads_of_torch_are_restored(self):
        import torch

        before = torch.get_num_threads()
        X, y = shifted_table()
        fit_committee(training_rows(X, y), find_members(["linear"]), folds=2)
        assert torch.get_num_threads() == before


class TestOneSplit:
    def test_the_model_is_fitted_to_all_rows_and_calibrated_on_held_out_ones(self):
        X, y = shifted_table()
        seen: list[int] = []

        def fit(data):
            seen.append(len(data.labels))
            return find_members(["linear"])["linear"].fit(data)

        fitted = fit_committee(training_rows(X, y), {"spy": Member(fit, None, "", Cost(1, 0, 0))}, folds=1)
        assert seen == [160, 200]
        assert fitted.blend.weights.tolist() == [1.0]
        assert len(fitted.folds) == 1
        assert fitted.leaderboard.notes[0].startswith("the members were fitted again to all rows")
        probability = 1 / (1 + np.exp(-fitted.log_odds(fitted.score(X))))
        assert abs(probability.mean() - y.mean()) < 0.1

    def test_a_given_split_is_used(self):
        X, y = shifted_table()
        rows = np.arange(200)
        fitted = fit_committee(training_rows(X, y), find_members(["gbdt"]), folds=[(rows[:120], rows[120:])])
        alone = average_precision(fitted.score(X), y).item()
        assert alone > 0.8

    @pytest.mark.parametrize("case", ["one positive", "one group"])
    def test_rows_that_allow_no_split_are_fitted_without_scores(self, case, tmp_path):
        X, y = shifted_table(positives=1 if case == "one positive" else 40)
        groups = None if case == "one positive" else y.astype(int)
        assert number_of_folds(y, groups, 5) < 2
        fitted = fit_committee(training_rows(X, y, groups=groups), find_members(["gbdt"]), folds=1)
        assert np.isnan(fitted.leaderboard.blend.ap.estimate)
        assert "not compared" in fitted.leaderboard.notes[-1]
        assert np.isfinite(fitted.log_odds(fitted.score(X))).all()
        save_committee(tmp_path, fitted)
        loaded = load_committee(tmp_path)
        assert np.array_equal(loaded.score(X), fitted.score(X))
        assert loaded.leaderboard.notes == fitted.leaderboard.notes


class TestTimes:
    def test_final_members_see_all_rows_with_the_rounds_of_the_folds(self):
        X, y = shifted_table(rows=300, positives=60)
        calls: list[tuple[int, object]] = []
        gbdt = find_members(["gbdt"])["gbdt"]

        def fit(data):
            calls.append((len(data.labels), data.rounds))
            return gbdt.fit(data)

        members = {"spy": Member(fit, gbdt.read, ".txt", gbdt.cost)}
        found = []
        fitted = fit_committee(
            training_rows(X, y, times=np.arange(300.0)), members, folds=3, on_result=lambda r: found.append(r)
        )
        rounds = [result.model.rounds[0] for result in found if result.task.fold != FINAL]
        assert calls[-1] == (300, (round(float(np.median(rounds))),))
        assert all(fixed is None for _, fixed in calls[:-1])
        assert fitted.folds[0].members["spy"].rounds == calls[-1][1]
        last = next(result for result in found if result.task.fold == 2)
        assert fitted.folds[0].location["spy"] == pytest.approx(last.scores.mean())

    def test_number_of_folds_counts_windows(self):
        y = np.array([0.0, 1, 0, 1, 0, 1, 0, 1])
        assert number_of_folds(y, None, 5, times=np.zeros(8)) == 0
        assert number_of_folds(y, None, 5, times=np.arange(8)) >= 2

    def test_one_split_holds_out_the_latest_rows(self):
        X, y = shifted_table()
        times = np.random.default_rng(0).permutation(200).astype(float)
        ((train, held_out),) = make_folds(training_rows(X, y, times=times), 1, seed=0)
        assert times[train].max() < times[held_out].min()


class TestProgress:
    def test_tasks_are_counted_up_front_and_named(self):
        X, y = shifted_table()
        states: list[FitProgress] = []
        fit_committee(training_rows(X, y), find_members(FAST), folds=3, on_progress=states.append)
        assert [state.finished for state in states] == list(range(7))
        assert {state.total for state in states} == {6}
        assert states[0].task is None
        assert {state.task for state in states[1:]} == {FitTask(fold, name) for fold in range(3) for name in FAST}
        assert all(state.seconds > 0 and state.remaining >= 0 for state in states[1:])
        assert states[0].remaining > 0
        assert states[-1].remaining == 0

    def test_finished_tasks_of_an_earlier_call_count(self):
        X, y = shifted_table()
        members, results, states = find_members(FAST), {}, []
        fit_committee(
            training_rows(X, y),
            members,
            folds=1,
            on_result=lambda result: results.update({(result.task.fold, result.task.name): result}),
        )
        del results[FINAL, "linear"]
        fit_committee(training_rows(X, y), members, folds=1, finished=results, on_progress=states.append)
        assert [(state.finished, state.total) for state in states] == [(3, 4), (4, 4)]


def test_encoded_rows_are_shared_while_a_fit_has_them_and_freed_afterwards():
    rows, labels = np.arange(12.0)[:, None], np.array([0.0, 1.0] * 6)
    features, every = ArrayFeatures(rows), np.arange(12)
    part = FoldRows(
        features, features.fit(every, np.ones(12)), labels, np.ones(12), every[:8], every[8:], stopping=None, seed=0
    )
    first = part.encoded()
    assert part.encoded() is first
    assert (len(first.train), len(first.held_out)) == (8, 4)
    watched = weakref.ref(first.train)
    del first
    assert watched() is None
    assert np.array_equal(part.encoded().held_out, part.encoding.matrix(rows[8:]))


def test_tables_are_encoded_in_parts_to_the_same_matrix(monkeypatch):
    rows = np.random.default_rng(0).normal(size=(50, 3))
    features, every = ArrayFeatures(rows), np.arange(50)
    encoding = features.fit(every, np.ones(50))
    taken = []
    monkeypatch.setattr("apmax.committee.features.ENCODED_ROWS", 7)
    monkeypatch.setattr(
        ArrayFeatures, "take", lambda self, rows: taken.append(len(rows)) or self.array[rows], raising=True
    )
    part = FoldRows(features, encoding, np.ones(50), np.ones(50), every[::-1], every[:0], stopping=None, seed=0)
    found = part.encoded()
    assert np.array_equal(found.train, encoding.matrix(rows[::-1]))
    assert found.held_out.shape == (0, 3)
    assert (max(taken), sum(taken)) == (7, 50)


def test_features_of_a_new_kind_encode_rows_their_own_way():
    class Named:
        """Rows whose original form is a name, which no encoding reads."""

        def __len__(self):
            return 6

        def take(self, rows):
            return [f"row {row}" for row in rows]

        def fit(self, rows, sample_weight):
            return ArrayFeatures(np.arange(6.0)[:, None]).fit(rows, sample_weight)

        def encode(self, rows, encoding):
            return encoding.matrix(np.asarray(rows, float)[:, None])

    features, every = Named(), np.arange(6)
    encoding = features.fit(every, np.ones(6))
    part = FoldRows(features, encoding, np.ones(6), np.ones(6), every[:4], every[4:], stopping=None, seed=0)
    assert np.array_equal(part.encoded().held_out, encoding.matrix(np.array([[4.0], [5.0]])))


def test_free_memory_is_returned_while_fits_run(monkeypatch):
    returned = []
    monkeypatch.setattr(tasks, "_TRIM_SECONDS", 0.01)
    monkeypatch.setattr(tasks, "_return_free_memory", lambda: returned.append(1))
    results = queue.SimpleQueue()
    threading.Timer(0.2, results.put, ["result"]).start()
    assert tasks._next_result(results) == "result"
    assert len(returned) > 1


@given(st.lists(st.tuples(st.integers(0, 12), st.booleans()), min_size=8, max_size=60), st.integers(2, 5))
def test_expanding_windows_equal_a_loop_over_moments(rows, count):
    times, labels = (np.array(column, float) for column in zip(*rows, strict=True))
    if labels.sum() == 0:
        return
    moments = sorted(set(times.tolist()))
    positives = [labels[times <= moment].sum() for moment in moments]
    edges = [
        next(moment for moment, sum_ in zip(moments, positives, strict=True) if sum_ >= positives[-1] * k / (count + 1))
        for k in range(1, count + 1)
    ]
    expected = [
        (np.flatnonzero(times <= early).tolist(), np.flatnonzero((times > early) & (times <= late)).tolist())
        for early, late in zip(edges, [*edges[1:], moments[-1]], strict=True)
    ]
    expected = [(train, held) for train, held in expected if held and len(set(labels[train])) == 2]
    found = crossfit._expanding_windows(labels, times, count)
    assert [(train.tolist(), held.tolist()) for train, held in found] == expected


def test_windows_of_many_moments_take_no_square_of_time():
    times, labels = np.arange(400_000.0), (np.arange(400_000) % 50 == 0).astype(float)
    started = time.process_time()
    np.unique(times, return_inverse=True)
    once = time.process_time() - started
    started = time.process_time()
    crossfit._expanding_windows(labels, times, 5)
    assert time.process_time() - started < 50 * once + 0.5


def test_training_rows_of_one_class_are_refused_by_their_fold():
    X, y = shifted_table()
    every = np.arange(len(y))
    folds = [(every[::2], every[1::2]), (np.flatnonzero(y == 0), np.flatnonzero(y == 1))]
    with pytest.raises(ValueError, match="folds: the training rows of fold 2 are all of one class"):
        fit_committee(training_rows(X, y), find_members(FAST), folds=folds)


def test_rows_without_a_time_are_refused():
    X, y = shifted_table()
    times = np.arange(200.0)
    times[[3, 5]] = np.nan
    with pytest.raises(ValueError, match="time must be known in every row, 2 of 200 are missing"):
        training_rows(X, y, times=times)


def test_groups_with_all_negatives_are_in_the_training_rows_of_every_fold():
    X, y = shifted_table()
    groups = np.where(y == 1, np.arange(200) % 6, 10 + np.arange(200) % 2)
    for seed in range(5):
        folds = make_folds(training_rows(X, y, groups=groups), 5, seed)
        assert all(set(y[train]) == {0, 1} for train, _ in folds)
    groups[y == 0] = 10
    with pytest.raises(ValueError, match="whole groups hold all rows of a class"):
        make_folds(training_rows(X, y, groups=groups), 5, 0)
