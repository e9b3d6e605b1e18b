"""Hyperparameter search: an Optuna study by validation AP, shared by any number of processes."""

from __future__ import annotations

import dataclasses
import json
import sqlite3
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from apmax import extras
from apmax.metrics import average_precision
from apmax.train import DivergedError, Run, Stage, epochs, parse_literal, predict, run_to_table
from apmax.train.run_directory import labels_fingerprint
from apmax.workflows.job import Job, JobPlan, write_job
from apmax.workflows.prepare import PreparedData, prepare_data
from apmax.workflows.training import build_job_network

SearchSpace = dict[str, tuple[Any, ...]]

STAGE_SPACE: SearchSpace = {"lr": (1e-5, 1e-4, 1e-3, 1e-2), "weight_decay": (1e-6, 1e-5, 1e-4)}
"""The paper's grids for every method."""
SAMPLER_SPACE: SearchSpace = {"num_pos": (1, 2, 3, 4, 5)}
"""The paper's grid for samplers that take a number of positives."""
MINING_SPACE: SearchSpace = {"hard": (0.1, 0.25, 0.5)}
"""Our grid for mined negatives."""
LOSS_SPACES: dict[str, SearchSpace] = {
    "ce": {},
    "cb_ce": {"beta": (0.9, 0.99, 0.999, 0.9999)},
    "focal": {"focusing": (1.0, 2.0, 5.0), "balance": (0.25, 0.5, 0.75)},
    "ldam": {"max_margin": (0.1, 0.3, 0.5), "scale": (1.0, 10.0, 30.0)},
    "auc_m": {"margin": (0.5, 1.0, 5.0)},
    "smooth_ap": {"temperature": (0.01, 0.1, 1.0, 3.0)},
    "fast_ap": {"bins": (2, 5, 10)},
    "minmax": {"anchors": (5, 10)},
    "ap": {"gamma": (0.9, 0.99, 0.999), "margin": (0.5, 1.0, 2.0, 5.0, 10.0)},
}
"""Options of each loss: the paper's grids for AP, ours for the others, for which the paper gives none."""

STUDY_NAME = "apmax"
STEPS_PER_STAGE = 10**6
"""A step of the study is an epoch; each stage has its own range of steps, as stages may stop early."""
LEAST_TRIALS_FOR_IMPORTANCE = 8
_DIVERGED = "diverged"
"""Attribute of a trial that diverged. Optuna has the same state for trials that were interrupted."""
_SPACE = "space"
"""Attribute of a study: the values of every setting that it searches."""
_ELSEWHERE = "resume it with the same values, or search in another folder"


def default_space(run: Run) -> SearchSpace:
    """Return the default search space of a run: the settings of its last stage, by path.

    >>> from apmax.train import RECIPES
    >>> list(default_space(Run(stages=RECIPES["default"]())))[:3]
    ['stages.1.lr', 'stages.1.weight_decay', 'stages.1.num_pos']

    Raises:
        ValueError: The run has no stage of gradient steps.
    """
    stages = [(number, stage) for number, stage in enumerate(run.stages) if isinstance(stage, Stage)]
    if not stages:
        raise ValueError("the run has no stage of gradient steps to tune")
    number, stage = stages[-1]
    own = {**STAGE_SPACE, **(SAMPLER_SPACE if stage.sampler.has_positives else {})}
    if stage.sampler.name == "mined":
        own |= MINING_SPACE
    space = {f"stages.{number}.{key}": values for key, values in own.items()}
    for loss in stage.weights:
        space |= {f"stages.{number}.options.{loss}.{key}": values for key, values in LOSS_SPACES[loss].items()}
    return space


def parse_space(texts: Iterable[str]) -> SearchSpace:
    """Return a search space written as PATH=VALUE,VALUE,… (or with semicolons between lists).

    >>> parse_space(["stages.1.lr=1e-4,1e-3", "model.hidden=[32];[64,64]"])
    {'stages.1.lr': (0.0001, 0.001), 'model.hidden': ([32], [64, 64])}

    Raises:
        ValueError: Another form, or fewer than two values.
    """
    space: SearchSpace = {}
    for text in texts:
        path, sign, values = text.partition("=")
        parts = [part.strip() for part in values.split(";" if ";" in values else ",")]
        if not sign or not path or len(parts) < 2 or not all(parts):
            raise ValueError(f"space is written PATH=VALUE,VALUE,… with two values or more, got {text!r}")
        space[path.strip()] = tuple(parse_literal(part) for part in parts)
    return space


