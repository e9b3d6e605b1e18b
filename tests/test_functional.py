"""The paper's formulas, each against a loop over its equation."""

from itertools import combinations

import numpy as np
import pytest
import torch

import references
from apmax.functional import (
    ALL,
    POS,
    Correction,
    anchor_shares,
    batch_mean,
    compose,
    corrected_inner,
    inner,
    moving_average,
    outer,
    outer_slope,
    positions_of_positives,
    prevalence_correction,
)
from apmax.surrogates import SURROGATES

every_surrogate = pytest.mark.parametrize("name", SURROGATES)
TIGHT = {"rtol": 1e-12, "atol": 1e-14}


def batch(n=14, k=4, seed=0):
    """Return anchors that are not in the batch, the batch's scores and its labels."""
    rng = np.random.default_rng(seed)
    return tuple(map(torch.from_numpy, (rng.normal(size=k), rng.normal(size=n), (rng.random(n) < 0.3) * 1.0)))


def by_loop(name, anchors, scores, labels, margin=0.8):
    rows = [references.inner(a, scores.numpy(), labels.numpy(), name, margin) for a in anchors.tolist()]
    return torch.from_numpy(np.array(rows).T)


@every_surrogate
def test_inner_equals_the_loop_for_anchors_outside_the_batch(name):
    anchors, scores, labels = batch()
    found = inner(anchors, scores, labels, surrogate=name, margin=0.8)
    torch.testing.assert_close(found, by_loop(name, anchors, scores, labels), **TIGHT)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.float32])
def test_inner_takes_labels_of_any_type(dtype):
    anchors, scores, labels = batch()
    expected = inner(anchors, scores, labels)
    torch.testing.assert_close(inner(anchors, scores, labels.to(dtype)), expected, rtol=0, atol=0)


def test_inner_treats_leading_dimensions_as_tasks():
    tasks = [batch(seed=seed) for seed in range(3)]
    together = inner(*(torch.stack(part) for part in zip(*tasks, strict=True)))
    for found, task in zip(together.unbind(1), tasks, strict=True):
        torch.testing.assert_close(found, inner(*task), **TIGHT)


def test_the_second_component_of_g_adds_the_negatives_to_the_positives():
    sums, nothing = torch.tensor([[2.0, 5.0], [3.0, 7.0]]), torch.zeros(2, 1)
    assert corrected_inner(sums, Correction(torch.ones(2, 1), nothing)).tolist() == [[2, 5], [5, 12]]
    assert corrected_inner(sums, batch_mean(torch.tensor([2.0]))).tolist() == [[1, 2.5], [2.5, 6]]


def test_outer_is_minus_the_quotient():
    u = np.random.default_rng(0).uniform(0.5, 2, (2, 5))
    expected = torch.tensor([references.f(column) for column in u.T], dtype=torch.float64)
    torch.testing.assert_close(outer(torch.from_numpy(u)), expected, **TIGHT)


def test_outer_slope_is_the_gradient_of_outer_in_the_parts_of_u():
    parts = torch.rand(2, 3, 5, generator=torch.Generator().manual_seed(0), dtype=torch.float64) + 0.5
    parts.requires_grad_()
    value = outer(parts.cumsum(0))
    (expected,) = torch.autograd.grad(value.sum(), parts)
    lost, slope = outer_slope(parts.detach().cumsum(0))
    torch.testing.assert_close(slope, expected, **TIGHT)
    torch.testing.assert_close(lost, 1 + value.detach(), **TIGHT)


@pytest.mark.parametrize("floor", [0.0, 0.4])
def test_three_steps_of_the_moving_average_equal_algorithm_2(floor):
    anchors, _, _ = batch()
    rows = dict(enumerate(anchors.tolist()))
    u, by_hand, clipped = torch.full((2, 4), 0.2, dtype=torch.float64), {row: np.array([0.2, 0.2]) for row in rows}, 0
    for seed in range(3):
        _, scores, labels = batch(seed=seed + 5)
        g = inner(anchors, scores, labels)
        u = moving_average(u, g, 0.3, floor=floor)
        by_hand = references.update_u(
            by_hand, rows, scores.numpy(), labels.numpy(), "smooth_step", 1.0, gamma=0.3, floor=floor
        )
        torch.testing.assert_close(u, torch.from_numpy(np.stack(list(by_hand.values()), 1)), **TIGHT)
        clipped += int((u[ALL] == floor).sum())
    assert (clipped > 0) == (floor > 0)


