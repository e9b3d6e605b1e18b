"""Average precision as objective and as metric of gradient boosting, for any library with these calling conventions.

LightGBM and XGBoost call an objective or a metric with (scores, data set) from `train`, and with (labels, scores,
weights) from their scikit-learn classes. Neither library is imported here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apmax import validation
from apmax.functional import ap_newton_terms
from apmax.metrics import average_precision

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class APObjective:
    """Custom objective: the exact gradient of average precision's surrogate, and a positive curvature.

    `apmax.functional.ap_newton_terms` has the formulas. The gradient is that over all rows, at the cost of a binary
    search for each. Scores are raw, and a shift of all of them changes nothing: they are no log-odds. Rank by them, or
    calibrate them.

    Args:
        margin: Pairs whose scores differ by more do not count; the longest step of a leaf before the learning rate.
        prevalence: The share of positives at which precision is taken; None for that of the labels.
        damping: Curvature of rows without a pair within the margin: this share of the positives' weight, spread over
            all rows. Larger values shorten the steps late in training.

    Raises:
        ValueError: `margin`, `prevalence` or `damping` out of range; when called: labels other than 0/1, no positive.

    >>> objective = APObjective(margin=1.0)
    >>> gradient, curvature = objective(np.array([0.0, 1.0]), np.array([0.5, 0.0]))
    >>> gradient.round(3).tolist()
    [0.132, -0.132]
    """

    margin: float = 1.0
    prevalence: float | None = None
    damping: float = 0.1

    def __post_init__(self) -> None:
        validation.interval("margin", self.margin, 0, closed="neither")
        validation.interval("damping", self.damping, 0, closed="neither")
        if self.prevalence is not None:
            validation.interval("prevalence", self.prevalence, 0, 1, closed="neither")

    def __call__(self, first: Any, second: Any, sample_weight: Any = None) -> tuple[_Array, _Array]:
        """Return gradient and curvature of every row.

        Args:
            first: Scores, with a data set as `second`; labels otherwise.
            second: LightGBM's `Dataset` or XGBoost's `DMatrix`; scores otherwise.
            sample_weight: Weights of the rows, if `second` is no data set.
        """
        labels, scores, weight = read_boosting_arguments(first, second, sample_weight)
        gradient, curvature = ap_newton_terms(
            torch.from_numpy(scores),
            torch.from_numpy(labels),
            self.margin,
            sample_weight=None if weight is None else torch.from_numpy(weight),
            prevalence=self.prevalence,
            damping=self.damping,
        )
        return gradient.numpy(), curvature.numpy()


def boosting_average_precision(first: Any, second: Any, sample_weight: Any = None) -> float:
    """Return the exact average precision, ties and weights included; arguments as of `APObjective`.

    >>> boosting_average_precision(np.array([1, 0, 1]), np.array([0.5, 0.5, 0.5]))
    0.6666666666666666
    """
    labels, scores, weight = read_boosting_arguments(first, second, sample_weight)
    return float(average_precision(scores, labels, sample_weight=weight))


def read_boosting_arguments(first: Any, second: Any, sample_weight: Any = None) -> tuple[_Array, _Array, _Array | None]:
    """Return labels, scores and weights, in float64, from the arguments of either calling convention."""
    if hasattr(second, "get_label"):
        labels, scores, weight = second.get_label(), first, second.get_weight()
    else:
        labels, scores, weight = first, second, sample_weight
    # XGBoost's weights are an empty array where there are none.
    weight = None if weight is None or not len(weight) else np.array(weight, dtype=np.float64)
    return np.array(labels, dtype=np.float64), np.array(scores, dtype=np.float64), weight
