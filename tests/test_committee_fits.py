"""Fits of committees: threads, one split, times, weights, few positives, progress, and continuing after a kill."""

from __future__ import annotations

import io
import json
import pickle
import queue
import shutil
import signal
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

from apmax.blend import BASE_BLEND, fit_blend
from apmax.committee import (
    ArrayFeatures,
    FitProgress,
    FitTask,
    TrainingRows,
    crossfit,
    find_members,
    fit_committee,
    tasks,
)
from apmax.committee.crossfit import make_folds, number_of_folds
from apmax.committee.members import Cost, Member, NetworkMember, SeedAverage
from apmax.committee.storage import load_committee, load_results, save_committee, save_result
from apmax.committee.table_members import LinearMember
from apmax.committee.tasks import FINAL, FoldRows
from apmax.data.archives import npz_content
from apmax.folders import FolderError
from apmax.metrics import average_precision, paired_difference
from apmax.models.tables import build_table_model
from apmax.train import fit_platt
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


@pytest.mark.parametrize(
    ("positives", "kind"),
    [
        (2, "plain"),
        (3, "plain"),
        (5, "plain"),
        (10, "plain"),
        (20, "plain"),
        (5, "groups"),
        (3, "times"),
        (10, "times"),
    ],
)
def test_few_positives_give_finite_scores_and_no_comparison_of_blends(positives, kind):
    X, y = shifted_table(positives, rows=120, positives=positives)
    more = {}
    if kind == "groups":
        more = {"groups": np.arange(120) // 2}
    if kind == "times":
        # One positive in each of equal blocks, so that every window has some.
        y = np.zeros(120)
        y[np.linspace(5, 115, positives).astype(int)] = 1
        more = {"times": np.arange(120.0)}
    rows = training_rows(X, y, **more)
    count = number_of_folds(y, rows.groups, 5, times=rows.times)
    assert count <= min(5, positives)
    fitted = fit_committee(rows, find_members(["linear", "linear_ce"]), folds=5 if count >= 2 else 1)
    assert np.isfinite(fitted.log_odds(fitted.score(X))).all()
    scored = positives if kind != "times" else sum(int(y[test].sum()) for _, test in make_folds(rows, 5, 0))
    if count >= 2 and scored < 20:
        assert fitted.blend.method == (BASE_BLEND,)
        assert "too few to compare" in fitted.blend.reason[0]


@pytest.mark.parametrize("name", ["gbdt", "forest", "trees", "linear", "linear_ce"])
def test_weights_reach_fits_and_leaderboard(name):
    X, y = shifted_table(3, rows=150, positives=50)
    # Every row a second time with the other label and next to no weight; with equal weights nothing could be learnt.
    twice, labels, weight = np.tile(X, (2, 1)), np.append(y, 1 - y), np.repeat([1.0, 1e-6], 150)
    rows = TrainingRows(ArrayFeatures(twice), labels, weight, groups=np.tile(np.arange(150), 2))
    fitted = fit_committee(rows, find_members([name]), folds=2)
    new, truth = shifted_table(4, rows=300, positives=100)
    # By chance 0.33; and 0.5 in a leaderboard that counts both labels of a row alike.
    assert average_precision(fitted.score(new), truth).item() > 0.6
    assert fitted.leaderboard.blend.ap.estimate > 0.6


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


@pytest.fixture(scope="module", params=[200, 201])
def two_fits(request, tmp_path_factory):
    """Rows of an even or odd number, a folder of fits of them and of other labels, and the first committee."""
    X, y = shifted_table(rows=request.param)
    members, folder = find_members(["linear", "linear_ce"]), tmp_path_factory.mktemp("two")
    first, _ = (
        fit_committee(
            training_rows(X, own),
            members,
            folds=2,
            on_result=lambda r, f=f: save_result(folder / f, r, members[r.task.name]),
        )
        for f, own in (("a", y), ("b", np.roll(y, 1)))
    )
    return X, y, folder, first


class TestContinuing:
    @pytest.mark.parametrize("kind", ["folds", pytest.param("times", marks=pytest.mark.slow), "one split"])
    def test_a_fit_continues_from_any_state_to_the_same_bits(self, kind, tmp_path):
        X, y = shifted_table()
        members = find_members(["linear", "linear_ce"] if kind == "folds" else FAST)
        rows = training_rows(X, y, times=np.arange(200.0) if kind == "times" else None)
        folds = 1 if kind == "one split" else 2
        results = []
        whole = fit_committee(rows, members, folds=folds, on_result=results.append)
        assert len(results) == {"folds": 4, "times": 6, "one split": 4}[kind]
        for count in range(len(results) + 1):
            folder = tmp_path / str(count)
            for result in results[:count]:
                save_result(folder, result, members[result.task.name])
            if count < len(results):
                # The next one was killed after its model and before its scores, and left a temporary file.
                save_result(folder, results[count], members[results[count].task.name])
                scores = sorted(folder.rglob("*.scores.npz"), key=lambda path: path.stat().st_mtime_ns)[-1]
                scores.rename(scores.with_name(scores.name + ".tmp"))
            finished = load_results(folder, members, folds)
            assert len(finished) == count
            again = fit_committee(rows, members, folds=folds, finished=finished)
            assert np.array_equal(again.score(X), whole.score(X))
            assert again.calibration == whole.calibration
            assert np.array_equal(again.blend.weights, whole.blend.weights)

    @pytest.mark.parametrize("exchanged", ["folds", "members", "folders"])
    def test_files_that_were_exchanged_are_fitted_again(self, exchanged, two_fits, tmp_path):
        X, y, both, committee = two_fits
        shutil.copytree(both, tmp_path, dirs_exist_ok=True)
        members = find_members(["linear", "linear_ce"])
        folders = [tmp_path / "a", tmp_path / "b"]
        first = folders[0] / "members/linear/fold-0"
        other = {
            "folds": folders[0] / "members/linear/fold-1",
            "members": folders[0] / "members/linear_ce/fold-0",
            "folders": folders[1] / "members/linear/fold-0",
        }[exchanged]
        for suffix in (".npz", ".scores.npz"):
            one, two = (path.with_name(path.name + suffix) for path in (first, other))
            kept = one.read_bytes()
            one.write_bytes(two.read_bytes())
            two.write_bytes(kept)
        fitted = []
        again = fit_committee(
            training_rows(X, y),
            members,
            folds=2,
            finished=load_results(folders[0], members, 2),
            on_result=fitted.append,
        )
        assert len(fitted) == (1 if exchanged == "folders" else 2)
        assert np.array_equal(again.score(X), committee.score(X))

    def test_results_of_other_rows_are_fitted_again(self, tmp_path):
        X, y = shifted_table()
        members = find_members(["linear"])
        save = lambda result: save_result(tmp_path, result, members["linear"])  # noqa: E731
        fit_committee(training_rows(X, y), members, folds=2, on_result=save)
        fitted, fewer = [], training_rows(X[:151], y[:151])
        finished = load_results(tmp_path, members, 2)
        again = fit_committee(fewer, members, folds=2, finished=finished, on_result=fitted.append)
        assert len(fitted) == 2
        assert np.array_equal(again.score(X), fit_committee(fewer, members, folds=2).score(X))

    @pytest.mark.slow
    def test_a_killed_process_continues_to_the_same_bits(self, tmp_path):
        program = """
import sys, pathlib, numpy as np
from apmax.committee import *
from apmax.committee.storage import load_results, save_result
rng = np.random.default_rng(0)
X = rng.normal(size=(400, 3)); y = (X[:, 0] + rng.normal(size=400) > 1.5).astype(float)
members, folder = find_members(["gbdt", "trees", "mlp"]), pathlib.Path(sys.argv[1])
committee = fit_committee(TrainingRows(ArrayFeatures(X), y, np.ones(400)), members, folds=2, n_jobs=2,
    finished=load_results(folder, members, 2), on_result=lambda r: save_result(folder, r, members[r.task.name]))
np.save(folder / "scores.npy", committee.score(X))
"""
        killed, whole = tmp_path / "killed", tmp_path / "whole"
        for folder in (killed, whole):
            folder.mkdir()
        child = subprocess.Popen([sys.executable, "-c", program, str(killed)])
        while child.poll() is None and not list(killed.rglob("*.scores.npz")):
            time.sleep(0.01)
        child.send_signal(signal.SIGKILL)
        child.wait()
        assert not (killed / "scores.npy").exists()
        for folder in (killed, whole):
            subprocess.run([sys.executable, "-c", program, str(folder)], check=True)
        assert np.array_equal(np.load(killed / "scores.npy"), np.load(whole / "scores.npy"))


@pytest.fixture(scope="module")
def best(tmp_path_factory):
    """Folder of a committee of effort "best", and its scores."""
    X, y = shifted_table()
    folder = tmp_path_factory.mktemp("best")
    fitted = fit_committee(training_rows(X, y), find_members(["gbdt"], effort="best"), folds=2)
    save_committee(folder, fitted)
    return folder, fitted.score(X)


class TestBestEffort:
    def test_seeds_are_averaged_and_restored(self, best):
        folder, scores = best
        X, _ = shifted_table()
        loaded = load_committee(folder)
        model = loaded.folds[0].members["gbdt"]
        assert isinstance(model, SeedAverage)
        assert len(model.parts) == 3
        assert np.array_equal(loaded.score(X), scores)

    def test_a_malicious_part_executes_nothing(self, best, tmp_path):
        from apmax.folders import read_manifest, write_manifest

        copy = tmp_path / "copy"
        shutil.copytree(best[0], copy)
        mark = tmp_path / "executed"

        class Payload:
            def __reduce__(self):
                return (open, (str(mark), "w"))

        part = np.frombuffer(pickle.dumps(Payload()), np.uint8)
        content = npz_content(part0=part, part1=part, part2=part)
        (copy / "members/gbdt/fold-0.npz").write_bytes(content)
        write_manifest(copy, read_manifest(copy, kind="committee").files, kind="committee")
        with pytest.raises(FolderError):
            load_committee(copy)
        assert not mark.exists()


def test_a_malicious_network_executes_nothing(tmp_path):

    import torch

    mark = tmp_path / "executed"

    class Payload:
        def __reduce__(self):
            return (open, (str(mark), "w"))

    buffer = io.BytesIO()
    torch.save({"architecture": {"sizes": [0]}, "rounds": [], "weights": Payload()}, buffer)
    for content in (buffer.getvalue(), pickle.dumps(Payload())):
        with pytest.raises(ValueError, match="not a network member"):
            NetworkMember.from_bytes(content)
    assert not mark.exists()


def test_a_malicious_graph_network_executes_nothing(tmp_path):

    import torch

    mark = tmp_path / "executed"

    class Payload:
        def __reduce__(self):
            return (open, (str(mark), "w"))

    read = find_members(["gine"], kind="molecules")["gine"].read
    buffer = io.BytesIO()
    torch.save({"sizes": [], "rounds": [], "weights": Payload()}, buffer)
    perceptron = NetworkMember({"sizes": [0, 0]}, build_table_model("mlp", [0, 0])).to_bytes()
    for content in (buffer.getvalue(), pickle.dumps(Payload()), perceptron, b""):
        with pytest.raises(ValueError, match="not a network member"):
            read(content)
    assert not mark.exists()


class FirstColumn:
    """A fitted member that scores by the first column, or by rounding errors only."""

    rounds = ()

    def __init__(self, constant):
        self.constant = constant

    def score(self, matrix):
        noise = 1e-17 * np.arange(len(matrix))
        return 0.1 + noise + 0.2 if self.constant else matrix[:, 0].astype(float)


def test_constant_scores_of_a_fold_are_not_blown_up():
    """Held-out scores of a fold that differ by rounding only have no deviation to divide by."""
    X, y = shifted_table(rows=60, positives=20)
    member = Member(lambda data: FirstColumn(data.seed == 1), None, "", Cost(0, 0, 0))
    fitted = fit_committee(training_rows(X, y), {"own": member}, folds=3)
    assert np.abs(fitted.score(X)).max() < 10
    assert average_precision(fitted.score(X), y) > 0.8


def test_members_are_aligned_by_the_weighted_moments_of_held_out_rows():
    X, y = shifted_table(rows=60, positives=20)
    weight = np.random.default_rng(1).exponential(size=60)
    rows = TrainingRows(ArrayFeatures(X), y, weight)
    split = make_folds(rows, 3, seed=0)
    fitted = fit_committee(rows, {"own": Member(lambda _: FirstColumn(False), None, "", Cost(0, 0, 0))}, folds=split)
    for (_, held_out), fold in zip(split, fitted.folds, strict=True):
        scores = fold.features.matrix(X[held_out])[:, 0]
        mean = np.average(scores, weights=weight[held_out])
        deviation = np.average((scores - mean) ** 2, weights=weight[held_out]) ** 0.5
        assert (fold.location["own"], fold.scale["own"]) == pytest.approx((mean, deviation), rel=1e-6)


class Column:
    """A fitted member that scores by one column."""

    rounds = ()

    def __init__(self, number):
        self.number = number

    def score(self, matrix):
        return matrix[:, self.number].astype(float)


@pytest.mark.parametrize("grouped", [False, True])
def test_blend_calibration_and_leaderboard_are_of_the_weighted_rows(grouped):
    X, y = shifted_table(positives=50)
    X[:, 1] += 1.5 * y
    weight = np.random.default_rng(1).exponential(size=200) * np.where(y == 1, 4, 1)
    groups = np.arange(200) // 4 if grouped else None
    members = {
        name: Member(lambda _, number=number: Column(number), None, "", Cost(0, 0, 0))
        for number, name in enumerate(("linear", "linear_ce"))
    }
    found = fit_committee(TrainingRows(ArrayFeatures(X), y, weight, groups=groups), members, folds=3)
    scores = found.cross_fitted
    blend = fit_blend(scores, y, sample_weight=weight, groups=groups)
    assert (found.blend.weights.tolist(), found.blend.ap) == (blend.weights.tolist(), blend.ap)
    assert fit_blend(scores, y, groups=groups).ap != blend.ap, "weights make no difference"
    if grouped:
        assert fit_blend(scores, y, sample_weight=weight).ap != blend.ap, "groups make no difference"
    blended = blend.score(scores)
    assert tuple(found.calibration) == pytest.approx(tuple(fit_platt(blended, y, weight)))
    board = found.leaderboard
    assert board.blend.ap.estimate == pytest.approx(average_precision(blended, y, sample_weight=weight).item())
    for row in board.rows:
        own = scores[:, list(members).index(row.name)]
        assert row.ap.estimate == pytest.approx(average_precision(own, y, sample_weight=weight).item())
    (verdict,) = board.verdicts
    assert verdict.difference == paired_difference(scores[:, 0], scores[:, 1], y, sample_weight=weight)


def test_a_member_of_rounding_errors_has_no_weight():
    X, y = shifted_table(rows=60, positives=20)
    members = {
        name: Member(lambda _, constant=constant: FirstColumn(constant), None, "", Cost(0, 0, 0))
        for name, constant in {"rounding": True, "own": False}.items()
    }
    fitted = fit_committee(training_rows(X, y), members, folds=3)
    assert fitted.blend.weights.tolist() == [0, 1]
    assert not fitted.cross_fitted[:, 0].any()


def test_rounds_survive_saving():
    member = LinearMember((0,), np.ones(1), 0.0)
    assert member.rounds == ()
    network = NetworkMember({"sizes": [0, 0]}, build_table_model("mlp", [0, 0]).eval(), (7, 3))
    assert NetworkMember.from_bytes(network.to_bytes()).rounds == (7, 3)
    assert json.dumps(network.rounds) == "[7, 3]"


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


def test_a_committee_without_held_out_classes_has_no_calibration(tmp_path):
    X, y = shifted_table(positives=1)
    fitted = fit_committee(training_rows(X, y), find_members(FAST), folds=1)
    assert fitted.calibration is None
    np.testing.assert_array_equal(fitted.log_odds(fitted.score(X)), fitted.score(X))
    save_committee(tmp_path, fitted)
    assert load_committee(tmp_path).calibration is None
