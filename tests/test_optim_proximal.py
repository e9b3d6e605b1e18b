"""The proximal term against a loop over its formula, and what it promises about groups and resuming."""

import io

import numpy as np
import pytest
import torch
from torch import nn

from apmax.optim import proximal
from references import proximal_sgd
from trajectories import GRADIENTS, START, parameter, trajectory


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("every", [1, 2, 3, None])
def test_proximal_steps_equal_the_loop(every, average):
    w = parameter()
    optimizer = torch.optim.SGD([w], lr=0.1)
    proximal(optimizer, 0.7, every, average=average)
    expected = proximal_sgd(START, GRADIENTS, lr=0.1, weight=0.7, every=every, average=average)
    np.testing.assert_allclose(trajectory(optimizer, w), expected, rtol=0, atol=1e-12)


def test_proximal_history_by_hand():
    # lr 1, weight ½, G = -1, renewed after 2 steps: 1; 1 + 1 - ½(1 - 0) = 3/2; w_ref = 3/2, 5/2; 7/2 - ½(1) = 3
    w = parameter([0.0])
    optimizer = torch.optim.SGD([w], lr=1.0)
    proximal(optimizer, 0.5, 2)
    assert trajectory(optimizer, w, [[-1.0]] * 4)[:, 0].tolist() == [1.0, 1.5, 2.5, 3.0]


def test_renewing_by_hand_restarts_the_count():
    w = parameter([0.0])
    optimizer = torch.optim.SGD([w], lr=1.0)
    handle = proximal(optimizer, 0.5, 2)
    trajectory(optimizer, w, [[-1.0]])
    handle.renew()
    # w_ref = 1: 2; 3 - ½ = 5/2; renewed at 5/2: 7/2
    assert trajectory(optimizer, w, [[-1.0]] * 3)[:, 0].tolist() == [2.0, 2.5, 3.5]


def test_proximal_leaves_maximised_groups_alone():
    w, alpha = parameter(), parameter()
    optimizer = torch.optim.SGD([{"params": [w]}, {"params": [alpha], "maximize": True}], lr=0.1)
    proximal(optimizer, 10.0)
    plain = parameter()
    expected = trajectory(torch.optim.SGD([plain], lr=0.1, maximize=True), plain)
    np.testing.assert_array_equal(trajectory(optimizer, alpha), expected)


def test_proximal_leaves_parameters_without_gradient_alone():
    w, unused = parameter(), parameter()
    optimizer = torch.optim.SGD([w, unused], lr=0.1)
    proximal(optimizer, 1.0)
    with torch.no_grad():
        unused.add_(1.0)
    trajectory(optimizer, w)
    assert unused.grad is None
    assert unused.tolist() == [value + 1 for value in START]


def test_a_removed_proximal_term_is_gone():
    w, plain = parameter(), parameter()
    optimizer = torch.optim.SGD([w], lr=0.1)
    proximal(optimizer, 5.0).remove()
    expected = trajectory(torch.optim.SGD([plain], lr=0.1), plain)
    np.testing.assert_array_equal(trajectory(optimizer, w), expected)


@pytest.mark.parametrize("average", [False, True])
@pytest.mark.parametrize("stop", [1, 2, 3])
def test_proximal_goes_on_bit_for_bit_from_a_saved_state(stop, average):
    w = parameter()
    optimizer = torch.optim.SGD([w], lr=0.1)
    handle = proximal(optimizer, 0.7, 2, average=average)
    trajectory(optimizer, w, GRADIENTS[:stop])
    file = io.BytesIO()
    torch.save({"w": w.detach(), "handle": handle.state_dict()}, file)
    expected = trajectory(optimizer, w, GRADIENTS[stop:])
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    resumed = parameter()
    again = torch.optim.SGD([resumed], lr=0.1)
    other = proximal(again, 0.7, 2, average=average)
    with torch.no_grad():
        resumed.copy_(saved["w"])
    other.load_state_dict(saved["handle"])
    np.testing.assert_array_equal(trajectory(again, resumed, GRADIENTS[stop:]), expected)


