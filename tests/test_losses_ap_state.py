"""The memory u of `APLoss`: which entries are written and when, `state_dict`, resuming."""

from __future__ import annotations

import copy
import io
import pickle

import pytest
import torch

from apmax.losses import APLoss

LABELS = torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0, 1, 0])
SCORES = torch.tensor([0.3, -0.4, 0.2, 0.9, -1.1, 0.5, 0.45, 0.1, -0.7, 0.8])


def step(loss, rows, scores=SCORES):
    rows = torch.as_tensor(rows)
    return loss(scores[rows], LABELS[rows], rows)


def trained(**options):
    loss = APLoss(LABELS, **options)
    for places in (0, 7, -4):
        step(loss, [0, 3, 5, 1, 2, 4], SCORES.roll(places))
    return loss


def restored(saved, **options):
    loss = APLoss(LABELS, **options)
    loss.load_state_dict(saved)
    return loss


def test_only_the_batchs_positives_are_written():
    loss = trained()
    before = loss.u.clone()
    step(loss, [3, 1, 9])
    assert (loss.u != before).any(1).tolist() == [False, True, False, False]


def test_u_has_a_line_for_each_positive_in_the_order_of_the_rows():
    loss = APLoss(LABELS, gamma=1.0)
    step(loss, [8, 1, 2])
    assert loss.u.shape == (4, 2)
    assert (loss.u[:, 1] > 0).tolist() == [False, False, False, True]
    assert loss.memory.rows.tolist() == [0, 3, 5, 8]


def test_every_positive_has_a_line_of_its_own():
    """Rows far apart, and positives beside negatives of the same place in their class, do not collide."""
    labels = torch.zeros(100_000)
    rows = torch.tensor([0, 1, 2, 50_000, 50_001, 99_999])
    labels[rows[[1, 3, 5]]] = 1
    loss = APLoss(labels, gamma=1.0)
    for anchor in (1, 3, 5):
        scores = torch.tensor([0.1, 0.0, -0.2, 0.0, 0.3, 0.0]) * anchor
        batch = torch.tensor([0, 2, 4, anchor])
        loss(scores[batch], labels[rows[batch]], rows[batch])
    assert len({tuple(line) for line in loss.u.tolist()}) == 3


def test_never_visited_is_a_second_component_of_zero():
    loss = APLoss(LABELS, gamma=0.1)
    assert loss.u.count_nonzero() == 0
    first = step(loss, [0, 1, 2])
    g = loss.u[0].clone()
    loss.u[0] = 0
    assert step(loss, [0, 1, 2]) == first
    assert torch.equal(loss.u[0], g)


def test_a_batch_without_negatives_leaves_what_is_known_of_them():
    loss = trained(gamma=0.5).double()
    before = loss.u.clone()
    step(loss, [0, 3], SCORES.double())
    assert loss.u[0, 0] != before[0, 0]
    known = (before[:, 1] - before[:, 0])[[0, 1]]
    torch.testing.assert_close((loss.u[:, 1] - loss.u[:, 0])[[0, 1]], known, rtol=1e-12, atol=0)


@pytest.mark.parametrize("start", ["estimate", "zero"])
def test_an_anchor_first_met_without_negatives_stays_unvisited(start):
    loss = APLoss(LABELS, start=start)
    step(loss, [0, 3])
    assert loss.u.count_nonzero() == 0


def test_a_batch_without_positives_writes_nothing():
    loss = trained()
    before = loss.u.clone()
    with pytest.warns(UserWarning, match="PositiveBatchSampler"):
        step(loss, [1, 2])
    assert torch.equal(loss.u, before)


def test_evaluation_writes_nothing_and_uses_the_batchs_own_g():
    loss = trained().eval()
    before = loss.u.clone()
    rows = torch.tensor([0, 3, 1, 2])
    value = loss(-SCORES[rows], LABELS[rows], rows)
    assert torch.equal(loss.u, before)
    assert value == loss(-SCORES[rows], LABELS[rows])
    assert value == APLoss(LABELS, gamma=1.0)(-SCORES[rows], LABELS[rows])


def test_evaluation_knows_neither_the_training_rows_nor_their_labels():
    """Validation data may be of any size and carry rows of their own."""
    loss = trained().eval()
    scores, labels = torch.randn(50, generator=torch.Generator().manual_seed(0)), torch.ones(50)
    labels[10:] = 0
    assert loss(scores, labels, torch.arange(1000, 1050)) == loss(scores, labels)


def test_training_goes_on_after_evaluation():
    loss, other = trained(), trained()
    step(loss.eval(), range(10))
    loss.train()
    assert step(loss, [0, 3, 1]) == step(other, [0, 3, 1])
    assert torch.equal(loss.u, other.u)


def test_the_state_dict_holds_u_and_the_rows():
    loss = trained()
    saved = loss.state_dict()
    assert set(saved) == {"memory.u", "memory.rows"}
    assert torch.equal(saved["memory.u"], loss.u)
    assert saved["memory.rows"].tolist() == [0, 3, 5, 8]


