"""Saved committees and results: continuing after a kill, and files that execute nothing."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch

pytest.importorskip("lightgbm")

from apmax.committee import (
    find_members,
    fit_committee,
)
from apmax.committee.members import NetworkMember, SeedAverage
from apmax.committee.storage import load_committee, load_results, save_committee, save_result
from apmax.committee.table_members import LinearMember
from apmax.data.archives import npz_content
from apmax.folders import FolderError
from apmax.models.tables import build_table_model
from small_committees import FAST, shifted_table, training_rows


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


def executing(folder):
    """Return a path, and an object whose unpickling writes a file there."""
    mark = folder / "executed"

    class Payload:
        def __reduce__(self):
            return (open, (str(mark), "w"))

    return mark, Payload()


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
        mark, payload = executing(tmp_path)

        part = np.frombuffer(pickle.dumps(payload), np.uint8)
        content = npz_content(part0=part, part1=part, part2=part)
        (copy / "members/gbdt/fold-0.npz").write_bytes(content)
        write_manifest(copy, read_manifest(copy, kind="committee").files, kind="committee")
        with pytest.raises(FolderError):
            load_committee(copy)
        assert not mark.exists()


def test_a_malicious_network_executes_nothing(tmp_path):
    mark, payload = executing(tmp_path)

    buffer = io.BytesIO()
    torch.save({"architecture": {"sizes": [0]}, "rounds": [], "weights": payload}, buffer)
    for content in (buffer.getvalue(), pickle.dumps(payload)):
        with pytest.raises(ValueError, match="not a network member"):
            NetworkMember.from_bytes(content)
    assert not mark.exists()


def test_a_malicious_graph_network_executes_nothing(tmp_path):
    mark, payload = executing(tmp_path)

    read = find_members(["gine"], kind="molecules")["gine"].read
    buffer = io.BytesIO()
    torch.save({"sizes": [], "rounds": [], "weights": payload}, buffer)
    perceptron = NetworkMember({"sizes": [0, 0]}, build_table_model("mlp", [0, 0])).to_bytes()
    for content in (buffer.getvalue(), pickle.dumps(payload), perceptron, b""):
        with pytest.raises(ValueError, match="not a network member"):
            read(content)
    assert not mark.exists()


def test_rounds_survive_saving():
    member = LinearMember((0,), np.ones(1), 0.0)
    assert member.rounds == ()
    network = NetworkMember({"sizes": [0, 0]}, build_table_model("mlp", [0, 0]).eval(), (7, 3))
    assert NetworkMember.from_bytes(network.to_bytes()).rounds == (7, 3)
    assert json.dumps(network.rounds) == "[7, 3]"
