"""Choice between cross-entropy and average precision by inner cross-validation (`loss="auto"`)."""

from __future__ import annotations

import numbers
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from sklearn.base import clone  # type: ignore[import-untyped]
from sklearn.model_selection import StratifiedKFold, check_cv  # type: ignore[import-untyped]

from apmax.metrics import average_precision

_Array = NDArray[np.float64]
CANDIDATES = ("ce", "ap")


class LossChoice(NamedTuple):
    """The chosen loss, the average precision of every candidate on every fold, and the reason in words."""

    loss: str
    scores: dict[str, _Array]
    reason: str


def choose_loss(estimator: Any, X: Any, labels: _Array, sample_weight: _Array, *, cv: Any, seed: int) -> LossChoice:
    """Choose the loss with the better mean average precision on the rows left out.

    Both losses are fitted on the same folds with the estimator's other parameters. Cross-entropy, the simpler one,
    wins ties.

    Args:
        estimator: An `APClassifier`; clones of it are fitted to 0/1 labels.
        X: (n, d) dense or sparse.
        labels: (n,) of 0/1.
        sample_weight: (n,) non-negative.
        cv: A number of folds (fewer if the rarer class has fewer rows), or a splitter or splits of scikit-learn.
        seed: Seed of the shuffle before the rows are cut into that number of folds.
    """
    if isinstance(cv, numbers.Integral):
        # Rows of weight 0 are left out, in folds as in fits.
        kept = np.flatnonzero(sample_weight > 0)
        if len(kept) < len(labels):
            X, labels, sample_weight = X[kept], labels[kept], sample_weight[kept]
        rarer = int(min(np.bincount(labels.astype(int))))
        if rarer < 2:
            return LossChoice("ce", {}, "ce: with a single row of one class there is nothing to compare the losses on")
        cv = StratifiedKFold(min(int(cv), rarer), shuffle=True, random_state=seed)
    scores: dict[str, list[float]] = {name: [] for name in CANDIDATES}
    for train, test in check_cv(cv, labels, classifier=True).split(X, labels):
        for name, fold_scores in scores.items():
            model = clone(estimator).set_params(loss=name, pos_label=None, verbose=0)
            # Not `fit`, which would warn of unused parameters in every fold again.
            model._fit(X[train], labels[train], sample_weight[train])
            fold_scores.append(_fold_score(model.decision_function(X[test]), labels[test], sample_weight[test]))
    return compare_losses({name: np.array(fold_scores) for name, fold_scores in scores.items()})


def _fold_score(scores: _Array, labels: _Array, sample_weight: _Array) -> float:
    """Return the average precision of a fold, NaN without a positive of positive weight."""
    if sample_weight @ labels == 0:
        return np.nan
    return float(average_precision(scores, labels, sample_weight=sample_weight))


def compare_losses(scores: dict[str, _Array]) -> LossChoice:
    """Choose between "ap" and "ce" from their scores on the same folds, and give the reason.

    Folds whose score is NaN (no positive was left out) do not count.

    >>> compare_losses({"ap": np.array([0.5, 0.7]), "ce": np.array([0.4, 0.7])}).reason
    'ap: mean average precision 0.6000 against 0.5500 with ce over 2 folds, paired difference +0.0500 ± 0.0500 (SE)'
    """
    known = np.isfinite(scores["ap"] - scores["ce"])
    if not known.any():
        return LossChoice("ce", scores, "ce: no fold leaves out a positive row, so there is nothing to compare by")
    compared = {name: values[known] for name, values in scores.items()}
    best, other = ("ap", "ce") if (compared["ap"] - compared["ce"]).mean() > 0 else ("ce", "ap")
    gain = compared[best] - compared[other]
    error = gain.std(ddof=1) / np.sqrt(len(gain)) if len(gain) > 1 else np.nan
    reason = (
        f"{best}: mean average precision {compared[best].mean():.4f} against {compared[other].mean():.4f} with {other} "
        f"over {len(gain)} folds, paired difference {gain.mean():+.4f} ± {error:.4f} (SE)"
    )
    return LossChoice(best, scores, reason)
