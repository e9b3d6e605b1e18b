"""Tree members of committees: sparse rows, size and samples of forests, and the forms in which they are kept."""

from __future__ import annotations

import io
import pickle

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

pytest.importorskip("lightgbm")

from apmax.committee import (
    find_members,
    fit_committee,
    trees,
)
from apmax.committee.storage import save_committee
from apmax.committee.trees import Forest, fit_forest
from apmax.data.archives import npz_content
from apmax.folders import folder_bytes
from apmax.metrics import average_precision
from small_committees import shifted_table, training_rows


class TestSparseRows:
    """Members of molecules read sparse rows; the fits are those of the dense table."""

    @pytest.fixture
    def rows(self):
        rng = np.random.default_rng(0)
        X = rng.poisson(0.2, size=(300, 40)).astype(np.float32)
        X[:, -1] = rng.normal(size=300)
        y = (X[:, 0] + X[:, 1] + 0.5 * rng.normal(size=300) > 0.8).astype(float)
        return X, sparse.csr_matrix(X), y, rng.integers(1, 4, 300).astype(float)

    @pytest.mark.parametrize("kind", ["forest", "trees"])
    @pytest.mark.parametrize("most", [16_384, 200])
    def test_forests(self, rows, kind, most, monkeypatch):
        monkeypatch.setattr(trees, "MOST_FOREST_ROWS", most)
        monkeypatch.setattr(trees, "_DENSE_ROWS", 64)
        X, csr, y, weight = rows
        dense, other = (fit_forest(table, y, weight, kind=kind, trees=20, seed=1) for table in (X, csr))
        assert dense.to_bytes() == other.to_bytes()
        np.testing.assert_array_equal(other.score(csr), dense.score(X))
        assert other.score(csr[:0]).shape == (0,)

    def test_boosting(self, rows):
        X, csr, y, weight = rows
        stopping = np.arange(0, 300, 2), np.arange(1, 300, 2)
        fits = [trees.fit_boosting(table, y, weight, sizes=[0] * 40, stopping=stopping, seed=0) for table in (X, csr)]
        assert fits[0].rounds == fits[1].rounds
        np.testing.assert_allclose(fits[1].score(csr), fits[0].score(X), rtol=1e-6)


class TestForestSize:
    def test_leaves_are_bounded(self, monkeypatch):
        monkeypatch.setattr(trees, "MOST_LEAVES", 8)
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(300, 3)).astype(np.float32), (rng.random(300) < 0.5).astype(float)
        for kind in ("forest", "trees"):
            forest = fit_forest(X, y, np.ones(300), kind=kind, trees=5, seed=0)
            assert np.diff(forest.starts).max() <= 2 * 8 - 1
            # 20 bytes for each node, and the archive's own headers.
            assert len(forest.to_bytes()) <= 5 * (2 * 8 - 1) * 20 + 3000

    def test_size_of_a_folder_is_bounded_by_the_effort(self, tmp_path):
        rng = np.random.default_rng(0)
        X, y = rng.normal(size=(150, 3)), (rng.random(150) < 0.5).astype(float)
        fitted = fit_committee(training_rows(X, y), find_members(["gbdt", "trees"]), folds=2)
        save_committee(tmp_path, fitted)
        forests = 2 * 100 * (2 * trees.MOST_LEAVES - 1) * 20
        assert folder_bytes(tmp_path) < forests + 2 * 8_000_000

    def test_samples_of_large_tables_hold_all_positives(self, monkeypatch):
        monkeypatch.setattr(trees, "MOST_FOREST_ROWS", 100)
        y = np.zeros(1000)
        y[::50] = 1
        blocks = trees._sampled_blocks(y, 30, seed=0)
        assert [count for _, count in blocks] == [10, 10, 10]
        assert all(len(rows) == 100 and y[rows].sum() == 20 for rows, _ in blocks)
        assert len({tuple(rows) for rows, _ in blocks}) == 3
        many = trees._sampled_blocks(1 - y, 10, seed=0)
        assert [(len(rows), (y[rows] == 0).sum()) for rows, _ in many] == [(100, 80)]

    def test_a_sampled_forest_ranks_new_rows(self, monkeypatch):
        monkeypatch.setattr(trees, "MOST_FOREST_ROWS", 100)
        X, y = shifted_table(rows=600, positives=40)
        new, truth = shifted_table(1, rows=600, positives=40)
        for kind in ("forest", "trees"):
            forest = fit_forest(X.astype(np.float32), y, np.ones(600), kind=kind, trees=30, seed=0)
            assert len(forest.starts) == 31
            assert average_precision(forest.score(new.astype(np.float32)), truth).item() > 0.35


