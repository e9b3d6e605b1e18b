"""Methods that are compared on tables, each from a split to scores of its test rows, all on the same cores."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apmax.data import k_fold
from apmax.metrics import average_precision
from benchmarks.tabular.tables import TableSplit

_Array = NDArray[np.float64]

EFFORTS = ("quick", "standard")
"""Efforts of `apmax train`."""
SAME_TIME = ("lightgbm_tuned", "autogluon", "autogluon_best")
"""Methods that get the wall-clock time that `standard` took on the same split."""
_TUNING_FOLDS = 5


@dataclass(frozen=True)
class Scored:
    """Test scores of a method, those of its members, and facts to record beside each."""

    scores: _Array
    facts: Mapping[str, Any] = field(default_factory=dict)
    members: Mapping[str, tuple[_Array, Mapping[str, Any]]] = field(default_factory=dict)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def cores() -> int:
    """Return the number of cores that this process may use."""
    return len(os.sched_getaffinity(0))


def use_cores(count: int) -> None:
    """Keep this process and its children to so many cores, with as many threads.

    Raises:
        SystemExit: There are not so many.
    """
    available = sorted(os.sched_getaffinity(0))
    if not 1 <= count <= len(available):
        raise SystemExit(f"--cores must be from 1 to the {len(available)} that there are, got {count}")
    os.sched_setaffinity(0, available[-count:])
    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)


def train_by_command(split: TableSplit, effort: str, seed: int) -> Scored:
    """Run `apmax train` on a file of the training rows, and score the test rows by the model in its folder.

    The time is that of the command: start, reading, training, intervals and writing.
    """
    import pyarrow as pa

    def table(rows: _Array) -> Any:
        return pa.table({f"x{column}": values for column, values in enumerate(rows.T)})

    return train_rows_by_command(table(split.train), split.train_labels, table(split.test), effort, seed)


def train_rows_by_command(
    train: Any, labels: _Array, test: Any, effort: str | None, seed: int, arguments: Sequence[str] = ()
) -> Scored:
    """Run `apmax train` on a file of the rows of a `pyarrow.Table`, and score other rows by the model in its folder.

    Args:
        train: The training rows.
        labels: Their labels.
        test: The rows to score.
        effort: The effort of the committee; None where `arguments` ask for one network.
        seed: The seed.
        arguments: Further arguments of the command.
    """
    from apmax.workflows import load_model

    with tempfile.TemporaryDirectory() as folder:
        options = [] if effort is None else ["--effort", effort]
        out, facts = _run_train(Path(folder), train, labels, [*options, *arguments, "--seed", str(seed)])
        model = load_model(out)
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        if effort is None:
            return Scored(np.ravel(model.score_table(test)), facts | {"valid_ap": results["valid"]["ap"]["estimate"]})
        *rows, blend = results["leaderboard"]
        facts |= {"crossfit_ap": blend["ap"]["estimate"]}
        members = {}
        for row in rows if effort != "quick" else ():
            own = {"crossfit_ap": row["ap"]["estimate"], "weight": row["weight"], "fit_seconds": row["seconds"]}
            members[row["name"]] = (np.ravel(model.with_member(row["name"]).score_table(test)), own)
        return Scored(np.ravel(model.score_table(test)), facts, members)


def _run_train(folder: Path, train: Any, labels: _Array, arguments: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Run `apmax train` on rows and labels; return the folder of the model and the time of the command."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file, out = folder / "train.parquet", folder / "model"
    pq.write_table(train.append_column("label", pa.array(labels.astype(int))), file)
    command = [sys.executable, "-m", "apmax", "train", str(file), "--target", "label", *arguments]
    return out, run_command([*command, "--quiet", "--out", str(out)], "apmax train")


def run_command(command: Sequence[str], name: str) -> dict[str, float]:
    """Run a command and return its seconds and CPU seconds.

    Raises:
        RuntimeError: The command failed.
    """
    used, started = cpu_seconds(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} ended with code {done.returncode}: {done.stderr[-2000:]}")
    return {"seconds": time.monotonic() - started, "cpu_seconds": cpu_seconds() - used}


def _positive_probability(estimator: Any, split: TableSplit) -> Scored:
    probability: _Array = estimator.fit(split.train, split.train_labels).predict_proba(split.test)[:, 1]
    return Scored(probability)


def _lightgbm(split: TableSplit, seed: int, **parameters: Any) -> Scored:
    from lightgbm import LGBMClassifier

    return _positive_probability(LGBMClassifier(random_state=seed, n_jobs=cores(), verbose=-1, **parameters), split)


def _hist_gradient_boosting(split: TableSplit, seed: int) -> Scored:
    from sklearn.ensemble import HistGradientBoostingClassifier

    return _positive_probability(HistGradientBoostingClassifier(random_state=seed), split)


def _random_forest(split: TableSplit, seed: int) -> Scored:
    from sklearn.ensemble import RandomForestClassifier

    return _positive_probability(RandomForestClassifier(random_state=seed, n_jobs=cores()), split)


def _extra_trees(split: TableSplit, seed: int) -> Scored:
    from sklearn.ensemble import ExtraTreesClassifier

    return _positive_probability(ExtraTreesClassifier(random_state=seed, n_jobs=cores()), split)


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
            model = LGBMClassifier(random_state=seed, n_jobs=cores(), verbose=-1, **parameters)
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
        command += ["--cores", str(cores())]
        command += ["--presets", presets] if presets else []
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        result = subprocess.run(
            command, cwd=folder, env=environment, stdout=sys.stderr, stderr=subprocess.PIPE, text=True, check=False
        )
        if result.returncode:
            raise RuntimeError(f"AutoGluon ended with code {result.returncode}: {result.stderr[-2000:]}")
        return Scored(np.load(scores).astype(np.float64))
