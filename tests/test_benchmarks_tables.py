"""Evidence on tables: splits, lines that are skipped, and the arithmetic of the report."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest

from references import average_precision as reference_ap

pytest.importorskip("lightgbm")

from benchmarks.committees import runner
from benchmarks.committees.methods import Scored
from benchmarks.committees.report import compare_tables, table_means, write_report
from benchmarks.committees.tables.crossfits import MemberScores, keep_positives
from benchmarks.committees.tables.methods import TABLE_SUITE
from benchmarks.committees.tables.problems import (
    DEVELOPMENT,
    HELD_BACK,
    MOST_POSITIVES,
    TEST_SHARE,
    TableSplit,
    load_table_split,
    thin_rows,
)

from apmax.reproduce.results import read_lines


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A folder with one small table of 10 % positives."""
    rng = np.random.default_rng(0)
    y = (np.arange(1000) % 10 == 0).astype(np.uint8)
    X = rng.normal(size=(1000, 3)).astype(np.float32) + y[:, None]
    (tmp_path / "tabular").mkdir()
    np.savez(tmp_path / "tabular" / "thyroid.npz", X=X, y=y)
    monkeypatch.setenv("APMAX_DATA", str(tmp_path))
    return X, y


class TestTables:
    def test_no_table_is_both_held_back_and_used_for_choices(self):
        assert not set(DEVELOPMENT) & set(HELD_BACK)

    @pytest.mark.parametrize(("positives", "negatives", "most"), [(300, 900, 5000), (5, 995, 5000), (40, 3960, 400)])
    def test_thinning_keeps_the_share_and_the_size(self, positives, negatives, most):
        labels = np.array([1.0] * positives + [0.0] * negatives)
        kept = thin_rows(labels, MOST_POSITIVES, most, np.random.default_rng(0))
        count = labels[kept].sum()
        assert len(set(kept.tolist())) == len(kept) == min(most, len(kept))
        expected = min(positives / (positives + negatives), MOST_POSITIVES)
        assert count / len(kept) == pytest.approx(expected, abs=1 / len(kept))
        if most > positives + negatives:
            assert (labels[kept] == 0).sum() == negatives

    def test_a_resplit_is_reproducible_and_its_parts_are_disjoint(self, data):
        first, again, other = (load_table_split("thyroid", resplit) for resplit in (0, 0, 1))
        np.testing.assert_array_equal(first.train, again.train)
        assert not np.array_equal(first.train[: len(other.train)], other.train[: len(first.train)])
        train, test = ({tuple(row) for row in part} for part in (first.train, first.test))
        assert not train & test
        assert len(test) / (len(train) + len(test)) == pytest.approx(TEST_SHARE, abs=0.01)
        assert first.test_labels.sum() == round(TEST_SHARE * (first.train_labels.sum() + first.test_labels.sum()))

    def test_fewer_positives_leave_negatives_and_the_test_part(self, data):
        split = load_table_split("thyroid", 0)
        fewer = keep_positives(split, 5, seed=0)
        assert fewer.train_labels.sum() == 5
        assert (fewer.train_labels == 0).sum() == (split.train_labels == 0).sum()
        assert fewer.test is split.test
        assert keep_positives(split, None, seed=0) is split


def test_alignment_removes_what_folds_add_to_their_scores():
    rng = np.random.default_rng(0)
    fold, held_out, test = np.arange(60) % 3, rng.normal(size=60), rng.normal(size=(1, 7))
    offset, scale = np.array([0.0, 5.0, -3.0]), np.array([1.0, 10.0, 0.1])
    for number in range(3):
        own = fold == number
        held_out[own] = (held_out[own] - held_out[own].mean()) / held_out[own].std()
    shifted = MemberScores(held_out * scale[fold] + offset[fold], fold, test * scale[:, None] + offset[:, None], 0.0)
    np.testing.assert_allclose(shifted.aligned(by_fold=True)[0], held_out, atol=1e-12)
    np.testing.assert_allclose(shifted.aligned(by_fold=True)[1], test[0], atol=1e-12)
    np.testing.assert_array_equal(shifted.aligned(by_fold=False)[0], shifted.held_out)


