"""Tests of `APClassifier` as a scikit-learn classifier: checks, inputs, parameters and errors."""

from __future__ import annotations

import pickle

import numpy as np
import pandas as pd
import pytest
from scipy import sparse
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning, NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV, cross_val_score
from sklearn.pipeline import make_pipeline
from sklearn.utils.estimator_checks import parametrize_with_checks

from apmax.estimator import APClassifier
from apmax.train import Stage

QUICK = {"solver": "adam", "hidden": (16,), "epochs": 30, "lr": 1e-2, "accelerator": "cpu"}
EQUIVALENCE = {
    f"check_sample_weight_equivalence_on_{kind}_data": "held-out rows and batches are drawn at random"
    for kind in ("dense", "sparse")
}


def table(rows=300, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 4)) * [1, 10, 0.1, 1] + [0, 5, 0, -3]
    y = (X[:, 0] + 0.05 * X[:, 1] + 0.5 * rng.standard_normal(rows) > 1.2).astype(int)
    return X, y


@parametrize_with_checks([APClassifier()])
def test_exact_solver_passes_every_check_of_scikit_learn(estimator, check):
    check(estimator)


@pytest.mark.slow
@parametrize_with_checks(
    [APClassifier(**QUICK), APClassifier(**{**QUICK, "solver": "sgd", "lr": 5e-2})],
    expected_failed_checks=lambda _: EQUIVALENCE,
)
def test_networks_pass_all_checks_but_weight_equivalence(estimator, check):
    check(estimator)


def test_two_fits_are_identical():
    X, y = table()
    assert np.array_equal(APClassifier().fit(X, y).coef_, APClassifier().fit(X, y).coef_)


def test_scores_are_the_linear_function_of_coef_and_intercept():
    X, y = table()
    model = APClassifier().fit(X, y)
    np.testing.assert_array_equal(model.decision_function(X), X @ model.coef_[0] + model.intercept_[0])


def test_probabilities_are_the_logistic_function_of_the_scores():
    X, y = table()
    model = APClassifier().fit(X, y)
    expected = 1 / (1 + np.exp(-model.decision_function(X)))
    np.testing.assert_allclose(model.predict_proba(X)[:, 1], expected, rtol=1e-12)


def test_probabilities_average_to_the_share_of_positives():
    X, y = table(2000)
    assert APClassifier().fit(X, y).predict_proba(X)[:, 1].mean() == pytest.approx(y.mean(), abs=2e-3)


def test_string_labels_are_predicted_as_strings():
    X, y = table()
    model = APClassifier().fit(X, np.where(y == 1, "yes", "no"))
    assert set(model.predict(X)) == {"no", "yes"}
    np.testing.assert_array_equal(model.decision_function(X), APClassifier().fit(X, y).decision_function(X))


@pytest.mark.parametrize("parameters", [{}, {**QUICK, "epochs": 2, "random_state": 0}], ids=["exact", "adam"])
def test_pos_label_reverses_the_ranking(parameters):
    X, y = table()
    named = APClassifier(pos_label="fraud", **parameters).fit(X, np.where(y == 1, "fraud", "ok"))
    plain = APClassifier(**parameters).fit(X, y)
    assert named.classes_.tolist() == ["fraud", "ok"]
    np.testing.assert_array_equal(named.decision_function(X), -plain.decision_function(X))
    np.testing.assert_array_equal(named.predict(X) == "fraud", plain.predict(X) == 1)


def test_data_frame_gives_its_column_names():
    X, y = table()
    frame = pd.DataFrame(X, columns=list("abcd"))
    model = APClassifier().fit(frame, pd.Series(y))
    assert model.feature_names_in_.tolist() == list("abcd")
    with pytest.raises(ValueError, match="feature names"):
        model.predict(frame[["b", "a", "c", "d"]])


