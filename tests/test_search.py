"""The place of a score among sorted edges is the same however it is found."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apmax.exact import pair_sums
from apmax.exact.search import edges_at_or_below

# Few distinct values, so that ties between scores and edges are common.
NUMBERS = st.sampled_from([-1e30, -1.5, -1.0, -0.0, 0.0, 0.5, 1.0, 1e30]) | st.floats(-2, 2)


@given(edges=st.lists(NUMBERS, min_size=1, max_size=20), scores=st.lists(NUMBERS, max_size=40))
def test_place_is_the_number_of_edges_not_above_the_score(edges: list[float], scores: list[float]) -> None:
    found = edges_at_or_below(torch.tensor(sorted(edges), dtype=torch.float64), torch.tensor(scores).double())
    assert found.tolist() == [sum(edge <= score for edge in edges) for score in torch.tensor(scores).double().tolist()]


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
