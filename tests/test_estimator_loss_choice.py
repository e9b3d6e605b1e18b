"""Tests of the choice of the loss by cross-validation, `loss="auto"`."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.metrics import average_precision_score
from sklearn.model_selection import KFold, StratifiedKFold

from apmax.estimator import APClassifier
from apmax.estimator.loss_choice import compare_losses


def not_linear(rows=1500, seed=0):
    """Return rows where cross-entropy ranks many doubtful positives above few clear ones."""
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 2))
    return X, (X[:, 0] > 2) | ((X[:, 1] > 1) & (rng.random(rows) < 0.2))


@pytest.fixture(scope="module")
def chosen():
    """A model of 1500 rows that has chosen its loss."""
    return APClassifier(loss="auto").fit(*not_linear())


def test_average_precision_is_chosen_where_a_linear_model_cannot_fit(chosen):
    assert chosen.loss_ == "ap"
    assert chosen.loss_scores_["ap"].mean() > chosen.loss_scores_["ce"].mean()


def test_chosen_loss_is_fitted(chosen):
    np.testing.assert_array_equal(chosen.coef_, APClassifier(loss=chosen.loss_).fit(*not_linear()).coef_)


def test_ties_go_to_cross_entropy():
    X = np.arange(40.0)[:, None]
    model = APClassifier(loss="auto").fit(X, X[:, 0] >= 30)
    assert model.loss_ == "ce"
    assert model.loss_reason_.startswith("ce: mean average precision 1.0000 against 1.0000 with ap over 5 folds")


def test_scores_are_computed_on_the_rows_left_out():
    X, y = not_linear(400)
    folds = KFold(3)
    model = APClassifier(loss="auto", cv=folds).fit(X, y)
    for fold, (train, test) in enumerate(folds.split(X)):
        alone = APClassifier(loss="ce").fit(X[train], y[train])
        expected = average_precision_score(y[test], alone.decision_function(X[test]))
        assert model.loss_scores_["ce"][fold] == pytest.approx(expected, abs=1e-12)


def test_choice_is_reproducible():
    X, y = not_linear(300)
    first, second = (APClassifier(loss="auto", cv=3).fit(X, y) for _ in range(2))
    assert first.loss_reason_ == second.loss_reason_


def test_choice_is_printed_when_verbose(capsys):
    model = APClassifier(loss="auto", verbose=1, cv=2).fit(*not_linear(300))
    assert capsys.readouterr().out == f"APClassifier(loss='auto') chose {model.loss_reason_}\n"


def test_nothing_is_printed_by_default(capsys):
    APClassifier(loss="auto", cv=2).fit(*not_linear(300))
    assert capsys.readouterr().out == ""


def test_single_positive_leaves_no_choice():
    X = np.arange(20.0)[:, None]
    model = APClassifier(loss="auto").fit(X, X[:, 0] == 19)
    assert (model.loss_, model.loss_scores_) == ("ce", {})
    assert "nothing to compare" in model.loss_reason_


def test_rare_positives_limit_the_folds():
    X = np.arange(40.0)[:, None]
    model = APClassifier(loss="auto").fit(X, X[:, 0] >= 37)
    assert len(model.loss_scores_["ap"]) == 3


def test_network_solver_supports_auto():
    X, y = not_linear(300)
    settings = {"solver": "adam", "hidden": (8,), "epochs": 2, "accelerator": "cpu", "random_state": 0, "cv": 2}
    model = APClassifier(loss="auto", **settings).fit(X, y)
    assert model.loss_ in ("ap", "ce")
    assert [*dict.fromkeys(r.stage for r in model.records_)] == (["ce"] if model.loss_ == "ce" else ["ce", "ap + ce"])


def test_difference_is_reported_as_gain_of_the_chosen_loss():
    choice = compare_losses({"ap": np.array([0.2, 0.4]), "ce": np.array([0.5, 0.5])})
    assert choice.loss == "ce"
    assert "difference +0.2000 ± 0.1000" in choice.reason


def test_fold_scores_are_weighted():
    X, y = not_linear(400)
    weight = np.random.default_rng(0).uniform(0.1, 9.0, 400)
    folds = KFold(3)
    model = APClassifier(loss="auto", cv=folds).fit(X, y, sample_weight=weight)
    for fold, (train, test) in enumerate(folds.split(X)):
        alone = APClassifier(loss="ap").fit(X[train], y[train], sample_weight=weight[train])
        expected = average_precision_score(y[test], alone.decision_function(X[test]), sample_weight=weight[test])
        assert model.loss_scores_["ap"][fold] == pytest.approx(expected, abs=1e-12)


def test_fold_without_positives_does_not_count():
    X, y = not_linear(400)
    order = np.argsort(y, kind="stable")
    without, rest = order[:50], np.random.default_rng(0).permutation(order[50:])
    splits = [(rest, without), (np.hstack([without, rest[100:]]), rest[:100])]
    model = APClassifier(loss="auto", cv=splits).fit(X, y)
    assert np.isnan(model.loss_scores_["ap"]).tolist() == [True, False]
    assert "over 1 folds" in model.loss_reason_


def test_folds_without_any_positive_choose_cross_entropy():
    choice = compare_losses({"ap": np.array([np.nan]), "ce": np.array([np.nan])})
    assert choice.loss == "ce"
    assert "nothing to compare" in choice.reason


def test_rows_of_weight_zero_take_no_part():
    X, y = not_linear(100)
    weight = np.ones(100)
    weight[np.flatnonzero(y)[2:]] = 0
    kept = weight > 0
    for seed in range(4):
        chosen = APClassifier(loss="auto", random_state=seed).fit(X, y, sample_weight=weight)
        expected = APClassifier(loss="auto", random_state=seed).fit(X[kept], y[kept])
        assert chosen.loss_ == expected.loss_
        np.testing.assert_allclose(chosen.loss_scores_["ap"], expected.loss_scores_["ap"])


def test_folds_of_cv_none_are_stratified():
    X, y = not_linear(200)
    order = np.argsort(y)
    model = APClassifier(loss="auto", cv=None).fit(X[order], y[order])
    again = APClassifier(loss="auto", cv=StratifiedKFold(5)).fit(X[order], y[order])
    np.testing.assert_array_equal(model.loss_scores_["ce"], again.loss_scores_["ce"])
