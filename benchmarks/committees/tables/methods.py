"""Methods that are compared on tables, each from a split to scores of its test rows, all on the same cores."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax.data import k_fold
from apmax.data.parallel import available_cores
from apmax.metrics import average_precision
from benchmarks.committees.methods import EFFORTS, Scored, train_rows_by_command
from benchmarks.committees.runner import PACKAGES, Suite
from benchmarks.committees.tables.problems import TableSplit, load_table_split

_Array = NDArray[np.float64]

SAME_TIME = ("lightgbm_tuned", "autogluon", "autogluon_best")
"""Methods that get the wall-clock time that `standard` took on the same split."""
_TUNING_FOLDS = 5


def train_by_command(split: TableSplit, effort: str, seed: int) -> Scored:
    """Run `apmax train` on a file of the training rows, and score the test rows by the model in its folder.

    The time is that of the command: start, reading, training, intervals and writing.
    """
    import pyarrow as pa

    def table(rows: _Array) -> Any:
        return pa.table({f"x{column}": values for column, values in enumerate(rows.T)})

    return train_rows_by_command(table(split.train), split.train_labels, table(split.test), effort, seed)


def _positive_probability(estimator: Any, split: TableSplit) -> Scored:
    probability: _Array = estimator.fit(split.train, split.train_labels).predict_proba(split.test)[:, 1]
    return Scored(probability)


def _lightgbm(split: TableSplit, seed: int, **parameters: Any) -> Scored:
    from lightgbm import LGBMClassifier

    return _positive_probability(
        LGBMClassifier(random_state=seed, n_jobs=available_cores(), verbose=-1, **parameters), split
    )


def _hist_gradient_boosting(split: TableSplit, seed: int) -> Scored:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return _positive_probability(HistGradientBoostingClassifier(random_state=seed), split)


def _random_forest(split: TableSplit, seed: int) -> Scored:
    from sklearn.ensemble import RandomForestClassifier

    return _positive_probability(RandomForestClassifier(random_state=seed, n_jobs=available_cores()), split)


def _extra_trees(split: TableSplit, seed: int) -> Scored:
    from sklearn.ensemble import ExtraTreesClassifier

    return _positive_probability(ExtraTreesClassifier(random_state=seed, n_jobs=available_cores()), split)


BASELINES: dict[str, Callable[[TableSplit, int], Scored]] = {
    "lightgbm": _lightgbm,
    "hist_gradient_boosting": _hist_gradient_boosting,
    "random_forest": _random_forest,
    "extra_trees": _extra_trees,
}
"""Estimators as installed."""


def tune_lightgbm(split: TableSplit, seed: int, seconds: float) -> Scored:
    """Tune LightGBM by Optuna for some time, by mean cross-validated AP, and refit the best setting to all rows.

    The first trial is LightGBM as installed. A trial that has begun is finished, and the refit comes on top.
    """
    import optuna
    from lightgbm import LGBMClassifier

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    started = time.monotonic()
    labels = split.train_labels
    folds = k_fold(labels, min(_TUNING_FOLDS, int(labels.sum())), seed=seed)

    def objective(trial: Any) -> float:
        parameters = {
            "n_estimators": trial.suggest_int("n_estimators", 30, 1000, log=True),
            "learning_rate": trial.suggest_float("learning_rate", 0.01, 0.3, log=True),
            "num_leaves": trial.suggest_int("num_leaves", 4, 128, log=True),
            "min_child_samples": trial.suggest_int("min_child_samples", 2, 100, log=True),
            "colsample_bytree": trial.suggest_float("colsample_bytree", 0.3, 1.0),
            "subsample": trial.suggest_float("subsample", 0.5, 1.0),
            "subsample_freq": trial.suggest_int("subsample_freq", 0, 1),
            "reg_alpha": trial.suggest_float("reg_alpha", 1e-8, 10.0, log=True),
            "reg_lambda": trial.suggest_float("reg_lambda", 1e-8, 10.0, log=True),
        }
        values = []
        for step, (train, held_out) in enumerate(folds):
            model = LGBMClassifier(random_state=seed, n_jobs=available_cores(), verbose=-1, **parameters)
            model.fit(split.train[train], labels[train])
            scores = model.predict_proba(split.train[held_out])[:, 1]
            values.append(float(average_precision(scores, labels[held_out])))
            trial.report(float(np.mean(values)), step)
            if trial.should_prune():
                raise optuna.TrialPruned
        return float(np.mean(values))

    sampler = optuna.samplers.TPESampler(seed=seed, multivariate=True)
    study = optuna.create_study(
        direction="maximize", sampler=sampler, pruner=optuna.pruners.MedianPruner(n_startup_trials=10)
    )
    installed = {"n_estimators": 100, "learning_rate": 0.1, "num_leaves": 31, "min_child_samples": 20}
    rest = {"colsample_bytree": 1.0, "subsample": 1.0, "subsample_freq": 0, "reg_alpha": 1e-8, "reg_lambda": 1e-8}
    study.enqueue_trial(installed | rest)
    study.optimize(objective, timeout=max(0.1, seconds - (time.monotonic() - started)))
    found = _lightgbm(split, seed, **study.best_params)
    return Scored(found.scores, {"trials": len(study.trials), "crossfit_ap": study.best_value})


def fit_autogluon(split: TableSplit, python: str, seconds: float, presets: str | None) -> Scored:
    """Fit AutoGluon in the environment of another Python for some time."""
    with tempfile.TemporaryDirectory() as folder:
        rows, scores = Path(folder) / "split.npz", Path(folder) / "scores.npy"
        np.savez(rows, train=split.train, train_labels=split.train_labels, test=split.test)
        script = Path(__file__).with_name("autogluon_fit.py")
        command = [python, str(script), str(rows), str(scores), "--seconds", str(seconds)]
        command += ["--cores", str(available_cores())]
        command += ["--presets", presets] if presets else []
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        result = subprocess.run(
            command, cwd=folder, env=environment, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False
        )
        if result.returncode:
            raise RuntimeError(f"AutoGluon ended with code {result.returncode}: {result.stderr[-2000:]}")
        return Scored(np.load(scores).astype(np.float64))


def _fit(split: TableSplit, method: str, seed: int, limit: float | None, autogluon: str | None) -> Scored:
    if method in EFFORTS:
        return train_by_command(split, method, seed)
    if method in BASELINES:
        return BASELINES[method](split, seed)
    assert limit is not None, "checked by the caller"
    if method == "lightgbm_tuned":
        return tune_lightgbm(split, seed, limit)
    if autogluon is None:
        raise SystemExit("--autogluon must name the Python of an environment that has autogluon.tabular")
    return fit_autogluon(split, autogluon, limit, "best_quality" if method == "autogluon_best" else None)


TABLE_SUITE = Suite((*EFFORTS, *BASELINES, *SAME_TIME), load_table_split, _fit, (*PACKAGES, "optuna"), SAME_TIME)
"""Committees of both efforts and the baselines, then the methods of equal time one after the other."""
