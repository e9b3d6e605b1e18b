"""What every loss of `LOSSES` must do, and a weighted sum of them: listing a loss tests it."""

from __future__ import annotations

import copy
import functools
import inspect
import warnings

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from apmax.losses import LOSSES, WeightedLoss
from apmax.optim import param_groups

NAN = float("nan")
EVERY = {**LOSSES, "weighted": functools.partial(WeightedLoss, terms={"ce": 1.0, "auc_m": 0.5})}

LABELS = torch.tensor([1.0, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1, 0, 0, 0])
ROWS = torch.tensor([0, 4, 8, 1, 2, 3, 5, 6, 7, 9])
SCORES = torch.tensor([1.3, -0.4, 0.2, 0.9, -1.1, 0.5, -2.0, 0.1, -0.7, -0.3], dtype=torch.float64)

pytestmark = pytest.mark.parametrize("build", EVERY.values(), ids=EVERY)


def value_and_gradient(loss, scores, labels, rows, **options):
    scores = scores.clone().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # a loss may warn of a batch without positives
        value = loss(scores, labels, rows, **options)
    value.backward()
    return value.detach(), scores.grad


def trained(build, **options):
    """A loss whose state and parameters have moved away from their start."""
    loss = build(LABELS, **options)
    loss.set_epoch(7)
    groups = param_groups(torch.nn.Identity(), loss, lr=0.5)
    optimizer = torch.optim.SGD(groups) if groups else None
    for shift in (0.0, 1.0, -2.0):
        value_and_gradient(loss, SCORES + shift, LABELS[ROWS], ROWS)
        if optimizer is not None:
            optimizer.step()
    return loss


def state_of(loss):
    return copy.deepcopy(loss.state_dict())


def same_state(first, second):
    return first.keys() == second.keys() and all(torch.equal(first[key], second[key]) for key in first)


def test_the_value_is_a_finite_scalar_that_back_propagates(build):
    value, gradient = value_and_gradient(build(LABELS), SCORES, LABELS[ROWS], ROWS)
    assert value.shape == ()
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()
    assert gradient.abs().max() > 1e-6


@pytest.mark.parametrize("rows", [[0, 4, 8], [1, 2, 3], [0], [1]], ids=["positives", "negatives", "one +", "one -"])
@pytest.mark.parametrize("prevalence", [None, "batch"])
def test_a_batch_that_misses_a_class_works(build, prevalence, rows):
    rows = torch.tensor(rows)
    value, gradient = value_and_gradient(build(LABELS, prevalence=prevalence), SCORES[: len(rows)], LABELS[rows], rows)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


def test_arrays_instead_of_tensors_are_an_error_that_names_the_argument(build):
    loss = build(LABELS)
    before = state_of(loss)
    with pytest.raises(TypeError, match="scores must be a tensor, got ndarray"):
        loss(SCORES.numpy(), LABELS[ROWS], ROWS)
    with pytest.raises(TypeError, match="labels must be a tensor, got list"):
        loss(SCORES, LABELS[ROWS].tolist(), ROWS)
    assert same_state(before, loss.state_dict())


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32])
def test_low_precision_scores_give_the_float64_result(build, dtype):
    scores = SCORES.to(dtype)
    value, gradient = value_and_gradient(build(LABELS), scores, LABELS[ROWS], ROWS)
    expected, expected_gradient = value_and_gradient(build(LABELS), scores.double(), LABELS[ROWS], ROWS)
    assert gradient.dtype == dtype
    assert value.item() == pytest.approx(expected.item(), rel=1e-5)
    error = 2 * torch.finfo(dtype).eps  # of rounding the gradient itself
    torch.testing.assert_close(gradient.double(), expected_gradient, rtol=error + 1e-4, atol=error)


@pytest.mark.parametrize("dtype", [torch.bool, torch.int64, torch.uint8, torch.float64])
def test_labels_of_any_type_are_taken(build, dtype):
    expected = build(LABELS)(SCORES, LABELS[ROWS], ROWS)
    assert build(LABELS.to(dtype))(SCORES, LABELS[ROWS].to(dtype), ROWS) == expected


def test_a_column_is_a_vector_and_not_broadcast_to_a_matrix(build):
    scores, labels = SCORES, LABELS[ROWS]
    expected = build(LABELS)(scores, labels, ROWS)
    for batch in ((scores[:, None], labels[:, None]), (scores[:, None], labels), (scores, labels[:, None])):
        assert build(LABELS)(*batch, ROWS) == expected


