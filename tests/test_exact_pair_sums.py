"""`pair_sums`: every method against loops and against the dense closed form, for many distributions of scores."""

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st

import references
from apmax.exact import kernel, pair_sums, tables
from apmax.exact.kernel import DensePairs
from apmax.exact.tables import TabulatedPairs
from apmax.surrogates import SURROGATES, Piece, Surrogate

FAST = {name: "grid" if name in ("logistic", "sigmoid") else "bucket" for name in SURROGATES}
PIECEWISE = [name for name, surrogate in SURROGATES.items() if surrogate.pieces is not None]
EXACT = [name for name, method in FAST.items() if method == "bucket"]
EVERY_METHOD = [(name, method) for name in SURROGATES for method in ("dense", FAST[name])]
every_method = pytest.mark.parametrize(("name", "method"), EVERY_METHOD)
exact_surrogate = pytest.mark.parametrize("name", EXACT)


def problem(n=40, k=9, *, seed=0, decimals=None):
    """Return scores, anchors among them, and weights by class; some weights are zero."""
    rng = np.random.default_rng(seed)
    scores = rng.normal(size=n) * 2
    scores = scores if decimals is None else scores.round(decimals)
    weight = rng.exponential(size=n) * (rng.random(n) < 0.8)
    positive = np.arange(n) < k
    return tuple(map(torch.from_numpy, (scores, scores[:k], weight * positive, weight * ~positive)))


def value_and_gradients(name, method, scores, anchors, positive, negative, *, margin=1.0, seed=1):
    """Return the sums, a fixed random cotangent and its pull-back to scores and anchors, all of them in float64."""
    scores, anchors = scores.clone().requires_grad_(), anchors.clone().requires_grad_()
    sums = pair_sums(scores, anchors, positive, negative, surrogate=name, margin=margin, method=method)
    cotangent = torch.randn(sums.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    sums.backward(cotangent.to(sums.dtype))
    return sums.detach().double(), cotangent, scores.grad.double(), anchors.grad.double()


def assert_agree(found, expected, *, rtol=1e-12):
    """Compare each of several arrays relative to its largest finite element."""
    for ours, theirs in zip(found, expected, strict=True):
        # Sums of less than 1e-250 come out of terms too small for a double's full precision.
        largest = float(theirs[theirs.isfinite()].abs().max())
        scale = max(largest, 1e-250) if largest else 1.0
        torch.testing.assert_close(ours, theirs, rtol=0, atol=rtol * scale)


@every_method
@pytest.mark.parametrize("decimals", [None, 0], ids=["distinct", "tied"])
def test_value_and_gradients_equal_the_loops(name, method, decimals):
    data = problem(decimals=decimals)
    sums, cotangent, *gradients = value_and_gradients(name, method, *data, margin=0.75)
    arrays = [part.numpy() for part in data]
    expected = references.pair_sums(*arrays, name, 0.75)
    pulled = references.pair_sums_pulled_back(cotangent.numpy(), *arrays, name, 0.75)
    assert_agree(
        [sums, *gradients], map(torch.from_numpy, (expected, *pulled)), rtol=5e-7 if method == "grid" else 1e-12
    )


@every_method
def test_gradcheck_with_ties(name, method):
    # Multiples of 1/2, a margin of 0.7: many ties, and no difference within reach of a kink.
    scores, _, positive, negative = problem(12, 4)
    scores = (scores.round() / 2).requires_grad_()
    anchors = scores.detach()[:4].clone().requires_grad_()
    tolerance = {"atol": 1e-5, "rtol": 1e-5} if method == "grid" else {}
    assert torch.autograd.gradcheck(
        lambda s, a: pair_sums(s, a, positive, negative, surrogate=name, margin=0.7, method=method),
        (scores, anchors),
        **tolerance,
    )


def shifted(by):
    return lambda scores: scores + by


def scaled(by):
    return lambda scores: scores * by


def with_outlier(at, value):
    def place(scores):
        scores = scores.clone()
        scores[..., at] = value
        return scores

    return place


LOOKS = {
    "plain": lambda scores: scores,
    "ties": lambda scores: (scores * 4).round() / 4,
    "all equal": lambda scores: scores * 0 + 3,
    "offset 1e4": shifted(1e4),
    "offset -1e4": shifted(-1e4),
    "scale 1e-3": scaled(1e-3),
    "scale 1e4": scaled(1e4),
    "an anchor at 1e6": with_outlier(0, 1e6),
    "an anchor at -1e8": with_outlier(0, -1e8),
    "an example at 1e8": with_outlier(-1, 1e8),
    "an example at -1e6": with_outlier(-1, -1e6),
}
every_look = pytest.mark.parametrize("look", LOOKS.values(), ids=LOOKS)


@exact_surrogate
@every_look
@pytest.mark.parametrize("size", [(50, 8), (2500, 90)], ids=["small", "beyond the crossover"])
def test_bucket_equals_dense_whatever_the_scores_look_like(name, look, size):
    assert (size[0] * size[1] > kernel.DENSE_PAIRS) == (size[0] > 50)
    scores, _, positive, negative = problem(*size, seed=2)
    scores = look(scores)
    data = scores, scores[: size[1]], positive, negative
    expected, _, *gradients = value_and_gradients(name, "dense", *data)
    found, _, *pulled = value_and_gradients(name, "bucket", *data)
    # e^x magnifies the rounding of x, of the order of the anchors' range.
    rtol = max(1e-12, 2e-16 * float(data[1].max() - data[1].min())) if name == "exponential" else 1e-12
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-12)
    assert_agree(pulled, gradients, rtol=rtol)