def test_a_saved_reference_is_not_changed_by_further_steps():
    w = parameter()
    optimizer = torch.optim.SGD([w], lr=0.1)
    handle = proximal(optimizer, 0.7, 1)
    state = handle.state_dict()
    trajectory(optimizer, w)
    assert state["reference"][0].tolist() == START


def test_a_proximal_state_of_other_parameters_is_an_error_and_changes_nothing():
    w = parameter()
    handle = proximal(torch.optim.SGD([w], lr=0.1), 0.7, 2)
    other = proximal(torch.optim.SGD([parameter([1.0])], lr=0.1), 0.7, 2)
    with pytest.raises(ValueError, match="other parameters"):
        handle.load_state_dict({**other.state_dict(), "steps": 1})
    assert handle.state_dict()["steps"] == 0
    assert handle.state_dict()["reference"][0].tolist() == START


def test_proximal_reaches_the_gradients_of_a_closure():
    plain, closed = parameter(), parameter()
    expected_rule, rule = torch.optim.SGD([plain], lr=0.1), torch.optim.SGD([closed], lr=0.1)
    proximal(expected_rule, 0.7)
    proximal(rule, 0.7)

    def closure():
        closed.grad = torch.tensor(GRADIENTS[0], dtype=torch.float64)
        return 3.0

    trajectory(expected_rule, plain, GRADIENTS[:1] * 3)
    assert [rule.step(closure), rule.step(closure=closure), rule.step(closure)] == [3.0] * 3
    assert torch.equal(plain, closed)


@pytest.mark.parametrize("fused", [False, True])
def test_proximal_is_the_same_under_a_gradient_scaler(fused):
    # A fused optimiser undoes the scaling inside its step, after the term was added; others have it undone before.
    plain, scaled = nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(3))
    expected_rule, rule = torch.optim.SGD([plain], lr=0.5), torch.optim.SGD([scaled], lr=0.5, fused=fused)
    proximal(expected_rule, 0.25)
    proximal(rule, 0.25)
    scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    for _ in range(3):
        expected_rule.zero_grad()
        rule.zero_grad()
        plain.square().sum().mul(0.25).backward()
        expected_rule.step()
        scaler.scale(scaled.square().sum().mul(0.25)).backward()
        scaler.step(rule)
        scaler.update()
    assert plain.tolist() == pytest.approx(scaled.tolist(), rel=1e-6)


@pytest.mark.parametrize("rule", [torch.optim.SGD, torch.optim.LBFGS])
def test_the_first_reference_is_the_weights_when_the_term_is_added(rule):
    # LBFGS has no option `maximize`: all of its parameters are pulled.
    w = parameter([1.0])
    optimizer = rule([w], lr=1.0, **({"max_iter": 1} if rule is torch.optim.LBFGS else {}))
    proximal(optimizer, 0.5)

    def closure():
        w.grad = torch.zeros_like(w)
        return 0.0

    with torch.no_grad():
        w.add_(1.0)
    optimizer.step(closure)
    assert w.item() == 2.0 - 0.5 * (2.0 - 1.0)


def test_proximal_follows_parameters_that_are_added_later():
    w, late = parameter(), parameter()
    optimizer = torch.optim.SGD([w], lr=0.1)
    proximal(optimizer, 0.7, 2)
    optimizer.add_param_group({"params": [late]})
    expected = proximal_sgd(START, GRADIENTS, lr=0.1, weight=0.7, every=2, average=False)
    np.testing.assert_allclose(trajectory(optimizer, late), expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize(("arguments", "message"), [((-1.0, 2), "weight"), ((1.0, 0), "every")])
def test_a_wrong_proximal_number_is_named_and_nothing_is_registered(arguments, message):
    w, plain = parameter(), parameter()
    optimizer = torch.optim.SGD([w], lr=0.1)
    with pytest.raises(ValueError, match=message):
        proximal(optimizer, *arguments)
    expected = trajectory(torch.optim.SGD([plain], lr=0.1), plain)
    np.testing.assert_array_equal(trajectory(optimizer, w), expected)
