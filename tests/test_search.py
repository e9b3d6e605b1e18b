"""The place of a score among sorted edges is the same however it is found."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apmax.exact import pair_sums
from apmax.exact.search import common_rows, edges_at_or_below, edges_below

# Few distinct values, so that ties between scores and edges are common.
NUMBERS = st.sampled_from([-1e30, -1.5, -1.0, -0.0, 0.0, 0.5, 1.0, 1e30]) | st.floats(-2, 2)


@pytest.mark.parametrize("strictly", [True, False], ids=["below", "at or below"])
@pytest.mark.parametrize("repeat", [1, 400], ids=["few", "many"])
@given(edges=st.lists(NUMBERS, min_size=1, max_size=20), values=st.lists(NUMBERS, min_size=6, max_size=20))
def test_place_is_the_number_of_edges_below(
    strictly: bool, repeat: int, edges: list[float], values: list[float]
) -> None:
    count = edges_below if strictly else edges_at_or_below
    found = count(torch.tensor(sorted(edges)).double(), torch.tensor(values).double().repeat(repeat))
    exact = torch.tensor(edges).double()
    each = [
        int((exact < value).sum() if strictly else (exact <= value).sum()) for value in torch.tensor(values).double()
    ]
    assert found.tolist() == each * repeat


def test_several_tasks_are_searched_each_on_its_own() -> None:
    edges, scores = torch.randn(3, 7).sort(-1).values, torch.randn(3, 50)
    each = [edges_at_or_below(*pair) for pair in zip(edges, scores, strict=True)]
    assert torch.equal(edges_at_or_below(edges, scores), torch.stack(each))


@pytest.mark.parametrize("bad", [float("nan"), float("inf")])
def test_an_unchecked_score_that_is_no_number_does_not_pass_for_one(bad: float) -> None:
    scores = torch.randn(2000)
    scores[7] = bad
    positive = (torch.arange(2000) % 10 == 0).float()
    sums = pair_sums(scores, scores[::10], positive, 1 - positive, surrogate="smooth_step", method="bucket")
    assert bool(sums.isnan().all())


@pytest.mark.parametrize("limit", [5000, 1_000_000], ids=["marks", "sorting"])
@pytest.mark.parametrize("table_size", [3, 4000], ids=["short table", "long table"])
@given(seed=st.integers(0, 1000), size=st.integers(0, 900))
def test_common_values_are_where_both_say_they_are(limit: int, table_size: int, seed: int, size: int) -> None:
    generator = np.random.default_rng(seed)
    values, table = generator.permutation(5000)[:size], np.sort(generator.permutation(5000)[:table_size])
    found = common_rows(table, values, limit)
    assert found is not None
    where, place = found
    assert values[where].tolist() == table[place].tolist()
    assert sorted(values[where]) == sorted(set(values) & set(table))


@pytest.mark.parametrize("limit", [1000, 1_000_000], ids=["marks", "sorting"])
@pytest.mark.parametrize("wrong", ["twice", "below", "above"])
def test_common_refuses_values_that_repeat_or_lie_outside(limit: int, wrong: str) -> None:
    values = np.arange(0, 1000, 4)
    values[7] = {"twice": values[200], "below": -1, "above": limit}[wrong]
    assert common_rows(np.array([3, 5]), values, limit) is None