def test_training_labels_of_one_column_are_one_task(build):
    assert build(LABELS[:, None])(SCORES, LABELS[ROWS], ROWS) == build(LABELS)(SCORES, LABELS[ROWS], ROWS)


@pytest.mark.parametrize("prevalence", [None, 0.4, "batch"])
@pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
def test_several_tasks_are_the_mean_of_those_in_the_batch(build, weighted, prevalence):
    rng = np.random.default_rng(3)
    labels = (rng.random((40, 4)) < 0.4).astype(float)
    labels[rng.random((40, 4)) < 0.2] = NAN
    rows = np.arange(16)
    labels[rows, 3] = NAN  # a task that this batch does not measure
    weight = rng.uniform(0.5, 2, 40) if weighted else None
    scores = torch.as_tensor(rng.standard_normal((16, 4)))

    def built(labels, known=slice(None)):
        return build(labels, prevalence=prevalence, sample_weight=None if weight is None else weight[known])

    value, gradient = value_and_gradient(built(labels), scores, torch.as_tensor(labels[rows]), torch.as_tensor(rows))
    singles = []
    for task in range(3):
        known = ~np.isnan(labels[:, task])
        renumbered = np.cumsum(known) - 1
        batch = rows[known[rows]]
        single, single_gradient = value_and_gradient(
            built(labels[known, task], known),
            scores[batch, task],
            torch.as_tensor(labels[batch, task]),
            torch.as_tensor(renumbered[batch]),
        )
        singles.append(single.item())
        torch.testing.assert_close(gradient[batch, task], single_gradient / 3, rtol=1e-6, atol=1e-9)
    assert value.item() == pytest.approx(np.mean(singles), rel=1e-6)
    assert (gradient[torch.as_tensor(np.isnan(labels[rows]))] == 0).all()


