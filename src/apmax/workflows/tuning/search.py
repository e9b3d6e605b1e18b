"""The search itself: trials of one study, taken by any number of processes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from apmax import extras
from apmax.metrics import average_precision
from apmax.train import DivergedError, epochs, predict
from apmax.workflows.networks import new_network
from apmax.workflows.rows import Prepared, prepare
from apmax.workflows.spec import DataSpec, Job, resolve
from apmax.workflows.tuning.spaces import Space
from apmax.workflows.wishes import Wishes

STUDY = "apmax"
STAGE_STEPS = 10**6
"""A step of the study is an epoch of a stage; stages do not overlap, as each may stop early."""


@dataclass(frozen=True)
class Plan:
    """What is searched, on what, and how long; all of it can be sent to another process.

    Args:
        table: The job as plain tables.
        wishes: What differs.
        data: Its data, the files found.
        space: The values of every setting that is searched.
        file: The study's SQLite file.
        trials: How many are wanted in all, pruned ones included, by all processes and from the beginning.
        seconds: After so many no new trial is begun.
        threads: Of each process.
    """

    table: Mapping[str, Any]
    wishes: Wishes
    data: DataSpec
    space: Space
    file: Path
    trials: int
    seconds: float | None = None
    threads: int | None = field(default=None)

    def job(self, prepared: Prepared, values: Mapping[str, Any]) -> Job:
        """Return the job with these values of the searched settings.

        `values` holds for each path the number of the value in its range, as the study keeps them.
        """
        changes = [f"{path}={toml(self.space[path][index])}" for path, index in values.items()]
        wishes = dataclasses.replace(self.wishes, changes=(*self.wishes.changes, *changes))
        rows, positives = prepared.train_rows, prepared.train_positives
        return resolve(self.table, wishes, prepared.spec, rows=rows, positives=positives)


def open_study(file: Path, *, seed: int = 0) -> Any:
    """Return the study in an SQLite file, begun if it is new."""
    optuna = extras.load("optuna", "tune")
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    return optuna.create_study(
        storage=f"sqlite:///{file}",
        study_name=STUDY,
        direction="maximize",
        load_if_exists=True,
        sampler=optuna.samplers.TPESampler(seed=seed),
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
    )


def search(plan: Plan, prepared: Prepared | None = None, *, worker: int = 0, tell: Any = None) -> None:
    """Take trials until the study has as many as the plan wants; `tell(study, trial)` is called after each."""
    optuna = extras.load("optuna", "tune")
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    base_seed = plan.wishes.seed or 0
    ready = prepare(plan.data, seed=base_seed) if prepared is None else prepared
    study = open_study(plan.file, seed=base_seed + worker)

    def objective(trial: Any) -> float:
        chosen = {path: trial.suggest_categorical(path, range(len(values))) for path, values in plan.space.items()}
        return validation_ap(plan.job(ready, chosen), ready, trial)

    states = (optuna.trial.TrialState.COMPLETE, optuna.trial.TrialState.PRUNED, optuna.trial.TrialState.FAIL)
    enough = optuna.study.MaxTrialsCallback(plan.trials, states=states)
    if sum(trial.state in states for trial in study.get_trials(deepcopy=False)) < plan.trials:
        calls = [enough] if tell is None else [tell, enough]
        study.optimize(objective, timeout=plan.seconds, callbacks=calls, catch=(DivergedError,))


def validation_ap(job: Job, prepared: Prepared, trial: Any) -> float:
    """Return the validation AP of the model that the job's run chooses; every epoch's is reported on the way.

    Raises:
        optuna.TrialPruned: It falls behind the median of the trials before it.
    """
    optuna = extras.load("optuna", "tune")
    model, _ = new_network(job, prepared.encoder)
    for record in epochs(model, prepared.data, dataclasses.replace(job.run, ensemble=1, devices=1)):
        assert record.valid is not None
        trial.report(record.valid.ap, record.stage_number * STAGE_STEPS + record.epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    scores = predict(model, prepared.data.valid, batch_size=job.run.eval_batch_size)
    # The mean over the targets, as every epoch's.
    return float(average_precision(scores, prepared.data.valid_labels).nanmean())


def toml(value: Any) -> str:
    """Return a value as it is written in a change.

    >>> toml([32, 32]), toml(0.001), toml(True)
    ('[32, 32]', '0.001', 'true')
    """
    return str(value).lower() if isinstance(value, bool) else str(value)