@exact_surrogate
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
@pytest.mark.parametrize("look", ["plain", "ties", "offset 1e4", "scale 1e4", "scale 1e-3"])
def test_bucket_has_float64_sums_for_every_type_of_scores(name, dtype, look):
    scores, _, positive, negative = problem(300, 40, seed=3)
    scores = LOOKS[look](scores).clamp(-6e4, 6e4).to(dtype)
    positive, negative = positive.float(), negative.float()
    expected, _, *gradients = value_and_gradients(
        name, "dense", *(scores.double(), scores[:40].double()), positive, negative
    )
    found, _, *pulled = value_and_gradients(name, "bucket", scores, scores[:40], positive, negative)
    rtol = 5e-11 if name == "exponential" else 1e-12
    torch.testing.assert_close(found, expected, rtol=rtol, atol=1e-12)
    gradients = [part.to(dtype).double() for part in gradients]
    assert_agree(pulled, gradients, rtol=max(rtol, torch.finfo(dtype).eps))


@every_method
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_low_precision_scores_are_summed_in_float32_or_better(name, method, dtype):
    scores, _, positive, negative = problem(300, 40, seed=3)
    scores, positive, negative = scores.to(dtype), positive.float(), negative.float()
    expected, _, *gradients = value_and_gradients(
        name, "dense", *(scores.double(), scores[:40].double()), positive, negative
    )
    found, _, *pulled = value_and_gradients(name, method, scores, scores[:40], positive, negative)
    assert_agree([found], [expected], rtol=2e-6)
    assert_agree(pulled, [part.to(dtype).double() for part in gradients], rtol=2e-3 if dtype == torch.float16 else 5e-6)


@every_method
def test_tasks_are_computed_each_on_its_own(name, method):
    tasks = [problem(60, 7, seed=seed, decimals=1) for seed in range(3)]
    together = value_and_gradients(name, method, *(torch.stack(part) for part in zip(*tasks, strict=True)))
    for number, task in enumerate(tasks):
        scores, anchors = (part.clone().requires_grad_() for part in task[:2])
        sums = pair_sums(scores, anchors, *task[2:], surrogate=name, method=method)
        sums.backward(together[1][:, number])
        # A grid is laid over the widest task, so that another spacing is used for one alone.
        alone = (sums.detach(), scores.grad, anchors.grad)
        found = (together[0][:, number], together[2][number], together[3][number])
        assert_agree(found, alone, rtol=1e-6 if method == "grid" else 1e-12)


