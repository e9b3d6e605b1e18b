"""What `APLoss` takes and refuses: batches that miss something; errors that name the argument and change nothing."""

from __future__ import annotations

import warnings

import numpy as np
import pytest
import torch

from apmax.exact import search
from apmax.functional import ap_objective
from apmax.losses import APLoss, WeightedLoss

NAN, INF = float("nan"), float("inf")
LABELS = torch.tensor([1.0, 0, 0, 1, 0, 1, 0, 0, 1, 0])
SCORES = torch.tensor([0.3, -0.4, 0.2, 0.9, -1.1, 0.5, 0.45, 0.1, -0.7, 0.8])
ROWS = torch.arange(10)


def trained(**options):
    loss = APLoss(LABELS, **options)
    loss(SCORES, LABELS, ROWS)
    return loss


def changed(values, place, value):
    values = values.clone()
    values[place] = value
    return values


@pytest.fixture(params=["host", "device"])
def checked_on(request, monkeypatch):
    """Check as where numbers may be looked at, and as on a device."""
    if request.param == "device":
        monkeypatch.setattr(search, "on_host", lambda tensor: False)


@pytest.mark.usefixtures("checked_on")
@pytest.mark.parametrize(
    ("scores", "labels", "index", "message"),
    [
        (changed(SCORES, 2, NAN), LABELS, ROWS, "scores must be finite, got nan at position 2"),
        (changed(SCORES, 0, INF), LABELS, ROWS, "scores must be finite, got inf at position 0"),
        (changed(SCORES, 9, -INF), LABELS, ROWS, "scores must be finite, got -inf at position 9"),
        (changed(SCORES, 2, INF).half(), LABELS, ROWS, "scores must be finite, got inf at position 2"),
        (SCORES, changed(LABELS, 1, 2.0), ROWS, "labels must be 0 or 1, got 2"),
        (SCORES, changed(LABELS, 1, 0.5), ROWS, r"labels must be 0 or 1, got 0\.5"),
        (SCORES, LABELS * 2 - 1, ROWS, "labels must be 0 or 1, got -1"),
        (SCORES, changed(LABELS, 1, NAN), ROWS, "labels must be 0 or 1, got nan"),
        (SCORES, LABELS, changed(ROWS, 1, 10), "index must hold training-set rows from 0 to 9, got 10"),
        (SCORES, LABELS, changed(ROWS, 1, -1), "index must hold training-set rows from 0 to 9, got -1"),
        (SCORES, LABELS, changed(ROWS, 0, -10), "index must hold training-set rows from 0 to 9, got -10"),
        (SCORES, LABELS, ROWS.roll(1), "labels differ from the training set's at row 9 .position 0 of the batch"),
        (SCORES, changed(LABELS, 3, 0.0), ROWS, "labels differ from the training set's at row 3"),
        (SCORES, changed(LABELS, 4, 1.0), ROWS, "labels differ from the training set's at row 4"),
        (SCORES, LABELS, ROWS.float(), "index must hold whole numbers"),
        (SCORES, LABELS, ROWS.bool(), "index must hold whole numbers"),
        (SCORES, LABELS, ROWS[:9], r"index must hold whole numbers of shape \(10,\)"),
        (SCORES, LABELS, None, "index is needed for gamma < 1"),
        (SCORES[:9], LABELS, ROWS, r"scores and labels must both have shape .* got \(9,\) and \(10,\)"),
        (SCORES.repeat(2, 1).mT, LABELS.repeat(2, 1).mT, ROWS, "scores have 2 task"),
    ],
)
def test_a_wrong_batch_is_refused_by_the_arguments_name_and_u_is_untouched(scores, labels, index, message):
    loss = trained()
    before = loss.u.clone()
    with pytest.raises(ValueError, match=message):
        loss(scores, labels, index)
    assert torch.equal(loss.u, before)


@pytest.mark.usefixtures("checked_on")
def test_a_positive_that_weighs_nothing_is_not_remembered():
    loss = APLoss(LABELS, sample_weight=changed(torch.ones(10), 3, 0.0))
    loss(SCORES, LABELS, ROWS)
    assert (loss.u[:, 1] > 0).tolist() == [True, False, True, True]


