"""Defects found in other AP and imbalance losses by running them; none of them is here. One test for each."""

from __future__ import annotations

import math

import pytest
import torch

from apmax.functional import ap_objective
from apmax.losses import LOSSES, APLoss, FocalLoss

NAN = float("nan")
LABELS = torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0, 1, 0])
SCORES = torch.tensor([0.3, -0.4, 0.2, 0.9, -1.1, 0.5, 0.45, 0.1, -0.7, 0.8])
ROWS = torch.arange(10)


def trained(**options):
    loss = APLoss(LABELS, **options)
    loss(SCORES, LABELS, ROWS)
    return loss


def test_resuming_does_not_restart_the_state():
    loss, resumed = trained(gamma=0.1), APLoss(LABELS, gamma=0.1)
    resumed.load_state_dict(loss.state_dict())
    again = resumed(-SCORES, LABELS, ROWS)
    assert again == loss(-SCORES, LABELS, ROWS)
    assert again != APLoss(LABELS, gamma=0.1)(-SCORES, LABELS, ROWS)


def test_the_state_moves_with_the_loss():
    assert {buffer.device.type for buffer in trained().to("meta").buffers()} == {"meta"}


def test_evaluation_does_not_write():
    loss = trained().eval()
    before = loss.u.clone()
    loss(-SCORES, LABELS, ROWS)
    assert torch.equal(loss.u, before)


@pytest.mark.parametrize("validate", [True, False])
def test_one_nan_score_does_not_poison_the_state(validate):
    loss = trained(validate=validate)
    bad = SCORES.clone()
    bad[3] = NAN
    try:
        loss(bad, LABELS, ROWS)
    except ValueError:
        assert validate
    assert loss.u.isfinite().all()
    assert loss(SCORES, LABELS, ROWS).isfinite()


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


def test_the_value_tells_perfect_from_random_scores_on_every_visit():
    labels = (torch.arange(1000) % 50 == 0).float()
    rows = torch.arange(1000)
    random = torch.randn(1000, generator=torch.Generator().manual_seed(0))
    for scores, low, high in ((labels * 10, 0.0, 0.0), (random, 0.9, 1.0)):
        loss = APLoss(labels)
        for _ in range(3):
            assert low <= loss(scores, labels, rows).item() <= high


def test_a_batch_without_positives_does_not_crash():
    with pytest.warns(UserWarning, match="PositiveBatchSampler"):
        assert trained()(SCORES[1:3], LABELS[1:3], ROWS[1:3]) == 0


def test_float64_scores_do_not_crash():
    value = trained()(SCORES.double(), LABELS, ROWS)
    assert value.dtype == torch.float64
    assert 0 < value < 1


def test_a_batch_of_one_does_not_crash():
    assert trained()(SCORES[:1], LABELS[:1], ROWS[:1]).isfinite()


@pytest.mark.parametrize("options", [{"gamma": 0.0}, {"margin": 0.0}])
def test_what_would_give_nan_is_refused(options):
    with pytest.raises(ValueError, match=f"{next(iter(options))} must lie in"):
        APLoss(LABELS, **options)


@pytest.mark.filterwarnings("ignore:surrogate 'logistic'")
def test_the_logistic_surrogate_is_finite_at_a_gap_of_120():
    loss = APLoss(LABELS, surrogate="logistic", gamma=1.0)
    scores = (SCORES + 120 * (1 - LABELS)).requires_grad_()
    value = loss(scores, LABELS, ROWS)
    value.backward()
    assert value > 0.99
    assert scores.grad.isfinite().all()
    assert scores.grad.abs().max() > 0


def test_nan_labels_do_not_become_negatives():
    labels = LABELS.clone()
    labels[4] = NAN
    with pytest.raises(ValueError, match="labels must be 0 or 1, got nan"):
        APLoss(labels)
    with pytest.raises(ValueError, match="labels must be 0 or 1, got nan"):
        trained()(SCORES, labels, ROWS)


def test_negative_rows_do_not_wrap():
    with pytest.raises(ValueError, match="index must hold training-set rows"):
        trained()(SCORES, LABELS, ROWS - 10)


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


def test_rows_that_belong_to_others_are_refused():
    """A shuffled index would silently mix up the memory of the anchors."""
    with pytest.raises(ValueError, match="labels differ from the training set's at row"):
        trained()(SCORES, LABELS, ROWS.roll(1))


@pytest.mark.parametrize("name", LOSSES)
def test_a_misspelt_keyword_is_refused(name):
    with pytest.raises(TypeError, match="unexpected keyword argument 'marginn'"):
        LOSSES[name](LABELS, marginn=1.0)


def test_gradients_are_not_clamped_to_one():
    scores = (SCORES * 1e-4).requires_grad_()
    APLoss(LABELS, margin=1e-4)(scores, LABELS, ROWS).backward()
    assert scores.grad.abs().max() > 100


@pytest.mark.parametrize("name", LOSSES)
def test_a_column_of_labels_is_not_broadcast_to_a_matrix(name):
    expected = LOSSES[name](LABELS)(SCORES, LABELS, ROWS)
    assert LOSSES[name](LABELS)(SCORES, LABELS[:, None], ROWS) == expected
    assert LOSSES[name](LABELS)(SCORES[:, None], LABELS, ROWS) == expected


def test_focal_loss_of_a_column_is_that_of_the_paper():
    loss = FocalLoss(LABELS, focusing=2.0, balance=None, prevalence="batch")(SCORES[:, None], LABELS[:, None])
    p = [1 / (1 + math.exp(-s if y else s)) for s, y in zip(SCORES.tolist(), LABELS.tolist(), strict=True)]
    assert loss.item() == pytest.approx(sum(-((1 - q) ** 2) * math.log(q) for q in p) / 10, rel=1e-5)


def test_a_task_without_positives_does_not_count_as_an_ap_of_0():
    table = torch.stack([LABELS, torch.zeros(10)], 1)
    scores = torch.stack([SCORES, SCORES], 1)
    alone = APLoss(LABELS)(SCORES, LABELS, ROWS)
    assert APLoss(table)(scores, table, ROWS).item() == pytest.approx(alone.item(), rel=1e-6)
    objective = ap_objective(SCORES, LABELS, "smooth_step")
    assert ap_objective(scores, table, "smooth_step").item() == pytest.approx(objective.item(), rel=1e-6)