def test_transposed_scores_of_several_tasks_are_taken_as_they_are():
    generator = torch.Generator().manual_seed(0)
    scores, weight = (torch.rand(300, 3, generator=generator, dtype=torch.float64).mT for _ in range(2))
    for name in EXACT:
        sums = [
            pair_sums(s, s[..., :20], w, 1 - w, surrogate=name, method="bucket")
            for s, w in ((scores, weight), (scores.contiguous(), weight.contiguous()))
        ]
        torch.testing.assert_close(*sums, rtol=1e-15, atol=0)


lattice = st.lists(st.integers(-12, 12), min_size=1, max_size=30)


@settings(deadline=None)
@given(
    scores=lattice,
    anchors=lattice,
    seed=st.integers(0, 9),
    margin=st.sampled_from([0.5, 1.0, 3.0]),
    name=st.sampled_from(EXACT),
)
def test_bucket_equals_dense_on_any_lattice_of_ties(scores, anchors, seed, margin, name):
    # Binary fractions: both methods meet every kink exactly, and must take the same side of it.
    scores, anchors = (torch.tensor(part, dtype=torch.float64) / 2 for part in (scores, anchors))
    positive, negative = torch.rand(2, len(scores), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found, expected = (
        value_and_gradients(name, method, scores, anchors, positive, negative, margin=margin)
        for method in ("bucket", "dense")
    )
    assert_agree(found, expected)


@settings(deadline=None)
@given(
    scores=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30),
    anchors=st.lists(st.floats(-1e3, 1e3), min_size=1, max_size=30),
    margin=st.floats(0.01, 100),
    name=st.sampled_from(["squared_hinge", "smoothed_hinge", "smooth_step", "exponential"]),
)
def test_bucket_equals_dense_on_any_scores(scores, anchors, margin, name):
    scores, anchors = (torch.tensor(part, dtype=torch.float64) for part in (scores, anchors))
    data = scores, anchors, torch.ones_like(scores), torch.linspace(0, 2, len(scores), dtype=torch.float64)
    found, expected = (value_and_gradients(name, method, *data, margin=margin) for method in ("bucket", "dense"))
    # Of exponents up to 80 the sums of the buckets have lost some digits: 1.006e-10 was found.
    assert_agree(found, expected, rtol=1e-9)


def test_exponential_agrees_where_exponents_are_clamped_and_where_they_vanish():
    scores = torch.tensor([-900.0, -85.0, -1.0, 0.0, 2.0, 79.0, 80.0, 81.0, 900.0], dtype=torch.float64)
    data = scores, scores[[0, 3, 4, 8]], torch.ones(9), torch.arange(9.0)
    found, expected = (value_and_gradients("exponential", method, *data) for method in ("bucket", "dense"))
    torch.testing.assert_close(found[0], expected[0], rtol=1e-12, atol=0)
    assert_agree(found[2:], expected[2:])


@pytest.mark.parametrize("name", [name for name in PIECEWISE if name != "squared_hinge"])
@pytest.mark.parametrize("value", [1e30, -1e30, 1e200, -1e200])
def test_an_extreme_score_does_not_change_the_sums_of_other_anchors(name, value):
    # Not so the squared hinge: its square of 1e200 is beyond a double.
    scores, _, positive, negative = problem(200, 20, seed=4)
    scores[0] = value
    data = scores, scores[:20], positive + 0.1, negative + 0.1
    found, expected = (
        pair_sums(*data, surrogate=name, margin=0.7, method=method)[:, 1:] for method in ("bucket", "dense")
    )
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=0)


