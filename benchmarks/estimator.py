"""Time of the exact linear solver relative to scikit-learn's logistic regression."""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.linear_model import LogisticRegression

from apmax.estimator import APClassifier
from benchmarks.timing import best_times

ROWS, COLUMNS, LIMIT = 1_000_000, 30, 10.0


def table() -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return a table of correlated columns and labels with 0.8 % positives."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((ROWS, COLUMNS)) @ (np.eye(COLUMNS) + 0.3 * rng.standard_normal((COLUMNS, COLUMNS)))
    X /= X.std(0)
    logits = X @ rng.standard_normal(COLUMNS)
    logits *= 3 / logits.std()
    return X, (rng.random(ROWS) < 1 / (1 + np.exp(8.5 - logits))).astype(np.int64)


def run() -> list[tuple[str, float, float]]:
    """Return (description, ratio, target), measured on one thread."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        X, y = table()
        peer = LogisticRegression(solver="lbfgs")
        results = []
        for l2 in (1e-2, 1e-3):
            ours = APClassifier(l2=l2)
            own, base = best_times(lambda: ours.fit(X, y), lambda: peer.fit(X, y), least=1)  # noqa: B023
            results.append((f"exact AP, 1e6 x 30, l2 = {l2:g} / LogisticRegression (lbfgs)", own / base, LIMIT))
        return results
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    for what, ratio, target in run():
        print(f"{what:60} {ratio:8.3f}  target {target:g}")
