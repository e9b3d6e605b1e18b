"""Time of the exact linear solver relative to scikit-learn's logistic regression."""

from __future__ import annotations

from functools import partial

import numpy as np
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from apmax.estimator import APClassifier
from benchmarks.timing import Row, ratio

ROWS, COLUMNS, LIMIT = 1_000_000, 30, 10.0


def table() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return a table of correlated columns and labels with 0.8 % positives."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS)) @ (np.eye(COLUMNS) + 0.3 * rng.standard_normal((COLUMNS, COLUMNS)))
    X /= X.std(0)
    logits = X @ rng.standard_normal(COLUMNS)
    logits *= 3 / logits.std()
    return X, (rng.random(ROWS) < 1 / (1 + np.exp(8.5 - logits))).astype(np.int64)


def run() -> list[Row]:
    """Return (description, ratio, target), measured on one thread."""
    X, y = table()
    peer = LogisticRegression(solver="lbfgs")
    results = []
    for l2 in (1e-2, 1e-3):
        measured = ratio(partial(APClassifier(l2=l2).fit, X, y), partial(peer.fit, X, y), least=1)
        results.append((f"exact AP, 1e6 x 30, l2 = {l2:g} / LogisticRegression (lbfgs)", measured, LIMIT))
    return results