@pytest.mark.parametrize("name", ["ramp", "smooth_step"])
@pytest.mark.parametrize("distance", [10.0, 1e30])
def test_an_example_out_of_every_anchors_reach_has_no_gradient(name, distance):
    scores, anchors, positive, negative = problem(200, 20, seed=4)
    anchors = torch.cat([anchors, anchors + 1e6])
    scores[:3] = torch.tensor([scores.min() - distance, scores.max() + 10, anchors.max() + distance])
    of_scores = value_and_gradients(name, "bucket", scores, anchors, positive + 0.1, negative + 0.1, margin=0.7)[2]
    assert of_scores[:3].tolist() == [0, 0, 0]


@every_method
def test_work_in_chunks_gives_the_same(name, method, monkeypatch):
    data = problem(230, 31, seed=5)
    whole = value_and_gradients(name, method, *data)
    monkeypatch.setattr(kernel, "_MAX_PAIRS_AT_ONCE", 1000)
    monkeypatch.setattr(tables, "_CHUNK", 64)
    assert_agree(value_and_gradients(name, method, *data), whole)


def test_auto_takes_the_matrix_up_to_the_crossover_and_the_search_beyond():
    n = kernel.DENSE_PAIRS // 10
    weight = torch.ones(2, n + 1)
    for count, kind in ((n, DensePairs), (n + 1, TabulatedPairs)):
        chosen = kernel.pair_kernel(torch.zeros(count), torch.zeros(10), weight[:, :count], SURROGATES["hinge"], 1.0)
        assert isinstance(chosen, kind)


@every_method
def test_inputs_are_not_changed(name, method):
    data = problem(60, 8, decimals=1)
    before = [part.clone() for part in data]
    value_and_gradients(name, method, *data)
    for now, then in zip(data, before, strict=True):
        assert torch.equal(now, then)


@every_method
def test_going_back_twice_gives_the_same(name, method):
    scores, anchors, positive, negative = problem(60, 8)
    scores.requires_grad_()
    sums = pair_sums(scores, anchors, positive, negative, surrogate=name, method=method).sum()
    first, second = (torch.autograd.grad(sums, scores, retain_graph=True)[0] for _ in range(2))
    assert torch.equal(first, second)


@every_method
def test_autocast_does_not_lower_the_precision(name, method):
    scores, _, positive, negative = problem(60, 8)
    scores, positive, negative = scores.float(), positive.float(), negative.float()
    expected = value_and_gradients(name, method, scores, scores[:8], positive, negative)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        found = value_and_gradients(name, method, scores, scores[:8], positive, negative)
    assert_agree(found, expected, rtol=1e-7)


def test_scores_changed_in_place_before_the_backward_pass_are_noticed():
    scores, anchors, positive, negative = problem()
    scores = scores.requires_grad_() * 1
    sums = pair_sums(scores, anchors, positive, negative)
    scores.detach().mul_(2)
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        sums.sum().backward()


