"""The eight compared losses: each against its loop reference and its gradient, and what they share."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.func import functional_call

from apmax.losses import (
    AUCMLoss,
    ClassBalancedLoss,
    CrossEntropyLoss,
    FastAPLoss,
    FocalLoss,
    LDAMLoss,
    MinMaxLoss,
    SmoothAPLoss,
)
from references import BASELINES, mean_over_tasks

CLASSES = {
    "ce": CrossEntropyLoss,
    "cb_ce": ClassBalancedLoss,
    "focal": FocalLoss,
    "ldam": LDAMLoss,
    "auc_m": AUCMLoss,
    "smooth_ap": SmoothAPLoss,
    "fast_ap": FastAPLoss,
    "minmax": MinMaxLoss,
}
LDAM_OPTIONS = {"max_margin": 0.4, "scale": 3.0, "beta": 0.9, "defer_epoch": 2}
# Constructor arguments and, where the reference spells something differently, the reference's arguments.
CASES = [
    ("ce", {}, {}),
    ("cb_ce", {"beta": 0.0}, {"beta": 0.0}),
    ("cb_ce", {"beta": 0.95}, {"beta": 0.95}),
    ("focal", {}, {"focusing": 2.0, "balance": 0.25}),
    ("focal", {"focusing": 0.5, "balance": None}, {"focusing": 0.5, "balance": None}),
    ("ldam", LDAM_OPTIONS, {**LDAM_OPTIONS, "epoch": 1}),
    ("ldam", LDAM_OPTIONS, {**LDAM_OPTIONS, "epoch": 2}),
    ("auc_m", {"margin": 0.7}, {"margin": 0.7}),
    ("smooth_ap", {"temperature": 0.05}, {"temperature": 0.05, "squash": True}),
    ("smooth_ap", {"temperature": 0.7, "sigmoid": False}, {"temperature": 0.7, "squash": False}),
    ("fast_ap", {"bins": 1}, {"bins": 1}),
    ("fast_ap", {"bins": 7}, {"bins": 7}),
    ("minmax", {"anchors": 4}, {}),
]
PARAMETERS = {"auc_m": ("a", "b", "alpha"), "minmax": ("thresholds", "multipliers")}
NAN = float("nan")


def case_name(value):
    return value if isinstance(value, str) else None


def fill_parameters(loss):
    generator = torch.Generator().manual_seed(5)
    for parameter in loss.parameters():
        parameter.data = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
    return loss


def prepare(name, options, reference_options, train_labels, **shared):
    """A loss in the state that the reference's options describe."""
    loss = fill_parameters(CLASSES[name](train_labels, **options, **shared))
    loss.set_epoch(reference_options.get("epoch", 0))
    return loss


def parameters_of(name, loss):
    return {key: getattr(loss, key).detach().numpy() for key in PARAMETERS.get(name, ())}


def batch_of_rows(rng, shape=(12,)):
    """Scores that reach beyond ±20, where a careless softplus drops its small part."""
    return torch.as_tensor(rng.standard_normal(shape) * np.where(rng.random(shape) < 0.2, 15, 1))


class TestReference:
    @pytest.mark.parametrize("weighted", [False, True], ids=["plain", "weighted"])
    @pytest.mark.parametrize("prevalence", [None, 0.3, "batch"])
    @pytest.mark.parametrize(("name", "options", "reference_options"), CASES, ids=case_name)
    def test_one_task_equals_the_loop(self, name, options, reference_options, prevalence, weighted):
        rng = np.random.default_rng(0)
        train = (np.arange(30) % 5 == 0).astype(float)
        train_weight = rng.uniform(0.2, 2, 30) if weighted else np.ones(30)
        rows = np.array([0, 5, 10, 15, 1, 2, 3, 4, 6, 7, 8, 9])
        scores = batch_of_rows(rng)
        loss = prepare(
            name,
            options,
            reference_options,
            train,
            prevalence=prevalence,
            sample_weight=train_weight if weighted else None,
        )
        value = loss(scores, torch.as_tensor(train[rows]), torch.as_tensor(rows))
        expected = BASELINES[name](
            scores.numpy(),
            train[rows],
            train_weight[rows],
            train,
            train_weight,
            prevalence,
            **reference_options,
            **parameters_of(name, loss),
        )
        assert value.item() == pytest.approx(expected, rel=1e-12, abs=1e-13)

    @pytest.mark.parametrize("prevalence", [None, 0.3, "batch"])
    @pytest.mark.parametrize(("name", "options", "reference_options"), CASES, ids=case_name)
    def test_tasks_with_missing_labels_equal_the_loop(self, name, options, reference_options, prevalence):
        rng = np.random.default_rng(1)
        train = (rng.random((40, 4)) < 0.4).astype(float)
        train[rng.random((40, 4)) < 0.2] = NAN
        rows = np.arange(16)
        train[rows, 3] = NAN  # measured in the training set, but not in this batch
        train_weight = rng.uniform(0.2, 2, 40)
        scores = batch_of_rows(rng, (16, 4))
        loss = prepare(name, options, reference_options, train, prevalence=prevalence, sample_weight=train_weight)
        value = loss(scores, torch.as_tensor(train[rows]), torch.as_tensor(rows))
        state = parameters_of(name, loss)
        expected = mean_over_tasks(
            BASELINES[name],
            scores.numpy(),
            train[rows],
            train_weight[rows],
            train,
            train_weight,
            prevalence,
            [{**reference_options, **{key: values[task] for key, values in state.items()}} for task in range(4)],
        )
        assert value.item() == pytest.approx(expected, rel=1e-12, abs=1e-13)

    @pytest.mark.parametrize("prevalence", [None, "batch"])
    @pytest.mark.parametrize(("name", "options", "reference_options"), CASES, ids=case_name)
    def test_gradient_is_that_of_the_value(self, name, options, reference_options, prevalence):
        rng = np.random.default_rng(2)
        train = (rng.random((20, 2)) < 0.4).astype(float)
        train[3, 0] = NAN
        rows = torch.arange(9)
        loss = prepare(name, options, reference_options, train, prevalence=prevalence)
        names = [key for key, _ in loss.named_parameters()]
        scores = torch.as_tensor(rng.standard_normal((9, 2))).requires_grad_()

        def value(scores, *parameters):
            labels = torch.as_tensor(train[:9])
            return functional_call(loss, dict(zip(names, parameters, strict=True)), (scores, labels, rows))

        assert torch.autograd.gradcheck(value, (scores, *(p.detach().requires_grad_() for p in loss.parameters())))


