"""Compare APClassifier with logistic regression on real tables, paired, with the strength of L2 chosen the same way.

    APMAX_DATA=... python examples/tables_comparison.py [TABLE ...]

Reads `tabular/TABLE.npz` (X, y) in the folder that APMAX_DATA names. For each of five stratified resplits (70 % for
training) either model chooses one of five strengths by 3-fold average precision on the training part, is fitted to all
of it, and scored once on the rest.
"""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import average_precision_score
from sklearn.model_selection import GridSearchCV, StratifiedKFold, StratifiedShuffleSplit
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from apmax.estimator import APClassifier

TABLES = ("mammography", "thyroid", "satimage-2", "PageBlocks", "letter", "pendigits", "optdigits")
RESPLITS, FOLDS = 5, 3


def models(seed: int) -> dict[str, GridSearchCV]:
    """Return both models, each with a search over five strengths that spans four orders of magnitude."""
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=seed)
    logistic = make_pipeline(StandardScaler(), LogisticRegression(max_iter=1000))
    search: dict[str, Any] = {"scoring": "average_precision", "cv": folds}
    return {
        "logistic": GridSearchCV(logistic, {"logisticregression__C": [1e-2, 1e-1, 1.0, 1e1, 1e2]}, **search),
        "exact AP": GridSearchCV(APClassifier(), {"l2": [1e-1, 1e-2, 1e-3, 1e-4, 1e-5]}, **search),
    }


def compare(path: Path) -> dict[str, list[float]]:
    """Return the test average precision of either model for every resplit, and the seconds they took."""
    with np.load(path) as data:
        X, y = data["X"].astype(np.float64), data["y"].astype(int)
    found: dict[str, list[float]] = {}
    resplits = StratifiedShuffleSplit(RESPLITS, test_size=0.3, random_state=0).split(X, y)
    for seed, (train, test) in enumerate(resplits):
        for name, model in models(seed).items():
            begin = time.perf_counter()
            model.fit(X[train], y[train])
            found.setdefault(f"{name}, seconds", []).append(time.perf_counter() - begin)
            scores = model.decision_function(X[test])
            found.setdefault(name, []).append(float(average_precision_score(y[test], scores)))
    return found


def main() -> None:
    """Print a line for each table: mean test AP, the paired difference and its standard error over the resplits."""
    if "APMAX_DATA" not in os.environ:
        raise SystemExit("set APMAX_DATA to the folder that holds tabular/*.npz")
    torch.set_num_threads(1)
    folder = Path(os.environ["APMAX_DATA"]) / "tabular"
    print("| table | logistic | exact AP | difference ± SE | resplits won | time, ratio |\n|---|---|---|---|---|---|")
    means = []
    for name in sys.argv[1:] or TABLES:
        found = {key: np.array(values) for key, values in compare(folder / f"{name}.npz").items()}
        gain = found["exact AP"] - found["logistic"]
        error = gain.std(ddof=1) / np.sqrt(len(gain))
        means.append(gain.mean())
        ratio = found["exact AP, seconds"].sum() / found["logistic, seconds"].sum()
        print(
            f"| {name} | {found['logistic'].mean():.3f} | {found['exact AP'].mean():.3f} "
            f"| {gain.mean():+.3f} ± {error:.3f} | {(gain > 0).sum()}/{len(gain)} | {ratio:.1f} |",
            flush=True,
        )
    if len(means) > 1:
        print(
            f"| mean of the tables | | | {np.mean(means):+.3f} ± {np.std(means, ddof=1) / len(means) ** 0.5:.3f} | | |"
        )


if __name__ == "__main__":
    main()
