"""Report of methods on problems with several splits: ranks of test rows, resamples, means and intervals."""

from __future__ import annotations

from types import SimpleNamespace

import numpy as np
import pytest

pytest.importorskip("rdkit")
pytest.importorskip("lightgbm")

from benchmarks.committees.molecules.page import MOLECULE_PAGE as PAGE
from benchmarks.committees.problem_report import ProblemPage, compare_on_problem, write_problem_report
from benchmarks.committees.ranks import read_ranks, resampled_means, save_ranks
from benchmarks.committees.report import table_means

from apmax.metrics import average_precision
from apmax.metrics.paired import compare


class Single:
    resplits = range(1)
    unit = "split"


def lines_of(problem, method, values, **facts):
    sizes = {"train_positives": 9, "test_rows": 20, "test_positives": 5, "seconds": 1.0, "cpu_seconds": 1.0}
    return [
        {"table": problem, "resplit": k, "method": method, "ap": ap, "commit": "c", "versions": {}} | sizes | facts
        for k, ap in enumerate(values)
    ]


class TestRanks:
    def test_a_file_keeps_the_ranks_of_all_methods_and_average_precision(self, tmp_path):
        path, rng, count = tmp_path / "ranks" / "a-0.npz", np.random.default_rng(0), 40
        split = SimpleNamespace(test_units=rng.permutation(100)[:count], test_labels=rng.integers(2, size=count) * 1.0)
        scores = {"forest_bits": rng.integers(4, size=count) / 4, "member gine": rng.normal(size=count)}
        for method, each in scores.items():
            save_ranks(path, split, method, each)
        found = read_ranks(path)
        assert set(found) == {"units", "labels", *scores}
        assert (found["units"] == split.test_units).all()
        for method, each in scores.items():
            assert average_precision(found[method], found["labels"]) == average_precision(each, split.test_labels)

    def test_resamples_are_shared_by_splits_that_share_molecules(self):
        rng = np.random.default_rng(1)
        labels = (np.arange(60) < 12).astype(np.uint8)
        ranks = rng.integers(40, size=60) + 15 * labels
        seed = {"units": np.arange(60), "labels": labels, "a": ranks}
        order = rng.permutation(60)
        again = {name: values[order] for name, values in seed.items()}
        disjoint = again | {"units": again["units"] + 100}
        one = resampled_means([seed], ["a"])["a"]
        np.testing.assert_allclose(resampled_means([seed, again], ["a"])["a"], one)
        other = resampled_means([seed, disjoint], ["a"])["a"]
        assert other.std() == pytest.approx(one.std() / np.sqrt(2), rel=0.15)

    def test_a_resample_is_the_average_precision_of_its_rows_with_ties(self):
        rng = np.random.default_rng(2)
        labels, ranks = (np.arange(30) < 6).astype(np.uint8), rng.integers(5, size=30)
        found = resampled_means([{"units": np.arange(30), "labels": labels, "a": ranks}], ["a"], resamples=3)["a"]
        counts = np.zeros((3, 30), int)
        generator = np.random.default_rng(0)
        for label in (0, 1):
            own = np.flatnonzero(labels == label)
            counts[:, own] = generator.multinomial(len(own), np.full(len(own), 1 / len(own)), size=3)
        rows = [np.repeat(np.arange(30), count) for count in counts]
        np.testing.assert_allclose(found, [average_precision(ranks[each], labels[each]) for each in rows])

    def test_rows_of_a_unit_are_drawn_together(self):
        rng = np.random.default_rng(4)
        labels, ranks = (np.arange(30) < 6).astype(np.uint8), rng.integers(9, size=30)
        single = {"units": np.arange(30), "labels": labels, "a": ranks}
        double = {name: np.repeat(values, 2) for name, values in single.items()}
        (one, two) = (resampled_means([each], ["a"])["a"] for each in (single, double))
        np.testing.assert_allclose(one, two)

    def test_a_split_that_a_resample_leaves_without_positives_takes_no_part(self):
        labels = np.array([1, 0, 0], np.uint8)
        splits = [{"units": np.arange(3) + 3 * k, "labels": labels, "a": np.array([2, 1, 0])} for k in range(3)]
        assert resampled_means(splits, ["a"])["a"] == pytest.approx(1.0)