def test_moving_average_clips_by_a_floor_for_each_anchor():
    u, g = torch.zeros(2, 3), torch.tensor([[1.0] * 3, [2.0] * 3])
    assert moving_average(u, g, 0.5, floor=torch.tensor([0.0, 1.0, 7.0]))[ALL].tolist() == [1, 1, 7]


def test_moving_average_changes_neither_u_nor_g():
    u, g = torch.zeros(2, 3), torch.ones(2, 3)
    moving_average(u, g, 0.5, floor=2.0)
    assert (u == 0).all()
    assert (g == 1).all()


@every_surrogate
def test_gradient_of_compose_is_the_papers_estimate(name):
    anchors, scores, labels = batch()
    u = torch.rand(2, 4, generator=torch.Generator().manual_seed(3), dtype=torch.float64) + 0.2
    leaves = anchors.clone().requires_grad_(), scores.clone().requires_grad_()
    value = compose(u, inner(*leaves, labels, surrogate=name, margin=0.8))
    expected = references.gradient_estimate(u.numpy().T, anchors.numpy(), scores.numpy(), labels.numpy(), name, 0.8)
    for found, loop in zip(torch.autograd.grad(value, leaves), expected, strict=True):
        torch.testing.assert_close(found, torch.from_numpy(loop), **TIGHT)


def test_value_of_compose_is_the_mean_of_f_at_u_and_not_at_g():
    u, g = torch.tensor([[1.0, 1.0], [4.0, 2.0]]), torch.tensor([[9.0, 0.0], [9.0, 1.0]])
    assert compose(u, g).item() == -0.375
    assert compose(u, g, weight=torch.tensor([0.75, 0.25])).item() == -0.3125


def test_compose_with_weights_averages_by_them_and_keeps_tasks_apart():
    generator = torch.Generator().manual_seed(0)
    u, g = (torch.rand(2, 3, 5, generator=generator, dtype=torch.float64) + 0.2 for _ in range(2))
    weight = torch.rand(3, 5, generator=generator, dtype=torch.float64)
    g.requires_grad_()
    value = compose(u, g, weight)
    assert value.shape == (3,)
    torch.testing.assert_close(value, (weight * -u[POS] / u[ALL]).sum(-1), **TIGHT)
    (gradient,) = torch.autograd.grad(value.sum(), g)
    expected = torch.stack([-weight / u[ALL], weight * u[POS] / u[ALL] ** 2])
    torch.testing.assert_close(gradient, expected, **TIGHT)


@every_surrogate
def test_compose_where_u_is_g_is_the_plain_objective_with_its_gradient(name):
    anchors, scores, labels = batch()
    results = []
    for objective in (lambda g: compose(g, g), lambda g: outer(g).mean()):
        leaves = anchors.clone().requires_grad_(), scores.clone().requires_grad_()
        value = objective(inner(*leaves, labels, surrogate=name))
        results.append((value, *torch.autograd.grad(value, leaves)))
    for found, expected in zip(*results, strict=True):
        torch.testing.assert_close(found, expected, **TIGHT)


def test_compose_takes_no_gradient_to_u():
    u = torch.rand(2, 3, requires_grad=True)
    assert not compose(u, torch.rand(2, 3)).requires_grad


# A small training set, of which every batch that a class-wise sampler may draw is looked at.
H = np.random.default_rng(5).normal(size=9)
Y = np.array([1, 1, 1, 1, 0, 0, 0, 0, 0])
W = np.random.default_rng(6).uniform(0.5, 2, 9)


def corrected(i, rows, name, margin, w, prevalence=None):
    """Return g of training row i, its batch given by training rows, by `prevalence_correction`."""
    h, y, weight = (torch.from_numpy(np.asarray(part, dtype=float)[list(rows)]) for part in (H, Y, w))
    positive, negative = y * weight, (1 - y) * weight
    surrogate = SURROGATES[name]
    above = surrogate(h - H[i], margin)
    total = float(w[Y == 1].sum())
    correction = prevalence_correction(
        torch.tensor([w[i]]),
        positive.sum(-1, keepdim=True),
        negative.sum(-1, keepdim=True),
        prevalence=total / float(w.sum()) if prevalence is None else prevalence,
        total_positive=total,
        self_pair=surrogate.at_zero(margin),
    )
    sums = torch.stack([(above * positive).sum(), (above * negative).sum()]).unsqueeze(-1)
    return corrected_inner(sums, correction).squeeze(-1).numpy()