@dataclass(frozen=True)
class SearchPlan:
    """A search; it can be sent to another process.

    Args:
        job: The plan of the job.
        space: The values of every setting that is searched.
        file: The study's SQLite file.
        trials: Number of trials of all processes and resumed searches together, pruned ones included.
        seconds: No trial begins after this time.
        threads: Threads of each process.
    """

    job: JobPlan
    space: SearchSpace
    file: Path
    trials: int
    seconds: float | None = None
    threads: int | None = None

    def resolve(self, prepared: PreparedData, choice: Mapping[str, int]) -> Job:
        """Return the job with some settings; `choice` holds for each path the index of its value."""
        return self.job.resolve(
            prepared.config,
            rows=prepared.train_rows,
            positives=prepared.train_positives,
            settings={path: self.space[path][index] for path, index in choice.items()},
        )

    def check(self, prepared: PreparedData) -> None:
        """Raise for a path or value that no job can have, before the first trial."""
        for path, values in self.space.items():
            if path.split(".")[0] == "data":
                raise ValueError(f"space: {path} cannot be searched, all trials have the same data")
            for index in range(len(values)):
                self._check_value(prepared, path, index)

    def _check_value(self, prepared: PreparedData, path: str, index: int) -> None:
        try:
            self.resolve(prepared, {path: index})
        except (TypeError, ValueError) as error:
            # A mistake in the job itself is no mistake of the space, and names its own setting.
            self.resolve(prepared, {})
            raise ValueError(f"space={{{path!r}: {self.space[path][index]!r}}}: {error}") from None


def open_study(file: Path) -> Any:
    """Return the Optuna study in an SQLite file, which is created if it is missing."""
    optuna = extras.load("optuna", "tune")
    # Its warnings are tracebacks of trials that diverged or were interrupted.
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    options = {
        # Without a pool, which would leave connections open until the study is collected.
        "poolclass": extras.load("sqlalchemy.pool", "tune").NullPool,
        # Not by the URL, of which a path with "?" or "{" would be another file.
        "creator": partial(sqlite3.connect, file),
    }
    return optuna.create_study(
        storage=optuna.storages.RDBStorage("sqlite://", engine_kwargs=options),
        study_name=STUDY_NAME,
        direction="maximize",
        load_if_exists=True,
        pruner=optuna.pruners.MedianPruner(n_startup_trials=5),
    )


def claim_space(study: Any, space: SearchSpace) -> None:
    """Store the space in a new study, as trials hold only the index of each value; compare it with that of an old one.

    Raises:
        ValueError: The study has searched other settings or values; nothing is written.
    """
    if _SPACE not in study.user_attrs:
        if study.get_trials(deepcopy=False):
            raise ValueError(
                "space: the study does not hold the values that it searched, as an earlier version of apmax wrote it; "
                "search in another folder"
            )
        study.set_user_attr(_SPACE, _plain(space))
    _check_space(study, space)


def _check_space(study: Any, space: SearchSpace) -> None:
    """Raise if a study has stored another space."""
    new = _plain(space)
    old = study.user_attrs.get(_SPACE, new)
    for path in {**old, **new}:
        if path not in old:
            raise ValueError(f"space: {path} was not searched in this study; {_ELSEWHERE}")
        values = ", ".join(map(str, old[path]))
        if path not in new:
            raise ValueError(f"space: {path} was searched among {values} in this study, and is not now; {_ELSEWHERE}")
        # As texts: NaN is equal to itself, and true not to 1.
        if json.dumps(old[path]) != json.dumps(new[path]):
            now = ", ".join(map(str, new[path]))
            raise ValueError(f"space: {path} was searched among {values} in this study, not {now}; {_ELSEWHERE}")


def claim_rows(study: Any, plan: SearchPlan, prepared: PreparedData) -> None:
    """Store the training and validation rows of a new study, and its model and stages; compare them with an old one's.

    Rows are compared by their labels and weights: inputs encoded on two machines may differ in their last bits. A study
    of an earlier version, which has trials and no rows, is not compared.

    Raises:
        ValueError: The validation AP of the study's trials is that of other rows, or of another job.
    """
    labels = prepared.data.label_tensors()
    job = plan.resolve(prepared, {})
    stages = run_to_table(job.run)["stage"]
    claimed = {
        "rows": labels_fingerprint((*labels, *prepared.data.weight_tensors(*labels))),
        "job": json.dumps([job.model.name, dict(job.model.options), stages], default=str, sort_keys=True),
    }
    remedies = {
        "rows": "on other training or validation rows: resume it with the same data, target, share and seed",
        "job": "with another model or other stages: resume it with the same settings",
    }
    new = not study.get_trials(deepcopy=False)
    for name, value in claimed.items():
        old = study.user_attrs.get(name)
        if old is None and new:
            study.set_user_attr(name, value)
        elif old not in (None, value):
            raise ValueError(f"this study has searched {remedies[name]}, or search in another folder")


