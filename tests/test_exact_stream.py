"""`PairStream`: scores that arrive in chunks give what one call gives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apmax.exact import PairStream, pair_sums
from apmax.surrogates import SURROGATES

FAST = {name: "grid" if name in ("logistic", "sigmoid") else "bucket" for name in SURROGATES}
every_surrogate = pytest.mark.parametrize("name", SURROGATES)


def problem(*shape, k=9, seed=0):
    """Return scores with ties, anchors among them, weights by class and a cotangent; `shape` is (..., n)."""
    generator = torch.Generator().manual_seed(seed)
    scores, weight = torch.randn(2, *shape, generator=generator, dtype=torch.float64)
    scores = (scores * 8).round() / 4
    positive = (torch.rand(shape, generator=generator) < 0.3) * weight.abs()
    negative = (torch.rand(shape, generator=generator) < 0.6) * weight.abs()
    cotangent = torch.randn(2, *shape[:-1], k, generator=generator, dtype=torch.float64)
    return scores, scores[..., :k].clone(), positive, negative, cotangent


def at_once(name, scores, anchors, positive, negative, cotangent, margin):
    leaves = scores.clone().requires_grad_(), anchors.clone().requires_grad_()
    sums = pair_sums(*leaves, positive, negative, surrogate=name, margin=margin, method=FAST[name])
    return sums.detach(), *torch.autograd.grad(sums, leaves, cotangent)


def in_chunks(name, sizes, scores, anchors, positive, negative, cotangent, margin):
    stream = PairStream(anchors, surrogate=name, margin=margin, low=scores.amin(-1), high=scores.amax(-1))
    chunks = list(zip(*(part.split(sizes, -1) for part in (scores, positive, negative)), strict=True))
    for chunk in chunks:
        stream.add(*chunk)
    sums = stream.sums()
    of_anchors = stream.backward(cotangent)
    return sums, torch.cat([stream.gradient(*chunk) for chunk in chunks], -1), of_anchors


def assert_agree(found, expected):
    for ours, theirs in zip(found, expected, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-12, atol=1e-12 * float(theirs.abs().max()))


@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=12).filter(lambda sizes: sum(sizes) >= 9),
    name=st.sampled_from(sorted(SURROGATES)),
    margin=st.sampled_from([0.3, 1.0, 2.0]),
)
def test_chunks_of_any_size_give_what_one_call_gives(sizes, name, margin):
    data = problem(sum(sizes))
    assert_agree(in_chunks(name, sizes, *data, margin), at_once(name, *data, margin))


@every_surrogate
def test_several_tasks_stream_as_one_call_computes_them(name):
    data = problem(3, 70)
    assert_agree(in_chunks(name, [20, 1, 49], *data, 1.0), at_once(name, *data, 1.0))


@every_surrogate
def test_sums_may_be_read_between_chunks(name):
    scores, anchors, positive, negative, _ = problem(50)
    stream = PairStream(anchors, surrogate=name, low=scores.min(), high=scores.max())
    for start, stop in ((0, 20), (20, 50)):
        stream.add(*(part[start:stop] for part in (scores, positive, negative)))
        so_far = pair_sums(scores[:stop], anchors, positive[:stop], negative[:stop], surrogate=name, method="dense")
        torch.testing.assert_close(stream.sums(), so_far, rtol=1e-6, atol=1e-6)


@every_surrogate
def test_float32_chunks_are_added_up_in_float64(name):
    scores, anchors, positive, negative, cotangent = problem(60)
    single = (scores.float(), anchors.float(), positive.float(), negative.float(), cotangent)
    double = (*(part.double() for part in single[:4]), cotangent)
    assert_agree(in_chunks(name, [30, 30], *single, 1.0), in_chunks(name, [60], *double, 1.0))


@every_surrogate
def test_input_is_not_changed(name):
    data = problem(40)
    before = [part.clone() for part in data]
    in_chunks(name, [40], *data, 1.0)
    for now, then in zip(data, before, strict=True):
        assert torch.equal(now, then)


@pytest.mark.parametrize("name", ["logistic", "sigmoid"])
def test_bounds_are_needed_where_the_grid_must_be_laid_beforehand(name):
    with pytest.raises(ValueError, match=f"low and high are needed for '{name}'"):
        PairStream(torch.zeros(2), surrogate=name)


@pytest.mark.parametrize(("score", "found"), [(-1.5, "-1.5 to 0"), (1.25, "0 to 1.25")])
def test_score_beyond_the_bounds_is_an_error_and_adds_nothing(score, found):
    stream = PairStream(torch.zeros(1), surrogate="sigmoid", low=-1, high=1)
    with pytest.raises(ValueError, match=f"scores must lie between low and high, got {found}"):
        stream.add(torch.tensor([0.0, score]), torch.ones(2), torch.zeros(2))
    assert stream.sums().tolist() == [[0], [0]]


def test_anchor_beyond_the_bounds_is_an_error():
    with pytest.raises(ValueError, match="anchors must lie between low and high, got 0 to 2"):
        PairStream(torch.tensor([0.0, 2.0]), surrogate="sigmoid", low=-1, high=1)


@every_surrogate
def test_stream_without_anchors_is_an_error(name):
    with pytest.raises(ValueError, match="anchors must not be empty"):
        PairStream(torch.zeros(0), surrogate=name, low=0, high=1)


def test_unknown_surrogate_is_an_error():
    with pytest.raises(ValueError, match="surrogate must be one of"):
        PairStream(torch.zeros(1), surrogate="step")


@every_surrogate
@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_score_that_is_not_finite_is_an_error_and_adds_nothing(name, value):
    stream = PairStream(torch.zeros(1), surrogate=name, low=-1, high=1)
    with pytest.raises(ValueError, match=f"scores must be finite, got {value:g} at position 1"):
        stream.add(torch.tensor([0.0, value]), torch.ones(2), torch.zeros(2))
    assert stream.sums().tolist() == [[0], [0]]


@every_surrogate
def test_anchor_that_is_not_finite_is_an_error(name):
    with pytest.raises(ValueError, match="anchors must be finite, got nan at position 1"):
        PairStream(torch.tensor([0.0, torch.nan]), surrogate=name, low=-1, high=1)


@every_surrogate
def test_passes_in_the_wrong_order_are_errors_that_name_the_missing_one(name):
    data = torch.zeros(1), torch.ones(1), torch.zeros(1)
    stream = PairStream(torch.zeros(1), surrogate=name, low=-1, high=1)
    stream.add(*data)
    with pytest.raises(ValueError, match=r"sums\(\) must be called before backward"):
        stream.backward(torch.ones(2, 1))
    stream.sums()
    with pytest.raises(ValueError, match=r"backward\(cotangent\) must be called before gradient"):
        stream.gradient(*data)
    stream.backward(torch.ones(2, 1))
    assert stream.gradient(*data).shape == (1,)