@pytest.mark.parametrize("kind", [sparse.csr_matrix, sparse.csc_array], ids=["csr", "csc"])
def test_sparse_table_gives_the_scores_of_the_dense_one(kind):
    X, y = table()
    X[np.abs(X) < 1] = 0
    dense, thin = APClassifier(tol=1e-8).fit(X, y), APClassifier(tol=1e-8).fit(kind(X), y)
    np.testing.assert_allclose(thin.decision_function(kind(X)), dense.decision_function(X), rtol=1e-6, atol=1e-8)


def test_pipeline_scores_by_cross_validation():
    X, y = table()
    X[::7, 2] = np.nan
    pipeline = make_pipeline(SimpleImputer(), APClassifier())
    assert cross_val_score(pipeline, X, y, scoring="average_precision", cv=3).mean() > 2 * y.mean()


def test_grid_search_chooses_l2():
    X, y = table()
    grid = GridSearchCV(APClassifier(), {"l2": [1e-4, 1e-2]}, scoring="average_precision", cv=3).fit(X, y)
    assert grid.best_params_["l2"] in (1e-4, 1e-2)
    assert grid.best_estimator_.l2 == grid.best_params_["l2"]


@pytest.mark.parametrize("parameters", [{}, {**QUICK, "epochs": 2}], ids=["exact", "adam"])
def test_pickled_model_gives_the_same_scores(parameters):
    X, y = table()
    model = APClassifier(**parameters).fit(X, y)
    again = pickle.loads(pickle.dumps(model))
    np.testing.assert_array_equal(again.decision_function(X), model.decision_function(X))


def test_clone_is_not_fitted():
    X, y = table()
    copy = clone(APClassifier(l2=0.5).fit(X, y))
    assert copy.l2 == 0.5
    with pytest.raises(NotFittedError):
        copy.predict(X)


def test_refit_with_another_solver_removes_the_attributes_of_the_first():
    X, y = table()
    model = APClassifier().fit(X, y)
    model.set_params(**{**QUICK, "epochs": 2, "random_state": 0}).fit(X, y)
    assert not hasattr(model, "coef_")
    expected = APClassifier(**{**QUICK, "epochs": 2, "random_state": 0}).fit(X, y).decision_function(X)
    np.testing.assert_array_equal(model.decision_function(X), expected)


@pytest.mark.parametrize("parameters", [{}, {**QUICK, "epochs": 2, "random_state": 0}])
def test_a_failed_fit_leaves_a_fitted_classifier_as_it_was(parameters):
    X, y = table()
    model = APClassifier(**parameters).fit(X, y)
    scores, fitted = model.decision_function(X), dict(vars(model))
    wrong = {"solver": "adam", "hidden": None, "module": lambda features: features, "pos_label": "a"}
    with pytest.raises(TypeError, match="module"):
        model.set_params(**wrong).fit(pd.DataFrame(np.hstack([X, X])).add_prefix("x"), np.where(y, "a", "b"))
    assert vars(model) == {**fitted, **wrong}
    np.testing.assert_array_equal(model.decision_function(X), scores)


def test_inputs_are_not_changed():
    X, y = table()
    weight = np.arange(len(y)) % 3.0
    before = X.copy(), y.copy(), weight.copy()
    APClassifier().fit(X, y, sample_weight=weight)
    for now, then in zip((X, y, weight), before, strict=True):
        np.testing.assert_array_equal(now, then)


def test_average_precision_on_new_rows_is_far_above_chance():
    X, y = table(2000)
    model = APClassifier().fit(X[:1000], y[:1000])
    assert average_precision_score(y[1000:], model.decision_function(X[1000:])) > 0.6 > 2 * y.mean()