def class_wise_batches(i, positives, negatives):
    """Yield every batch of so many rows of either class that holds row i."""
    others = [j for j in range(9) if Y[j] == 1 and j != i]
    for chosen in combinations(others, positives - 1):
        for rest in combinations(np.flatnonzero(Y == 0), negatives):
            yield (i, *chosen, *rest)


@every_surrogate
@pytest.mark.parametrize("rows", [(0, 2, 5, 6), (0, 1, 2, 3, 4), (0, 1, 4), (0, 6), (0,), (0, 3), (1, 0, 2, 3)])
@pytest.mark.parametrize("prevalence", [None, 0.1])
def test_correction_equals_the_loop(name, rows, prevalence):
    found = corrected(0, rows, name, 0.8, W, prevalence)
    np.testing.assert_allclose(
        found, references.corrected_inner(0, rows, H, Y, name, 0.8, W, prevalence), rtol=1e-12, atol=1e-14
    )


@every_surrogate
@pytest.mark.parametrize(("positives", "negatives"), [(2, 1), (2, 3), (3, 2), (4, 5)])
def test_mean_over_every_class_wise_batch_is_g_of_the_population(name, positives, negatives):
    w = np.ones(9)
    for i in range(4):
        estimates = [corrected(i, rows, name, 0.8, w) for rows in class_wise_batches(i, positives, negatives)]
        truth = references.inner(H[i], H, Y, name, 0.8)
        np.testing.assert_allclose(np.mean(estimates, 0), truth, rtol=1e-14, atol=1e-14)


def test_mean_over_every_batch_is_g_at_another_prevalence():
    scaled = np.where(Y == 1, 0.05 / 4, 0.95 / 5)
    estimates = [corrected(2, rows, "smooth_step", 1.0, np.ones(9), 0.05) for rows in class_wise_batches(2, 2, 2)]
    truth = references.inner(H[2], H, Y, "smooth_step", 1.0, scaled)
    np.testing.assert_allclose(np.mean(estimates, 0), truth, rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize(("positives", "negatives"), [(2, 1), (3, 2)])
def test_weighted_estimate_is_unbiased_where_batches_are_drawn_in_proportion_to_their_weight(positives, negatives):
    # Each weighted mean is a ratio estimate: with equal probabilities it would be biased, with probabilities
    # proportional to its denominator it is not.
    for i in range(4):
        batches = list(class_wise_batches(i, positives, negatives))
        chance = np.array(
            [sum(W[j] for j in rows if Y[j] == 1 and j != i) * sum(W[j] for j in rows if Y[j] == 0) for rows in batches]
        )
        estimates = np.array([corrected(i, rows, "smooth_step", 0.8, W) for rows in batches])
        truth = references.inner(H[i], H, Y, "smooth_step", 0.8, W)
        np.testing.assert_allclose(chance @ estimates / chance.sum(), truth, rtol=1e-14, atol=1e-14)
        assert np.abs(estimates.mean(0) - truth).max() > 1e-4


@every_surrogate
def test_correction_over_all_rows_is_exact_whatever_the_weights(name):
    for i in range(4):
        truth = references.inner(H[i], H, Y, name, 0.8, W)
        np.testing.assert_allclose(corrected(i, range(9), name, 0.8, W), truth, rtol=1e-14, atol=1e-14)


def test_anchor_shares_sum_to_one_over_the_tasks_that_have_anchors():
    shares = anchor_shares(torch.tensor([[1.0, 3.0], [2.0, 0.0], [0.0, 0.0]]))
    assert shares.tolist() == [[0.125, 0.375], [0.5, 0], [0, 0]]


def test_positives_come_first_and_other_examples_fill_up_tasks_with_fewer():
    positive = torch.tensor([[0.0, 2.0, 0.0, 1.0], [0.0, 0.0, 0.5, 0.0]])
    index = positions_of_positives(positive)
    assert positive.gather(-1, index).tolist() == [[2, 1], [0.5, 0]]
    assert positions_of_positives(positive[0]).tolist() == [1, 3]
    assert positions_of_positives(positive[0], 1).tolist() == [1]
