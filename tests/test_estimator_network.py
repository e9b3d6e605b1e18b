"""APClassifier with a network: what is trained, on which rows, and by which stages."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.metrics import average_precision_score
from torch import nn

from apmax.estimator import APClassifier
from apmax.estimator.network import two_stages
from apmax.estimator.rows import hold_out
from apmax.losses import LOSSES
from apmax.train import Stage


def ring(rows=600, seed=0):
    X = np.random.default_rng(seed).standard_normal((rows, 2))
    return X, (np.square(X).sum(1) > 5).astype(int)


def quick(**settings):
    return APClassifier(
        **{"solver": "adam", "hidden": (16,), "epochs": 4, "lr": 1e-2, "accelerator": "cpu", **settings}
    )


def test_network_ranks_what_no_line_can():
    X, y = ring()
    network = quick(epochs=20, random_state=0).fit(X[:400], y[:400])
    linear = APClassifier().fit(X[:400], y[:400])
    reached, line = (average_precision_score(y[400:], m.decision_function(X[400:])) for m in (network, linear))
    assert reached > 0.9 > line + 0.3


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains(loss):
    X, y = ring()
    model = quick(loss=loss, epochs=15, random_state=0).fit(X, y)
    assert model.loss_ == loss
    assert average_precision_score(y, model.decision_function(X)) > 0.5 > 4 * y.mean()


def test_default_is_cross_entropy_and_then_both_together():
    X, y = ring(200)
    assert [*dict.fromkeys(record.stage for record in quick().fit(X, y).records_)] == ["ce", "ap + ce"]


@pytest.mark.parametrize(("loss", "names"), [("ce", ["ce"]), ("ap", ["ce", "ap + ce"]), ("auc_m", ["ce", "auc_m"])])
def test_stages_follow_from_the_loss(loss, names):
    stages = two_stages(loss, solver="sgd", lr=None, epochs=8, batch_size=32, num_pos=4, weight_decay=0.1, rows=100)
    assert [stage.name for stage in stages] == names
    assert {(stage.optimizer.momentum, stage.optimizer.weight_decay) for stage in stages} == {(0.9, 0.1)}
    assert stages[0].optimizer.lr == 1e-2


def test_own_stages_are_trained_as_given():
    X, y = ring(200)
    model = quick(stages=(Stage(loss="focal", epochs=2), Stage(loss="ap", epochs=1))).fit(X, y)
    assert [(record.stage, record.epoch) for record in model.records_] == [("focal", 1), ("focal", 2), ("ap", 1)]


def test_module_is_copied_and_trained_from_its_weights():
    X, y = ring(200)
    module = nn.Linear(2, 1)
    before = module.weight.detach().clone()
    model = quick(module=module, lr=1e-9).fit(X, y)
    assert torch.equal(module.weight, before)
    assert isinstance(model.model_, nn.Linear)
    torch.testing.assert_close(model.model_.weight.float(), before, atol=1e-6, rtol=0)


def test_factory_is_told_the_number_of_features():
    X, y = ring(200)
    assert quick(module=lambda features: nn.Linear(features, 1)).fit(X, y).model_.in_features == 2


def test_factory_that_makes_no_module_is_refused():
    with pytest.raises(TypeError, match="module must be a torch module or make one"):
        quick(module=lambda features: features).fit(*ring(100))


def test_same_seed_gives_the_same_network_whatever_the_global_generators():
    X, y = ring(200)
    torch.manual_seed(1)
    first = quick(random_state=3).fit(X, y).decision_function(X)
    torch.manual_seed(2)
    np.testing.assert_array_equal(quick(random_state=3).fit(X, y).decision_function(X), first)
    assert not np.array_equal(quick(random_state=4).fit(X, y).decision_function(X), first)


def test_global_generator_of_torch_is_left_as_it_was():
    X, y = ring(200)
    before = torch.get_rng_state()
    quick(random_state=0).fit(X, y)
    assert torch.equal(torch.get_rng_state(), before)


def test_rows_of_weight_zero_are_left_out():
    X, y = ring(300)
    poisoned_X, poisoned_y = np.vstack([X, X * 1e3]), np.hstack([y, 1 - y])
    weight = np.repeat([1.0, 0.0], 300)
    clean = quick(random_state=0).fit(X, y).decision_function(X)
    poisoned = quick(random_state=0).fit(poisoned_X, poisoned_y, sample_weight=weight).decision_function(X)
    np.testing.assert_array_equal(poisoned, clean)


def test_weights_change_what_is_learnt():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((400, 2))
    y = np.where(np.arange(400) < 200, X[:, 0] > 1, X[:, 1] > 1).astype(int)
    weight = np.where(np.arange(400) < 200, 1.0, 9.0)
    slopes = {}
    for name, given in (("first", weight[::-1]), ("second", weight)):
        model = quick(hidden=(), epochs=15, random_state=0).fit(X, y, sample_weight=given)
        slopes[name] = model.decision_function([[1.0, 0.0]]) - model.decision_function([[0.0, 1.0]])
    assert slopes["first"] > 0 > slopes["second"]


def test_sparse_table_trains_and_ranks():
    X, y = ring(400)
    X[np.abs(X) < 0.3] = 0
    model = quick(epochs=15, random_state=0).fit(sparse.csr_matrix(X), y)
    assert average_precision_score(y, model.decision_function(sparse.csr_matrix(X))) > 0.7


def test_fewer_positives_than_a_batch_asks_for_are_enough():
    X = np.arange(40.0)[:, None]
    assert quick(num_pos=16).fit(X, np.arange(40) >= 37).predict_proba(X).shape == (40, 2)


def test_one_positive_is_enough():
    X = np.arange(10.0)[:, None]
    assert np.isfinite(quick().fit(X, np.arange(10) == 9).predict_proba(X)).all()


def test_held_out_rows_are_others_and_hold_the_same_share_of_positives():
    labels = (np.arange(1000) % 10 == 0).astype(float)
    train, held_out = hold_out(labels, 0.2, seed=0)
    assert sorted([*train, *held_out]) == list(range(1000))
    assert (labels[held_out].sum(), len(held_out)) == (20, 200)


def test_calibration_is_fitted_to_the_held_out_rows():
    from apmax.estimator.calibration import calibrate

    X, y = ring(300)
    model = quick(random_state=5).fit(X, y)
    _, held_out = hold_out(y.astype(float), 0.2, model._seed())
    with torch.no_grad():
        table = torch.from_numpy((X - X.mean(0)) / X.std(0))[held_out]
        scores = model.model_(table).numpy()
    expected = calibrate(scores, y[held_out].astype(float), np.ones(len(held_out)))
    np.testing.assert_allclose(model.calibration_, expected, rtol=1e-6)


def test_equal_weights_are_the_same_as_none():
    X, y = ring(200)
    expected = quick(random_state=0).fit(X, y).decision_function(X)
    weighed = quick(random_state=0).fit(X, y, sample_weight=np.full(200, 0.37)).decision_function(X)
    np.testing.assert_allclose(weighed, expected, rtol=1e-12)


@pytest.mark.parametrize("loss", LOSSES)
def test_the_scale_of_the_weights_does_not_change_the_network(loss):
    X, y = ring(200)
    weight = np.random.default_rng(0).uniform(0.5, 2.0, 200)
    models = [quick(loss=loss, random_state=0).fit(X, y, sample_weight=scale * weight).model_ for scale in (1, 8)]
    for one, other in zip(*(model.parameters() for model in models), strict=True):
        assert torch.equal(one, other)


def test_weights_repeat_no_row():
    X, y = ring(200)
    steps = [
        quick(random_state=0).fit(X, y, sample_weight=weight).records_[0].step
        for weight in (None, np.linspace(1.0, 9.0, 200))
    ]
    assert steps[0] == steps[1]


def test_the_held_out_rows_that_select_are_weighed():
    X, y = ring(300)
    weight = np.random.default_rng(0).uniform(0.1, 9.0, 300)
    model = quick(random_state=5, stages=(Stage(epochs=1, ema=None),)).fit(X, y, sample_weight=weight)
    _, held_out = hold_out(y.astype(float), 0.2, model._seed())
    scores = model.decision_function(X)[held_out] * model.calibration_.slope
    expected = average_precision_score(y[held_out], scores, sample_weight=weight[held_out])
    assert model.records_[0].valid.ap == pytest.approx(expected, abs=1e-6)