def test_too_few_iterations_warn():
    X, y = table()
    with pytest.warns(ConvergenceWarning, match="raise max_iter") as warned:
        APClassifier(max_iter=1).fit(X, y)
    assert warned[0].filename == __file__


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"solver": "exakt"}, "did you mean 'exact'"),
        ({"loss": "focal"}, "loss='focal' needs solver='adam' or 'sgd'"),
        ({"loss": "app"}, "did you mean 'ap'"),
        ({"l2": 0.0}, "l2 must lie in"),
        ({"tol": -1.0}, "tol must lie in"),
        ({"module": object()}, "module needs solver='adam'"),
        ({"stages": ()}, "stages needs solver='adam'"),
        ({"hidden": (64, 64)}, "hidden needs solver='adam' or 'sgd'.*linear model.*Set solver='adam'"),
        ({"hidden": ()}, "hidden needs solver='adam'"),
        ({"lr": 1e-3}, "lr needs solver='adam'"),
        ({"epochs": 20}, "epochs needs solver='adam'"),
        ({"batch_size": 128}, "batch_size needs solver='adam'"),
        ({"num_pos": 16}, "num_pos needs solver='adam'"),
        ({"weight_decay": 0.0}, "weight_decay needs solver='adam'"),
        ({"lr": 1e-3, "epochs": 20}, "lr, epochs need solver='adam'"),
        ({"solver": "adam", "weight_decay": -0.1}, "weight_decay must lie in"),
        ({"solver": "adam", "random_state": -1}, "Seed must be between 0"),
        ({"pos_label": "maybe"}, "pos_label must be one of the classes"),
        ({"validation_fraction": 1.0}, "validation_fraction must lie in"),
        ({"cv": 1}, "cv must be at least 2"),
        ({"surrogate": "steps"}, "surrogate must be one of"),
        ({"surrogate": "ramp"}, "use 'smooth_step'"),
    ],
)
def test_invalid_parameter_is_named_in_fit(parameters, words):
    X, y = table(50)
    with pytest.raises(ValueError, match=words):
        APClassifier(**parameters).fit(X, y)


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        ({"l2": 1.0}, "l2 is not used with solver='adam'"),
        ({"tol": 1e-3, "surrogate": "sigmoid"}, "surrogate, tol are not used with solver='adam'"),
        ({"lr": 1e-3, "epochs": 3, "stages": (Stage(epochs=1),)}, "lr, epochs are not used with stages="),
        ({"loss": "focal", "stages": (Stage(epochs=1),)}, "loss is not used with stages="),
    ],
)
def test_parameters_that_a_network_does_not_use_warn(parameters, words):
    short = {} if "stages" in parameters else {"epochs": 1}
    with pytest.warns(UserWarning, match=words) as warned:
        APClassifier(solver="adam", hidden=(), accelerator="cpu", **short, **parameters).fit(*table(60))
    assert warned[0].filename == __file__


def test_unused_parameters_warn_once_where_the_loss_is_chosen():
    model = APClassifier(solver="adam", loss="auto", hidden=(), accelerator="cpu", epochs=1, cv=2, l2=1.0)
    with pytest.warns(UserWarning, match="l2 is not used") as warned:
        model.fit(*table(60))
    assert len(warned) == 1


def test_no_loss_is_chosen_for_stages():
    model = APClassifier(solver="adam", loss="auto", hidden=(), accelerator="cpu", stages=(Stage(epochs=1),))
    with pytest.warns(UserWarning, match="loss is not used with stages="):
        model.fit(*table(60))
    assert not hasattr(model, "loss_scores_")


@pytest.mark.parametrize("hidden", [64, "64", (64, 0.5)])
def test_invalid_widths_are_refused(hidden):
    with pytest.raises(TypeError, match="hidden must be a"):
        APClassifier(solver="adam", hidden=hidden).fit(*table(50))


def test_three_classes_are_refused():
    X, _ = table(30)
    with pytest.raises(ValueError, match="Only binary classification"):
        APClassifier().fit(X, np.arange(30) % 3)


def test_one_class_is_refused_by_name():
    X, _ = table(30)
    with pytest.raises(ValueError, match=r"one class only, \['ok'\]"):
        APClassifier().fit(X, ["ok"] * 30)


def test_negative_weight_is_refused():
    X, y = table(30)
    with pytest.raises(ValueError, match="sample_weight must not be negative"):
        APClassifier().fit(X, y, sample_weight=np.full(30, -1.0))
