"""Splits and folds: every row once, no group divided, every class with its share."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apmax.data import (
    Split,
    k_fold,
    load_split,
    one_column,
    split_by_group,
    split_by_time,
    split_random,
    split_stratified,
    strata,
)


def rows_of(split):
    return sorted(np.concatenate([split.train, split.valid, split.test]).tolist())


def test_random_split_is_a_partition_that_depends_on_the_seed_alone():
    split = Split.random(101, seed=3)
    assert rows_of(split) == list(range(101))
    assert np.array_equal(split.train, Split.random(101, seed=3).train)
    assert not np.array_equal(split.train, Split.random(101, seed=4).train)


def test_stratified_split_gives_every_part_its_share_of_positives():
    labels = np.zeros(1000, dtype=int)
    labels[:30] = 1
    split = Split.stratified(labels, (0.8, 0.1, 0.1), seed=1)
    assert rows_of(split) == list(range(1000))
    assert [int(labels[part].sum()) for part in (split.train, split.valid, split.test)] == [24, 3, 3]


@given(st.lists(st.integers(0, 12), min_size=1, max_size=60))
@settings(max_examples=50, deadline=None)
def test_grouped_split_never_divides_a_group(groups):
    split = Split.by_group(groups)
    assert rows_of(split) == list(range(len(groups)))
    parts = [{groups[row] for row in part} for part in (split.train, split.valid, split.test)]
    assert sum(map(len, parts)) == len(set().union(*parts))


def test_grouped_split_puts_the_largest_groups_into_training():
    split = Split.by_group(list("aaaaaabbcd"), (0.8, 0.1, 0.1))
    assert split.train.tolist() == [0, 1, 2, 3, 4, 5, 6, 7]
    assert (split.valid.tolist(), split.test.tolist()) == ([9], [8])


def test_scaffold_split_never_leaks_a_scaffold():
    pytest.importorskip("rdkit")
    from apmax.data.molecules.scaffolds import scaffold, scaffold_split

    rings = ["c1ccccc1", "C1CCNCC1", "c1ccncc1", "C1CC1", "c1ccoc1"]
    smiles = [f"{'C' * (1 + k % 7)}{rings[k * k % 5]}" for k in range(40)] + ["CCO", "CCN"]
    split = scaffold_split(smiles)
    parts = [{scaffold(smiles[row]) for row in part} for part in (split.train, split.valid, split.test)]
    assert sum(map(len, parts)) == len(set().union(*parts))
    assert rows_of(split) == list(range(42))


def test_given_split_is_read_back(tmp_path):
    np.savez(tmp_path / "s.npz", train=np.array([2, 0], np.int32), valid=np.array([1], np.int32), test=np.array([3]))
    split = load_split(tmp_path / "s.npz")
    assert (split.train.tolist(), split.valid.tolist(), split.test.tolist()) == ([2, 0], [1], [3])


def test_split_file_without_a_part_is_refused(tmp_path):
    np.savez(tmp_path / "s.npz", train=np.array([2, 0]), valid=np.array([1.5]))
    with pytest.raises(ValueError, match="called 'test', it has \\['train', 'valid'\\]"):
        load_split(tmp_path / "s.npz")


def test_split_file_with_fractions_is_refused(tmp_path):
    np.savez(tmp_path / "s.npz", train=np.array([2, 0]), valid=np.array([1.5]), test=np.array([3]))
    with pytest.raises(ValueError, match="row numbers in 'valid', got float64"):
        load_split(tmp_path / "s.npz")


def test_row_in_two_parts_is_refused():
    with pytest.raises(ValueError, match="row 1 in two places"):
        Split(np.array([0, 1]), np.array([1]), np.array([2]))


@pytest.mark.parametrize("fractions", [(0.8, 0.2), (0.8, 0.3, -0.1), (0.8, 0.1, 0.2)])
def test_fractions_that_are_no_shares_are_refused(fractions):
    with pytest.raises(ValueError, match="fractions must be three shares"):
        Split.random(10, fractions)


def test_a_part_of_share_zero_is_empty():
    split = Split.random(10, (0.8, 0.2, 0.0))
    assert [len(part) for part in (split.train, split.valid, split.test)] == [8, 2, 0]


@given(st.integers(2, 40), st.integers(2, 400), st.floats(0.05, 0.95), st.integers(0, 3))
def test_stratified_split_is_a_partition_with_the_share_of_each_class(positives, negatives, share, seed):
    labels = np.random.default_rng(seed).permutation([1] * positives + [0] * negatives)
    train, valid = split_stratified(labels, share, seed=seed)
    assert np.array_equal(np.sort(np.concatenate([train, valid])), np.arange(len(labels)))
    for count, value in ((positives, 1), (negatives, 0)):
        held = (labels[valid] == value).sum()
        assert 1 <= held <= count - 1
        assert abs(held - share * count) <= 1


@given(st.integers(0, 10**6))
def test_no_group_is_on_both_sides_and_both_classes_come_near_their_share(seed):
    generator = np.random.default_rng(seed)
    groups = generator.integers(0, 60, 1000)
    labels = (generator.random(1000) < 0.1).astype(int)
    train, valid = split_by_group(labels, groups, 0.2, seed=seed)
    assert not set(groups[train]) & set(groups[valid])
    assert len(train) + len(valid) == 1000
    assert 0.1 < labels[valid].sum() / labels.sum() < 0.3
    assert 0.1 < len(valid) / 1000 < 0.3


def test_every_row_held_out_by_time_is_later_than_every_other():
    times = np.random.default_rng(0).integers(0, 50, 500).astype(float)
    labels = np.arange(500) % 3 == 0
    train, valid = split_by_time(labels, times, 0.2)
    assert times[train].max() < times[valid].min()
    assert 0.15 < len(valid) / 500 < 0.25


def test_missing_time_is_refused():
    with pytest.raises(ValueError, match="1 of 3"):
        split_by_time(np.array([1, 0, 1]), np.array([1.0, np.nan, 2.0]), 0.5)


def test_split_that_leaves_a_side_without_positives_is_refused():
    with pytest.raises(ValueError, match="no positive row to hold out"):
        split_by_time(np.array([1, 0, 0, 0]), np.arange(4.0), 0.5)


def several_targets(rows=600, seed=0):
    generator = np.random.default_rng(seed)
    labels = (generator.random((rows, 3)) < [0.3, 0.02, 0.08]).astype(np.float32)
    labels[generator.random((rows, 3)) < 0.2] = np.nan
    return labels


def test_rarest_of_several_targets_has_its_share():
    labels = several_targets()
    train, held_out = split_stratified(labels, 0.25, seed=0)
    assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(600))
    for stratum in np.unique(strata(labels)):
        members = strata(labels) == stratum
        assert abs(members[held_out].sum() - 0.25 * members.sum()) <= 1


def test_stratum_of_one_row_stays_in_training():
    labels = np.zeros((20, 2), np.float32)
    labels[:8, 0] = 1
    labels[19, 1] = 1
    train, held_out = split_stratified(labels, 0.5, seed=0)
    assert 19 in train
    assert len(held_out) == 4 + round(0.5 * 11)


def test_stratified_split_of_a_class_of_one_row_is_refused():
    with pytest.raises(ValueError, match="needs a positive row for training and one to hold out, there are 1"):
        split_stratified(np.array([1, 0, 0]), 0.5, seed=0)


def test_random_share_is_held_out_whatever_the_class():
    assert [len(part) for part in split_random(2, 0.9, seed=0)] == [1, 1]
    train, held_out = split_random(101, 0.2, seed=1)
    assert np.array_equal(np.sort(np.concatenate([train, held_out])), np.arange(101))
    assert len(held_out) == 20
    assert np.array_equal(held_out, split_random(101, 0.2, seed=1)[1])
    assert not np.array_equal(held_out, split_random(101, 0.2, seed=2)[1])


@pytest.mark.parametrize(
    ("labels", "groups", "held_out"),
    [
        # Half of the rows are farther from a fifth than none.
        ([1, 0, 0, 1, 0, 0, 0], "aaabbbb", "a"),
        # Positives and negatives are in different groups, and each of them is too large.
        ([1, 1, 1, 1, 1, 0, 0, 0, 0, 0], "aaabbcccdd", "bd"),
    ],
)
def test_the_nearest_groups_are_held_out_where_all_are_larger_than_the_share(labels, groups, held_out):
    groups = np.array(list(groups))
    for seed in range(5):
        rows = split_by_group(np.array(labels), groups, 0.2, seed=seed)[1]
        assert set(groups[rows]) == set(held_out)


@given(st.lists(st.tuples(st.integers(0, 4), st.booleans()), min_size=2, max_size=20), st.integers(0, 3))
def test_groups_are_split_wherever_that_is_possible(rows, seed):
    groups, labels = np.array([group for group, _ in rows]), np.array([float(label) for _, label in rows])
    sides = [np.isin(groups, np.flatnonzero([part >> group & 1 for group in range(5)])) for part in range(1, 31)]
    if any(len(set(labels[held])) == len(set(labels[~held])) == 2 for held in sides):
        train, held_out = split_by_group(labels, groups, 0.2, seed=seed)
        assert not set(groups[train]) & set(groups[held_out])
    else:
        with pytest.raises(ValueError, match="leaves no"):
            split_by_group(labels, groups, 0.2, seed=seed)


def test_groups_of_several_targets_stay_together():
    labels, groups = several_targets(), np.arange(600) // 7
    train, held_out = split_by_group(labels, groups, 0.25, seed=0)
    assert not set(groups[train]) & set(groups[held_out])
    assert (labels[held_out] == 1).any()


def test_rows_that_are_all_positive_are_split_by_the_rarest_target():
    labels = np.array([[1, 0], [0, 1], [1, 0], [1, 0]], np.float32)
    assert one_column(labels).tolist() == [0, 1, 0, 0]


@given(st.integers(2, 6), st.integers(0, 30), st.integers(30, 200), st.integers(0, 3))
@settings(max_examples=30, deadline=None)
def test_folds_hold_out_every_row_once_with_equal_shares(k, positives, negatives, seed):
    labels = np.random.default_rng(seed).permutation([1.0] * positives + [0.0] * negatives)
    folds = k_fold(labels, k, seed=seed)
    assert sorted(np.concatenate([held_out for _, held_out in folds]).tolist()) == list(range(len(labels)))
    for train, held_out in folds:
        assert sorted([*train, *held_out]) == list(range(len(labels)))
    for counts in ([len(held) for _, held in folds], [int(labels[held].sum()) for _, held in folds]):
        assert max(counts) - min(counts) <= 1


@given(st.integers(2, 5), st.integers(0, 10**6))
@settings(max_examples=30, deadline=None)
def test_folds_keep_groups_together_and_have_positives(k, seed):
    generator = np.random.default_rng(seed)
    groups = generator.integers(0, 40, 400)
    labels = np.zeros(400)
    # Positives in at least k groups.
    labels[[np.flatnonzero(groups == group)[0] for group in np.unique(groups)[: k + 2]]] = 1
    folds = k_fold(labels, k, groups=groups, seed=seed)
    assert sorted(np.concatenate([held_out for _, held_out in folds]).tolist()) == list(range(400))
    for train, held_out in folds:
        assert not set(groups[train]) & set(groups[held_out])
        assert labels[held_out].sum() >= 1
        assert abs(len(held_out) - 400 / k) < 60


def test_folds_of_several_targets_share_the_rarest():
    labels = several_targets()
    rare = np.nansum(labels[:, 1])
    counts = [np.nansum(labels[held_out, 1]) for _, held_out in k_fold(labels, 3, seed=0)]
    assert all(abs(count - rare / 3) <= 1 for count in counts)


def test_folds_depend_on_the_seed_alone():
    labels = np.arange(50) % 5 == 0
    first, again, other = (k_fold(labels, 3, seed=seed)[0][1] for seed in (0, 0, 1))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def test_rows_without_a_label_are_in_folds_too():
    labels = np.array([1, 0, np.nan, 0, 1, np.nan])
    assert sorted(np.concatenate([held for _, held in k_fold(labels, 2, seed=0)]).tolist()) == list(range(6))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"k": 1}, "k must be at least 2"),
        ({"k": 9}, "at most the number of rows, got k=9 and 4 rows"),
        ({"k": 3, "groups": np.array([0, 0, 1, 1])}, "at most the number of groups, got k=3 and 2 groups"),
        ({"k": 2, "groups": np.array([0, 1])}, r"groups must have one entry per row, shape \(4,\), got \(2,\)"),
    ],
)
def test_impossible_folds_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        k_fold(np.array([1, 0, 0, 1]), seed=0, **options)
