"""Cross-entropy or average precision? Asked of the data, by inner cross-validation."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone  # type: ignore[import-untyped]
from sklearn.metrics import average_precision_score  # type: ignore[import-untyped]
from sklearn.model_selection import StratifiedKFold, check_cv  # type: ignore[import-untyped]

Array = NDArray[np.float64]
CANDIDATES = ("ce", "ap")


class Choice(NamedTuple):
    """The loss chosen, the average precision of every candidate on every fold, and the reason in words."""

    loss: str
    scores: dict[str, Array]
    reason: str


def choose_loss(estimator: Any, X: Any, labels: Array, sample_weight: Array, *, cv: Any, seed: int) -> Choice:
    """Return which of CE and AP training gives the better mean average precision on rows left out.

    Both are fitted on the same folds with the estimator's other settings. Cross-entropy wins ties: it is the plainer.

    Args:
        estimator: An `APClassifier`; clones of it are fitted to 0/1 labels.
        X: (n, d) dense or sparse.
        labels: (n,) of 0/1.
        sample_weight: (n,) non-negative.
        cv: A number of folds (fewer if the rarer class has fewer rows), or a splitter or splits of scikit-learn.
        seed: Shuffles the rows before they are cut into that number of folds.
    """
    if isinstance(cv, numbers.Integral):
        rarer = int(min(np.bincount((labels[sample_weight > 0]).astype(int))))
        if rarer < 2:
            return Choice("ce", {}, "ce: with a single row of one class there is nothing to compare the losses on")
        cv = StratifiedKFold(min(int(cv), rarer), shuffle=True, random_state=seed)
    scores: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for train, test in check_cv(cv).split(X, labels):
        for name, reached in scores.items():
            model = clone(estimator).set_params(loss=name, pos_label=None, verbose=0)
            model.fit(X[train], labels[train], sample_weight=sample_weight[train])
            found = model.decision_function(X[test])
            reached.append(average_precision_score(labels[test], found, sample_weight=sample_weight[test]))
    return explain({name: np.array(reached) for name, reached in scores.items()})


def explain(scores: dict[str, Array]) -> Choice:
    """Return the choice between the scores of "ap" and "ce" over the same folds.

    >>> explain({"ap": np.array([0.5, 0.7]), "ce": np.array([0.4, 0.7])}).reason
    'ap: mean average precision 0.6000 against 0.5500 with ce over 2 folds, paired difference +0.0500 ± 0.0500 (SE)'
    """
    difference = scores["ap"] - scores["ce"]
    best, other = ("ap", "ce") if difference.mean() > 0 else ("ce", "ap")
    gain = scores[best] - scores[other]
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.nan
    reason = (
        f"{best}: mean average precision {scores[best].mean():.4f} against {scores[other].mean():.4f} with {other} "
        f"over {len(gain)} folds, paired difference {gain.mean():+.4f} ± {error:.4f} (SE)"
    )
    return Choice(best, scores, reason)