@pytest.mark.parametrize("start", ["estimate", "zero"])
def test_a_resumed_run_is_bit_exact(start):
    """Saved in mid-training through a file, with some positives not yet visited."""
    straight = trained(start=start)
    file = io.BytesIO()
    torch.save(straight.state_dict(), file)
    file.seek(0)
    resumed = restored(torch.load(file, weights_only=True), start=start)
    for rows in ([0, 3, 1], [8, 5, 4, 2], [0, 8, 9], [3, 5]):
        assert step(straight, rows) == step(resumed, rows)
    assert torch.equal(straight.u, resumed.u)
    assert straight.u[3, 1] > 0


@pytest.mark.parametrize(
    "labels", [[1.0, 0, 1, 0], [0.0, 1, 0, 1, 0, 1, 0, 0, 1, 0]], ids=["fewer positives", "other rows"]
)
def test_a_state_of_other_rows_is_refused_and_changes_nothing(labels):
    loss = APLoss(torch.tensor(labels))
    loss(torch.zeros(4), torch.tensor(labels[:4]), torch.arange(4))
    before = loss.u.clone()
    with pytest.raises(RuntimeError, match=r"memory\.rows: .* build it from the same labels"):
        loss.load_state_dict(trained().state_dict())
    assert torch.equal(loss.u, before)


@pytest.mark.parametrize("key", ["memory.u", "memory.rows"])
def test_a_state_without_u_or_rows_is_refused(key):
    saved = trained().state_dict()
    del saved[key]
    with pytest.raises(RuntimeError, match=key.replace(".", r"\.")):
        restored(saved)


@pytest.mark.parametrize(
    ("move", "expected"),
    [
        (lambda loss: loss.half(), torch.float32),
        (lambda loss: loss.bfloat16(), torch.float32),
        (lambda loss: loss.to(torch.float16), torch.float32),
        (lambda loss: loss.double(), torch.float64),
        (lambda loss: torch.nn.ModuleDict({"loss": loss}).half()["loss"], torch.float32),
    ],
    ids=["half", "bfloat16", "to float16", "double", "half with its parent"],
)
def test_u_follows_the_module_but_never_below_float32(move, expected):
    loss = trained()
    before = loss.u.clone()
    moved = move(loss)
    assert moved.u.dtype == expected
    assert torch.equal(moved.u, before.to(expected))
    step(moved, [0, 3, 1, 2])
    assert moved.u.dtype == expected


def test_all_of_the_state_moves_to_another_device():
    assert {buffer.device.type for buffer in trained().to("meta").buffers()} == {"meta"}


def test_a_halved_loss_works_as_accurately_as_before():
    assert step(trained().half(), [0, 3, 1, 2]) == step(trained(), [0, 3, 1, 2])


def test_u_and_its_rows_take_16_bytes_for_each_positive():
    labels = torch.zeros(100_000)
    labels[::10] = 1
    small, large = (sum(b.nbytes for b in APLoss(labels[:n]).buffers()) for n in (1000, 100_000))
    assert large - small == 16 * (10_000 - 100)


@pytest.mark.parametrize(
    "copied", [copy.deepcopy, lambda loss: pickle.loads(pickle.dumps(loss))], ids=["deepcopy", "pickle"]
)
def test_a_copy_goes_on_alone_from_the_same_state(copied):
    loss = trained()
    other = copied(loss)
    before = other.u.clone()
    value = step(loss, [0, 3, 1, 2])
    assert torch.equal(other.u, before)
    assert step(other, [0, 3, 1, 2]) == value
    assert torch.equal(other.u, loss.u)


def test_inputs_are_not_changed():
    labels, scores = LABELS.clone(), SCORES.clone()
    rows = torch.arange(10)
    APLoss(labels, sigmoid=True)(scores, labels, rows)
    assert torch.equal(labels, LABELS)
    assert torch.equal(scores, SCORES)
    assert torch.equal(rows, torch.arange(10))


def test_the_labels_given_may_be_changed_afterwards():
    labels = LABELS.clone()
    loss = APLoss(labels)
    labels.zero_()
    assert step(loss, range(10)) == step(APLoss(LABELS), range(10))


def test_autocast_does_not_reach_the_loss():
    loss, other = APLoss(LABELS), APLoss(LABELS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        value = step(loss, range(10))
        assert torch.is_autocast_enabled("cpu")
    assert value.dtype == torch.float32
    assert value == step(other, range(10))
    assert torch.equal(loss.u, other.u)


@pytest.mark.parametrize("num_pos", [None, 4])
def test_positives_of_weight_zero_are_never_visited(num_pos):
    weight = torch.ones(10)
    weight[[3, 5, 8]] = 0
    loss = APLoss(LABELS, sample_weight=weight, num_pos=num_pos)
    step(loss, [3, 5, 8, 0, 1])
    assert (loss.u[:, 1] > 0).tolist() == [True, False, False, False]


@pytest.mark.parametrize(
    ("labels", "message"),
    [([1.0, 0, 1, 1], "2 training positives, this one 3;"), ([1.0, 1, 0, 0], "2 .* this one as many in other rows;")],
)
def test_a_state_of_other_positives_is_refused_with_what_differs(labels, message):
    saved = APLoss(torch.tensor([1.0, 0, 1, 0])).state_dict()
    with pytest.raises(RuntimeError, match=message):
        APLoss(torch.tensor(labels)).load_state_dict(saved)
