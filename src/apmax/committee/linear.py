"""Exact linear solver: L-BFGS-B on the objective over all rows, without sampling or a learning rate."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import linalg, optimize, sparse  # type: ignore[import-untyped]
from scipy.special import expit  # type: ignore[import-untyped]
from sklearn.utils.sparsefuncs import mean_variance_axis, min_max_axis  # type: ignore[import-untyped]

from apmax.functional import ap_objective

_Array = NDArray[np.float64]
_Objective = Callable[[_Array], tuple[float, _Array]]
_CHUNK = 2**15
# Variation below this share of a column's mean is the rounding error of a constant column.
_CONSTANT = 1e-11
# Values beyond it, or below its inverse, are squared in other units; 2 to this power has an inverse.
_LARGEST_SQUARED, _LARGEST_EXPONENT = 1e140, 1020
# Largest gradient component at which the cross-entropy start of an AP fit ends.
_START_TOLERANCE = 1e-2
# Up to this many columns the d × d curvature matrix and its Cholesky factor cost less than they save.
_MAX_PRECONDITIONED = 512
_MEMORY = 20
_MAX_LINE_SEARCH = 30
# Near an optimum of value 1, differences of values are lost to rounding where the gradient is about sqrt(eps) = 1.5e-8,
# and the line search fails. A search that ends so counts as converged if its gradient is at most the larger of both.
_ROUNDING_GRADIENT = 1e-7
_STALLED_FACTOR = 100


class LinearFit(NamedTuple):
    """Result of a linear fit: weights (d,) of standardised columns, objective, iterations, and convergence."""

    weight: _Array
    value: float
    iterations: int
    converged: bool


class ColumnMoments(NamedTuple):
    """Mean and inverse standard deviation of every column, (d,) each; the inverse is 0 for a constant column.

    The methods compute with the standardised table without a copy of it: standardising would fill a sparse table.
    """

    mean: _Array
    inverse: _Array

    def scores(self, X: Any, weight: _Array) -> _Array:
        """Return the scores (n,) of the standardised table for a weight (d,)."""
        scaled = weight * self.inverse
        return np.asarray(X @ scaled) - self.mean @ scaled

    def weight_gradient(self, X: Any, score_gradient: _Array) -> _Array:
        """Return the gradient (d,) with respect to the weight from the gradient (n,) with respect to the scores."""
        total: _Array = np.asarray(X.T @ score_gradient) - self.mean * score_gradient.sum()
        return self.inverse * total

    def gram(self, X: Any, row_weight: _Array) -> _Array:
        """Return Zᵀ·diag(row_weight)·Z, (d, d), of the standardised table Z."""
        if sparse.issparse(X):
            # (X - mean)ᵀ·D·(X - mean), multiplied out.
            sums = np.asarray(X.T @ row_weight)
            inner = (X.T @ X.multiply(row_weight[:, None])).toarray()
            inner += row_weight.sum() * np.outer(self.mean, self.mean) - np.outer(sums, self.mean)
            inner -= np.outer(self.mean, sums)
            inner *= np.outer(self.inverse, self.inverse)
            return np.asarray(inner)
        total = np.zeros((X.shape[1], X.shape[1]))
        weighted = np.empty_like(X[:_CHUNK], np.float64)
        for rows, part in _differences(X, self.mean):
            part *= self.inverse
            total += np.multiply(part, row_weight[rows, None], out=weighted[: len(part)]).T @ part
        return total


def column_moments(X: Any, sample_weight: _Array) -> ColumnMoments:
    """Return the weighted mean and inverse standard deviation of every column of a dense or sparse table.

    A row of weight 2 counts as two rows.

    >>> table = np.array([[1.0, 5.0], [3.0, 5.0], [3.0, 5.0]])
    >>> column_moments(table, np.array([2.0, 1.0, 1.0]))
    ColumnMoments(mean=array([2., 5.]), inverse=array([1., 0.]))
    """
    unit = _column_units(X)
    if (unit != 1).any():
        X = (X @ sparse.diags(1 / unit)).asformat(X.format) if sparse.issparse(X) else X / unit
    if sparse.issparse(X):
        mean, variance = mean_variance_axis(X, axis=0, weights=sample_weight.astype(X.dtype))
    else:
        mean, variance = _dense_moments(X, sample_weight)
    deviation = np.sqrt(variance)
    varies = deviation > _CONSTANT * np.abs(mean)
    with np.errstate(over="ignore"):
        inverse = np.divide(1 / unit, deviation, out=np.zeros_like(deviation), where=varies)
    # Of a deviation below the normal numbers there is no inverse.
    return ColumnMoments(mean * unit, np.where(np.isfinite(inverse), inverse, 0.0))


def _column_units(X: Any) -> _Array:
    """Return a power of two (d,) near the largest value of every column whose squares would overflow or vanish, or 1.

    Dividing by it is exact.
    """
    lowest, highest = min_max_axis(X, axis=0) if sparse.issparse(X) else (X.min(axis=0), X.max(axis=0))
    largest = np.maximum(np.abs(lowest), np.abs(highest)).astype(np.float64)
    extreme = (largest > _LARGEST_SQUARED) | ((largest > 0) & (largest < 1 / _LARGEST_SQUARED))
    exponent = np.clip(np.frexp(largest)[1], -_LARGEST_EXPONENT, _LARGEST_EXPONENT)
    return np.where(extreme, np.ldexp(1.0, exponent), 1.0)


def _dense_moments(X: _Array, weight: _Array) -> tuple[_Array, _Array]:
    """Return weighted mean and variance in two passes, relative to the first row to avoid cancellation."""
    total, first = weight.sum(), X[0]
    mean, variance = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for rows, part in _differences(X, first):
        mean += weight[rows] @ part
    mean = first + mean / total
    for rows, part in _differences(X, mean):
        variance += weight[rows] @ np.square(part, out=part)
    return mean, variance / total


def _differences(X: _Array, center: _Array) -> Iterator[tuple[slice, _Array]]:
    """Yield chunks of rows and their differences to a row, each time in the same array: new ones would add up."""
    difference = np.empty_like(X[:_CHUNK], np.result_type(X, center))
    for rows in _chunks(len(X)):
        yield rows, np.subtract(X[rows], center, out=difference[: len(X[rows])])


def _chunks(rows: int) -> list[slice]:
    return [slice(start, start + _CHUNK) for start in range(0, rows, _CHUNK)]


def merge_equal_rows(X: Any, labels: _Array, sample_weight: _Array) -> tuple[Any, _Array, _Array]:
    """Return the rows in a canonical order, equal rows of one label merged to one with the sum of their weights.

    Sums over rows depend on their order by rounding, and an iterative search can amplify that where the objective is
    nearly flat. In this order a weighted table and the same table with shuffled or repeated rows give identical fits.

    >>> table, labels, weight = merge_equal_rows(np.array([[1.0], [2.0], [1.0]]), np.array([1.0, 0.0, 1.0]), np.ones(3))
    >>> sorted(zip(table[:, 0].tolist(), labels.tolist(), weight.tolist()))
    [(1.0, 1.0, 2.0), (2.0, 0.0, 1.0)]
    """
    keys = hash_rows(X) + labels.astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    X, labels, sample_weight, keys = X[order], labels[order], sample_weight[order], keys[order]
    same_key = np.flatnonzero((keys[1:] == keys[:-1]) & (labels[1:] == labels[:-1]))
    repeats = same_key[_equal_rows(X[same_key], X[same_key + 1])] + 1
    if not len(repeats):
        return X, labels, sample_weight
    first = np.delete(np.arange(len(labels)), repeats)
    return X[first], labels[first], np.add.reduceat(sample_weight, first)


def hash_rows(X: Any) -> NDArray[np.uint64]:
    """Return a hash (n,) of the rows, the same for the dense and the sparse form of a table.

    The bits of the values times fixed odd numbers, summed modulo 2⁶⁴; zeros add nothing.
    """
    factors = np.random.default_rng(0).integers(0, 2**63, X.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    if sparse.issparse(X):
        sums = np.zeros(X.nnz + 1, dtype=np.uint64)
        np.cumsum(_bits(X.data) * factors[X.indices], out=sums[1:])
        return np.asarray(sums[X.indptr[1:]] - sums[X.indptr[:-1]])
    return np.concatenate([_bits(X[rows]) @ factors for rows in _chunks(len(X))])


def _bits(values: _Array) -> NDArray[np.uint64]:
    # Adding zero turns -0.0 into 0.0.
    return np.ascontiguousarray(values + 0.0).view(np.uint64)


def _equal_rows(left: Any, right: Any) -> NDArray[np.bool_]:
    if sparse.issparse(left):
        return np.asarray(np.asarray((left != right).sum(axis=1)).ravel() == 0)
    return np.asarray((left == right).all(axis=1))


def fit_linear(
    X: Any,
    labels: _Array,
    sample_weight: _Array,
    columns: ColumnMoments,
    *,
    loss: str = "ap",
    l2: float = 1e-2,
    surrogate: str = "smooth_step",
    margin: float = 1.0,
    max_iter: int = 500,
    tol: float = 1e-5,
) -> LinearFit:
    """Return the weight (d,) of the standardised columns that minimises `objective + l2·|w|²`.

    loss="ap": the objective is P of `functional.ap_objective`, in [-1, 0]. It is not convex, so the search starts at
    the cross-entropy solution of the same `l2`; the optimum found depends little on the start (a start at zero, where
    the gradient is the difference of the class means, ends within 0.003 of the same value on real tables).
    loss="ce": cross-entropy per unit of weight of the positives, `Σ_j w_j·ce_j / W₊`, so that `l2` has about the same
    effect in both. There is no intercept in the result: ranking does not need one.

    Both searches are preconditioned by the curvature of the cross-entropy, which halves the iterations on tables of
    correlated columns. Rows count by their weight everywhere, the standardisation included.

    Args:
        X: (n, d) dense or sparse.
        labels: (n,) of 0/1, both present.
        sample_weight: (n,) positive.
        columns: Moments of this table.
        loss: "ap" or "ce".
        l2: Strength of the L2 penalty.
        surrogate: As in `ap_objective`.
        margin: Likewise.
        max_iter: Maximum number of L-BFGS-B iterations.
        tol: The search ends when no component of the gradient is larger.

    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> columns = ColumnMoments(np.array([1.5]), np.array([1.0]))
    >>> round(fit_linear(X, np.array([0.0, 1.0, 0.0, 1.0]), np.ones(4), columns, l2=0.001).value, 3)
    -0.799
    """
    entropy = linear_cross_entropy(X, labels, sample_weight, columns, l2=l2)
    start = np.zeros(X.shape[1] + 1)
    prior = float(sample_weight @ labels / sample_weight.sum())
    start[-1] = np.log(prior / (1 - prior))
    factor = _curvature_factor(X, labels, sample_weight, columns, start, l2=l2)
    if loss == "ce":
        fit = minimize_lbfgs(entropy, start, factor=factor, max_iter=max_iter, tol=tol)
        return fit._replace(weight=fit.weight[:-1])
    start = minimize_lbfgs(entropy, start, factor=factor, max_iter=max_iter, tol=_START_TOLERANCE).weight
    factor = _curvature_factor(X, labels, sample_weight, columns, start, l2=l2)
    objective = linear_ap_objective(X, labels, sample_weight, columns, l2=l2, surrogate=surrogate, margin=margin)
    factor = None if factor is None else factor[:-1, :-1]
    return minimize_lbfgs(objective, start[:-1], factor=factor, max_iter=max_iter, tol=tol)


def fit_columns(X: Any, labels: _Array, sample_weight: _Array, *, loss: str) -> tuple[_Array, float]:
    """Return the fitted weights (d,) of the columns as they are, and the intercept that makes the mean score 0."""
    columns = column_moments(X, sample_weight)
    weight = fit_linear(X, labels, sample_weight, columns, loss=loss).weight * columns.inverse
    return weight, float(-columns.mean @ weight)


def linear_ap_objective(
    X: Any, labels: _Array, sample_weight: _Array, columns: ColumnMoments, *, l2: float, surrogate: str, margin: float
) -> _Objective:
    """Return the function `w ↦ P(w) + l2·|w|²` with its gradient."""
    truth = torch.from_numpy(labels)
    equal = bool((sample_weight == sample_weight[0]).all())
    weights = None if equal else torch.from_numpy(sample_weight)

    def objective(weight: _Array) -> tuple[float, _Array]:
        scores = torch.from_numpy(columns.scores(X, weight)).requires_grad_(True)
        with torch.enable_grad():
            value = ap_objective(scores, truth, surrogate, margin, sample_weight=weights)
        (gradient,) = torch.autograd.grad(value, scores)
        return (
            value.item() + float(l2 * weight @ weight),
            columns.weight_gradient(X, gradient.numpy()) + 2 * l2 * weight,
        )

    return objective


def linear_cross_entropy(
    X: Any, labels: _Array, sample_weight: _Array, columns: ColumnMoments, *, l2: float
) -> _Objective:
    """Return the function `(w, b) ↦ Σ_j w_j·ce_j(w, b) / W₊ + l2·|w|²` with its gradient.

    The intercept b is the last component and is not penalised.
    """
    row_weight = sample_weight / (sample_weight @ labels)

    def objective(point: _Array) -> tuple[float, _Array]:
        weight = point[:-1]
        logits = columns.scores(X, weight) + point[-1]
        value = row_weight @ (np.logaddexp(0, logits) - labels * logits) + l2 * weight @ weight
        gradient = row_weight * (expit(logits) - labels)
        return float(value), np.append(columns.weight_gradient(X, gradient) + 2 * l2 * weight, gradient.sum())

    return objective


def minimize_lbfgs(
    objective: _Objective, start: _Array, *, factor: _Array | None = None, max_iter: int, tol: float
) -> LinearFit:
    """Return the local minimum that scipy's L-BFGS-B finds from `start`.

    Args:
        objective: Returns value and gradient, the latter continuous.
        start: First point.
        factor: Lower triangular factor L of an estimated curvature L·Lᵀ; the search is over u = Lᵀ·w, where that
            curvature is the identity. None for no preconditioning.
        max_iter: Maximum number of iterations.
        tol: The search ends when no component of the gradient (with respect to w) is larger.

    >>> fit = minimize_lbfgs(lambda x: (float(x @ x), 2 * x), np.array([3.0]), max_iter=10, tol=1e-10)
    >>> fit.value, fit.converged
    (0.0, True)
    """
    if factor is None:
        factor = np.eye(len(start))
    norm = float(np.abs(factor).sum(axis=1).max(initial=1e-300))

    def original(point: _Array) -> _Array:
        return np.asarray(linalg.solve_triangular(factor, point, lower=True, trans="T"))

    def preconditioned(point: _Array) -> tuple[float, _Array]:
        value, gradient = objective(original(point))
        return value, linalg.solve_triangular(factor, gradient, lower=True)

    found = optimize.minimize(
        preconditioned,
        factor.T @ start,
        jac=True,
        method="L-BFGS-B",
        options={
            "maxiter": max_iter,
            # The gradient in w is L times that in u.
            "gtol": tol / norm,
            "ftol": 0.0,
            "maxcor": _MEMORY,
            "maxls": _MAX_LINE_SEARCH,
            "maxfun": _MAX_LINE_SEARCH * max_iter,
        },
    )
    gradient = float(np.abs(factor @ found.jac).max(initial=0.0))
    stalled = found.nit < max_iter
    limit = max(_STALLED_FACTOR * tol, _ROUNDING_GRADIENT) if stalled else tol
    return LinearFit(original(found.x), float(found.fun), max(1, int(found.nit)), gradient <= limit)


def _curvature_factor(
    X: Any, labels: _Array, sample_weight: _Array, columns: ColumnMoments, point: _Array, *, l2: float
) -> _Array | None:
    """Return the Cholesky factor of the cross-entropy's second derivative at (w, b), or None if it is too expensive.

    The mixed derivatives of weights and intercept are left out.
    """
    if X.shape[1] > _MAX_PRECONDITIONED:
        return None
    probability = expit(columns.scores(X, point[:-1]) + point[-1])
    row_weight = sample_weight * probability * (1 - probability) / (sample_weight @ labels)
    curvature = np.zeros((len(point), len(point)))
    with np.errstate(over="ignore", invalid="ignore"):
        curvature[:-1, :-1] = columns.gram(X, row_weight)
    if not np.isfinite(curvature).all():
        # A sparse table is not centred: squares of huge values overflow.
        return None
    curvature[np.diag_indices(X.shape[1])] += 2 * l2
    curvature[-1, -1] = row_weight.sum()
    try:
        return np.asarray(linalg.cholesky(curvature, lower=True))
    except linalg.LinAlgError:
        # A sparse table is not centred: large offsets can cancel all digits of the products.
        return None
