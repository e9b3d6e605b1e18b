"""Tests of the network solver: model, rows, stages, weights, and equality with `apmax train`."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.metrics import average_precision_score
from torch import nn

from apmax.committee.network import ColumnScales, hold_out_rows, solver_stages
from apmax.estimator import APClassifier
from apmax.losses import LOSSES
from apmax.models.tables import Linear
from apmax.train import Stage, fit_platt, table_recipe


def ring(rows=600, seed=0):
    X = np.random.default_rng(seed).standard_normal((rows, 2))
    return X, (np.square(X).sum(1) > 5).astype(int)


def quick(**parameters):
    short = {} if "stages" in parameters else {"epochs": 4, "lr": 1e-2}
    return APClassifier(**{"solver": "adam", "hidden": (16,), "accelerator": "cpu", **short, **parameters})


def test_network_ranks_rows_that_no_linear_model_can():
    X, y = ring()
    linear = APClassifier().fit(X[:400], y[:400])
    linear_ap = average_precision_score(y[400:], linear.decision_function(X[400:]))
    # Single seeds vary between 0.86 and 0.99.
    networks = [quick(epochs=40, random_state=seed).fit(X[:400], y[:400]) for seed in range(3)]
    network_ap = np.mean([average_precision_score(y[400:], m.decision_function(X[400:])) for m in networks])
    assert network_ap > 0.9 > linear_ap + 0.3


@pytest.mark.parametrize("loss", LOSSES)
def test_every_loss_trains(loss):
    X, y = ring()
    model = quick(loss=loss, epochs=15, random_state=0).fit(X, y)
    assert model.loss_ == loss
    assert average_precision_score(y, model.decision_function(X)) > 0.5 > 4 * y.mean()


def test_default_is_cross_entropy_and_then_ap_with_cross_entropy():
    X, y = ring(200)
    assert [*dict.fromkeys(record.stage for record in quick().fit(X, y).records_)] == ["ce", "ap + ce"]


@pytest.mark.parametrize(("loss", "names"), [("ce", ["ce"]), ("ap", ["ce", "ap + ce"]), ("auc_m", ["ce", "auc_m"])])
def test_loss_determines_the_stages(loss, names):
    stages = solver_stages(loss, solver="sgd", epochs=8, batch_size=32, weight_decay=0.1, rows=100, positives=20)
    assert [stage.name for stage in stages] == names
    assert {(stage.optimizer.momentum, stage.optimizer.weight_decay) for stage in stages} == {(0.9, 0.1)}
    assert stages[0].optimizer.lr == 1e-2


def test_given_stages_are_trained():
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


def test_module_function_gets_the_number_of_features():
    X, y = ring(200)
    assert quick(module=lambda features: nn.Linear(features, 1)).fit(X, y).model_.in_features == 2


def test_module_function_that_returns_no_module_is_refused():
    with pytest.raises(TypeError, match="module must be a torch module or make one"):
        quick(module=lambda features: features).fit(*ring(100))


def test_same_seed_gives_the_same_network_for_any_global_generator():
    X, y = ring(200)
    torch.manual_seed(1)
    first = quick(random_state=3).fit(X, y).decision_function(X)
    torch.manual_seed(2)
    np.testing.assert_array_equal(quick(random_state=3).fit(X, y).decision_function(X), first)
    assert not np.array_equal(quick(random_state=4).fit(X, y).decision_function(X), first)


def test_global_generator_of_torch_is_unchanged():
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


def test_weights_change_the_ranking():
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


def test_fewer_positives_than_num_pos_are_enough():
    X = np.arange(40.0)[:, None]
    assert quick(num_pos=16).fit(X, np.arange(40) >= 37).predict_proba(X).shape == (40, 2)


def test_one_positive_is_enough():
    X = np.arange(10.0)[:, None]
    assert np.isfinite(quick().fit(X, np.arange(10) == 9).predict_proba(X)).all()


def test_held_out_rows_are_disjoint_and_stratified():
    labels = (np.arange(1000) % 10 == 0).astype(float)
    train, held_out = hold_out_rows(labels, 0.2, seed=0)
    assert sorted([*train, *held_out]) == list(range(1000))
    assert (labels[held_out].sum(), len(held_out)) == (20, 200)


def test_calibration_is_fitted_to_the_held_out_rows():
    X, y = ring(300)
    model = quick(random_state=5).fit(X, y)
    train, held_out = hold_out_rows(y.astype(float), 0.2, seed=5)
    with torch.no_grad():
        scales = ColumnScales.fit(X[train], np.ones(len(train)))
        scores = model.model_(torch.from_numpy(scales.apply(X[held_out]))).numpy()
    expected = fit_platt(scores, y[held_out].astype(float), np.ones(len(held_out)))
    np.testing.assert_allclose(model.calibration_, expected, rtol=1e-6)


def test_equal_weights_give_the_unweighted_network():
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


def test_weights_do_not_change_the_number_of_steps():
    X, y = ring(200)
    steps = [
        quick(random_state=0).fit(X, y, sample_weight=weight).records_[0].step
        for weight in (None, np.linspace(1.0, 9.0, 200))
    ]
    assert steps[0] == steps[1]


def test_validation_average_precision_is_weighted():
    X, y = ring(300)
    weight = np.random.default_rng(0).uniform(0.1, 9.0, 300)
    model = quick(random_state=5, stages=(Stage(epochs=1, ema=None),)).fit(X, y, sample_weight=weight)
    _, held_out = hold_out_rows(y.astype(float), 0.2, seed=5)
    scores = model.decision_function(X)[held_out] * model.calibration_.slope
    expected = average_precision_score(y[held_out], scores, sample_weight=weight[held_out])
    assert model.records_[0].valid.ap == pytest.approx(expected, abs=1e-6)


def test_defaults_of_the_solver_are_the_table_recipe():
    assert solver_stages("ap", solver="adam", rows=5000, positives=80) == table_recipe(5000, 80)
    linear = solver_stages("ap", solver="adam", rows=5000, positives=80, linear=True)
    assert linear == table_recipe(5000, 80, model="linear")


def test_empty_hidden_is_the_linear_model():
    model = quick(hidden=()).fit(*ring(100))
    assert isinstance(model.model_, Linear)


def test_network_starts_at_the_log_odds_of_the_positives():
    X, y = ring(300)
    model = quick(stages=(Stage(epochs=1, ema=None, optimizer={"lr": 1e-12}),), hidden=()).fit(X, y)
    train, _ = hold_out_rows(y.astype(float), 0.2, seed=0)
    prior = y[train].mean()
    assert model.model_.head.bias.item() == pytest.approx(np.log(prior / (1 - prior)), rel=1e-2)


def test_int_random_state_is_the_seed():
    assert quick(random_state=7)._seed() == 7
    assert quick(random_state=np.random.RandomState(7))._seed() != 7


def test_network_fitted_to_a_dense_table_scores_its_sparse_form_equally():
    X, y = ring(200)
    X[np.abs(X) < 0.3] = 0
    dense = quick(random_state=0).fit(X, y)
    np.testing.assert_allclose(dense.decision_function(sparse.csr_matrix(X)), dense.decision_function(X), rtol=1e-12)
    thin = quick(random_state=0).fit(sparse.csr_matrix(X), y)
    np.testing.assert_allclose(thin.decision_function(sparse.csr_matrix(X)), thin.decision_function(X), rtol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "hidden"), [("mlp", None), ("linear", ())])
def test_command_line_and_estimator_give_the_same_scores(name, hidden, tmp_path, monkeypatch):
    pd = pytest.importorskip("pandas")
    from commands import run

    X, y = ring(500, seed=3)
    X[:, 1] = np.exp(2 * X[:, 1])
    pd.DataFrame({"a": X[:, 0], "b": X[:, 1], "y": y}).to_csv(tmp_path / "rows.csv", index=False)
    monkeypatch.chdir(tmp_path)
    train = ["train", "rows.csv", "--target", "y", "--model", name, "--seed", "11", "--out", "model"]
    for arguments in (train, ["predict", "model", "rows.csv", "--out", "scored.csv"]):
        assert run(*arguments) == 0
    from_file = pd.read_csv("scored.csv")["score"].to_numpy()
    model = APClassifier(solver="adam", hidden=hidden, random_state=11, accelerator="cpu").fit(X, y)
    scores = model._network_scores(X)
    assert np.ptp(scores) > 1
    np.testing.assert_allclose(from_file, scores, rtol=1e-4, atol=1e-4)