def _plain(space: SearchSpace) -> dict[str, list[Any]]:
    """Return a space as JSON gives it back."""
    plain: dict[str, list[Any]] = json.loads(json.dumps(space, default=str))
    return plain


def run_search(plan: SearchPlan, prepared: PreparedData | None = None, *, callback: Any = None) -> None:
    """Run trials until the study has as many as planned.

    Values are drawn by the seed of the job and the number of the first trial of this process, which no other process
    has: those that join a study at the same moment draw different ones, and so does a resumed search.

    Args:
        plan: The search.
        prepared: Its data, which are read if they are not given.
        callback: `callback(study, trial)` is called after each trial.

    Raises:
        ValueError: The study in the plan's file has searched other settings or values, or on other rows.
    """
    optuna = extras.load("optuna", "tune")
    if plan.threads is not None:
        torch.set_num_threads(plan.threads)
    data = prepare_data(plan.job.data, seed=plan.job.seed) if prepared is None else prepared
    study = open_study(plan.file)
    claim_space(study, plan.space)
    claim_rows(study, plan, data)

    seeded = False

    def objective(trial: Any) -> float:
        nonlocal seeded
        if not seeded:
            study.sampler = optuna.samplers.TPESampler(seed=_sampler_seed(plan.job.seed, trial.number))
            seeded = True
        choice = {path: trial.suggest_categorical(path, range(len(values))) for path, values in plan.space.items()}
        try:
            return _validation_ap(plan.resolve(data, choice), data, trial)
        except DivergedError:
            trial.set_user_attr(_DIVERGED, True)
            raise

    def limit(current: Any, _: Any) -> None:
        if finished_trials(current) >= plan.trials:
            current.stop()

    if finished_trials(study) < plan.trials:
        callbacks = [limit] if callback is None else [callback, limit]
        study.optimize(objective, timeout=plan.seconds, callbacks=callbacks, catch=(DivergedError,))


def finished_trials(study: Any) -> int:
    """Return the number of trials that were finished, stopped early or diverged; interrupted ones do not count."""
    state = extras.load("optuna", "tune").trial.TrialState
    trials = study.get_trials(deepcopy=False)
    return sum(trial.state in (state.COMPLETE, state.PRUNED) or _has_diverged(trial) for trial in trials)


def _has_diverged(trial: Any) -> bool:
    return bool(trial.user_attrs.get(_DIVERGED, False))


def _sampler_seed(seed: int, first: int) -> int:
    """Return the seed of a process whose first trial has this number: of a new search the job's, if it has 32 bits."""
    if first == 0 and seed < 2**32:
        return seed
    return int(np.random.SeedSequence((seed, first)).generate_state(1)[0])


def _validation_ap(job: Job, prepared: PreparedData, trial: Any) -> float:
    """Return the validation AP of the chosen model, after reporting that of every epoch to the study."""
    optuna = extras.load("optuna", "tune")
    model, _ = build_job_network(job, prepared.encoder, prior=prepared.prior)
    for record in epochs(model, prepared.data, dataclasses.replace(job.run, ensemble=1, devices=1)):
        assert record.valid is not None
        trial.report(record.valid.ap, record.stage_number * STEPS_PER_STAGE + record.epoch)
        if trial.should_prune():
            raise optuna.TrialPruned
    scores = predict(model, prepared.data.valid, batch_size=job.run.eval_batch_size)
    # Weighted, and the mean over targets, as in the records of the epochs.
    weight = prepared.data.valid_sample_weight
    return float(average_precision(scores, prepared.data.valid_labels, sample_weight=weight).nanmean())


@dataclass(frozen=True)
class SearchResult:
    """Finished trials by validation AP, and the importance of each setting.

    Args:
        trials: (number, validation AP, values by path), best first.
        pruned: Number of trials that were stopped early.
        failed: Number of trials that diverged.
        importance: Share of the variance of AP that each setting explains; empty with too few trials.
    """

    trials: list[tuple[int, float, dict[str, Any]]]
    pruned: int
    failed: int
    importance: dict[str, float]