@given(st.floats(-(2.0**99), 2.0**99), st.floats(-(2.0**99), 2.0**99, width=32))
def test_rounding_a_threshold_down_splits_float32_values_alike(threshold, value):
    rounded = trees._round_down(np.array([threshold]))
    for near in (np.float32(value), np.float32(threshold), np.nextafter(np.float32(threshold), np.float32(np.inf))):
        assert (np.float64(near) <= threshold) == (near <= rounded[0])


def test_compiled_scores_are_those_of_a_walk_from_node_to_node():
    X, y = shifted_table(5)
    X = X.astype(np.float32)
    forest = fit_forest(X, y, np.ones(200), kind="trees", trees=4, seed=0)
    expected = []
    for row in X[:50]:
        total = 0.0
        for start in forest.starts[:-1]:
            node = 0
            while forest.left[start + node] >= 0:
                inside = start + node
                left = row[forest.feature[inside]] <= forest.value[inside]
                node = forest.left[inside] if left else forest.right[inside]
            total += float(forest.value[start + node])
        share = (total + 0.5) / 5
        expected.append(np.log(share / (1 - share)))
    assert forest.score(X[:50]) == pytest.approx(expected)
    assert np.array_equal(pickle.loads(pickle.dumps(forest)).score(X), forest.score(X))
    with pytest.raises(ValueError, match=r"matrix must have shape \(n, 3\)"):
        forest.score(X[:, :2])


def test_a_forest_that_was_not_checked_is_checked_before_compiled_code_sees_it():
    bad = Forest(
        starts=np.array([0, 1]),
        left=np.array([10**6], np.int32),
        right=np.array([10**6], np.int32),
        feature=np.array([0], np.int32),
        value=np.zeros(1, np.float32),
        features=1,
    )
    with pytest.raises(ValueError, match="child is not in its tree"):
        bad.score(np.zeros((1, 1), np.float32))


@pytest.mark.parametrize(("rows", "follows"), [(300, False), (5000, True)])
def test_nodes_of_a_forest_are_smaller_in_memory_than_in_a_file_which_restores_them(rows, follows):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(rows, 2)).astype(np.float32)
    y = (X[:, 0] + generator.normal(size=rows) > 1).astype(float)
    forest = fit_forest(X, y, np.ones(rows), kind="trees", trees=3, seed=0)
    content = forest.to_bytes()
    again = Forest.from_bytes(content)
    assert (forest.right is None) == (again.right is None) == follows
    for name, kind in [("left", np.int16), ("right", np.int16), ("feature", np.int8), ("value", np.float32)]:
        if getattr(forest, name) is not None:
            assert getattr(forest, name).dtype == getattr(again, name).dtype == kind
            assert np.array_equal(getattr(forest, name), getattr(again, name))
    for name in ("left", "right", "feature"):
        assert np.load(io.BytesIO(content))[name].dtype == np.int32
    assert np.array_equal(forest.score(X), again.score(X))


def test_the_child_after_the_largest_number_of_eight_bits_is_found():
    # A chain of 64 inner nodes: the left children are leaves, the last of them number 127.
    inner = np.arange(129) % 2 == 0
    inner[-1] = False
    forest = Forest(
        starts=np.array([0, 129]),
        left=np.where(inner, np.arange(129) + 1, -1).astype(np.int8),
        right=None,
        feature=np.where(inner, 0, -1).astype(np.int8),
        value=np.where(inner, np.arange(129), np.arange(129) / 128).astype(np.float32),
        features=1,
    )
    assert forest.score(np.array([[1000.0]], np.float32)) == pytest.approx(np.log(1.5 / 0.5))
    assert np.load(io.BytesIO(forest.to_bytes()))["right"].max() == 128


def test_files_with_thresholds_of_leaves_and_shares_of_all_nodes_are_read():
    content = npz_content(
        starts=np.array([0, 3]),
        left=np.array([1, -1, -1], np.int32),
        right=np.array([2, -1, -1], np.int32),
        feature=np.array([0, -2, -2], np.int32),
        threshold=np.array([0.5, -2, -2], np.float32),
        probability=np.array([0.4, 0.25, 1.0], np.float32),
        features=np.array(1),
    )
    forest = Forest.from_bytes(content)
    assert (forest.right, forest.value.tolist()) == (None, [0.5, 0.25, 1.0])


def test_the_text_of_boosting_does_not_depend_on_its_threads():
    X, y = shifted_table()
    options = {"sizes": [0] * 3, "stopping": None, "seed": 0}
    one, two = (
        trees.fit_boosting(X.astype(np.float32), y, np.ones(len(y)), parameters={"num_threads": threads}, **options)
        for threads in (1, 2)
    )
    assert one.text == two.text
    assert "[num_threads: 1]" in one.text