def test_second_derivative_raises_instead_of_being_wrong():
    scores, anchors, positive, negative = problem()
    scores.requires_grad_()
    sums = pair_sums(scores, anchors, positive, negative)
    (gradient,) = torch.autograd.grad(sums.square().sum(), scores, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        gradient.sum().backward()


@every_method
def test_without_anchors_or_without_examples_there_is_nothing_to_sum(name, method):
    nothing, some = torch.zeros(0), torch.ones(3)
    assert pair_sums(some, nothing, some, some, surrogate=name, method=method).shape == (2, 0)
    sums = pair_sums(nothing, some, nothing, nothing, surrogate=name, method=method)
    assert torch.equal(sums.double(), torch.zeros(2, 3, dtype=torch.float64))


def test_a_surrogate_of_ones_own_without_pieces_is_summed_densely_at_any_size():
    own = Surrogate("arctan", lambda x, m: (x.mul(m).atan() + 1.6, m / (1 + (m * x) ** 2)))
    scores, anchors, positive, negative = problem(2500, 90)
    expected = ((scores - anchors[3]).atan() + 1.6) @ positive
    sums = pair_sums(scores, anchors, positive, negative, surrogate=own)
    torch.testing.assert_close(sums[0, 3], expected, rtol=1e-12, atol=0)
    with pytest.raises(ValueError, match="method 'bucket' does not suit surrogate 'arctan': use 'dense' or 'auto'"):
        pair_sums(scores, anchors, positive, negative, surrogate=own, method="bucket")


@pytest.mark.parametrize(
    ("name", "method"), [(name, m) for name in SURROGATES for m in {"bucket", "grid"} - {FAST[name]}]
)
def test_method_that_does_not_suit_the_surrogate_is_an_error(name, method):
    with pytest.raises(ValueError, match=f"method '{method}' does not suit surrogate '{name}': use '{FAST[name]}'"):
        pair_sums(*problem(), surrogate=name, method=method)


def test_unknown_method_is_an_error_that_suggests_the_right_one():
    with pytest.raises(ValueError, match=r"method must be one of .*did you mean 'bucket'"):
        pair_sums(*problem(), method="buckets")


@settings(deadline=None)
@given(
    steps=st.lists(st.integers(0, 12), min_size=1, max_size=30),
    anchors=st.lists(st.integers(0, 12), min_size=1, max_size=10),
    origin=st.sampled_from([0.0, 1e17, -1e17, 7.0, 1e200]),
    margin=st.floats(0.5, 100),
    name=st.sampled_from([name for name, surrogate in SURROGATES.items() if surrogate.pieces]),
)
def test_bucket_equals_dense_where_knots_fall_between_the_numbers_of_float64(steps, anchors, origin, margin, name):
    spacing = max(1.0, np.spacing(abs(origin)))
    assume(name != "squared_hinge" or spacing < 1e100)
    scores, anchors = (origin + spacing * torch.tensor(part, dtype=torch.float64) for part in (steps, anchors))
    data = scores, anchors, torch.ones_like(scores), torch.linspace(0, 2, len(steps), dtype=torch.float64)
    found, expected = (value_and_gradients(name, method, *data, margin=margin) for method in ("bucket", "dense"))
    assert_agree(found, expected, rtol=1e-10)


def uneven_step(x, m):
    """Rise from 0 to 1/2 over one margin and from 1/2 to 1 over twenty."""
    value = torch.where(x < 0, 0.5 * (x + m) / m, 0.5 + x / (40 * m)).clamp(0, 1)
    inside = ((x >= -m) & (x < 20 * m)).to(x.dtype)
    slope = inside * torch.where(x < 0, inside * 0.5 / m, inside / (40 * m))
    return value, slope


def bump(x, m):
    return ((x >= -m) & (x < m)).to(x.dtype), torch.zeros_like(x)


OWN_PIECES = {
    "uneven": Surrogate(
        "uneven",
        uneven_step,
        lambda m: (
            Piece(-m, 0, (0, 0.5 / m, 0)),
            Piece(0, 20 * m, (0.5, 1 / (40 * m), 0)),
            Piece(20 * m, None, (1, 0, 0)),
        ),
    ),
    "bounded last": Surrogate("bump", bump, lambda m: (Piece(-m, m, (1, 0, 0)),)),
    "zero": Surrogate("zero", lambda x, _: (0 * x, 0 * x), lambda m: (Piece(-m, None, (0, 0, 0)),)),
}


@pytest.mark.parametrize("own", OWN_PIECES.values(), ids=OWN_PIECES)
def test_pieces_of_ones_own_may_differ_in_width_and_the_last_may_end(own):
    scores, anchors, positive, negative = problem(200, 20)
    data = scores * 10, anchors * 10, positive, negative
    found, expected = (value_and_gradients(own, method, *data, margin=0.7) for method in ("bucket", "dense"))
    assert_agree(found, expected)


@pytest.mark.parametrize("stop", [None, -0.5, -1.5])
def test_pieces_that_leave_a_gap_or_overlap_are_an_error(stop):
    own = Surrogate("gap", bump, lambda m: (Piece(-m, stop, (1, 0, 0)), Piece(0, None, (1, 0, 0))))
    with pytest.raises(ValueError, match="surrogate 'gap': each of its pieces must begin where the one before it ends"):
        pair_sums(*problem(), surrogate=own, method="bucket")
