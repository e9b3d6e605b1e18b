"""Comparison of committees of molecules with other methods: splits, fits, ranks and the report."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

pytest.importorskip("rdkit")
pytest.importorskip("lightgbm")

from benchmarks.molecular import problems
from benchmarks.molecular.methods import MOLECULE_SUITE
from benchmarks.molecular.problems import PROBLEMS, load_molecule_split
from benchmarks.molecular.ranks import read_ranks, resampled_means, save_ranks
from benchmarks.molecular.report import compare_on_problem, write_molecule_report
from benchmarks.tabular.report import table_means

from apmax.data.molecules import scaffolds
from apmax.metrics import average_precision
from apmax.metrics.paired import compare
from small_files import ARMS, CORES

SMILES = [arm + core for arm in ARMS for core in CORES]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("APMAX_DATA", str(tmp_path))
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    problems._read.cache_clear()
    rows = np.random.default_rng(0).permutation(len(SMILES))
    lines = [f"{text},{int('Br' in text or 'N' in text)}" for text in [*SMILES, "C(C"]]
    for name, file, column in (("aicures", "pseudomonas", "activity"), ("hiv", "hiv", "HIV_active")):
        (tmp_path / name).mkdir()
        with gzip.open(tmp_path / name / f"{file}.csv.gz", "wt") as stream:
            stream.write("\n".join([f"smiles,{column}", *lines]) + "\n")
    np.savez(
        tmp_path / "aicures" / "split_official_cv_fold0.npz",
        train=rows[:50],
        valid=rows[50:60],
        test=[*rows[60:], len(SMILES)],
    )


def test_training_and_validation_parts_are_trained_on():
    split = load_molecule_split("aicures", 0)
    assert len(split.train_smiles) == len(split.train_labels) == split.train.shape[0] == 60
    assert split.test.shape == (len(SMILES) - 60, 2048)
    assert sorted([*split.train_smiles, *split.test_smiles]) == sorted(SMILES)
    assert split.test_labels.tolist() == ["Br" in text or "N" in text for text in split.test_smiles]


def test_resplits_hold_out_whole_scaffolds():
    first, second = (load_molecule_split("hiv_resplit", number) for number in range(2))
    for split in (first, second):
        assert not set(scaffolds(split.train_smiles)) & set(scaffolds(split.test_smiles))
    assert first.test_smiles != second.test_smiles


@pytest.mark.parametrize("method", ["lightgbm_counts", "forest_bits"])
def test_baselines_score_test_molecules(method):
    split = load_molecule_split("aicures", 0)
    scored = MOLECULE_SUITE.fit(split, method, 0, None, None)
    assert scored.scores.shape == split.test_labels.shape
    assert np.isfinite(scored.scores).all()


def test_seeds_of_the_paper_split_share_their_rows():
    assert PROBLEMS["hiv"].unit == "seeds"
    assert list(PROBLEMS["hiv"].resplits) == [0, 1, 2]
    assert len(set(PROBLEMS["hiv"].splits)) == 1
    assert {name: problem.unit for name, problem in PROBLEMS.items() if name != "hiv"} == {
        "hiv_resplit": "scaffold resplits",
        "tox21_NR-AR": "random splits",
        "tox21_NR-AhR": "random splits",
        "aicures": "folds",
        "muv": "random splits",
    }


def lines_of(problem, method, values, **facts):
    sizes = {"train_positives": 9, "test_rows": 20, "test_positives": 5, "seconds": 1.0, "cpu_seconds": 1.0}
    return [
        {"table": problem, "resplit": k, "method": method, "ap": ap, "commit": "c", "versions": {}} | sizes | facts
        for k, ap in enumerate(values)
    ]


class TestRanks:
    def test_a_file_keeps_the_ranks_of_all_methods_and_average_precision(self, tmp_path):
        split, path = load_molecule_split("aicures", 0), tmp_path / "ranks" / "aicures-0.npz"
        rng = np.random.default_rng(0)
        count = len(split.test_labels)
        scores = {"forest_bits": rng.integers(4, size=count) / 4, "member gine": rng.normal(size=count)}
        for method, each in scores.items():
            save_ranks(path, split, method, each)
        found = read_ranks(path)
        assert set(found) == {"molecules", "labels", *scores}
        assert [SMILES[row] for row in found["molecules"]] == split.test_smiles
        for method, each in scores.items():
            assert average_precision(found[method], found["labels"]) == average_precision(each, split.test_labels)

    def test_resamples_are_shared_by_splits_that_share_molecules(self):
        rng = np.random.default_rng(1)
        labels = (np.arange(60) < 12).astype(np.uint8)
        ranks = rng.integers(40, size=60) + 15 * labels
        seed = {"molecules": np.arange(60), "labels": labels, "a": ranks}
        order = rng.permutation(60)
        again = {name: values[order] for name, values in seed.items()}
        disjoint = again | {"molecules": again["molecules"] + 100}
        one = resampled_means([seed], ["a"])["a"]
        np.testing.assert_allclose(resampled_means([seed, again], ["a"])["a"], one)
        other = resampled_means([seed, disjoint], ["a"])["a"]
        assert other.std() == pytest.approx(one.std() / np.sqrt(2), rel=0.15)

    def test_a_resample_is_the_average_precision_of_its_rows_with_ties(self):
        rng = np.random.default_rng(2)
        labels, ranks = (np.arange(30) < 6).astype(np.uint8), rng.integers(5, size=30)
        found = resampled_means([{"molecules": np.arange(30), "labels": labels, "a": ranks}], ["a"], resamples=3)["a"]
        counts = np.zeros((3, 30), int)
        generator = np.random.default_rng(0)
        for label in (0, 1):
            own = np.flatnonzero(labels == label)
            counts[:, own] = generator.multinomial(len(own), np.full(len(own), 1 / len(own)), size=3)
        rows = [np.repeat(np.arange(30), count) for count in counts]
        np.testing.assert_allclose(found, [average_precision(ranks[each], labels[each]) for each in rows])

    def test_a_split_that_a_resample_leaves_without_positives_takes_no_part(self):
        labels = np.array([1, 0, 0], np.uint8)
        splits = [{"molecules": np.arange(3) + 3 * k, "labels": labels, "a": np.array([2, 1, 0])} for k in range(3)]
        assert resampled_means(splits, ["a"])["a"] == pytest.approx(1.0)


class TestReport:
    def test_means_need_all_splits_of_a_problem(self):
        lines = lines_of("hiv", "quick", [0.3] * 3) + lines_of("hiv_resplit", "quick", [0.4] * 4)
        resplits = {name: problem.resplits for name, problem in PROBLEMS.items()}
        assert table_means(lines, resplits=resplits) == {"quick": {"hiv": pytest.approx(0.3)}}
        assert compare_on_problem(lines, "hiv_resplit", "quick", ["quick"]) == {}

    def test_without_ranks_splits_have_an_interval_and_seeds_have_none(self):
        splits = [
            *lines_of("hiv_resplit", "standard", [0.5, 0.6, 0.7, 0.4, 0.5]),
            *lines_of("hiv_resplit", "quick", [0.4, 0.5, 0.7, 0.5, 0.4]),
        ]
        found = compare_on_problem(splits, "hiv_resplit", "standard", ["quick", "standard"])["quick"]
        expected = compare([0.5, 0.6, 0.7, 0.4, 0.5], [0.4, 0.5, 0.7, 0.5, 0.4])
        assert (found.mean, found.low, found.high) == (expected.difference, expected.low, expected.high)
        assert (found.over, found.won, found.splits) == ("splits", 3, 5)
        seeds = lines_of("hiv", "standard", [0.5, 0.6, 0.7]) + lines_of("hiv", "quick", [0.4, 0.5, 0.5])
        found = compare_on_problem(seeds, "hiv", "standard", ["quick"])["quick"]
        assert found.mean == pytest.approx(0.4 / 3)
        assert np.isnan([found.low, found.high]).all()
        assert found.over == ""

    def test_ranks_of_both_methods_in_all_splits_give_an_interval_over_molecules(self):
        rng = np.random.default_rng(3)
        labels = (np.arange(200) < 20).astype(np.uint8)
        ranks = [
            {"molecules": np.arange(200), "labels": labels}
            | {name: np.argsort(np.argsort(rng.normal(size=200) + gap * labels)) for name, gap in gaps.items()}
            for gaps in [{"standard": 2.5, "quick": 0.5, "chemprop": 2}] * 2 + [{"standard": 2.5, "quick": 0.5}]
        ]
        lines = []
        for method in ("standard", "quick"):
            lines += lines_of("hiv", method, [float(average_precision(each[method], labels)) for each in ranks])
        lines += lines_of("hiv", "chemprop", [0.1] * 3)
        found = compare_on_problem(lines, "hiv", "standard", ["quick", "chemprop"], ranks)
        assert found["quick"].over == "molecules"
        assert 0 < found["quick"].low < found["quick"].mean < found["quick"].high < 1
        assert found["chemprop"].over == "", "the ranks of one seed are missing"

    def test_the_page_says_what_was_looked_at_and_what_decides_nothing(self, tmp_path):
        lines = []
        for method, ap in {"standard": 0.4, "member gbdt": 0.3, "forest_bits": 0.2}.items():
            for problem, count in {"hiv": 3, "hiv_resplit": 5, "muv": 3}.items():
                known = {} if method == "forest_bits" and problem == "hiv" else {"auprc": ap - 0.01}
                lines += lines_of(problem, method, [ap] * count, **known)
        page = write_molecule_report(lines, tmp_path)
        assert "had been looked at before" in page
        assert "| hiv | 3 seeds | 9 | 20 | 5 |" in page
        assert "| hiv_resplit | 5 scaffold resplits | 9 | 20 | 5, 5, 5, 5, 5 |" in page
        assert "`muv` has 5 test positives in a split: it decides nothing" in page
        assert "| member gbdt | 0.2900 | 0.2900 |" in page
        assert "| forest_bits |  | 0.1900 |" in page, "lines without the metric leave its cell empty"
        assert "| member gbdt | +0.1000 |  |  | 3 of 3 |" in page
        assert "### muv" not in page
        assert "| member gbdt | +0.1000 | +0.1000 to +0.1000 | 2 of 2 |" in page

    def test_an_empty_file_has_no_means(self, tmp_path):
        assert "No problem has all of its splits yet." in write_molecule_report([], tmp_path)
