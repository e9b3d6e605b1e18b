"""What `APLoss` estimates: AP at a chosen prevalence, whatever the sampler does, with weights and a floor."""

from __future__ import annotations

import itertools
import warnings

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apmax.functional import ap_objective
from apmax.losses import APLoss
from apmax.surrogates import SURROGATES
from references import Soap, smooth_step

# The formulas are compared for every surrogate on raw scores.
pytestmark = pytest.mark.filterwarnings("ignore:surrogate .* measures average precision on scores in")

LABELS = torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0, 1, 0])
SCORES = torch.tensor([0.3, -0.4, 0.2, 0.9, -1.1, 0.5, 0.45, 0.1, -0.7, 0.8], dtype=torch.float64)
POSITIVES, NEGATIVES = [0, 3, 5, 8], [1, 2, 4, 6, 7, 9]
WEIGHT = torch.linspace(0.5, 2.5, 10, dtype=torch.float64)


def built(labels=LABELS, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # unbounded surrogates on raw scores
        return APLoss(labels, **options).double()


def step(loss, rows, scores=SCORES, labels=LABELS, **options):
    """Return value and gradient of the batch of these rows."""
    rows = torch.as_tensor(rows)
    scores = scores[rows].clone().requires_grad_()
    value = loss(scores, labels[rows], rows, **options)
    value.backward()
    return value.item(), scores.grad


def whole_g(prevalence, surrogate=smooth_step, margin=1.0):
    """g of every positive over the whole data, by its definition."""
    found = []
    for i in POSITIVES:
        pairs = {j: surrogate((SCORES[j] - SCORES[i]).item(), margin)[0] for j in range(10)}
        above = prevalence * sum(pairs[j] for j in POSITIVES) / 4
        found.append([above, above + (1 - prevalence) * sum(pairs[j] for j in NEGATIVES) / 6])
    return np.array(found)


@pytest.mark.parametrize("prevalence", [None, 0.3])
@pytest.mark.parametrize(("num_pos", "num_neg"), [(2, 1), (2, 4), (3, 2), (4, 1)])
def test_g_is_unbiased_over_all_batches_that_draw_within_classes(num_pos, num_neg, prevalence):
    loss = built(gamma=1.0, prevalence=prevalence)
    total = np.zeros((4, 2))
    count = np.zeros(4)
    for positives in itertools.combinations(POSITIVES, num_pos):
        for negatives in itertools.combinations(NEGATIVES, num_neg):
            step(loss, positives + negatives)
            present = np.isin(POSITIVES, positives)
            total[present] += loss.u[present].numpy()
            count += present
    np.testing.assert_allclose(total / count[:, None], whole_g(prevalence or 0.4), rtol=1e-13)


@pytest.mark.parametrize("num_pos", [1, 2, 4])
def test_taking_the_batch_as_it_is_depends_on_the_sampler(num_pos):
    """The contrast to the test above: the share of positives in the batch becomes the prevalence."""
    loss = built(gamma=1.0, prevalence="batch")
    rows = POSITIVES[:num_pos] + NEGATIVES
    step(loss, rows)
    pairs = {j: smooth_step((SCORES[j] - SCORES[0]).item(), 1.0)[0] for j in rows}
    above = sum(pairs[j] for j in POSITIVES[:num_pos])
    expected = [above / len(rows), sum(pairs.values()) / len(rows)]
    np.testing.assert_allclose(loss.u[0].numpy(), expected, rtol=1e-14)


def test_an_anchors_pair_with_itself_counts_exactly_once():
    loss = built(gamma=1.0)
    scores = SCORES.clone()
    scores[[0, 3]] = torch.tensor([5.0, 9.0], dtype=torch.float64)  # 3 has nothing near or above it
    step(loss, [0, 3, 1, 2], scores)
    np.testing.assert_allclose(loss.u[1].numpy(), [0.4 * 0.5 / 4] * 2, rtol=1e-14)


def test_a_lone_positive_stands_for_the_others_as_in_the_paper():
    loss = built(gamma=1.0)
    step(loss, [3, 4])  # the negative lies more than the margin below
    np.testing.assert_allclose(loss.u[1].numpy(), [0.4 * 0.5] * 2, rtol=1e-14)


@pytest.mark.parametrize("repeated", [0, 1], ids=["positive", "negative"])
def test_a_row_twice_in_a_batch_counts_once(repeated):
    """The first occurrence is taken, even where the second has another score."""
    once, twice = built(gamma=0.5), built(gamma=0.5)
    for loss in (once, twice):
        step(loss, [0, 3, 1, 2], -SCORES)
    value, gradient = step(once, [0, 3, 1, 2])
    scores = torch.cat([SCORES[[0, 3, 1, 2]], torch.tensor([7.0])]).requires_grad_()
    rows = torch.tensor([0, 3, 1, 2, repeated])
    again = twice(scores, LABELS[rows], rows)
    again.backward()
    assert again.item() == pytest.approx(value, rel=1e-14)
    torch.testing.assert_close(scores.grad, torch.cat([gradient, torch.zeros(1)]), rtol=1e-13, atol=1e-16)
    torch.testing.assert_close(twice.u, once.u, rtol=1e-14, atol=0)


def test_a_row_twice_in_a_batch_as_it_is_is_written_once():
    loss = built(prevalence="batch", gamma=0.5)
    step(loss, [0, 1])
    before = loss.u[0].clone()
    rows = torch.tensor([0, 0, 1])
    loss(torch.tensor([0.0, 3.0, 0.5], dtype=torch.float64), LABELS[rows], rows)
    pairs = np.array([0.5, 1.0, smooth_step(0.5, 1.0)[0]]) / 3
    np.testing.assert_allclose(loss.u[0], 0.5 * before.numpy() + 0.5 * np.array([pairs[:2].sum(), pairs.sum()]))


@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("prevalence", [None, 0.3, "batch"])
@pytest.mark.parametrize("surrogate", SURROGATES)
def test_the_whole_data_without_memory_give_the_exact_objective(surrogate, prevalence, weighted):
    weight = WEIGHT if weighted else None
    loss = built(surrogate=surrogate, margin=0.7, gamma=1.0, prevalence=prevalence, sample_weight=weight)
    value, gradient = step(loss, range(10))
    scores = SCORES.clone().requires_grad_()
    at = None if prevalence == "batch" else prevalence
    expected = 1 + ap_objective(scores, LABELS, surrogate, 0.7, sample_weight=weight, prevalence=at)
    expected.backward()
    assert value == pytest.approx(expected.item(), rel=1e-12)
    torch.testing.assert_close(gradient, scores.grad, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("start", ["estimate", "zero"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("prevalence", [None, 0.3, "batch"])
def test_a_long_run_equals_the_loop_over_the_formulas(prevalence, weighted, start):
    """Weights, prevalence, memory and the default floor, with batches that miss negatives or all other positives."""
    rng = np.random.default_rng(5)
    labels = (rng.random(30) < 0.3).astype(float)
    weight = rng.uniform(0.2, 3.0, 30) if weighted else np.ones(30)
    total = (weight * labels).sum()
    share = total / weight.sum() if prevalence in (None, "batch") else prevalence
    loss = built(labels, prevalence=prevalence, start=start, gamma=0.3, sample_weight=weight if weighted else None)
    reference = Soap(
        surrogate="smooth_step",
        gamma=0.3,
        start=start,
        floor=lambda w: w * share * 0.5 / total,
        prevalence=None if prevalence == "batch" else share,
        total_positive=total,
    )
    positives, negatives = np.flatnonzero(labels), np.flatnonzero(labels == 0)
    for num_pos, num_neg in [(3, 5), (1, 4), (4, 0), (2, 1), (1, 0), (5, 5)] * 4:
        rows = np.concatenate([rng.choice(positives, num_pos, False), rng.choice(negatives, num_neg, False)])
        rng.shuffle(rows)
        scores = rng.normal(size=len(rows))
        expected, expected_gradient = reference.step(
            scores.tolist(), labels[rows].tolist(), rows.tolist(), weight[rows].tolist()
        )
        scores = torch.tensor(scores, requires_grad=True)
        value = loss(scores, torch.tensor(labels[rows]), torch.tensor(rows))
        value.backward()
        assert value.item() == pytest.approx(expected, rel=1e-12, abs=1e-12)
        np.testing.assert_allclose(scores.grad.numpy(), expected_gradient, rtol=1e-10, atol=1e-13)
    expected_u = [reference.u.get(row, (0.0, 0.0)) for row in positives.tolist()]
    np.testing.assert_allclose(loss.u.numpy(), expected_u, rtol=1e-11)


@pytest.mark.parametrize("prevalence", [None, 0.3])
def test_the_default_floor_is_what_the_pair_with_itself_contributes(prevalence):
    """A start at zero leaves γ·g below it, here for an anchor with nothing above."""
    loss = built(start="zero", gamma=0.1, prevalence=prevalence)
    scores = SCORES.clone()
    scores[3] = 9.0
    step(loss, [0, 3, 1, 2], scores)
    floor = (prevalence or 0.4) * 0.5 / 4
    np.testing.assert_allclose(loss.u[1].numpy(), [0.1 * floor, floor], rtol=1e-13)


def test_the_gradient_is_that_at_the_clipped_value():
    low, high = (step(built(floor=floor, gamma=1.0), [0, 1, 2])[1] for floor in (5.0, 10.0))
    # u¹ is the same, and a lone anchor's gradient flows through the negatives alone: as u¹/(u²)².
    assert low.abs().max() > 1e-3
    torch.testing.assert_close(low, 4 * high, rtol=1e-12, atol=0)


@pytest.mark.parametrize("sigmoid", [False, True])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("surrogate", ["smooth_step", "squared_hinge", "logistic"])
def test_without_memory_the_gradient_is_that_of_the_value(surrogate, weighted, sigmoid):
    loss = built(surrogate=surrogate, gamma=1.0, sigmoid=sigmoid, sample_weight=WEIGHT if weighted else None)
    rows = torch.tensor([3, 1, 0, 2, 5, 4])
    scores = SCORES[rows].clone().requires_grad_()
    assert torch.autograd.gradcheck(lambda s: loss(s, LABELS[rows], rows), (scores,), atol=1e-7)


@pytest.mark.parametrize("surrogate", SURROGATES)
@pytest.mark.parametrize("size", [10, 3000], ids=["dense", "above the crossover"])
def test_float32_scores_get_float32_gradients(size, surrogate):
    labels = LABELS.repeat(size // 10)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        loss = APLoss(labels, surrogate=surrogate)
    scores = torch.linspace(-1, 1, size, requires_grad=True)
    value = loss(scores, labels, torch.arange(size))
    value.backward()
    assert value.dtype == scores.grad.dtype == loss.u.dtype == torch.float32
    assert scores.grad.abs().max() > 0


def test_gradients_are_not_clamped():
    _, gradient = step(built(margin=1e-3), range(10), SCORES * 1e-3)
    assert gradient.abs().max() > 5


@given(
    scores=st.lists(st.floats(-30, 30, width=32), min_size=8, max_size=8),
    prevalence=st.sampled_from([None, 0.01, "batch"]),
    gamma=st.floats(0.01, 1.0),
    surrogate=st.sampled_from(["smooth_step", "ramp", "sigmoid"]),
    seed=st.integers(0, 2**16),
)
@settings(deadline=None, max_examples=60)
def test_the_value_lies_between_0_and_1(scores, prevalence, gamma, surrogate, seed):
    loss = APLoss(LABELS, prevalence=prevalence, gamma=gamma, surrogate=surrogate)
    generator = torch.Generator().manual_seed(seed)
    for factor in (1.0, -1.0, 0.1):
        rows = torch.randperm(10, generator=generator)[:8]
        if LABELS[rows].any():
            assert 0 <= loss(torch.tensor(scores) * factor, LABELS[rows], rows).item() <= 1


def test_perfect_scores_give_0_and_the_reverse_almost_1():
    labels = torch.zeros(1000)
    labels[:10] = 1
    rows = torch.arange(1000)
    assert APLoss(labels)(labels * 10, labels, rows) == 0
    assert APLoss(labels)(-labels * 10, labels, rows) > 0.98


def test_the_value_tells_perfect_from_random_scores_on_every_visit():
    labels = (torch.arange(1000) % 50 == 0).float()
    rows = torch.arange(1000)
    random = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for scores, low, high in ((labels * 10, 0.0, 0.0), (random, 0.9, 1.0)):
        loss = APLoss(labels)
        for _ in range(3):
            assert low <= loss(scores, labels, rows).item() <= high


def test_half_positives_in_each_batch_do_not_raise_the_tracked_ap():
    """At 1 % positives and random scores AP is about 0.01, however many positives the batches hold."""
    generator = torch.Generator().manual_seed(0)
    labels = torch.zeros(20_000)
    labels[:200] = 1
    scores = torch.randn(20_000, generator=generator)
    truth = -ap_objective(scores, labels, "smooth_step").item()
    tracked = {}
    for prevalence in (None, "batch"):
        loss = APLoss(labels, gamma=0.1, prevalence=prevalence)
        for _ in range(400):
            positives = torch.randperm(200, generator=generator)[:32]
            negatives = 200 + torch.randperm(19_800, generator=generator)[:32]
            rows = torch.cat([positives, negatives])
            loss(scores[rows], labels[rows], rows)
        tracked[prevalence] = (loss.u[:, 0] / loss.u[:, 1]).mean().item()
    assert truth < 0.02
    assert tracked[None] == pytest.approx(truth, rel=0.25)
    assert tracked["batch"] > 0.4  # what goes wrong without the correction


def test_the_logistic_surrogate_is_finite_at_a_gap_of_120():
    loss = built(surrogate="logistic", gamma=1.0)
    scores = (SCORES + 120 * (1 - LABELS)).requires_grad_()
    value = loss(scores, LABELS, torch.arange(10))
    value.backward()
    assert value > 0.99
    assert scores.grad.isfinite().all()
    assert scores.grad.abs().max() > 0


def test_a_penalty_of_its_gradient_is_an_error_and_not_a_missing_term():
    labels = (torch.arange(16) % 4 == 0).float()
    loss, model = APLoss(labels), torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))
    inputs = torch.linspace(-1, 1, 48).reshape(16, 3).requires_grad_()
    value = loss(model(inputs), labels, torch.arange(16))
    expected = torch.autograd.grad(value, inputs, retain_graph=True)[0]
    gradient = torch.autograd.grad(value, inputs, create_graph=True)[0]
    assert torch.equal(gradient, expected)
    with pytest.raises(RuntimeError, match=r"APLoss has no second derivative"):
        gradient.square().sum().backward()