LABELS = torch.tensor([1, 1, 1, 0, 0, 0, 0, 0, 0, 0], dtype=torch.float64)
SCORES = torch.tensor([1.3, -0.4, 0.2, 0.9, -1.1, 0.5, -2.0, 0.1, -0.7, -0.3], dtype=torch.float64)


@pytest.mark.parametrize("name", ["ce", "cb_ce", "focal", "ldam", "auc_m", "minmax"])
class TestLinearInClassMeans:
    def test_the_mean_over_all_class_wise_batches_is_the_population_loss(self, name):
        loss = fill_parameters(CLASSES[name](LABELS))
        whole = loss(SCORES, LABELS).item()
        values = []
        for positives in itertools.combinations(range(3), 2):
            for negatives in itertools.combinations(range(3, 10), 2):
                rows = torch.tensor(positives + negatives)
                values.append(loss(SCORES[rows], LABELS[rows]).item())
        assert np.mean(values) == pytest.approx(whole, rel=1e-12)

    def test_without_the_correction_the_sampler_changes_the_loss(self, name):
        loss = fill_parameters(CLASSES[name](LABELS, prevalence="batch"))
        rows = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 1, 2])
        assert abs(loss(SCORES[rows], LABELS[rows]) - loss(SCORES, LABELS)) > 1e-3


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "smooth_ap"])
class TestWeights:
    @pytest.mark.parametrize("prevalence", [None, "batch"])
    def test_a_weight_of_two_is_the_example_twice(self, name, prevalence):
        loss = fill_parameters(CLASSES[name](LABELS, prevalence=prevalence))
        twice = torch.tensor([0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9])
        weight = torch.ones(10, dtype=torch.float64)
        weight[[1, 4]] = 2
        assert loss(SCORES, LABELS, sample_weight=weight).item() == pytest.approx(
            loss(SCORES[twice], LABELS[twice]).item(), rel=1e-12
        )

    def test_a_training_weight_of_two_is_the_row_twice(
        self,
        name,
    ):
        weight = torch.ones(10)
        weight[[1, 4]] = 2
        twice = torch.tensor([0, 1, 1, 2, 3, 4, 4, 5, 6, 7, 8, 9])
        weighted = fill_parameters(CLASSES[name](LABELS, sample_weight=weight))
        repeated = fill_parameters(CLASSES[name](LABELS[twice]))
        assert weighted(SCORES, LABELS, torch.arange(10)).item() == pytest.approx(
            repeated(SCORES[twice], LABELS[twice]).item(), rel=1e-12
        )


@pytest.mark.parametrize("name", [name for name in CLASSES if name != "smooth_ap"])
def test_an_unchecked_step_never_asks_the_device_for_a_number(name, monkeypatch):
    # Meta tensors have no values: anything that would make the host wait for one raises. They have no autocast either.
    monkeypatch.setattr(torch, "is_autocast_enabled", lambda *_: False)
    loss = CLASSES[name](LABELS, validate=False).to("meta")
    scores = torch.empty(10, device="meta", requires_grad=True)
    loss(scores, torch.empty(10, device="meta")).backward()
    assert scores.grad.shape == (10,)


@pytest.mark.parametrize(
    ("cls", "options", "message"),
    [
        (ClassBalancedLoss, {"beta": 1.0}, r"beta must lie in \[0, 1\)"),
        (ClassBalancedLoss, {"beta": -0.1}, r"beta must lie in \[0, 1\)"),
        (FocalLoss, {"focusing": -1.0}, "focusing must lie"),
        (FocalLoss, {"balance": 0.0}, "balance must lie"),
        (FocalLoss, {"balance": 1.0}, "balance must lie"),
        (LDAMLoss, {"max_margin": -0.5}, "max_margin must lie"),
        (LDAMLoss, {"scale": 0.0}, "scale must lie"),
        (LDAMLoss, {"defer_epoch": -1}, "defer_epoch must be at least 0"),
        (LDAMLoss, {"beta": 1.5}, "beta must lie"),
        (AUCMLoss, {"margin": 0.0}, "margin must lie"),
        (SmoothAPLoss, {"temperature": 0.0}, "temperature must lie"),
        (SmoothAPLoss, {"temperature": NAN}, "temperature must lie"),
        (FastAPLoss, {"bins": 0}, "bins must be at least 1"),
        (MinMaxLoss, {"anchors": 0}, "anchors must be at least 1"),
    ],
)
def test_a_hyper_parameter_out_of_range_is_refused_by_name(cls, options, message):
    with pytest.raises(ValueError, match=message):
        cls(LABELS, **options)
