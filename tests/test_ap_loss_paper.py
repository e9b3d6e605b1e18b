"""`APLoss.as_in_paper` against Algorithms 1 and 2: histories computed by hand, and a loop over the equations."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apmax import functional
from apmax.losses import APLoss
from references import Soap, expit

# Rows 0 and 1 are positive. Each step: the rows of the batch and the sigmoids of their scores.
LABELS = torch.tensor([1.0, 1, 0, 0, 0])
STEPS = (
    ([0, 2, 3], [1 / 2, 1 / 4, 3 / 4]),
    ([0, 1, 4], [1 / 2, 3 / 4, 1 / 4]),
    ([1, 2], [1 / 2, 3 / 4]),
)
# Squared hinge, margin 1: ℓ = (1 + h_j - h_i)². Step 1, anchor 0: pairs 1, 9/16, 25/16. Step 2, anchor 0: pairs 1,
# 25/16, 9/16; anchor 1: 9/16, 1, 4/16. Step 3, anchor 1: pairs 1, 25/16. Divided by the size of the batch:
G = (
    {0: (16 / 48, 50 / 48)},
    {0: (41 / 48, 50 / 48), 1: (25 / 48, 29 / 48)},
    {1: (16 / 32, 41 / 32)},
)


def logit(h):
    return torch.logit(torch.tensor(h, dtype=torch.float64))


def history(loss):
    """Run the three steps; return u, value and gradient after each."""
    loss = loss.double()
    found = []
    for rows, h in STEPS:
        scores = logit(h).requires_grad_()
        value = loss(scores, LABELS[rows], torch.tensor(rows))
        value.backward()
        found.append((loss.u.clone(), value.item(), scores.grad))
    return found


def assert_u(found, expected):
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), rtol=1e-14, atol=1e-15)


def test_u_starts_at_the_first_estimate_and_then_averages():
    first, second, third = (u for u, _, _ in history(APLoss.as_in_paper(LABELS, gamma=0.5)))
    assert_u(first, [G[0][0], (0, 0)])
    assert_u(second, [(57 / 96, 100 / 96), G[1][1]])
    assert_u(third, [(57 / 96, 100 / 96), (98 / 192, 181 / 192)])


def test_u_can_start_at_zero_as_in_the_released_code():
    first, second, third = (u for u, _, _ in history(APLoss.as_in_paper(LABELS, gamma=0.5, start="zero")))
    assert_u(first, [(8 / 48, 25 / 48), (0, 0)])
    assert_u(second, [(49 / 96, 75 / 96), (25 / 96, 29 / 96)])
    assert_u(third, [(49 / 96, 75 / 96), (73 / 192, 152 / 192)])


def test_u_is_clipped_after_the_average_and_goes_on_from_the_clipped_value():
    first, second, third = (u for u, _, _ in history(APLoss.as_in_paper(LABELS, gamma=0.5, floor=1.1)))
    assert_u(first, [(16 / 48, 1.1), (0, 0)])
    assert_u(second, [(57 / 96, 1.1), (25 / 48, 1.1)])
    assert_u(third, [(57 / 96, 1.1), (98 / 192, (1.1 + 41 / 32) / 2)])


def test_gamma_is_the_weight_of_the_new_value():
    third = history(APLoss.as_in_paper(LABELS, gamma=0.9))[2][0]
    assert_u(third[1], [0.1 * 25 / 48 + 0.9 / 2, 0.1 * 29 / 48 + 0.9 * 41 / 32])


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, [1 - 16 / 50, 1 - (57 / 100 + 25 / 29) / 2, 83 / 181]),
        ({"start": "zero"}, [1 - 16 / 50, 1 - (49 / 75 + 25 / 29) / 2, 79 / 152]),
        ({"floor": 1.1}, [1 - 1 / 3.3, 1 - (57 / 96 + 25 / 48) / 2.2, 1 - 98 / 192 / ((1.1 + 41 / 32) / 2)]),
    ],
    ids=["estimate", "zero", "floor"],
)
def test_the_value_is_one_plus_the_mean_of_f_at_u(options, expected):
    values = [value for _, value, _ in history(APLoss.as_in_paper(LABELS, gamma=0.5, **options))]
    assert values == pytest.approx(expected, rel=1e-14)


@pytest.mark.parametrize(
    ("options", "u"),
    [
        ({}, (98 / 192, 181 / 192)),
        ({"start": "zero"}, (73 / 192, 152 / 192)),
        ({"floor": 1.1}, (98 / 192, (1.1 + 41 / 32) / 2)),
        ({"floor": 2.0}, (98 / 192, 2.0)),
    ],
    ids=["estimate", "zero", "floor", "floor that clips"],
)
def test_the_gradient_is_equation_6_at_the_clipped_u(options, u):
    gradient = history(APLoss.as_in_paper(LABELS, gamma=0.5, **options))[2][2]
    # Step 3 has one anchor and one negative: u¹·ℓ′/(B·(u²)²) with ℓ′ = 2·(5/4) and B = 2; dh/ds = h·(1 - h).
    flow = u[0] * 2.5 / (2 * u[1] ** 2)
    expected = torch.tensor([-flow * 1 / 4, flow * 3 / 16], dtype=torch.float64)
    torch.testing.assert_close(gradient, expected, rtol=1e-13, atol=0)


@pytest.mark.parametrize("start", ["estimate", "zero"])
@pytest.mark.parametrize("floor", [0.0, 0.3])
@pytest.mark.parametrize(("surrogate", "margin"), [("squared_hinge", 0.6), ("smooth_step", 0.5)])
def test_a_long_run_equals_the_loop_over_the_equations(surrogate, margin, floor, start):
    rng = np.random.default_rng(7)
    labels = (rng.random(40) < 0.3).astype(float)
    options = {"surrogate": surrogate, "margin": margin, "gamma": 0.7, "start": start, "floor": floor}
    loss, reference = APLoss.as_in_paper(labels, **options).double(), Soap(**options)
    positives = np.flatnonzero(labels)
    for _ in range(25):
        rows = rng.choice(40, size=9, replace=False)
        if not labels[rows].any():
            continue
        scores = torch.tensor(rng.normal(size=9) * 2, requires_grad=True)
        value = loss(scores, torch.tensor(labels[rows]), torch.tensor(rows))
        value.backward()
        h = np.array([expit(s) for s in scores.tolist()])
        expected, of_h = reference.step(h.tolist(), labels[rows].tolist(), rows.tolist())
        assert value.item() == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(scores.grad.numpy(), of_h * h * (1 - h), rtol=1e-10, atol=1e-13)
    expected_u = [reference.u.get(row, (0.0, 0.0)) for row in positives.tolist()]
    np.testing.assert_allclose(loss.u.numpy(), expected_u, rtol=1e-12)
    assert (loss.u[:, 1] > 0).sum() > 5


def test_the_batch_is_taken_as_it_is():
    """With another number of positives in the batch the same scores give another value."""
    scores = torch.tensor([1.0, 0.5, 0.2, -0.3])
    labels = torch.tensor([1.0, 1, 0, 0])
    whole = APLoss.as_in_paper(labels, gamma=1.0)(scores, labels, torch.arange(4))
    fewer = APLoss.as_in_paper(labels, gamma=1.0)(scores[1:], labels[1:], torch.arange(1, 4))
    h = scores.sigmoid().tolist()
    reference = Soap(gamma=1.0)
    assert whole.item() == pytest.approx(reference.step(h, [1, 1, 0, 0], [0, 1, 2, 3])[0], rel=1e-6)
    assert fewer.item() == pytest.approx(reference.step(h[1:], [1, 0, 0], [1, 2, 3])[0], rel=1e-6)


def test_a_batch_without_negatives_is_taken_as_it_is_too():
    loss = APLoss.as_in_paper(LABELS, gamma=0.5).double()
    loss(logit([1 / 2, 3 / 4]), torch.ones(2), torch.tensor([0, 1]))
    # Anchor 0: pairs 1, 25/16; anchor 1: 9/16, 1; no negatives: u¹ = u².
    assert_u(loss.u, [(41 / 32, 41 / 32), (25 / 32, 25 / 32)])


def test_the_defaults_are_those_of_the_paper():
    loss = APLoss.as_in_paper(LABELS)
    assert (loss.surrogate, loss.margin, loss.gamma) == ("squared_hinge", 1.0, 0.9)
    assert (loss.start, loss.floor, loss.sigmoid) == ("estimate", 0.0, True)
    assert loss.prevalence is None


@pytest.mark.parametrize("name", ["corrected_inner", "moving_average", "outer_slope"])
def test_the_loss_trains_by_the_functions_that_are_tested_against_the_paper(name, monkeypatch):
    calls, function = [], getattr(functional, name)
    monkeypatch.setattr(functional, name, lambda *args, **options: calls.append(1) or function(*args, **options))
    for loss in (APLoss(LABELS), APLoss(LABELS, sample_weight=torch.ones(5)), APLoss.as_in_paper(LABELS)):
        calls.clear()
        loss(torch.zeros(3), LABELS[:3], torch.arange(3))
        assert len(calls) == 1


def test_a_run_equals_algorithm_1_written_with_the_public_functions():
    options = {"surrogate": "squared_hinge", "margin": 0.8}
    loss = APLoss.as_in_paper(LABELS, gamma=0.3, floor=0.2, **options).double()
    memory = {}
    for rows, h in STEPS:
        scores, expected = logit(h).requires_grad_(), logit(h).requires_grad_()
        value = loss(scores, LABELS[rows], torch.tensor(rows))
        value.backward()
        anchors = [row for row in rows if LABELS[row] == 1]
        squashed = expected.sigmoid()
        g = functional.inner(squashed[LABELS[rows] == 1], squashed, LABELS[rows], **options)
        old = torch.stack([memory.get(row, g[:, i].detach()) for i, row in enumerate(anchors)], 1)
        u = functional.moving_average(old, g.detach(), 0.3, floor=0.2)
        memory.update(zip(anchors, u.unbind(1), strict=True))
        objective = functional.compose(u, g)
        objective.backward()
        assert value.item() == pytest.approx(1 + objective.item(), rel=1e-12)
        torch.testing.assert_close(scores.grad, expected.grad, rtol=1e-12, atol=1e-15)
    assert_u(loss.u, torch.stack([memory[0], memory[1]]).tolist())