@pytest.mark.parametrize("rows", [2000, 200_000], ids=["small training set", "large training set"])
@pytest.mark.parametrize("repeated", [False, True], ids=["rows differ", "a row twice"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_checks_change_no_number(rows, repeated, weighted):
    generator = torch.Generator().manual_seed(0)
    table = (torch.rand(rows, generator=generator) < 0.1).double()
    weight = torch.rand(rows, generator=generator) if weighted else None
    losses = [APLoss(table, sample_weight=weight, validate=validate) for validate in (True, False)]
    for _ in range(3):
        index = torch.randperm(rows, generator=generator)[:300]
        index = torch.cat([index, index[:20]]) if repeated else index
        scores = torch.randn(len(index), generator=generator, dtype=torch.float64)
        gradients = []
        for loss in losses:
            own = scores.clone().requires_grad_()
            value = loss(own, table[index], index)
            value.backward()
            gradients.append(torch.cat([own.grad, value.detach()[None]]))
        torch.testing.assert_close(*gradients, rtol=1e-12, atol=1e-16)
    assert losses[0].u.count_nonzero() > 0
    torch.testing.assert_close(losses[0].u, losses[1].u, rtol=1e-6, atol=0)


@pytest.mark.parametrize(
    "weight",
    [torch.full((10,), NAN), -torch.ones(10), changed(torch.ones(10), 3, INF), torch.ones(9), torch.ones(10, 1)],
)
def test_a_wrong_weight_of_a_call_is_refused(weight):
    loss = trained(gamma=1.0)
    before = loss.u.clone()
    with pytest.raises(ValueError, match="sample_weight must"):
        loss(SCORES, LABELS, ROWS, sample_weight=weight)
    assert torch.equal(loss.u, before)


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("place", [0, 1], ids=["positive", "negative"])
@pytest.mark.parametrize("surrogate", ["squared_hinge", "smooth_step", "sigmoid"])
def test_without_checks_a_g_that_is_not_finite_is_never_written(surrogate, place, bad):
    options = {"surrogate": surrogate, "sigmoid": surrogate == "squared_hinge", "validate": False}
    loss = APLoss(LABELS, **options)
    loss(SCORES, LABELS, ROWS)
    before = loss.u.clone()
    value = loss(changed(SCORES, place, bad), LABELS, ROWS)
    assert loss.u.isfinite().all()
    if bad != bad:
        assert value.isnan()
        assert torch.equal(loss.u, before)
    good = loss(SCORES, LABELS, ROWS)
    assert good.isfinite()


@pytest.mark.filterwarnings("ignore:surrogate 'squared_hinge'")
@pytest.mark.parametrize("scores", [SCORES + 1e25 * (1 - LABELS), 2e20 * SCORES.double()], ids=["float32", "float64"])
def test_without_checks_a_g_that_overflows_is_never_written(scores):
    loss = trained(surrogate="squared_hinge", validate=False)
    before = loss.u.clone()
    loss(scores, LABELS, ROWS)
    assert loss.u.isfinite().all()
    assert (loss.u == before).all(1).any()


@pytest.mark.filterwarnings("ignore:surrogate")
@pytest.mark.parametrize("rows", [ROWS, torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 8])], ids=["different", "repeated"])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("surrogate", "size"), [("squared_hinge", 2e19), ("hinge", 1e38), ("smoothed_hinge", 1e38), ("logistic", 1e38)]
)
def test_scores_that_overflow_an_unbounded_surrogate_are_refused_and_u_is_untouched(surrogate, size, dtype, rows):
    loss = trained(surrogate=surrogate)
    before = loss.u.clone()
    with pytest.raises(ValueError, match="scores must not exceed"):
        loss((size * SCORES).to(dtype), LABELS[rows], rows)
    assert torch.equal(loss.u, before)


@pytest.mark.filterwarnings("ignore:surrogate")
@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge", "smoothed_hinge", "logistic"])
def test_scores_up_to_the_limit_give_finite_numbers(surrogate):
    loss = APLoss(LABELS, surrogate=surrogate)
    limit = loss.score_limit(torch.float32)
    scores = torch.where(LABELS == 1, -limit, limit).requires_grad_()
    value = loss(scores, LABELS, ROWS)
    value.backward()
    assert 0 <= value <= 1
    assert scores.grad.isfinite().all()
    assert loss.u.isfinite().all()
    assert (loss.u > 0).any()


@pytest.mark.parametrize("margin", [1e20, 1e40, 1e-40])
def test_a_margin_that_overflows_is_refused(margin):
    with pytest.raises(ValueError, match="margin must"):
        APLoss(LABELS, surrogate="squared_hinge", sigmoid=True, margin=margin)


