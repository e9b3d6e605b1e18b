"""`ap_objective`: the paper's P(w) over all examples, with weights, another prevalence and several tasks."""

import math
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.metrics import average_precision_score

import references
from apmax.exact import kernel, pair_sums
from apmax.functional import ap_objective, inner
from apmax.losses import APLoss
from apmax.surrogates import SURROGATES

# The formulas are compared for every surrogate on raw scores.
pytestmark = pytest.mark.filterwarnings("ignore:surrogate .* measures average precision on scores in")

FAST = {name: "grid" if name in ("logistic", "sigmoid") else "bucket" for name in SURROGATES}
every_surrogate = pytest.mark.parametrize("name", SURROGATES)
every_method = pytest.mark.parametrize(
    ("name", "method"), [(name, method) for name in SURROGATES for method in ("dense", FAST[name])]
)
MARGIN = 0.75


def problem(n=30, seed=0, prevalence=0.3):
    """Return scores with ties, labels with both classes, and weights of which some are zero."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < prevalence).astype(float)
    labels[:2] = 1, 0
    scores = ((rng.normal(size=n) + labels) * 8).round() / 8
    weight = rng.exponential(size=n) * (rng.random(n) < 0.8)
    weight[:2] = 1
    return scores, labels, weight


def value_and_gradient(scores, labels, name, margin=MARGIN, **options):
    leaf = torch.tensor(scores, requires_grad=True)
    value = ap_objective(leaf, torch.as_tensor(labels), name, margin, **options)
    value.backward()
    return value.item(), leaf.grad.numpy()


def at_prevalence(labels, weight, prevalence):
    """Return weights by which positives make up `prevalence` of the whole."""
    weight = np.ones(len(labels)) if weight is None else weight
    if prevalence is None:
        return weight
    share = {1: prevalence, 0: 1 - prevalence}
    return np.array([share[y] * w / weight[labels == y].sum() for y, w in zip(labels, weight, strict=True)])


@every_method
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("prevalence", [None, 0.02, 0.7])
def test_value_and_gradient_equal_the_loops(name, method, weighted, prevalence):
    scores, labels, weight = problem()
    weight = weight if weighted else None
    found, gradient = value_and_gradient(
        scores,
        labels,
        name,
        method=method,
        sample_weight=None if weight is None else torch.from_numpy(weight),
        prevalence=prevalence,
    )
    effective = at_prevalence(labels, weight, prevalence)
    tolerance = 1e-6 if method == "grid" else 1e-12
    assert found == pytest.approx(references.objective(scores, labels, name, MARGIN, effective), rel=tolerance)
    expected = references.objective_gradient(scores, labels, name, MARGIN, effective)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance * np.abs(expected).max())


def table(seed=0):
    """Return 24 examples in four tasks with gaps: the third has no positive, in the fourth nothing was measured."""
    rng = np.random.default_rng(seed)
    scores = (rng.normal(size=(24, 4)) * 8).round() / 8
    labels = np.where(rng.random((24, 4)) < 0.4, 1.0, 0.0)
    labels[rng.random((24, 4)) < 0.3] = np.nan
    # Few positives, and a task whose highest scores are not measured: padding anchors that nothing comes near.
    labels[:, 1] = np.nan
    labels[:4, 1] = 1, 0, 1, 0
    scores[4:, 1] += 50
    labels[:, 2] = np.where(labels[:, 2] == 1, 0, labels[:, 2])
    labels[:, 3] = np.nan
    return scores, labels, rng.exponential(size=24) + 0.1


@every_method
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("prevalence", [None, 0.05])
def test_several_tasks_with_gaps_give_the_mean_over_those_with_a_positive(name, method, weighted, prevalence):
    scores, labels, weight = table()
    found, gradient = value_and_gradient(
        scores,
        labels,
        name,
        method=method,
        sample_weight=torch.from_numpy(weight) if weighted else None,
        prevalence=prevalence,
    )
    values, expected = [], np.zeros_like(scores)
    for task in (0, 1):
        known = ~np.isnan(labels[:, task])
        h, y = scores[known, task], labels[known, task]
        effective = at_prevalence(y, weight[known] if weighted else None, prevalence)
        values.append(references.objective(h, y, name, MARGIN, effective))
        expected[known, task] = references.objective_gradient(h, y, name, MARGIN, effective) / 2
    # The widest task stretches the grid of all, and its sums are compared with the smallest.
    tolerance = 1e-6 if method == "grid" else 1e-12
    assert found == pytest.approx(np.mean(values), rel=tolerance)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@pytest.mark.parametrize("scores_shape", [(30,), (30, 1)])
@pytest.mark.parametrize("labels_shape", [(30,), (30, 1)])
def test_a_column_is_taken_as_one_task(scores_shape, labels_shape):
    scores, labels, _ = map(torch.from_numpy, problem())
    assert ap_objective(scores.reshape(scores_shape), labels.reshape(labels_shape)) == ap_objective(scores, labels)


@every_surrogate
def test_weights_equal_repetition(name):
    scores, labels, _ = problem()
    times = np.random.default_rng(3).integers(0, 4, size=30)
    times[:2] = 1
    weighted = ap_objective(torch.tensor(scores), torch.tensor(labels), name, sample_weight=torch.tensor(times))
    repeated = ap_objective(torch.tensor(scores.repeat(times)), torch.tensor(labels.repeat(times)), name)
    torch.testing.assert_close(weighted, repeated, rtol=1e-12, atol=0)


@every_surrogate
def test_prevalence_equals_reweighting_the_classes(name):
    scores, labels, weight = problem()
    s, y = torch.tensor(scores), torch.tensor(labels)
    given_prevalence = ap_objective(s, y, name, sample_weight=torch.tensor(weight), prevalence=0.01)
    reweighted = ap_objective(s, y, name, sample_weight=torch.tensor(at_prevalence(labels, weight, 0.01)))
    torch.testing.assert_close(given_prevalence, reweighted, rtol=1e-12, atol=0)


@every_surrogate
def test_own_prevalence_changes_nothing(name):
    scores, labels, _ = problem()
    s, y = torch.tensor(scores), torch.tensor(labels)
    torch.testing.assert_close(
        ap_objective(s, y, name, prevalence=labels.mean()), ap_objective(s, y, name), rtol=1e-12, atol=0
    )


@pytest.mark.parametrize("name", ["smooth_step", "ramp", "sigmoid"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sharp_limit_is_average_precision_with_each_anchors_own_pair_counted_by_half(name, weighted):
    # ℓ(0) = 1/2: where AP has A/T over what ranks at or above the anchor, the limit has (A - w/2)/(T - w/2).
    rng = np.random.default_rng(1)
    scores, labels = rng.permutation(200) / 10, (rng.random(200) < 0.1).astype(float)
    weight = rng.exponential(size=200) if weighted else np.ones(200)
    halved = 0.0
    for i in np.flatnonzero(labels):
        above = scores >= scores[i]
        own = weight[i] / 2
        halved += weight[i] * (weight[above & (labels == 1)].sum() - own) / (weight[above].sum() - own)
    halved /= weight[labels == 1].sum()
    margin = 1e4 if name == "sigmoid" else 1e-4
    found = ap_objective(torch.tensor(scores), torch.tensor(labels), name, margin, sample_weight=torch.tensor(weight))
    assert -found.item() == pytest.approx(halved, rel=1e-12)
    assert halved < average_precision_score(labels, scores, sample_weight=weight)


@pytest.mark.parametrize("name", ["smooth_step", "ramp"])
@pytest.mark.parametrize("weighted", [False, True])
def test_sharp_step_just_below_each_anchor_is_scikit_learns_average_precision(name, weighted):
    # Two margins below an anchor, and far above the next score, its own pair counts in full.
    rng = np.random.default_rng(1)
    scores, labels = rng.permutation(200) / 10, (rng.random(200) < 0.1).astype(float)
    weight = rng.exponential(size=200) if weighted else np.ones(200)
    s, y, w = map(torch.from_numpy, (scores, labels, weight))
    positive = y == 1
    sums = pair_sums(s, s[positive] - 2e-4, y * w, (1 - y) * w, surrogate=name, margin=1e-4, method="bucket")
    precision = sums[0] / sums.sum(0)
    found = (w[positive] * precision).sum() / w[positive].sum()
    assert found.item() == pytest.approx(average_precision_score(labels, scores, sample_weight=weight), rel=1e-12)
    assert found.item() == pytest.approx(references.average_precision(scores, labels, weight), rel=1e-12)


def test_exponential_is_the_softmax_mass_on_the_positives():
    scores, labels, weight = problem()
    s, y, w = map(torch.from_numpy, (scores, labels, weight))
    mass = torch.softmax(2.5 * s + w.log(), 0)[y == 1].sum()
    for method in ("dense", "bucket"):
        found = ap_objective(s, y, "exponential", 2.5, sample_weight=w, method=method)
        torch.testing.assert_close(-found, mass, rtol=1e-12, atol=0)


@every_method
def test_all_positive_gives_one_and_no_gradient(name, method):
    for prevalence in (None, 1e-6):
        scores, _, _ = problem()
        value, gradient = value_and_gradient(scores, np.ones(30), name, method=method, prevalence=prevalence)
        assert value == pytest.approx(-1, abs=1e-12)
        np.testing.assert_allclose(gradient, 0, atol=1e-12)


@every_method
def test_one_positive_equals_the_loop(name, method):
    scores, labels, _ = problem()
    labels[1:] = 0
    found, gradient = value_and_gradient(scores, labels, name, method=method)
    tolerance = 1e-6 if method == "grid" else 1e-12
    assert found == pytest.approx(references.objective(scores, labels, name, MARGIN), rel=tolerance)
    expected = references.objective_gradient(scores, labels, name, MARGIN)
    np.testing.assert_allclose(gradient, expected, rtol=0, atol=tolerance * np.abs(expected).max())


@every_surrogate
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
def test_beyond_the_crossover_auto_equals_dense(name, dtype):
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(2500) < 90).float()
    scores = (torch.randn(2500, generator=generator) + labels).to(dtype)
    assert kernel.DENSE_PAIRS < 2500 * 90
    found, expected = (
        value_and_gradient(part.numpy(), labels, name, method=method)
        for part, method in ((scores, "auto"), (scores.double(), "dense"))
    )
    accuracy = {torch.float16: 1e-6, torch.float32: 1e-6, torch.float64: 1e-12 if FAST[name] == "bucket" else 1e-6}
    assert found[0] == pytest.approx(expected[0], rel=accuracy[dtype])
    scale = np.abs(expected[1]).max()
    smallest = 6e-8 if dtype == torch.float16 else 0
    np.testing.assert_allclose(
        found[1], expected[1], rtol=torch.finfo(dtype).eps, atol=scale * accuracy[dtype] + smallest
    )


@pytest.mark.parametrize("look", [1e4, -1e4])
@every_surrogate
def test_float32_scores_with_an_offset_keep_their_digits(name, look):
    scores, labels, _ = problem()
    expected = value_and_gradient(scores, labels, name)
    found = value_and_gradient((scores + look).astype(np.float32), labels, name)
    assert found[0] == pytest.approx(expected[0], rel=1e-6)
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=2e-6 * np.abs(expected[1]).max())


@pytest.mark.parametrize("name", [name for name, surrogate in SURROGATES.items() if surrogate.pieces])
@pytest.mark.parametrize("value", [1e30, -1e30])
def test_a_positive_out_of_all_range_does_not_make_value_or_gradient_nan(name, value):
    scores, labels, _ = problem()
    scores[0] = value
    found, gradient = value_and_gradient(scores, labels, name, method="bucket")
    dense, _ = value_and_gradient(scores, labels, name, method="dense")
    assert found == pytest.approx(dense, rel=1e-12)
    assert np.isfinite(gradient).all()


problems = st.lists(st.tuples(st.floats(-30, 30), st.booleans(), st.floats(0.01, 10)), min_size=1, max_size=25).filter(
    lambda rows: any(positive for _, positive, _ in rows)
)
names = st.sampled_from(sorted(SURROGATES))
hyper = {"name": names, "margin": st.floats(0.05, 5), "rows": problems}


def unpack(rows):
    scores, labels, weight = (torch.tensor(part, dtype=torch.float64) for part in zip(*rows, strict=True))
    return scores, labels, weight


@settings(deadline=None)
@given(**hyper, prevalence=st.none() | st.floats(1e-6, 1 - 1e-6))
def test_value_lies_between_minus_one_and_zero(rows, name, margin, prevalence):
    scores, labels, weight = unpack(rows)
    for method in ("dense", FAST[name]):
        value = ap_objective(scores, labels, name, margin, method=method, sample_weight=weight, prevalence=prevalence)
        assert -1 - 1e-12 <= value <= 0


@settings(deadline=None)
@given(**hyper, shift=st.floats(-1e4, 1e4), seed=st.integers(0, 99))
def test_neither_a_shift_nor_a_permutation_matters(rows, name, margin, shift, seed):
    scores, labels, weight = unpack(rows)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(seed))
    before = ap_objective(scores, labels, name, margin, sample_weight=weight)
    after = ap_objective(scores[order] + shift, labels[order], name, margin, sample_weight=weight[order])
    # Rounding of the shifted scores, 1e-12, is magnified by the steepest surrogate: e^{5x}, or a margin of 0.05.
    torch.testing.assert_close(before, after, rtol=0, atol=2e-9)


@settings(deadline=None)
@given(**hyper, row=st.integers(0, 24), step=st.floats(0, 20))
def test_raising_a_negative_never_lowers_the_objective(rows, name, margin, row, step):
    scores, labels, weight = unpack(rows)
    before = ap_objective(scores, labels, name, margin, sample_weight=weight)
    scores[row % len(rows)] += step * (1 - labels[row % len(rows)])
    assert ap_objective(scores, labels, name, margin, sample_weight=weight) >= before - 1e-12


@every_surrogate
def test_input_is_not_changed(name):
    scores, labels, weight = map(torch.from_numpy, table())
    before = scores.clone(), labels.clone(), weight.clone()
    value_and_gradient(scores.numpy(), labels, name, sample_weight=weight)
    for now, then in zip((scores, labels, weight), before, strict=True):
        torch.testing.assert_close(now, then, rtol=0, atol=0, equal_nan=True)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float32])
def test_labels_may_have_any_type(dtype):
    scores, labels, _ = map(torch.from_numpy, problem())
    assert ap_objective(scores, labels.to(dtype)) == ap_objective(scores, labels)


def test_unmeasured_scores_get_no_gradient():
    scores, labels, _ = table()
    _, gradient = value_and_gradient(scores, labels, "smooth_step")
    assert (gradient[np.isnan(labels)] == 0).all()


ok = {"scores": torch.zeros(4), "labels": torch.tensor([0, 1, 0, 1])}


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"labels": torch.zeros(4)}, "labels must hold at least one positive"),
        (
            {"labels": torch.full((4, 2), math.nan), "scores": torch.zeros(4, 2)},
            "labels must hold at least one positive",
        ),
        ({"labels": torch.tensor([0, 1, 2, 1])}, "labels must be 0 or 1, got 2"),
        ({"labels": torch.tensor([0, 1, -1, 1])}, "labels must be 0 or 1, got -1; labels of -1/1 become"),
        ({"labels": torch.tensor([0, 1, math.nan, 1])}, "labels must be 0 or 1, got nan; NaN"),
        ({"labels": torch.tensor([0, 1])}, r"scores and labels must both have shape .* got \(4,\) and \(2,\)"),
        ({"scores": torch.tensor([0, 1, math.nan, 1])}, "scores must be finite, got nan at position 2"),
        ({"scores": torch.tensor([0, 1, 1, math.inf])}, "scores must be finite, got inf at position 3"),
        ({"sample_weight": torch.ones(3)}, "sample_weight must have shape"),
        ({"sample_weight": torch.tensor([1, 1, -1, 1])}, "sample_weight must not be negative"),
        ({"sample_weight": torch.tensor([1, 0, 1, 0])}, "at least one positive"),
        ({"prevalence": 0.0}, "prevalence must lie in"),
        ({"prevalence": 1.0}, "prevalence must lie in"),
        ({"margin": 0.0}, "margin must lie in"),
        ({"surrogate": "step"}, "surrogate must be one of"),
        ({"method": "fast"}, "method must be one of"),
        ({"method": "grid"}, "method 'grid' does not suit surrogate 'smooth_step'"),
    ],
)
def test_wrong_input_is_an_error_that_names_the_argument(wrong, message):
    with pytest.raises(ValueError, match=message):
        ap_objective(**{**ok, **wrong})


UNBOUNDED = {"squared_hinge", "hinge", "smoothed_hinge", "logistic", "exponential"}


@every_surrogate
def test_an_unbounded_surrogate_warns_if_scores_leave_the_unit_interval(name):
    labels = torch.tensor([0, 1, 0, 1])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        ap_objective(torch.tensor([0.0, 0.2, 0.5, 1.0]), labels, name)
        assert not caught
        ap_objective(torch.tensor([0.0, 0.2, 0.5, 1.1]), labels, name)
        ap_objective(torch.tensor([-0.1, 0.2, 0.5, 1.0]), labels, name)
    assert len(caught) == (2 if name in UNBOUNDED else 0)
    assert all("on scores in [0, 1] only: pass scores.sigmoid()" in str(warning.message) for warning in caught)


def test_the_defaults_are_those_of_the_loss():
    scores, labels, _ = map(torch.from_numpy, problem())
    positive = labels == 1
    loss = APLoss(labels)
    assert (loss.surrogate, loss.margin) == ("smooth_step", 1.0)
    options = {"surrogate": loss.surrogate, "margin": loss.margin}
    assert ap_objective(scores, labels) == ap_objective(scores, labels, **options)
    pairs = scores, scores[positive], labels, 1 - labels
    assert torch.equal(pair_sums(*pairs), pair_sums(*pairs, **options))
    batch = scores[positive], scores, labels
    assert torch.equal(inner(*batch), inner(*batch, **options))


@every_surrogate
@pytest.mark.parametrize(("spacing", "margin"), [(1e17, 1.0), (1.0, 1e-17), (16.0, 20.0)])
@pytest.mark.filterwarnings("ignore:surrogate")
def test_auto_equals_dense_where_the_margin_is_below_the_spacing_of_the_scores(name, spacing, margin):
    """At 1e17 the float64 numbers are 16 apart: a score plus a margin of 1 is that score."""
    generator = torch.Generator().manual_seed(0)
    steps = torch.randperm(2500, generator=generator)
    steps[::3] = steps[1::3].repeat_interleave(2)[: len(steps[::3])]
    scores = (1e17 + spacing * steps.double()).numpy()
    labels = torch.arange(2500) < 90
    found, expected = (
        value_and_gradient(scores, labels, name, method=method, margin=margin) for method in ("auto", "dense")
    )
    assert found[0] == pytest.approx(expected[0], rel=1e-9)
    np.testing.assert_allclose(found[1], expected[1], rtol=0, atol=1e-6 * np.abs(expected[1]).max() + 1e-300)


@pytest.mark.parametrize("name", [name for name, surrogate in SURROGATES.items() if not surrogate.bounded])
@pytest.mark.filterwarnings("ignore:surrogate")
def test_float32_scores_do_not_overflow_an_unbounded_surrogate(name):
    scores, labels, _ = problem()
    scores = (1e37 * scores).astype(np.float32)
    found, gradient = value_and_gradient(scores, labels, name)
    expected, _ = value_and_gradient(scores.astype(np.float64), labels, name)
    assert found == pytest.approx(expected, rel=1e-6)
    assert np.isfinite(gradient).all()


@pytest.mark.filterwarnings("ignore:surrogate")
def test_scores_beyond_the_square_of_a_double_are_an_error():
    scores, labels, _ = problem()
    with pytest.raises(ValueError, match="scores spread over"):
        ap_objective(torch.tensor(1e200 * scores), torch.tensor(labels), "squared_hinge")


@pytest.mark.parametrize("scale", [1e-300, 1e200, 1e308])
def test_the_scale_of_weights_neither_overflows_nor_matters(scale):
    scores, labels, weight = problem()
    scores, labels, weight = (torch.tensor(part) for part in (scores, labels, weight))
    plain, scaled = (
        ap_objective(scores, labels, sample_weight=weight / weight.max() * factor) for factor in (1, scale)
    )
    assert scaled.item() == pytest.approx(plain.item(), rel=1e-9)
