"""Base class of the classifiers: labels of two classes, probabilities from log-odds, seeds."""

from __future__ import annotations

import copy
import numbers
from abc import abstractmethod
from typing import Any, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import expit  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.multiclass import check_classification_targets, type_of_target  # type: ignore[import-untyped]

from apmax import validation

_Array = NDArray[np.float64]
# Committees add the number of the fold to the seed.
_LARGEST_SEED = np.iinfo(np.int32).max - 2**10
_Classifier = TypeVar("_Classifier", bound="RankingClassifier")


class BinaryLabels(NamedTuple):
    """Labels of two classes.

    Attributes:
        classes: The two classes, sorted.
        sign: 1 if the second of them is the positive class, otherwise -1.
        labels: (n,) 1 for the positive class, 0 for the other.
        sample_weight: (n,).
    """

    classes: NDArray[Any]
    sign: float
    labels: _Array
    sample_weight: _Array


class RankingClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """Base of binary classifiers that rank; a subclass has the parameters `pos_label` and `random_state`."""

    pos_label: Any
    random_state: Any
    classes_: NDArray[Any]
    _sign: float

    @abstractmethod
    def decision_function(self, X: Any) -> _Array:
        """Return (n,) calibrated log-odds of `classes_[1]`; their order is the ranking."""

    def predict_proba(self, X: Any) -> _Array:
        """Return (n, 2) probabilities of the two classes."""
        positive = expit(self.decision_function(X))
        return np.stack([1 - positive, positive], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the more probable class of each row, (n,)."""
        second = self.decision_function(X) > 0
        return np.asarray(self.classes_[second.astype(np.intp)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        return tags

    def _fit_as_copy(self: _Classifier, *arguments: Any) -> _Classifier:
        """Call `_fit` of a copy, and take over all that it has learnt: a fit that fails leaves this one as it was."""
        fitted = copy.copy(self)
        fitted._fit(*arguments)
        self.__dict__ = fitted.__dict__
        return self

    @abstractmethod
    def _fit(self, X: Any, y: Any, *arguments: Any) -> None:
        """Set the fitted attributes; where it fails, some of them may be set."""

    def _binary_labels(self, y: Any, sample_weight: Any) -> BinaryLabels:
        """Return the classes, (n,) labels of 0/1 for the positive class and (n,) weights.

        Raises:
            ValueError: Not two classes among the rows of positive weight, or `pos_label` is none of them.
        """
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        weight = np.ones(len(y))
        if sample_weight is not None:
            weight = validation.weights(np.asarray(sample_weight, dtype=np.float64), y.shape).numpy()
        classes = np.unique(y[weight > 0])
        if len(classes) < 2:
            raise ValueError(
                f"{type(self).__name__} needs two classes: y holds one class only, {classes.tolist()!r}, among the "
                "rows of positive weight"
            )
        if self.pos_label is not None and self.pos_label not in classes.tolist():
            raise ValueError(f"pos_label must be one of the classes {classes.tolist()!r}, got {self.pos_label!r}")
        positive = classes[1] if self.pos_label is None else self.pos_label
        sign = 1.0 if positive == classes[1] else -1.0
        return BinaryLabels(classes, sign, (y == positive).astype(np.float64), weight)

    def _seed(self) -> int:
        """Return an int `random_state` itself, otherwise a number that it draws."""
        generator = check_random_state(self.random_state)
        if isinstance(self.random_state, numbers.Integral):
            return int(self.random_state)
        return int(generator.randint(_LARGEST_SEED))