class TestReport:
    def test_means_need_all_splits_of_a_problem(self):
        lines = lines_of("hiv", "quick", [0.3] * 3) + lines_of("hiv_resplit", "quick", [0.4] * 4)
        assert table_means(lines, resplits=PAGE.resplits) == {"quick": {"hiv": pytest.approx(0.3)}}
        assert compare_on_problem(PAGE, lines, "hiv_resplit", "quick", ["quick"]) == {}

    def test_without_ranks_splits_have_an_interval_and_seeds_have_none(self):
        splits = [
            *lines_of("hiv_resplit", "standard", [0.5, 0.6, 0.7, 0.4, 0.5]),
            *lines_of("hiv_resplit", "quick", [0.4, 0.5, 0.7, 0.5, 0.4]),
        ]
        found = compare_on_problem(PAGE, splits, "hiv_resplit", "standard", ["quick", "standard"])["quick"]
        expected = compare([0.5, 0.6, 0.7, 0.4, 0.5], [0.4, 0.5, 0.7, 0.5, 0.4])
        assert (found.mean, found.low, found.high) == (expected.difference, expected.low, expected.high)
        assert (found.over, found.won, found.splits) == ("splits", 3, 5)
        seeds = lines_of("hiv", "standard", [0.5, 0.6, 0.7]) + lines_of("hiv", "quick", [0.4, 0.5, 0.5])
        found = compare_on_problem(PAGE, seeds, "hiv", "standard", ["quick"])["quick"]
        assert found.mean == pytest.approx(0.4 / 3)
        assert np.isnan([found.low, found.high]).all()
        assert found.over == ""

    def test_ranks_of_both_methods_in_all_splits_give_an_interval_over_molecules(self):
        rng = np.random.default_rng(3)
        labels = (np.arange(200) < 20).astype(np.uint8)
        ranks = [
            {"units": np.arange(200), "labels": labels}
            | {name: np.argsort(np.argsort(rng.normal(size=200) + gap * labels)) for name, gap in gaps.items()}
            for gaps in [{"standard": 2.5, "quick": 0.5, "chemprop": 2}] * 2 + [{"standard": 2.5, "quick": 0.5}]
        ]
        lines = []
        for method in ("standard", "quick"):
            lines += lines_of("hiv", method, [float(average_precision(each[method], labels)) for each in ranks])
        lines += lines_of("hiv", "chemprop", [0.1] * 3)
        found = compare_on_problem(PAGE, lines, "hiv", "standard", ["quick", "chemprop"], ranks)
        assert found["quick"].over == "molecules"
        assert 0 < found["quick"].low < found["quick"].mean < found["quick"].high < 1
        assert found["chemprop"].over == "", "the ranks of one seed are missing"

    def test_the_page_says_what_was_looked_at_and_what_decides_nothing(self, tmp_path):
        lines = []
        for method, ap in {"standard": 0.4, "member gbdt": 0.3, "forest_bits": 0.2}.items():
            for problem, count in {"hiv": 3, "hiv_resplit": 5, "muv": 3}.items():
                known = {} if method == "forest_bits" and problem == "hiv" else {"auprc": ap - 0.01}
                lines += lines_of(problem, method, [ap] * count, **known)
        page = write_problem_report(PAGE, lines, tmp_path)
        assert "had been scored before" in page
        assert "| hiv | 3 seeds | 9 | 20 | 5 |" in page
        assert "| hiv_resplit | 5 scaffold resplits | 9 | 20 | 5, 5, 5, 5, 5 |" in page
        assert "`muv` has 5 test positives in a split, too few to compare methods" in page
        assert "| member gbdt | 0.2900 | 0.2900 |" in page
        assert "| forest_bits |  | 0.1900 |" in page, "lines without the metric leave its cell empty"
        assert "| member gbdt | +0.1000 |  |  | 3 of 3 |" in page
        assert "### muv" not in page
        assert "over problems" not in page, "two problems are too few"

    def test_one_split_without_ranks_and_few_problems_have_no_interval(self, tmp_path):
        page = ProblemPage("images", {"a": Single(), "b": Single()}, introduction="", resampling="")
        lines = [
            line
            for problem in ("a", "b")
            for method, ap in {"standard": 0.4, "quick": 0.3}.items()
            for line in lines_of(problem, method, [ap])
        ]
        text = write_problem_report(page, lines, tmp_path)
        assert "| quick | +0.1000 |  |  | 1 of 1 |" in text
        assert "over problems" not in text
        assert "+0.1000 to" not in text

    def test_an_empty_file_has_no_means(self, tmp_path):
        assert "No problem has all of its splits yet." in write_problem_report(PAGE, [], tmp_path)
