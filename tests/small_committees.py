"""Small tables for the tests of committees."""

from __future__ import annotations

import numpy as np

from apmax.committee import ArrayFeatures, TrainingRows

FAST = ["gbdt", "linear"]
"""Members that are fitted in a fraction of a second."""


def shifted_table(seed=0, rows=200, positives=40):
    """Return features and labels; the first feature of positives is larger by 2 on average."""
    rng = np.random.default_rng(seed)
    y = np.zeros(rows)
    y[rng.choice(rows, positives, replace=False)] = 1
    X = rng.normal(size=(rows, 3))
    X[:, 0] += 2 * y
    return X, y


def training_rows(X, y, **more):
    """Return the rows of an array, each of weight 1."""
    return TrainingRows(ArrayFeatures(X), y, np.ones(len(y)), **more)
