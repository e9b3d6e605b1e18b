"""`APLoss` over several tasks at once against a loop over single-task losses, state included."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from apmax.exact import kernel
from apmax.losses import APLoss

NAN = float("nan")
TASKS, ROWS = 5, 60


def table(seed=0):
    """Labels with missing ones; task 3 is rare, task 4 has no positive at all."""
    rng = np.random.default_rng(seed)
    labels = (rng.random((ROWS, TASKS)) < [0.5, 0.3, 0.2, 0.05, 0.0]).astype(float)
    labels[rng.random((ROWS, TASKS)) < 0.2] = NAN
    labels[7, 3] = 1
    return labels


def loop(singles, labels, scores, rows):
    """Return the mean value over the tasks with positives in the batch and the gradient, (B, tasks)."""
    values, gradient = [], np.zeros(scores.shape)
    present = [t for t in singles if (labels[rows, t] == 1).any()]
    for task in present:
        known = ~np.isnan(labels[:, task])
        place = np.cumsum(known) - 1
        measured = known[rows]
        own = torch.tensor(scores[measured, task], requires_grad=True)
        value = singles[task](own, torch.tensor(labels[rows[measured], task]), torch.tensor(place[rows[measured]]))
        value.backward()
        values.append(value.item())
        gradient[measured, task] = own.grad.numpy() / len(present)
    return np.mean(values), gradient


@pytest.mark.parametrize("validate", [True, False])
@pytest.mark.parametrize("num_pos", [None, 10])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
@pytest.mark.parametrize("prevalence", [None, 0.3, "batch"])
def test_a_run_equals_the_loop_over_single_tasks(prevalence, weighted, num_pos, validate):
    labels = table()
    rng = np.random.default_rng(1)
    weight = rng.uniform(0.5, 2, ROWS)
    options = {"prevalence": prevalence, "gamma": 0.4}
    singles = {}
    for task in range(TASKS - 1):
        known = ~np.isnan(labels[:, task])
        own = {"sample_weight": weight[known]} if weighted else {}
        singles[task] = APLoss(labels[known, task], **options, **own).double()
    own = {"sample_weight": weight} if weighted else {}
    loss = APLoss(labels, **options, **own, num_pos=num_pos, validate=validate).double()
    for size in (16, 16, 3, 12, 16, 9):
        rows = rng.choice(ROWS, size, replace=False)
        scores = rng.normal(size=(size, TASKS))
        expected, expected_gradient = loop(singles, labels, scores, rows)
        joined = torch.tensor(scores, requires_grad=True)
        value = loss(joined, torch.tensor(labels[rows]), torch.tensor(rows))
        value.backward()
        assert value.item() == pytest.approx(expected, rel=1e-11)
        np.testing.assert_allclose(joined.grad.numpy(), expected_gradient, rtol=1e-9, atol=1e-13)
    expected_u = torch.cat([single.u for single in singles.values()])
    torch.testing.assert_close(loss.u, expected_u, rtol=1e-11, atol=1e-15)
    assert (loss.u[:, 1] > 0).float().mean() > 0.5


def test_a_task_without_positives_in_the_batch_is_left_out_and_not_counted_as_zero():
    labels = torch.tensor([[1.0, 0.0], [0, 0], [0, 1], [0, 0]])
    scores = torch.tensor([[0.0, 0.3], [0.2, -0.1]])
    loss = APLoss(labels)
    alone = APLoss(labels[:, 0])(scores[:, 0], labels[:2, 0], torch.arange(2))
    assert alone > 0.3
    assert loss(scores, labels[:2], torch.arange(2)).item() == pytest.approx(alone.item(), rel=1e-6)
    assert loss.u[1].count_nonzero() == 0


def test_a_batch_without_positives_in_any_task_is_zero_and_warns_once():
    labels = torch.tensor([[1.0, 0.0], [0, 0], [0, 1], [0, NAN]])
    loss = APLoss(labels)
    scores = torch.zeros(2, 2, requires_grad=True)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(2):
            loss(scores, labels[[1, 3]], torch.tensor([1, 3])).backward()
    assert ["PositiveBatchSampler" in str(warning.message) for warning in caught] == [True]
    assert torch.equal(scores.grad, torch.zeros(2, 2))


def test_what_was_not_measured_has_no_gradient_and_no_influence():
    labels = torch.tensor([[1.0, 1.0], [0, NAN], [0, 0], [1, 0]])
    scores = torch.tensor([[0.1, 0.2], [0.3, 0.0], [-0.2, 0.4], [0.5, 0.3]])
    values = []
    for other in (0.0, 100.0):
        batch = scores.clone()
        batch[1, 1] = other
        batch.requires_grad_()
        value = APLoss(labels)(batch, labels, torch.arange(4))
        value.backward()
        values.append(value.item())
        assert batch.grad[1, 1] == 0
    assert values[0] == values[1]


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("prevalence", [None, "batch"])
def test_a_task_without_a_measured_row_in_the_batch_adds_nothing(prevalence, training):
    labels = np.array([[1, NAN], [0, NAN], [0, 1], [1, 0]])
    scores = np.array([[0.2, 0.5], [0.4, -0.3]])
    both = APLoss(labels, prevalence=prevalence).train(training)
    alone = APLoss(labels[:, 0], prevalence=prevalence).train(training)
    found = torch.tensor(scores, requires_grad=True)
    single = torch.tensor(scores[:, 0], requires_grad=True)
    rows = torch.arange(2)
    value, expected = both(found, torch.tensor(labels[:2]), rows), alone(single, torch.tensor(labels[:2, 0]), rows)
    value.backward()
    expected.backward()
    assert value.item() == pytest.approx(expected.item(), rel=1e-6)
    assert found.grad[:, 0].tolist() == pytest.approx(single.grad.tolist(), rel=1e-6)
    assert found.grad[:, 1].tolist() == [0, 0]


def test_the_rows_of_each_task_are_looked_up_in_its_own_memory():
    labels = torch.tensor([[1.0, 0.0], [0, 1], [0, 0]])
    loss = APLoss(labels, gamma=1.0)
    loss(torch.tensor([[0.0, 0.0], [0.0, 3.0], [0.0, 0.0]]), labels, torch.arange(3))
    alone = [APLoss(labels[:, t], gamma=1.0) for t in range(2)]
    alone[0](torch.zeros(3), labels[:, 0], torch.arange(3))
    alone[1](torch.tensor([0.0, 3.0, 0.0]), labels[:, 1], torch.arange(3))
    torch.testing.assert_close(loss.u, torch.cat([a.u for a in alone]))
    assert not torch.equal(loss.u[0], loss.u[1])


@pytest.mark.parametrize(
    ("place", "value", "message"),
    [
        ((0, 1), 1.0, "labels differ from the training set's at row 0"),
        ((1, 1), 0.0, "differ .* row 1"),
        ((0, 0), 2.0, "0 or 1"),
    ],
)
def test_a_wrong_label_of_any_task_is_refused_and_u_is_untouched(place, value, message):
    labels = torch.tensor([[1.0, 0.0], [0, 1], [0, NAN]])
    loss = APLoss(labels)
    wrong = labels.clone()
    wrong[place] = value
    with pytest.raises(ValueError, match=message):
        loss(torch.zeros(3, 2), wrong, torch.arange(3))
    assert loss.u.count_nonzero() == 0


def test_more_positives_of_a_task_than_promised_are_refused():
    labels = torch.tensor([[1.0, 0.0], [1, 1], [0, 0]])
    loss = APLoss(labels, num_pos=1)
    with pytest.raises(ValueError, match="labels hold 2 positives in a batch where num_pos=1 was promised"):
        loss(torch.zeros(3, 2), labels, torch.arange(3))


def test_there_is_no_loop_over_tasks(monkeypatch):
    calls = []
    pair_kernel = kernel.pair_kernel
    monkeypatch.setattr(kernel, "pair_kernel", lambda *args: calls.append(args) or pair_kernel(*args))
    labels = (torch.rand(64, 617, generator=torch.Generator().manual_seed(0)) < 0.1).float()
    APLoss(labels)(torch.zeros(64, 617), labels, torch.arange(64))
    assert len(calls) == 1


def test_state_of_several_tasks_is_saved_and_restored():
    labels = torch.tensor(table())
    loss, other = APLoss(labels), APLoss(labels)
    loss(labels.nan_to_num(0.5), labels, torch.arange(ROWS))
    other.load_state_dict(loss.state_dict())
    assert torch.equal(other.u, loss.u)
    with pytest.raises(RuntimeError, match="build it from the same labels"):
        APLoss(labels[:, [1, 0, 2, 3, 4]]).load_state_dict(loss.state_dict())
