"""Members on encoded columns, gradient boosting, forests and linear models, and a user's own estimators."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray

from apmax.committee.features import Matrix
from apmax.committee.fold_data import FittedMember, FoldData
from apmax.committee.linear import fit_columns
from apmax.committee.trees import Boosting, Forest, fit_boosting, fit_forest
from apmax.data.archives import npz_content, read_npz
from apmax.models.tables import OneHot

_Array = NDArray[np.float64]
_LEAST_PROBABILITY = 1e-9
USUAL_TREES = 100
"""Number of trees of a forest, where no other is asked for."""


@dataclass(frozen=True)
class LinearMember:
    """A weighted sum of the encoded columns, categories written out as zeros and ones."""

    sizes: tuple[int, ...]
    weight: _Array
    intercept: float
    rounds: ClassVar[tuple[int, ...]] = ()

    def score(self, matrix: Matrix) -> _Array:
        """Return the weighted sums."""
        return one_hot(matrix, self.sizes).astype(np.float64) @ self.weight + self.intercept

    def to_bytes(self) -> bytes:
        """Return the weights as an .npz file."""
        return npz_content(sizes=np.array(self.sizes), weight=self.weight, intercept=self.intercept)

    @staticmethod
    def from_bytes(content: bytes) -> LinearMember:
        """Return the member that `to_bytes` wrote."""
        arrays = read_npz(io.BytesIO(content), ("sizes", "weight", "intercept"))
        sizes = tuple(int(size) for size in arrays["sizes"])
        weight = arrays["weight"].astype(np.float64)
        if weight.shape != (OneHot(sizes).width,):
            raise ValueError(f"not a linear member: {len(weight)} weights for {OneHot(sizes).width} columns")
        return LinearMember(sizes, weight, float(arrays["intercept"]))


@dataclass(frozen=True)
class EstimatorMember:
    """A user's own scikit-learn estimator; it scores the rows in their original form and cannot be saved."""

    estimator: Any
    rounds: ClassVar[tuple[int, ...]] = ()

    def score(self, rows: Any) -> _Array:
        """Return decision values, or the log-odds of probabilities."""
        if hasattr(self.estimator, "decision_function"):
            return np.asarray(self.estimator.decision_function(rows), np.float64)
        probability = np.clip(self.estimator.predict_proba(rows)[:, 1], _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
        return np.asarray(np.log(probability / (1 - probability)), np.float64)

    def to_bytes(self) -> bytes:
        """Raise: how a foreign estimator is saved is not known."""
        name = type(self.estimator).__name__
        raise ValueError(f"members: {name} is an estimator of your own, and apmax cannot save it without pickle")


def one_hot(matrix: Matrix, sizes: Sequence[int]) -> Matrix:
    """Return the matrix with every column of codes written out as zeros and ones.

    >>> one_hot(np.array([[0.5, 1.0], [1.5, -1.0]], np.float32), [0, 2]).tolist()
    [[0.5, 0.0, 1.0], [1.5, 0.0, 0.0]]
    """
    if not any(sizes):
        return matrix
    written_out: Matrix = OneHot(sizes)(torch.from_numpy(matrix)).numpy()
    return written_out


def fit_gbdt_member(data: FoldData, *, parameters: Mapping[str, Any] | None = None, **options: Any) -> Boosting:
    """Fit gradient boosting; parameters are those of LightGBM, options those of `fit_boosting`."""
    return fit_boosting(
        data.matrix,
        data.labels,
        data.sample_weight,
        sizes=data.sizes,
        stopping=data.stopping,
        seed=data.seed,
        rounds=None if data.rounds is None else data.rounds[0],
        parameters={"num_threads": data.threads, **(parameters or {})},
        **options,
    )


@dataclass(frozen=True)
class OneHotForest:
    """A forest on columns whose categories are written out."""

    sizes: tuple[int, ...]
    forest: Forest
    rounds: ClassVar[tuple[int, ...]] = ()

    def score(self, matrix: Matrix) -> _Array:
        """Return the log-odds of the forest."""
        return self.forest.score(one_hot(matrix, self.sizes))

    def to_bytes(self) -> bytes:
        """Return the forest in its own form, with the sizes of the columns, as an .npz file."""
        return npz_content(sizes=np.array(self.sizes), forest=np.frombuffer(self.forest.to_bytes(), np.uint8))

    @staticmethod
    def from_bytes(content: bytes) -> OneHotForest:
        """Return the member that `to_bytes` wrote."""
        arrays = read_npz(io.BytesIO(content), ("sizes", "forest"))
        sizes = tuple(int(size) for size in arrays["sizes"])
        forest = Forest.from_bytes(arrays["forest"].astype(np.uint8).tobytes())
        if forest.features != OneHot(sizes).width:
            raise ValueError(f"not a forest: it reads {forest.features} columns of {OneHot(sizes).width}")
        return OneHotForest(sizes, forest)


def fit_forest_member(data: FoldData, *, kind: str, trees: int = USUAL_TREES) -> FittedMember:
    """Fit a forest of a kind of `fit_forest`."""
    matrix = one_hot(data.matrix, data.sizes)
    forest = fit_forest(matrix, data.labels, data.sample_weight, kind=kind, trees=trees, seed=data.seed)
    return OneHotForest(tuple(data.sizes), forest)


def fit_linear_member(data: FoldData, *, loss: str) -> FittedMember:
    """Fit a linear model by exact average precision ("ap") or by cross-entropy ("ce")."""
    matrix = one_hot(data.matrix, data.sizes).astype(np.float64)
    return LinearMember(tuple(data.sizes), *fit_columns(matrix, data.labels, data.sample_weight, loss=loss))


def fit_own_member(data: FoldData, *, estimator: Any) -> FittedMember:
    """Fit a copy of a scikit-learn estimator to the rows in their original form."""
    from sklearn.base import clone  # type: ignore[import-untyped]
    from sklearn.utils.validation import has_fit_parameter  # type: ignore[import-untyped]

    copy = clone(estimator)
    if np.ptp(data.sample_weight) == 0:
        copy.fit(data.rows, data.labels)
    elif has_fit_parameter(copy, "sample_weight"):
        copy.fit(data.rows, data.labels, sample_weight=data.sample_weight)
    else:
        raise ValueError(f"members: {type(copy).__name__} takes no sample_weight; leave it out or fit unweighted")
    # Not before the fit: what an estimator of estimators has may depend on it.
    if not any(hasattr(copy, method) for method in ("decision_function", "predict_proba")):
        raise ValueError(
            f"members: {type(copy).__name__} has neither decision_function nor predict_proba; give a classifier"
        )
    return EstimatorMember(copy)
