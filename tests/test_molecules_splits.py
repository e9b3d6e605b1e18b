"""Splits: every row once, no group divided."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from apmax.data import Split, download, load_split


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
    with pytest.raises(ValueError, match="called 'valid'"):
        load_split(tmp_path / "s.npz")


def test_row_in_two_parts_is_refused():
    with pytest.raises(ValueError, match="row 1 in two places"):
        Split(np.array([0, 1]), np.array([1]), np.array([2]))


@pytest.mark.parametrize("fractions", [(0.8, 0.2), (0.8, 0.3, -0.1), (0.8, 0.1, 0.2)])
def test_fractions_that_are_no_shares_are_refused(fractions):
    with pytest.raises(ValueError, match="fractions must be three shares"):
        Split.random(10, fractions)


def test_file_that_is_not_there_says_how_to_get_it(tmp_path, monkeypatch):
    monkeypatch.delenv("APMAX_DATA", raising=False)
    with pytest.raises(FileNotFoundError, match="set APMAX_DATA"):
        download.locate("a/b.csv")
    with pytest.raises(FileNotFoundError, match="download=True fetches it from file:"):
        download.locate("a/b.csv", tmp_path, url="file:///nowhere")


def test_download_is_verified_and_a_wrong_one_discarded(tmp_path):
    home = tmp_path / "home.csv"
    home.write_text("smiles\nC\n")

    def refuse(path):
        raise ValueError(f"wrong content in {path.name}")

    with pytest.raises(ValueError, match=r"wrong content in b.csv"):
        download.locate("a/b.csv", tmp_path, url=home.as_uri(), verify=refuse, download=True)
    assert list((tmp_path / "a").iterdir()) == []
    found = download.locate("a/b.csv", tmp_path, url=home.as_uri(), verify=lambda path: None, download=True)
    assert found.read_text() == "smiles\nC\n"
    assert list((tmp_path / "a").iterdir()) == [found]


def test_failed_download_is_a_missing_file(tmp_path):
    with pytest.raises(FileNotFoundError, match="could not be fetched"):
        download.locate("a/b.csv", tmp_path, url=(tmp_path / "none").as_uri(), download=True)