def test_the_order_of_the_batch_does_not_matter(build):
    order = torch.tensor([3, 0, 9, 2, 7, 1, 8, 4, 6, 5])
    value, gradient = value_and_gradient(build(LABELS), SCORES, LABELS[ROWS], ROWS)
    shuffled, shuffled_gradient = value_and_gradient(build(LABELS), SCORES[order], LABELS[ROWS][order], ROWS[order])
    assert shuffled.item() == pytest.approx(value.item(), rel=1e-12)
    torch.testing.assert_close(shuffled_gradient, gradient[order], rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("prevalence", [None, "batch"])
def test_a_negative_of_weight_two_is_that_negative_twice(build, prevalence):
    loss = build(LABELS, prevalence=prevalence).eval()
    weight = torch.ones(10, dtype=torch.float64)
    weight[6] = 2
    twice = torch.cat([torch.arange(10), torch.tensor([6])])
    weighted = loss(SCORES, LABELS[ROWS], sample_weight=weight)
    repeated = loss(SCORES[twice], LABELS[ROWS][twice])
    assert weighted.item() == pytest.approx(repeated.item(), rel=1e-6)


def test_weights_of_the_training_set_are_found_by_row(build):
    weight = torch.linspace(0.5, 1.5, 20, dtype=torch.float64)
    loss, swapped = build(LABELS, sample_weight=weight), build(LABELS, sample_weight=weight)
    other = torch.tensor([4, 0, 8, 1, 2, 3, 5, 6, 7, 9])
    assert loss(SCORES, LABELS[ROWS], ROWS) != swapped(SCORES, LABELS[ROWS], other)


def test_a_misspelt_keyword_is_a_type_error(build):
    with pytest.raises(TypeError, match="prevalance"):
        build(LABELS, prevalance=0.5)


def test_every_hyper_parameter_is_named_in_the_signature(build):
    kinds = [parameter.kind for parameter in inspect.signature(build).parameters.values()]
    assert inspect.Parameter.VAR_KEYWORD not in kinds


@pytest.mark.parametrize("bad", [NAN, float("inf"), -float("inf")])
def test_a_score_that_is_not_finite_is_refused_and_changes_no_state(build, bad):
    loss = trained(build)
    before = state_of(loss)
    scores = SCORES.clone()
    scores[2] = bad
    with pytest.raises(ValueError, match="scores must be finite"):
        loss(scores, LABELS[ROWS], ROWS)
    assert same_state(loss.state_dict(), before)


def test_labels_other_than_zero_and_one_are_refused(build):
    with pytest.raises(ValueError, match="labels must be 0 or 1"):
        build(LABELS)(SCORES, 2 * LABELS[ROWS] - 1, ROWS)


@pytest.mark.parametrize("row", [-1, 20])
def test_a_row_outside_the_training_set_is_refused(build, row):
    rows = ROWS.clone()
    rows[9] = row
    with pytest.raises(ValueError, match="index must hold"):
        build(LABELS)(SCORES, LABELS[ROWS], rows)


def test_rows_of_other_data_are_taken_in_evaluation(build):
    expected = build(LABELS).eval()(SCORES, LABELS[ROWS])
    assert build(LABELS).eval()(SCORES, LABELS[ROWS], ROWS + 1000) == expected
    with pytest.raises(ValueError, match="index must hold"):  # where weights are looked up by them
        build(LABELS, sample_weight=torch.ones(20)).eval()(SCORES, LABELS[ROWS], ROWS + 1000)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize("sign", [1, -1], ids=["right", "wrong"])
def test_extreme_logits_give_finite_values_and_gradients(build, sign, dtype):
    extreme = torch.tensor([1e4, 1e4, -1e4, -1e4, -1e4, -1e4, 1e4, 0, 1e4, -1e4], dtype=dtype)
    value, gradient = value_and_gradient(build(LABELS), sign * extreme, LABELS[ROWS], ROWS)
    assert torch.isfinite(value)
    assert torch.isfinite(gradient).all()


@pytest.mark.parametrize("size", [1e10, 2e19, 1e30, 3e38, 1e100, 1e200, 1e308])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_scores_that_would_overflow_are_refused_and_all_others_give_finite_numbers(build, dtype, size):
    loss = trained(build)
    before = state_of(loss)
    scores = (SCORES / 2 * size).to(dtype)
    if not scores.isfinite().all():
        scores = SCORES.to(dtype) / 2 * torch.finfo(dtype).max
    if scores.abs().max() > loss.score_limit(dtype):
        assert size > 1e20
        with pytest.raises(ValueError, match="scores must not exceed"):
            loss(scores, LABELS[ROWS], ROWS)
        assert same_state(loss.state_dict(), before)
    else:
        value, gradient = value_and_gradient(loss, scores, LABELS[ROWS], ROWS)
        assert torch.isfinite(value)
        assert torch.isfinite(gradient).all()
        assert all(tensor.isfinite().all() for tensor in loss.state_dict().values())


@pytest.mark.parametrize("prevalence", [None, 0.01, "batch"])
@pytest.mark.parametrize(
    "rows", [ROWS[:3], ROWS[3:], ROWS[:1], ROWS[:0]], ids=["positives", "negatives", "one", "none"]
)
def test_a_batch_of_one_class_has_a_finite_gradient_under_a_gradient_scaler(build, prevalence, rows):
    scores = SCORES[: len(rows)].float().requires_grad_()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a batch without positives
        value = build(LABELS, prevalence=prevalence)(scores, LABELS[rows], rows)
    (2**16 * value).backward()
    assert torch.isfinite(value)
    assert torch.isfinite(scores.grad).all()


def test_an_empty_batch_is_zero(build):
    value, _ = value_and_gradient(build(LABELS), SCORES[:0], LABELS[:0], ROWS[:0])
    assert value == 0


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e30, 1e200, 1e308])
@pytest.mark.parametrize("prevalence", [None, "batch"])
def test_the_scale_of_weights_neither_overflows_nor_matters(build, prevalence, scale):
    # beta=0 leaves class-balanced weights at 1: otherwise a row of weight 2 counts as two rows.
    options = {"beta": 0.0} if getattr(build, "__name__", "") in ("ClassBalancedLoss", "LDAMLoss") else {}
    weight = torch.linspace(0.5, 1.5, 20, dtype=torch.float64)
    scores, labels = SCORES.float(), LABELS[ROWS]
    plain, scaled = (
        value_and_gradient(
            build(LABELS, prevalence=prevalence, sample_weight=weight * factor, **options), scores, labels, ROWS
        )
        for factor in (1, scale)
    )
    torch.testing.assert_close(scaled, plain, rtol=1e-5, atol=1e-7)
    plain, scaled = (
        value_and_gradient(
            build(LABELS, prevalence=prevalence), scores, labels, ROWS, sample_weight=weight[:10] * factor
        )
        for factor in (1, scale)
    )
    torch.testing.assert_close(scaled, plain, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize("prevalence", [None, 0.3, "batch"])
@pytest.mark.parametrize("ratio", [1e5, 1e10, 1e25])
def test_float32_scores_lose_no_digits_to_weights_far_apart(build, prevalence, ratio):
    weight = torch.linspace(1, 2, 20, dtype=torch.float64)
    weight[0], weight[12] = 3e4, ratio  # one positive of the batch outweighs the others, and one outside it all
    single, double = (
        value_and_gradient(
            build(LABELS, prevalence=prevalence, sample_weight=weight), SCORES.to(dtype), LABELS[ROWS], ROWS
        )
        for dtype in (torch.float32, torch.float64)
    )
    torch.testing.assert_close(single[0].double(), double[0], rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(
        single[1].double(), double[1], rtol=0, atol=1e-5 * max(1.0, float(double[1].abs().max()))
    )


def test_weights_too_far_apart_for_float32_are_refused(build):
    weight = 1 + 1e200 * LABELS.double()
    with pytest.raises(ValueError, match="sample_weight must not spread"):
        build(LABELS, sample_weight=weight)
    with pytest.raises(ValueError, match="sample_weight must not spread"):
        build(LABELS)(SCORES, LABELS[ROWS], ROWS, sample_weight=weight[ROWS])


def test_inputs_are_not_changed(build):
    inputs = (SCORES.clone(), LABELS[ROWS], ROWS.clone())
    training_labels, weight = LABELS.clone(), torch.linspace(1, 2, 20)
    before = copy.deepcopy((*inputs, training_labels, weight))
    build(training_labels, sample_weight=weight)(*inputs)
    assert all(torch.equal(now, then) for now, then in zip((*inputs, training_labels, weight), before, strict=True))


def test_evaluation_changes_no_state(build):
    loss = trained(build).eval()
    before = state_of(loss)
    loss(SCORES, LABELS[ROWS])
    loss(SCORES, LABELS[ROWS], ROWS)
    assert same_state(loss.state_dict(), before)


def test_a_restored_loss_goes_on_to_the_bit(build):
    loss = trained(build)
    restored = build(LABELS)
    restored.load_state_dict(state_of(loss))
    for shift in (0.5, -0.5):
        expected = value_and_gradient(loss, SCORES + shift, LABELS[ROWS], ROWS)
        assert all(map(torch.equal, value_and_gradient(restored, SCORES + shift, LABELS[ROWS], ROWS), expected))
    assert same_state(loss.state_dict(), restored.state_dict())


def test_half_precision_leaves_the_loss_in_float32(build):
    loss, plain = build(LABELS).half(), build(LABELS)
    assert all(not t.is_floating_point() or t.dtype != torch.float16 for t in (*loss.parameters(), *loss.buffers()))
    assert loss(SCORES.float(), LABELS[ROWS], ROWS) == plain(SCORES.float(), LABELS[ROWS], ROWS)


def test_autocast_does_not_change_the_value(build):
    expected = build(LABELS)(SCORES.float(), LABELS[ROWS], ROWS)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert build(LABELS)(SCORES.float(), LABELS[ROWS], ROWS) == expected


def test_the_names_to_ascend_are_parameters(build):
    loss = build(LABELS)
    assert set(loss.ascend) <= {name for name, _ in loss.named_parameters()}


def separable_data():
    """200 points in two dimensions; the 20 positives lie beyond a line."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.arange(200) % 10 == 0).double()
    points = torch.randn(200, 2, generator=generator, dtype=torch.float64)
    points[:, 0] = points[:, 0].abs() * torch.where(labels == 1, 1.0, -1.0) + 0.3 * labels
    return points, labels


@pytest.mark.parametrize(("optimizer", "lr"), [(torch.optim.SGD, 0.3), (torch.optim.Adam, 0.1)])
def test_any_torch_optimiser_learns_to_rank_separable_data(build, optimizer, lr):
    points, labels = separable_data()
    model = torch.nn.Linear(2, 1).double()
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[-0.5, 0.5]]))  # the ranking begins upside down, at an AP of 0.06
        model.bias.zero_()
    loss = build(labels)
    stepper = optimizer(param_groups(model, loss), lr=lr)
    generator = torch.Generator().manual_seed(1)
    positives, negatives = labels.nonzero()[:, 0], (labels == 0).nonzero()[:, 0]
    for _ in range(150):
        some = positives[torch.randperm(20, generator=generator)[:8]]
        others = negatives[torch.randperm(180, generator=generator)[:24]]
        rows = torch.cat([some, others])
        stepper.zero_grad()
        loss(model(points[rows]), labels[rows], rows).backward()
        stepper.step()
    with torch.no_grad():
        assert average_precision_score(labels, model(points)[:, 0]) > 0.95
