"""How large the columns of a table are: so that one strength of L2 means the same for all of them."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]
from sklearn.utils.sparsefuncs import mean_variance_axis  # type: ignore[import-untyped]

Array = NDArray[np.float64]
_CHUNK = 2**15
# Variation below this share of a column's size is what rounding makes of a constant.
_CONSTANT = 1e-11


class Columns(NamedTuple):
    """Mean and inverse standard deviation of every column, (d,) each; the inverse is 0 where a column is constant."""

    mean: Array
    inverse: Array

    def scores(self, X: Any, weight: Array) -> Array:
        """Return the scores (n,) of the standardised table for a weight (d,), without a copy of the table.

        Standardising a sparse table would fill it, and a copy of a large one is dear: it is folded into the weight.
        """
        own = weight * self.inverse
        return np.asarray(X @ own) - self.mean @ own

    def pull(self, X: Any, gradient: Array) -> Array:
        """Return the gradient (d,) of the weight from that of the scores (n,)."""
        total: Array = np.asarray(X.T @ gradient) - self.mean * gradient.sum()
        return self.inverse * total

    def gram(self, X: Any, row_weight: Array) -> Array:
        """Return the products (d, d) of all pairs of standardised columns, summed over the rows by their weights."""
        if sparse.issparse(X):
            # (X - mean)ᵀ·D·(X - mean) without filling the table.
            sums = np.asarray(X.T @ row_weight)
            inner = (X.T @ X.multiply(row_weight[:, None])).toarray()
            inner += row_weight.sum() * np.outer(self.mean, self.mean) - np.outer(sums, self.mean)
            inner -= np.outer(self.mean, sums)
            inner *= np.outer(self.inverse, self.inverse)
            return np.asarray(inner)
        total = np.zeros((X.shape[1], X.shape[1]))
        for rows in _pieces(len(X)):
            part = (X[rows] - self.mean) * self.inverse
            total += (part * row_weight[rows, None]).T @ part
        return total

    def standardised(self, X: Any) -> Any:
        """Return the table with its columns at one scale; a sparse one is not centred, and stays sparse."""
        if sparse.issparse(X):
            return (X @ sparse.diags(self.inverse)).tocsr()
        return (X - self.mean) * self.inverse


def measure_columns(X: Any, sample_weight: Array) -> Columns:
    """Return the weighted mean and inverse standard deviation of every column of a dense or sparse table.

    A row of weight 2 counts as two rows.

    >>> table = np.array([[1.0, 5.0], [3.0, 5.0], [3.0, 5.0]])
    >>> measure_columns(table, np.array([2.0, 1.0, 1.0]))
    Columns(mean=array([2., 5.]), inverse=array([1., 0.]))
    """
    if sparse.issparse(X):
        mean, variance = mean_variance_axis(X, axis=0, weights=sample_weight.astype(X.dtype))
    else:
        mean, variance = _moments(X, sample_weight)
    deviation = np.sqrt(variance)
    varies = deviation > _CONSTANT * np.abs(mean)
    return Columns(mean, np.divide(1.0, deviation, out=np.zeros_like(deviation), where=varies))


def _moments(X: Array, weight: Array) -> tuple[Array, Array]:
    """Return weighted mean and variance in two passes, both relative to a typical value so that no digits are lost."""
    total, first = weight.sum(), X[0]
    mean, variance = np.zeros(X.shape[1]), np.zeros(X.shape[1])
    for rows in _pieces(len(X)):
        mean += weight[rows] @ (X[rows] - first)
    mean = first + mean / total
    for rows in _pieces(len(X)):
        variance += weight[rows] @ np.square(X[rows] - mean)
    return mean, variance / total


def _pieces(rows: int) -> list[slice]:
    return [slice(start, start + _CHUNK) for start in range(0, rows, _CHUNK)]
