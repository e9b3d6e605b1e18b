"""A linear model by the exact objective over all rows: L-BFGS, no sampling, no learning rate."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg  # type: ignore[import-untyped]
from scipy.special import expit  # type: ignore[import-untyped]

from apmax.estimator.columns import Columns
from apmax.estimator.lbfgs import Objective, Optimum, minimise
from apmax.functional import ap_objective

Array = NDArray[np.float64]
_START_TOLERANCE = 1e-2
# Up to so many columns the curvature is worth its d² numbers and its Cholesky factor.
_MOST_COLUMNS = 512


def fit_linear(
    X: Any,
    labels: Array,
    sample_weight: Array,
    columns: Columns,
    *,
    loss: str = "ap",
    l2: float = 1e-2,
    surrogate: str = "smooth_step",
    margin: float = 1.0,
    max_iter: int = 500,
    tol: float = 1e-5,
) -> Optimum:
    """Return the weight (d,) of the standardised columns that minimises `objective + l2·|w|²`.

    loss="ap": the objective is P of `functional.ap_objective`, in [-1, 0]. It is not convex, so the search begins at
    the cross-entropy solution of the same `l2`; the optimum found depends little on the start (a start at zero, where
    the gradient is the difference of the class means, ends within 0.003 of the same value on real tables).
    loss="ce": cross-entropy per unit of weight of the positives, `Σ_j w_j·ce_j / W₊`, which makes `l2` mean about the
    same in both.

    In both the search is measured by the curvature of the cross-entropy, which takes a half to a quarter of the
    iterations. Ranking needs no intercept. Rows count by their weight everywhere, the standardisation included.

    Args:
        X: (n, d) dense or sparse.
        labels: (n,) of 0/1, both present.
        sample_weight: (n,) positive.
        columns: Of this table.
        loss: "ap" or "ce".
        l2: Strength of the L2 penalty.
        surrogate: As in `ap_objective`.
        margin: Likewise.
        max_iter: Iterations of L-BFGS at most.
        tol: It ends where no component of the gradient is larger.

    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> columns = Columns(np.array([1.5]), np.array([1.0]))
    >>> round(fit_linear(X, np.array([0.0, 1.0, 0.0, 1.0]), np.ones(4), columns, l2=0.001).value, 3)
    -0.799
    """
    entropy = cross_entropy(X, labels, sample_weight, columns, l2=l2)
    start = np.zeros(X.shape[1] + 1)
    share = float(sample_weight @ labels / sample_weight.sum())
    start[-1] = np.log(share / (1 - share))
    solve = inverse_curvature(X, labels, sample_weight, columns, start, l2=l2)
    if loss == "ce":
        found = minimise(entropy, start, solve=solve, max_iter=max_iter, tol=tol)
        return found._replace(point=found.point[:-1])
    begin = minimise(entropy, start, solve=solve, max_iter=max_iter, tol=_START_TOLERANCE).point
    solve = inverse_curvature(X, labels, sample_weight, columns, begin, l2=l2, intercept=False)
    objective = average_precision(X, labels, sample_weight, columns, l2=l2, surrogate=surrogate, margin=margin)
    return minimise(objective, begin[:-1], solve=solve, max_iter=max_iter, tol=tol)


def average_precision(
    X: Any, labels: Array, sample_weight: Array, columns: Columns, *, l2: float, surrogate: str, margin: float
) -> Objective:
    """Return `w ↦ P(w) + l2·|w|²`."""
    truth = torch.from_numpy(labels)
    equal = bool((sample_weight == sample_weight[0]).all())
    weights = None if equal else torch.from_numpy(sample_weight)

    def objective(weight: Array) -> tuple[float, Array]:
        scores = torch.from_numpy(columns.scores(X, weight)).requires_grad_(True)
        with torch.enable_grad():
            value = ap_objective(scores, truth, surrogate, margin, sample_weight=weights)
        (gradient,) = torch.autograd.grad(value, scores)
        return value.item() + float(l2 * weight @ weight), columns.pull(X, gradient.numpy()) + 2 * l2 * weight

    return objective


def cross_entropy(X: Any, labels: Array, sample_weight: Array, columns: Columns, *, l2: float) -> Objective:
    """Return `(w, b) ↦ Σ_j w_j·ce_j(w, b) / W₊ + l2·|w|²`; the intercept b stands last and is not penalised."""
    share = sample_weight / (sample_weight @ labels)

    def objective(point: Array) -> tuple[float, Array]:
        weight = point[:-1]
        logits = columns.scores(X, weight) + point[-1]
        value = share @ (np.logaddexp(0, logits) - labels * logits) + l2 * weight @ weight
        gradient = share * (expit(logits) - labels)
        return float(value), np.append(columns.pull(X, gradient) + 2 * l2 * weight, gradient.sum())

    return objective


def inverse_curvature(
    X: Any, labels: Array, sample_weight: Array, columns: Columns, point: Array, *, l2: float, intercept: bool = True
) -> Callable[[Array], Array] | None:
    """Return what multiplies by the inverse second derivative of the cross-entropy at (w, b), or None if that is dear.

    The mixed derivatives of weights and intercept are left out. Without `intercept` it is that of the weights alone.
    """
    if X.shape[1] > _MOST_COLUMNS:
        return None
    probability = expit(columns.scores(X, point[:-1]) + point[-1])
    row_weight = sample_weight * probability * (1 - probability) / (sample_weight @ labels)
    curvature = columns.gram(X, row_weight)
    curvature[np.diag_indices_from(curvature)] += 2 * l2
    try:
        factor = linalg.cho_factor(curvature)
    except linalg.LinAlgError:
        # A sparse table is not centred, and large offsets may cost all digits of the products.
        return None
    across = row_weight.sum()

    def solve(vector: Array) -> Array:
        if not intercept:
            return np.asarray(linalg.cho_solve(factor, vector))
        return np.append(linalg.cho_solve(factor, vector[:-1]), vector[-1] / across)

    return solve