def test_what_was_not_written_does_not_come_back():
    """A row beyond the last positive is looked up where discarded values went."""
    loss = trained(validate=False)
    loss(changed(SCORES, 0, NAN), LABELS, ROWS)
    assert loss(SCORES[8:], torch.tensor([0.0, 1.0]), ROWS[8:]).isfinite()


def test_without_checks_rows_that_are_no_positives_are_not_written():
    loss = trained(validate=False)
    before = loss.u.clone()
    loss(SCORES[:3], torch.tensor([0.0, 1, 1]), torch.tensor([0, 1, 2]))
    assert torch.equal(loss.u, before)


def test_a_batch_without_positives_is_a_zero_that_back_propagates():
    loss = trained()
    scores = SCORES[[1, 2, 4]].clone().requires_grad_()
    with pytest.warns(UserWarning, match="no positive"):
        value = loss(scores, torch.zeros(3), torch.tensor([1, 2, 4]))
    value.backward()
    assert str(value.item()) == "0.0"
    assert torch.equal(scores.grad, torch.zeros(3))


def test_a_batch_without_positives_warns_once_where_the_loss_was_called_and_names_the_sampler():
    loss = trained()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for _ in range(3):
            loss(SCORES[1:3], LABELS[1:3], ROWS[1:3])
    assert len(caught) == 1
    assert "apmax.PositiveBatchSampler" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_an_empty_batch_is_one_without_positives():
    with pytest.warns(UserWarning, match="no positive"):
        value = trained()(SCORES[:0].requires_grad_(), LABELS[:0], ROWS[:0])
    value.backward()
    assert value == 0


@pytest.mark.parametrize("rows", [[0, 3, 5], [3]], ids=["no negatives", "one positive"])
@pytest.mark.parametrize("known", [False, True], ids=["first visit", "later"])
def test_a_batch_without_negatives_works(known, rows):
    loss = trained() if known else APLoss(LABELS)
    scores = SCORES[rows].clone().requires_grad_()
    value = loss(scores, LABELS[rows], torch.tensor(rows))
    value.backward()
    assert 0 <= value < 1
    assert scores.grad.isfinite().all()
    assert bool(value > 0) == known


def test_a_batch_of_one_negative_works():
    with pytest.warns(UserWarning, match="no positive"):
        assert trained()(SCORES[1:2], LABELS[1:2], ROWS[1:2]) == 0


def test_without_memory_no_index_is_needed():
    loss = APLoss(LABELS, gamma=1.0)
    assert loss(SCORES, LABELS) == APLoss(LABELS, gamma=1.0)(SCORES, LABELS, ROWS)
    assert loss.u.count_nonzero() == 0


@pytest.mark.parametrize("index", [None, ROWS])
def test_weights_of_a_call_are_those_of_the_training_set_at_a_given_prevalence(index):
    weight = torch.linspace(0.0, 2.0, 10)
    of_call = APLoss(LABELS, gamma=1.0, prevalence=0.3)(SCORES, LABELS, index, sample_weight=weight)
    of_rows = APLoss(LABELS, gamma=1.0, prevalence=0.3, sample_weight=weight)(SCORES, LABELS, ROWS)
    assert of_call.item() == pytest.approx(of_rows.item(), rel=1e-6)


@pytest.mark.parametrize("prevalence", [None, 0.3, "batch"])
@pytest.mark.parametrize("factor", [1e-3, 7.0, 1e4])
def test_the_scale_of_a_calls_weights_does_not_matter(factor, prevalence):
    weight = torch.linspace(0.5, 2.0, 10)
    loss = APLoss(LABELS, gamma=1.0, prevalence=prevalence)
    expected = loss(SCORES, LABELS, sample_weight=weight)
    assert loss(SCORES, LABELS, sample_weight=weight * factor).item() == pytest.approx(expected.item(), rel=1e-5)


@pytest.mark.parametrize("factor", [1e-3, 1e4])
def test_the_scale_of_a_calls_weights_does_not_matter_within_a_sum_of_losses(factor):
    weight = torch.linspace(0.5, 2.0, 10)
    loss = WeightedLoss(LABELS, {"ap": 1.0}, options={"ap": {"gamma": 1.0}})
    expected = loss(SCORES, LABELS, sample_weight=weight)
    assert loss(SCORES, LABELS, sample_weight=weight * factor).item() == pytest.approx(expected.item(), rel=1e-5)