class TestRunner:
    def options(self, tmp_path, methods=("standard", "lightgbm_tuned", "lightgbm")):
        return runner.RunOptions(["thyroid"], [0, 1], methods, tmp_path / "lines.jsonl")

    @pytest.fixture
    def calls(self):
        """The list of (method, seed, limit) that were fitted."""
        return []

    @pytest.fixture
    def suite(self, calls):
        """The suite of tables, with the first column as the scores of every method."""

        def fit(split: TableSplit, method: str, seed: int, limit: float | None, autogluon: str | None) -> Scored:
            calls.append((method, seed, limit))
            members = {"gbdt": (split.test[:, 1], {"weight": 1.0})} if method == "standard" else {}
            return Scored(split.test[:, 0], {"note": 1}, members)

        return replace(TABLE_SUITE, fit=fit)

    def test_lines_hold_metrics_and_finished_ones_are_skipped(self, tmp_path, data, suite, calls):
        options = self.options(tmp_path)
        runner.run(options, suite)
        lines = read_lines(options.path)
        assert len(calls) == 6
        assert len(lines) == 8, "three methods and one member of two resplits"
        split = load_table_split("thyroid", 0)
        first = next(line for line in lines if line["method"] == "lightgbm")
        assert first["ap"] == pytest.approx(reference_ap(split.test[:, 0], split.test_labels))
        assert first["test_positives"] == split.test_labels.sum()
        assert {"seconds", "cpu_seconds", "auroc", "versions", "commit"} <= set(first)
        runner.run(options, suite)
        assert len(calls) == 6

    def test_methods_of_equal_time_get_what_standard_took_on_the_same_split(self, tmp_path, data, suite, calls):
        options = self.options(tmp_path)
        runner.run(options, suite)
        took = {line["resplit"]: line["seconds"] for line in read_lines(options.path) if line["method"] == "standard"}
        assert {(seed, limit) for method, seed, limit in calls if method == "lightgbm_tuned"} == set(took.items())
        with pytest.raises(SystemExit, match="as long as standard"):
            runner.run(runner.RunOptions(["thyroid"], [0], ["lightgbm_tuned"], tmp_path / "other.jsonl"), suite)

    def test_a_method_that_fails_leaves_its_error_and_the_others_run(self, tmp_path, data):
        def fit(split: TableSplit, method: str, *rest: object) -> Scored:
            if method == "lightgbm":
                raise RuntimeError("too little time")
            return Scored(split.test[:, 0])

        options = self.options(tmp_path, ("lightgbm", "extra_trees"))
        runner.run(options, replace(TABLE_SUITE, fit=fit))
        lines = read_lines(options.path)
        assert [("error" in line, line["method"]) for line in lines[:2]] == [(True, "lightgbm"), (False, "extra_trees")]
        assert "lightgbm" not in table_means(lines)
        page = write_report("Title", [*lines, {**lines[1], "resplit": 2}], ["thyroid"])
        assert "Failed, and left out: lightgbm on thyroid, resplit 0; lightgbm on thyroid, resplit 1." in page

    def test_a_line_that_was_cut_off_is_run_again(self, tmp_path, data, suite, calls):
        options = self.options(tmp_path, ("lightgbm",))
        runner.run(options, suite)
        whole = options.path.read_text()
        options.path.write_text(whole[:-20])
        runner.run(options, suite)
        assert [call[:2] for call in calls] == [("lightgbm", 0), ("lightgbm", 1), ("lightgbm", 1)]
        again = [json.loads(line) for line in options.path.read_text().splitlines()]
        assert [line["resplit"] for line in again] == [0, 1]


class TestReport:
    def lines(self, values):
        return [
            {"table": table, "resplit": resplit, "method": method, "ap": ap, "seconds": 1.0, "cpu_seconds": 1.0}
            | {"commit": "c", "versions": {}}
            for method, tables in values.items()
            for table, aps in tables.items()
            for resplit, ap in enumerate(aps)
        ]

    def test_tables_without_all_resplits_take_no_part(self):
        lines = self.lines({"standard": {"a": [0.1, 0.2, 0.6], "b": [0.9, 0.9]}})
        assert table_means(lines) == {"standard": {"a": pytest.approx(0.3)}}

    def test_the_interval_is_that_of_resampled_tables(self):
        rng = np.random.default_rng(1)
        own = dict(enumerate(rng.normal(0.02, 0.05, size=12)))
        found = compare_tables({str(k): v for k, v in own.items()}, {str(k): 0.0 for k in own})
        values = np.array(list(own.values()))
        loop = sorted(np.mean([values[rng.integers(12)] for _ in range(12)]) for _ in range(4000))
        assert found.mean == pytest.approx(values.mean())
        assert found.low == pytest.approx(loop[100], abs=0.003)
        assert found.high == pytest.approx(loop[3900], abs=0.003)
        assert (found.won, found.tables) == (int((values > 0).sum()), 12)

    def test_no_shared_table_has_no_difference(self):
        assert compare_tables({"a": 0.5}, {"b": 0.5}) is None

    def test_members_trained_by_ap_are_compared_with_the_same_by_cross_entropy(self):
        values = {
            "standard": {"a": [0.5] * 3, "b": [0.5] * 3},
            "standard_ce": {"a": [0.1] * 3, "b": [0.1] * 3},
            "member linear": {"a": [0.5] * 3, "b": [0.25] * 3},
            "member linear_ce": {"a": [0.25] * 3, "b": [0.5] * 3},
            "member trees": {"a": [0.5] * 3, "b": [0.5] * 3},
        }
        part = write_report("Title", self.lines(values), ["a", "b"]).split("## Members trained by AP")[1].split("##")[0]
        assert [line for line in part.splitlines() if line.startswith("|")][2:] == [
            "| linear − linear_ce | +0.0000 | -0.2500 to +0.2500 | 1 of 2 |"
        ]
        assert "Members trained by AP" not in write_report("Title", self.lines({"standard": values["standard"]}), ["a"])

    def test_the_page_has_means_and_differences(self):
        values = {"standard": {"a": [0.5, 0.6, 0.7], "b": [0.9] * 3}, "lightgbm": {"a": [0.5] * 3, "b": [0.95] * 3}}
        page = write_report("Title", self.lines(values), ["a", "b", "c"])
        assert "| a | **0.600** | 0.500 |" in page
        assert "| **mean of 2** | **0.750** | 0.725 |" in page
        assert "| lightgbm | +0.0250 | -0.0500 to +0.1000 | 1 of 2 |" in page
