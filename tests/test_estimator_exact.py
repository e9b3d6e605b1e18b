"""Tests of the exact linear solver against loops, finite differences and scikit-learn."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import sparse
from scipy.optimize import minimize
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score

from apmax.committee.linear import (
    column_moments,
    fit_linear,
    hash_rows,
    linear_ap_objective,
    linear_cross_entropy,
    merge_equal_rows,
    minimize_lbfgs,
)
from apmax.estimator import APClassifier
from apmax.estimator.classifier import KINKED_SURROGATES
from apmax.surrogates import SURROGATES


def problem(rows=40, seed=0):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, 3)) * [1, 4, 0.2] + [2, -1, 0]
    labels = (X[:, 0] + rng.standard_normal(rows) > 2.8).astype(float)
    return X, labels, rng.integers(1, 4, rows).astype(float)


def smooth_step(x, margin):
    z = max(-1.0, min(1.0, x / margin))
    return 0.5 + z * (1 - abs(z) / 2)


def standardised_by_loops(X, weight):
    total = sum(weight)
    mean = [sum(w * row[k] for w, row in zip(weight, X, strict=True)) / total for k in range(X.shape[1])]
    deviation = [
        math.sqrt(sum(w * (row[k] - mean[k]) ** 2 for w, row in zip(weight, X, strict=True)) / total)
        for k in range(X.shape[1])
    ]
    return np.array([[(row[k] - mean[k]) / deviation[k] for k in range(X.shape[1])] for row in X])


def objective_by_loops(w, X, labels, weight, l2, margin):
    scores = standardised_by_loops(X, weight) @ w
    total = 0.0
    for i in range(len(scores)):
        if labels[i] == 1:
            pairs = [weight[j] * smooth_step(scores[j] - scores[i], margin) for j in range(len(scores))]
            above = sum(pair for pair, label in zip(pairs, labels, strict=True) if label == 1)
            total += weight[i] * above / sum(pairs)
    return -total / sum(weight[labels == 1]) + l2 * sum(w**2)


def entropy_by_loops(point, X, labels, weight, l2):
    logits = standardised_by_loops(X, weight) @ point[:-1] + point[-1]
    losses = [math.log1p(math.exp(-z if y == 1 else z)) for z, y in zip(logits, labels, strict=True)]
    return sum(w * ce for w, ce in zip(weight, losses, strict=True)) / sum(weight[labels == 1]) + l2 * sum(
        point[:-1] ** 2
    )


def slope_by_differences(function, point, step=1e-6):
    units = np.eye(len(point)) * step
    return np.array([(function(point + unit) - function(point - unit)) / (2 * step) for unit in units])


@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_objective_and_gradient_match_the_loops(store):
    X, labels, weight = problem()
    w = np.array([0.7, -0.4, 0.1])
    columns = column_moments(store(X), weight)
    objective = linear_ap_objective(store(X), labels, weight, columns, l2=0.1, surrogate="smooth_step", margin=0.8)

    def loops(at):
        return objective_by_loops(at, X, labels, weight, 0.1, 0.8)

    value, gradient = objective(w)
    assert value == pytest.approx(loops(w), abs=1e-12)
    np.testing.assert_allclose(gradient, slope_by_differences(loops, w), atol=1e-8)


@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_cross_entropy_and_its_gradient_match_the_loops(store):
    X, labels, weight = problem()
    point = np.array([0.7, -0.4, 0.1, -0.3])
    columns = column_moments(store(X), weight)

    def loops(at):
        return entropy_by_loops(at, X, labels, weight, 0.1)

    value, gradient = linear_cross_entropy(store(X), labels, weight, columns, l2=0.1)(point)
    assert value == pytest.approx(loops(point), abs=1e-12)
    np.testing.assert_allclose(gradient, slope_by_differences(loops, point), atol=1e-8)


def test_minimum_is_not_above_a_search_over_the_loops():
    X, labels, weight = problem(25)
    model = APClassifier(l2=0.05, tol=1e-10).fit(X, labels, sample_weight=weight)
    columns = column_moments(X, weight)
    with np.errstate(divide="ignore"):
        found = model.coef_[0] / model.calibration_.slope / columns.inverse
    args = (X, labels, weight, 0.05, 1.0)
    assert model.objective_ == pytest.approx(objective_by_loops(found, *args), abs=1e-12)
    starts = [np.zeros(3), found, *np.random.default_rng(0).standard_normal((2, 3))]
    best = min(minimize(objective_by_loops, start, args, method="Nelder-Mead").fun for start in starts)
    assert model.objective_ <= best + 1e-6


def test_cross_entropy_fit_is_scikit_learns_logistic_regression():
    X, labels, weight = problem(200)
    columns = column_moments(X, weight)
    table = (X - columns.mean) * columns.inverse
    found = fit_linear(X, labels, weight, columns, loss="ce", l2=0.02, tol=1e-10)
    # Σ ce / W₊ + l2·|w|² is C·Σ ce + |w|²/2 with C = 1/(2·l2·W₊).
    peer = LogisticRegression(C=1 / (2 * 0.02 * (weight @ labels)), tol=1e-12, max_iter=1000)
    np.testing.assert_allclose(found.weight, peer.fit(table, labels, sample_weight=weight).coef_[0], rtol=1e-6)


def test_average_precision_is_higher_than_with_cross_entropy_where_a_linear_model_cannot_fit():
    rng = np.random.default_rng(0)
    X = rng.standard_normal((3000, 2))
    # The clearest positives lie along the first column; a crowd of negatives far out pulls cross-entropy away from it.
    y = (X[:, 0] > 2) | ((X[:, 1] > 1) & (rng.random(3000) < 0.2))
    values = {
        loss: average_precision_score(y, APClassifier(loss=loss).fit(X, y).decision_function(X))
        for loss in ("ap", "ce")
    }
    assert values["ap"] > values["ce"] + 0.02


@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_weights_are_identical_to_repeated_and_shuffled_rows(store):
    X, labels, weight = problem(60)
    weight[::5] = 0
    shuffled = np.random.default_rng(1).permutation(np.repeat(np.arange(60), weight.astype(int)))
    weighted = APClassifier().fit(store(X), labels, sample_weight=weight)
    repeated = APClassifier().fit(store(X[shuffled]), labels[shuffled])
    assert np.array_equal(weighted.coef_, repeated.coef_)
    assert np.array_equal(weighted.intercept_, repeated.intercept_)


@settings(max_examples=6, deadline=None)
@given(st.floats(1e-6, 1e6), st.floats(-1e4, 1e4))
def test_ranking_does_not_depend_on_units_and_offsets(unit, offset):
    X, labels, weight = problem()
    plain = APClassifier(tol=1e-11).fit(X, labels, sample_weight=weight).decision_function(X)
    moved = (X + offset) * unit
    scores = APClassifier(tol=1e-11).fit(moved, labels, sample_weight=weight).decision_function(moved)
    np.testing.assert_allclose(scores, plain, atol=1e-5)


@pytest.mark.parametrize("unit", [1e-300, 1e307])
@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_columns_whose_squares_are_no_numbers_are_used(store, unit):
    X, labels, weight = problem()
    plain = APClassifier(tol=1e-9).fit(X, labels, sample_weight=weight).decision_function(X)
    extreme = store(X * [unit, 1, 1])
    scores = APClassifier(tol=1e-9).fit(extreme, labels, sample_weight=weight).decision_function(extreme)
    np.testing.assert_allclose(scores, plain, atol=1e-5)
    moments, expected = column_moments(extreme, weight), column_moments(X, weight)
    np.testing.assert_allclose(moments.mean, expected.mean * [unit, 1, 1], rtol=1e-13)
    np.testing.assert_allclose(moments.inverse * [unit, 1, 1], expected.inverse, rtol=1e-13)


def test_constant_column_has_no_weight():
    X, labels, weight = problem()
    X = np.column_stack([X, np.full(len(X), 0.1), np.zeros(len(X))])
    assert APClassifier().fit(X, labels, sample_weight=weight).coef_[0, 3:].tolist() == [0, 0]


@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_column_whose_deviation_has_no_inverse_has_no_weight(store):
    X, labels, weight = problem()
    tiny = store(np.column_stack([X, 1e-310 * X[:, 0]]))
    assert APClassifier().fit(tiny, labels, sample_weight=weight).coef_[0, 3] == 0
    assert column_moments(tiny, weight).inverse[3] == 0


def test_table_of_constants_gives_the_share_of_positives():
    model = APClassifier().fit(np.ones((99, 2)), np.arange(99) % 3 == 0)
    assert model.predict_proba(np.ones((1, 2)))[0, 1] == pytest.approx(1 / 3, abs=0.01)


def test_more_columns_than_rows_are_separated():
    rng = np.random.default_rng(0)
    X, y = rng.standard_normal((60, 200)), np.arange(60) % 4 == 0
    assert average_precision_score(y, APClassifier(l2=1e-2).fit(X, y).decision_function(X)) > 0.99


def rosenbrock(x):
    value = 100 * (x[1] - x[0] ** 2) ** 2 + (1 - x[0]) ** 2
    return value, np.array([-400 * x[0] * (x[1] - x[0] ** 2) - 2 * (1 - x[0]), 200 * (x[1] - x[0] ** 2)])


def test_search_follows_a_curved_valley_to_its_end():
    found = minimize_lbfgs(rosenbrock, np.array([-1.2, 1.0]), max_iter=200, tol=1e-8)
    assert found.converged
    np.testing.assert_allclose(found.weight, [1, 1], atol=1e-7)


def test_search_ended_by_rounding_of_a_large_value_has_converged():
    centre, curvature = np.array([1.0, -2.0]), np.array([1.0, 30.0])

    def bowl(x):
        return 1e3 + curvature @ (x - centre) ** 2 / 2, curvature * (x - centre)

    found = minimize_lbfgs(bowl, np.zeros(2), max_iter=100, tol=1e-6)
    assert found.converged
    np.testing.assert_allclose(found.weight, centre, atol=1e-5)


def test_known_curvature_reduces_the_iterations():
    matrix = np.array([[1.0, 50.0, 0.0], [50.0, 1e4, 3.0], [0.0, 3.0, 1e-2]])

    def iterations(factor):
        found = minimize_lbfgs(
            lambda x: (x @ matrix @ x / 2, matrix @ x), np.ones(3), factor=factor, max_iter=200, tol=1e-6
        )
        np.testing.assert_allclose(matrix @ found.weight, 0, atol=1e-6)
        assert found.converged
        return found.iterations

    assert iterations(np.linalg.cholesky(matrix)) <= 2 < iterations(None)


def test_too_few_iterations_are_not_called_converged():
    assert not minimize_lbfgs(rosenbrock, np.array([-1.2, 1.0]), max_iter=3, tol=1e-10).converged


def curved(rows, columns, seed):
    rng = np.random.default_rng(seed)
    X = rng.standard_normal((rows, columns)) @ (np.eye(columns) + 0.3 * rng.standard_normal((columns, columns)))
    labels = (X[:, 0] + 0.5 * X[:, 1] ** 2 + rng.standard_normal(rows) > 3).astype(float)
    return X, labels, rng.integers(1, 4, rows).astype(float)


# Minima that an independent L-BFGS implementation with a Hager-Zhang line search reached at a gradient of 1e-8.
OPTIMA = [
    ((300, 3, 0), "ap", 1e-2, -0.504452164),
    ((300, 3, 0), "ap", 1e-4, -0.549497835),
    ((300, 3, 0), "ce", 1e-2, 2.756795543),
    ((300, 3, 0), "ce", 1e-4, 2.745624761),
    ((1000, 10, 1), "ap", 1e-2, -0.592600781),
    ((1000, 10, 1), "ap", 1e-4, -0.644122651),
    ((1000, 10, 1), "ce", 1e-2, 2.523762956),
    ((1000, 10, 1), "ce", 1e-4, 2.511024022),
    ((2000, 30, 2), "ap", 1e-2, -0.679922837),
    ((2000, 30, 2), "ap", 1e-4, -0.713778611),
    ((2000, 30, 2), "ce", 1e-2, 1.65701181),
    ((2000, 30, 2), "ce", 1e-4, 1.63594752),
]


@pytest.mark.parametrize(("size", "loss", "l2", "optimum"), OPTIMA)
def test_objective_is_not_above_known_optima(size, loss, l2, optimum):
    X, labels, weight = curved(*size)
    model = APClassifier(loss=loss, l2=l2).fit(X, labels, sample_weight=weight)
    assert model.objective_ <= optimum + 1e-6


@pytest.mark.parametrize("loss", ["ap", "ce"])
@pytest.mark.parametrize("columns", [10, 600], ids=["preconditioned", "many columns"])
@pytest.mark.parametrize("tol", [1e-3, 1e-5, 1e-7])
def test_gradient_at_the_solution_is_below_the_tolerance(loss, columns, tol):
    X, labels, weight = curved(400, columns, 1)
    moments = column_moments(X, weight)
    found = fit_linear(X, labels, weight, moments, loss=loss, l2=0.05, tol=tol)
    assert found.converged
    if loss == "ap":
        objective = linear_ap_objective(X, labels, weight, moments, l2=0.05, surrogate="smooth_step", margin=1.0)
        assert np.abs(objective(found.weight)[1]).max() <= tol
    else:
        # The intercept is not part of the result. With the best one instead of the one found, whose gradient was
        # below tol, too, the gradient of the weights changes by about as much.
        objective = linear_cross_entropy(X, labels, weight, moments, l2=0.05)
        shift = minimize(lambda b: objective(np.append(found.weight, b))[0], 0.0, tol=1e-14).x
        assert np.abs(objective(np.append(found.weight, shift))[1]).max() <= 3 * tol


@pytest.mark.parametrize("store", [np.asarray, sparse.csr_array], ids=["dense", "sparse"])
def test_gram_matrix_is_that_of_the_standardised_table(store):
    X, _, weight = problem()
    columns = column_moments(store(X), weight)
    direct = standardised_by_loops(X, weight)
    np.testing.assert_allclose(columns.gram(store(X), weight), direct.T @ (weight[:, None] * direct), atol=1e-9)


def test_sparse_rows_have_the_hashes_of_dense_ones():
    X = np.where(np.random.default_rng(0).random((50, 7)) < 0.6, 0, np.arange(350.0).reshape(50, 7))
    np.testing.assert_array_equal(hash_rows(sparse.csr_array(X)), hash_rows(X))
    assert len(set(hash_rows(X).tolist())) == len(np.unique(X, axis=0))


def test_positive_and_negative_zero_are_equal():
    assert len(merge_equal_rows(np.array([[0.0], [-0.0]]), np.ones(2), np.ones(2))[2]) == 1


def test_equal_rows_of_different_labels_are_not_merged():
    assert len(merge_equal_rows(np.ones((2, 1)), np.array([0.0, 1.0]), np.ones(2))[2]) == 2


@pytest.mark.filterwarnings("ignore:surrogate .* measures average precision on scores in")
@pytest.mark.parametrize("surrogate", sorted(set(SURROGATES) - set(KINKED_SURROGATES)))
def test_every_smooth_surrogate_converges(surrogate):
    X, labels, weight = problem(200)
    model = APClassifier(surrogate=surrogate).fit(X, labels, sample_weight=weight)
    assert average_precision_score(labels, model.decision_function(X), sample_weight=weight) > 0.5 > 2 * labels.mean()


def test_sparse_column_far_from_zero_is_used():
    X, labels, weight = problem(200)
    far = sparse.csr_array(X + np.array([1e8, 0, 0]))
    model = APClassifier().fit(far, labels, sample_weight=weight)
    near = APClassifier().fit(X, labels, sample_weight=weight)
    reached, expected = (
        average_precision_score(labels, m.decision_function(t), sample_weight=weight)
        for m, t in ((model, far), (near, X))
    )
    assert reached == pytest.approx(expected, abs=0.01)