def test_weights_of_a_call_on_more_positives_than_were_trained_on_keep_the_value_between_0_and_1():
    labels = torch.tensor([1.0, 1, 1, 1, 1, 1, 0, 0])
    weight = torch.tensor([100.0, 1, 1, 1, 1, 1, 1, 1])
    scores = torch.tensor([-1.0, 1, 1, 1, 1, 1, 0, 0])
    value = APLoss([1, 1, 0, 0]).eval()(scores, labels, sample_weight=weight)
    assert 0.5 < value <= 1


def test_weights_of_one_in_a_call_change_nothing():
    loss = APLoss(LABELS, gamma=1.0)
    weighted = loss(SCORES, LABELS, sample_weight=torch.ones(10))
    assert weighted.item() == pytest.approx(loss(SCORES, LABELS).item(), rel=1e-6)


def test_weights_of_the_training_set_need_an_index():
    with pytest.raises(ValueError, match="index is needed: sample_weight"):
        APLoss(LABELS, gamma=1.0, sample_weight=torch.ones(10))(SCORES, LABELS)


@pytest.mark.parametrize("weight", ["heavy", [None] * 10, [[1.0], [1.0, 2.0]]], ids=["text", "none", "ragged"])
def test_weights_that_are_no_numbers_are_refused_by_name(weight):
    with pytest.raises(ValueError, match="sample_weight must be an array, tensor or list of numbers"):
        APLoss(LABELS, sample_weight=weight)


@pytest.mark.parametrize("bad", [NAN, INF])
def test_an_error_of_a_weight_says_what_to_do_with_the_weight(bad):
    with pytest.raises(ValueError, match=f"sample_weight must be finite, got {bad}; take 0 for rows"):
        APLoss(LABELS, sample_weight=changed(torch.ones(10), 3, bad))


def test_weights_cannot_be_given_twice():
    with pytest.raises(ValueError, match="sample_weight was given for the training set"):
        APLoss(LABELS, sample_weight=torch.ones(10))(SCORES, LABELS, ROWS, sample_weight=torch.ones(10))


@pytest.mark.parametrize("index", [ROWS - 3, ROWS + 3])
def test_rows_that_look_up_weights_are_checked_in_evaluation_too(index):
    loss = APLoss(LABELS, sample_weight=torch.ones(10)).eval()
    with pytest.raises(ValueError, match="index must hold training-set rows from 0 to 9"):
        loss(SCORES, LABELS, index)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int16, torch.int32])
def test_an_index_of_any_whole_type_is_taken(dtype):
    labels = torch.cat([LABELS, torch.zeros(990)])
    expected = APLoss(labels)(SCORES, LABELS, ROWS)
    assert APLoss(labels)(SCORES, LABELS, ROWS.to(dtype)) == expected


def test_strided_inputs_are_taken_without_a_warning():
    scores, labels, rows = (torch.stack([t, t], 1)[:, 0] for t in (SCORES, LABELS, ROWS))
    assert not rows.is_contiguous()
    assert APLoss(LABELS)(scores, labels, rows) == APLoss(LABELS)(SCORES, LABELS, ROWS)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"gamma": 0.0}, r"gamma must lie in \(0, 1\], got 0"),
        ({"gamma": 1.1}, r"gamma must lie in \(0, 1\]"),
        ({"gamma": NAN}, r"gamma must lie in \(0, 1\]"),
        ({"margin": 0.0}, "margin must lie in"),
        ({"margin": -1.0}, "margin must lie in"),
        ({"floor": -0.1}, "floor must lie in"),
        ({"floor": INF}, "floor must lie in"),
        ({"start": "first"}, "start must be one of estimate, zero"),
        ({"surrogate": "smoothstep"}, "did you mean 'smooth_step'"),
        ({"surrogate": None}, "surrogate must be one of"),
        ({"prevalence": 0.0}, "prevalence must lie in"),
        ({"prevalence": 1.0}, "prevalence must lie in"),
        ({"prevalence": "bach"}, "did you mean 'batch'"),
        ({"num_pos": 0}, "num_pos must be at least 1"),
        ({"sample_weight": [1.0] * 9}, "sample_weight must have shape"),
        ({"sample_weight": [-1.0] * 10}, "sample_weight must not be negative"),
    ],
)
def test_a_wrong_hyper_parameter_is_refused_by_its_name(options, message):
    with pytest.raises(ValueError, match=message):
        APLoss(LABELS, **options)


