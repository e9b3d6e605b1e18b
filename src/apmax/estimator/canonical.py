"""Rows in an order of their own, equal ones joined: the same problem whatever the order and repetition of its rows.

Averages over rows depend on their order by rounding alone, but a search of many iterations may carry such a difference
a long way where the objective is nearly flat. Put into this order, a table with weights and the same table with rows
shuffled or repeated give the same result to the bit.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]

Array = NDArray[np.float64]
_CHUNK = 2**15


def canonical(X: Any, labels: Array, sample_weight: Array) -> tuple[Any, Array, Array]:
    """Return table, labels and weights with equal rows of one label joined to one that has the sum of their weights.

    >>> table, labels, weight = canonical(np.array([[1.0], [2.0], [1.0]]), np.array([1.0, 0.0, 1.0]), np.ones(3))
    >>> sorted(zip(table[:, 0].tolist(), labels.tolist(), weight.tolist()))
    [(1.0, 1.0, 2.0), (2.0, 0.0, 1.0)]
    """
    keys = row_keys(X) + labels.astype(np.uint64)
    order = np.argsort(keys, kind="stable")
    X, labels, sample_weight, keys = X[order], labels[order], sample_weight[order], keys[order]
    near = np.flatnonzero((keys[1:] == keys[:-1]) & (labels[1:] == labels[:-1]))
    repeats = near[_equal(X[near], X[near + 1])] + 1
    if not len(repeats):
        return X, labels, sample_weight
    first = np.delete(np.arange(len(labels)), repeats)
    return X[first], labels[first], np.add.reduceat(sample_weight, first)


def row_keys(X: Any) -> NDArray[np.uint64]:
    """Return a number for every row that is the same for equal rows, and very likely another for others.

    The bits of the values times fixed odd numbers, summed modulo 2⁶⁴; zeros add nothing, so that a sparse table has
    the keys of the dense one.
    """
    factors = np.random.default_rng(0).integers(0, 2**63, X.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    if sparse.issparse(X):
        sums = np.zeros(X.nnz + 1, dtype=np.uint64)
        np.cumsum(_bits(X.data) * factors[X.indices], out=sums[1:])
        return np.asarray(sums[X.indptr[1:]] - sums[X.indptr[:-1]])
    pieces = [_bits(X[start : start + _CHUNK]) @ factors for start in range(0, len(X), _CHUNK)]
    return np.concatenate(pieces)


def _bits(values: Array) -> NDArray[np.uint64]:
    # Adding zero makes the two zeros one.
    return np.ascontiguousarray(values + 0.0).view(np.uint64)


def _equal(left: Any, right: Any) -> NDArray[np.bool_]:
    if sparse.issparse(left):
        return np.asarray(np.asarray((left != right).sum(axis=1)).ravel() == 0)
    return np.asarray((left == right).all(axis=1))
