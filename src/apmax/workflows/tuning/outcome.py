"""What a search has found."""

from __future__ import annotations

import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from apmax import extras
from apmax.train import write_atomic
from apmax.workflows import spec
from apmax.workflows.rows import Prepared
from apmax.workflows.tuning.search import Plan
from apmax.workflows.tuning.spaces import Space


@dataclass(frozen=True)
class Best:
    """The trials in the order of their validation AP, and how much each setting mattered.

    Args:
        trials: (number, validation AP, values by path), the best first.
        pruned: How many were stopped early.
        failed: How many diverged.
        importance: The share of the variance of AP that a setting explains; empty with too few trials.
    """

    trials: list[tuple[int, float, dict[str, Any]]]
    pruned: int
    failed: int
    importance: dict[str, float]


def best_of(study: Any, space: Space) -> Best:
    """Return what the study has found.

    Raises:
        ValueError: No trial came to its end.
    """
    optuna = extras.load("optuna", "tune")
    state = optuna.trial.TrialState
    everything = study.get_trials(deepcopy=False)
    # A study that is gone on with may have had other settings: what is no longer searched is left out.
    done = [trial for trial in everything if trial.state == state.COMPLETE and set(space) <= set(trial.params)]
    if not done:
        raise ValueError("no trial came to its end: the rates may be too high, or the time too short")
    done.sort(key=lambda trial: (-trial.value, trial.number))
    return Best(
        [(trial.number, trial.value, named(trial.params, space)) for trial in done],
        sum(trial.state == state.PRUNED for trial in everything),
        sum(trial.state == state.FAIL for trial in everything),
        importance(study, done),
    )


def named(numbers: Mapping[str, int], space: Space) -> dict[str, Any]:
    """Return the values that a trial's numbers stand for."""
    return {path: space[path][numbers[path]] for path in space}


def importance(study: Any, done: list[Any]) -> dict[str, float]:
    """Return how much each setting mattered, by the study's own estimate; nothing where that cannot be told."""
    if len(done) < 8 or len({trial.value for trial in done}) < 2:
        return {}
    optuna = extras.load("optuna", "tune")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found: dict[str, float] = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return found


def write_best(plan: Plan, prepared: Prepared, best: Best, path: Path) -> None:
    """Write the job of the best trial as TOML: `apmax train PATH` trains it."""
    numbers = {name: plan.space[name].index(value) for name, value in best.trials[0][2].items()}
    write_atomic(path, spec.dumps(plan.job(prepared, numbers)).encode())