def test_training_labels_that_are_missing_do_not_become_negatives():
    with pytest.raises(ValueError, match="labels must be 0 or 1, got nan"):
        APLoss(changed(LABELS, 4, NAN))


@pytest.mark.parametrize("labels", [[0, 0, 0], [[0, 0], [0, NAN]]])
def test_labels_without_a_positive_are_refused(labels):
    with pytest.raises(ValueError, match="labels must hold at least one positive"):
        APLoss(np.array(labels))


def test_a_misspelt_keyword_of_a_call_is_a_type_error():
    with pytest.raises(TypeError, match="indices"):
        APLoss(LABELS)(SCORES, LABELS, indices=ROWS)


@pytest.mark.parametrize("surrogate", ["squared_hinge", "hinge", "smoothed_hinge", "logistic", "exponential"])
def test_an_unbounded_surrogate_on_raw_scores_warns(surrogate):
    with pytest.warns(UserWarning, match=f"{surrogate}.*sigmoid=True"):
        APLoss(LABELS, surrogate=surrogate)


@pytest.mark.parametrize("surrogate", ["smooth_step", "ramp", "sigmoid"])
def test_a_bounded_surrogate_on_raw_scores_does_not_warn(surrogate):
    APLoss(LABELS, surrogate=surrogate)


@pytest.mark.parametrize("options", [{"gamma": np.float32(0.5)}, {"margin": np.float64(1.0)}, {"margin": 1}])
def test_numbers_of_any_kind_are_taken(options):
    assert APLoss(LABELS, **options)(SCORES, LABELS, ROWS) == APLoss(LABELS)(SCORES, LABELS, ROWS)


def train_on(loss, batches, rows=ROWS):
    """Return the warnings of training calls on these batches of scores."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        for scores in batches:
            loss(scores, LABELS[rows], rows)
    return caught


REPEATED = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 8])


@pytest.mark.parametrize("rows", [ROWS, REPEATED], ids=["different", "repeated"])
def test_probabilities_warn_once_where_the_loss_was_called_and_ask_for_raw_scores(rows):
    loss = APLoss(LABELS)
    assert not train_on(loss, [SCORES.sigmoid()] * 9, rows)
    caught = train_on(loss, [SCORES.sigmoid()] * 30, rows)
    assert len(caught) == 1
    assert "pass raw scores (logits)" in str(caught[0].message)
    assert caught[0].filename == __file__


def test_probabilities_warn_within_a_sum_of_losses():
    caught = train_on(WeightedLoss(LABELS, {"ce": 1.0, "ap": 1.0}), [SCORES.sigmoid()] * 30)
    assert len(caught) == 1
    assert "pass raw scores (logits)" in str(caught[0].message)
    assert caught[0].filename == __file__


@pytest.mark.parametrize(
    ("options", "batches"),
    [
        ({}, [SCORES] * 30),
        ({}, [SCORES.sigmoid()] * 9 + [SCORES] + [SCORES.sigmoid()] * 9),
        ({}, [torch.zeros(10)] * 30),
        ({"sigmoid": True}, [SCORES.sigmoid()] * 30),
        ({"validate": False}, [SCORES.sigmoid()] * 30),
    ],
    ids=["raw", "one raw batch", "constant", "sigmoid", "unchecked"],
)
def test_other_scores_do_not_warn_of_probabilities(options, batches):
    assert not train_on(APLoss(LABELS, **options), batches)


def test_evaluation_does_not_warn_of_probabilities():
    assert not train_on(APLoss(LABELS).eval(), [SCORES.sigmoid()] * 30)


@pytest.mark.parametrize(
    ("scores", "index", "message"),
    [
        (SCORES, ROWS.tolist(), "index must be a tensor, got list"),
        (SCORES + 1j, ROWS, "scores must be real numbers, got torch.complex64"),
        (SCORES.tolist(), ROWS, "scores must be a tensor, got list"),
    ],
)
def test_values_of_another_type_are_named(scores, index, message):
    with pytest.raises(TypeError, match=message):
        APLoss(LABELS)(scores, LABELS, index)


@pytest.mark.parametrize(
    ("scores", "message"), [(SCORES.tolist(), "scores must be a tensor, got list"), (SCORES + 1j, "real numbers")]
)
def test_the_exact_objective_names_scores_of_another_type(scores, message):
    with pytest.raises(TypeError, match=message):
        ap_objective(scores, LABELS)