def search_result(study: Any, space: SearchSpace) -> SearchResult:
    """Return the result of a study.

    Raises:
        ValueError: No trial is finished, or the study has searched other settings or values.
    """
    _check_space(study, space)
    state = extras.load("optuna", "tune").trial.TrialState
    trials = study.get_trials(deepcopy=False)
    # A study of an earlier version may have searched other settings before: those trials are left out.
    done = [trial for trial in trials if trial.state == state.COMPLETE and set(space) <= set(trial.params)]
    if not done:
        raise ValueError("no trial is finished: the learning rates may be too high, or the time too short")
    done.sort(key=lambda trial: (-trial.value, trial.number))
    return SearchResult(
        [(trial.number, trial.value, {path: space[path][trial.params[path]] for path in space}) for trial in done],
        sum(trial.state == state.PRUNED for trial in trials),
        sum(map(_has_diverged, trials)),
        _importance(study, done),
    )


def _importance(study: Any, done: list[Any]) -> dict[str, float]:
    if len(done) < LEAST_TRIALS_FOR_IMPORTANCE or len({trial.value for trial in done}) < 2:
        return {}
    optuna = extras.load("optuna", "tune")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        evaluator = optuna.importance.FanovaImportanceEvaluator(seed=0)
        found: dict[str, float] = optuna.importance.get_param_importances(study, evaluator=evaluator)
    return found


def write_best_job(plan: SearchPlan, prepared: PreparedData, result: SearchResult, path: Path) -> None:
    """Write the job of the best trial as TOML: `apmax train PATH` trains it."""
    choice = {name: plan.space[name].index(value) for name, value in result.trials[0][2].items()}
    write_job(plan.resolve(prepared, choice), path)


def draw_search(path: Path, result: SearchResult, space: SearchSpace) -> None:
    """Draw the trials as parallel coordinates, coloured by validation AP, above the settings' importances."""
    make_figure = extras.load("matplotlib.figure", "report").Figure
    figure = make_figure(figsize=(max(7.0, 1.7 * (len(space) + 1)), 7), layout="constrained")
    lines, bars = figure.subplots(2, 1, height_ratios=(3, 1.6))
    values = [value for _, value, _ in result.trials]
    low, high = min(values), max(values)
    colours = extras.load("matplotlib", "report").colormaps["viridis"]

    def height(value: Any, name: str) -> float:
        return space[name].index(value) / max(1, len(space[name]) - 1)

    for _, value, settings in reversed(result.trials):  # the best on top
        share = (value - low) / (high - low) if high > low else 1.0
        heights = [height(settings[name], name) for name in space] + [share]
        lines.plot(range(len(heights)), heights, color=colours(share), alpha=0.25 + 0.75 * share, linewidth=1.5)
    label = {"fontsize": 8, "xytext": (3, 2), "textcoords": "offset points"}
    for number, name in enumerate(space):
        lines.axvline(number, color="grey", linewidth=0.5)
        for value in space[name]:
            lines.annotate(str(value), (number, height(value, name)), **label)
    lines.axvline(len(space), color="grey", linewidth=0.5)
    for share, value in ((0, low), (1, high)):
        lines.annotate(f"{value:.3f}", (len(space), share), **label)
    lines.set_xticks(range(len(space) + 1), [*(short_path(name) for name in space), "validation AP"], fontsize=9)
    lines.set(ylim=(-0.05, 1.1), yticks=[], title=f"{len(result.trials)} finished trials")
    lines.spines[["top", "right", "left", "bottom"]].set_visible(False)
    ordered = sorted(result.importance.items(), key=lambda each: each[1])
    bars.barh([short_path(name) for name, _ in ordered], [share for _, share in ordered], color="tab:blue")
    bars.set(title="Importance of each setting" if ordered else "Too few trials for importances", xlim=(0, 1))
    bars.spines[["top", "right"]].set_visible(False)
    figure.savefig(path, dpi=150)


def short_path(path: str) -> str:
    """Return the end of a setting's path, with its loss for an option of a loss.

    >>> short_path("stages.1.options.ap.gamma"), short_path("stages.1.lr")
    ('ap.gamma', 'lr')
    """
    keys = path.split(".")
    return ".".join(keys[-2:]) if "options" in keys else keys[-1]
