"""The run of one trial: its data and network, training that resumes from a checkpoint, and its result."""

from __future__ import annotations

import base64
import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from apmax import metrics
from apmax.folders import write_atomic
from apmax.models.graphs import GraphNetwork
from apmax.reproduce.authors import load_authors_weights
from apmax.reproduce.grid import resolve_settings, tuned_settings
from apmax.reproduce.plan import Trial
from apmax.reproduce.released import RELEASED_CHECKPOINT, ReleasedStage, train_released
from apmax.reproduce.results import read_lines
from apmax.reproduce.schemes import Stages
from apmax.train import (
    Checkpoints,
    DivergedError,
    Objective,
    Run,
    epochs,
    load_checkpoint,
    predict,
    previous_checkpoint,
    read_records,
)

MODEL_FILE, SCORES_FILE, TRACE_FILE = "model.pt", "scores.npz", "trace.jsonl"
_CHECKPOINT_FILE = "checkpoint.pt"
_CURVE_POINTS = 60
ReportEpoch = Callable[[int, int], None]
"""Called with (epochs done, epochs at most) after every epoch."""


@dataclass(frozen=True)
class Workspace:
    """The folders that runs use.

    Args:
        folder: The parent of the runs' folders.
        data_dir: The folder of the data sets; by default that of the environment variable APMAX_DATA.
        origin: The version of the code, which each result records.
    """

    folder: Path
    data_dir: str | PathLike[str] | None
    origin: dict[str, str]

    def run_folder(self, trial: Trial) -> Path:
        """Return the folder of a trial."""
        return self.folder / trial.key


class TrialData(NamedTuple):
    """The training, validation and test part of a trial's data."""

    train: Any
    valid: Any
    test: Any


def load_trial_data(trial: Trial, data_dir: str | PathLike[str] | None = None) -> TrialData:
    """Return the data of a trial.

    Raises:
        FileNotFoundError: The data are missing; the message names the folder that was searched.
    """
    data, folder = trial.data_set, None if data_dir is None else str(data_dir)
    if data.domain == "molecules":
        # The authors' ML-MPNN was trained on the descriptors of descriptastorus.
        normalisation = "descriptastorus" if trial.scheme.from_authors else "quantiles"
        return _load_molecules(data.source, data.task, trial.split, trial.model == "ml-mpnn", normalisation, folder)
    return _load_images(data.source, data.task, trial.seed, folder)


@lru_cache(maxsize=4)
def _load_molecules(
    name: str, task: str | None, split: str | None, levels: bool, normalisation: str, data_dir: str | None
) -> TrialData:
    from apmax.data.molecules import load_molecules

    loaded = load_molecules(
        name, task, split=split, levels=levels, normalisation=normalisation, data_dir=data_dir, progress=False
    )
    return TrialData(loaded.train, loaded.valid, loaded.test)


@lru_cache(maxsize=2)
def _load_images(name: str, task: str | None, seed: int, data_dir: str | None) -> TrialData:
    from apmax.data.images import IMAGE_SETS

    options = {} if task is None else {"targets": task}
    loaded = IMAGE_SETS[name](data_dir, seed=seed, **options)
    return TrialData(loaded.train, loaded.valid, loaded.test)


def build_trial_network(trial: Trial) -> nn.Module:
    """Return the network of a trial, initialised from its seed; torch's global generator is left unchanged."""
    from apmax.models.graphs import GRAPH_MODELS
    from apmax.models.images import IMAGE_MODELS

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        if trial.data_set.domain == "molecules":
            return GRAPH_MODELS[trial.network.network](**trial.size)
        return IMAGE_MODELS[trial.network.network](**trial.size)


def trial_run_config(trial: Trial) -> Run:
    """Return the configuration of a trial's training; the objective is measured with the options of its loss."""
    options = trial.settings["options"]
    objective = Objective()
    if "surrogate" in options:
        objective = Objective(options["surrogate"], options["margin"], options["sigmoid"])
    stages = tuple(stage for stage in trial.stages if not isinstance(stage, ReleasedStage))
    return Run(
        stages=stages,
        seed=trial.seed,
        accelerator="cpu",
        train_metrics="full" if trial.settings.get("recompute") else "seen",
        objective=objective,
        # A killed run loses one epoch at most.
        checkpoints=Checkpoints(every_epochs=1),
    )


def run_trial(
    trial: Trial, workspace: Workspace, *, trace: bool = False, report: ReportEpoch | None = None
) -> dict[str, Any]:
    """Train a trial from its last checkpoint and return its result line; its prerequisites must have run.

    Args:
        trial: The run.
        workspace: Its folders.
        trace: Score the test part after every epoch, for a figure; nothing is selected by it.
        report: Called with (epochs done, epochs at most) after every epoch.
    """
    data = load_trial_data(trial, workspace.data_dir)
    try:
        if trial.members:
            scores, facts = _average_members(trial, workspace)
        else:
            scores, facts = _train(trial, data, workspace, trace, report)
    except DivergedError as error:
        return diverged_line(trial, workspace, str(error))
    _write_scores(workspace.run_folder(trial), scores)
    return {
        **_line_head(trial),
        **facts,
        "valid": score_metrics(scores["valid"], data.valid.labels),
        "test": score_metrics(scores["test"], data.test.labels),
        **({"curve": precision_recall_points(scores["test"], data.test.labels)} if _has_curve(trial) else {}),
        **workspace.origin,
    }


def diverged_line(trial: Trial, workspace: Workspace, reason: str) -> dict[str, Any]:
    """Return the result line of a run that ended without a value."""
    return {**_line_head(trial), "diverged": reason, "valid": None, "test": None, **workspace.origin}


def _line_head(trial: Trial) -> dict[str, Any]:
    """Return the beginning of a result line: the key, the coordinates and the tuned settings."""
    method = trial.grid.methods[trial.method].of or trial.method
    published = resolve_settings(trial.grid, trial.data, trial.model, method)
    return {"key": trial.key, **trial.coordinates, "settings": tuned_settings(trial.settings, published)}


def _has_curve(trial: Trial) -> bool:
    """Return whether the result keeps its precision-recall curve: the first seed, on data of that figure."""
    return trial.seed == 0 and trial.data in trial.grid.items["pr-curves"].data


def is_traced(trial: Trial) -> bool:
    """Return whether the test part is scored after every epoch: for the runs of the convergence figure."""
    item = trial.grid.items["convergence"]
    return trial.method in item.rows and trial.data in item.data and trial.model in item.models


def _train(
    trial: Trial, data: TrialData, workspace: Workspace, trace: bool, report: ReportEpoch | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train a trial from its last checkpoint; return its scores, and the chosen epoch, epochs and seconds."""
    folder, model = workspace.run_folder(trial), build_trial_network(trial)
    if trial.first is not None:
        weights = torch.load(workspace.run_folder(trial.first) / MODEL_FILE, weights_only=True)
        model.load_state_dict(weights)
    if trial.scheme.from_authors:
        assert isinstance(model, GraphNetwork)
        load_authors_weights(model, workspace.data_dir)
    if not trial.stages:
        return _predict_parts(model, data), {"epochs": 0, "seconds": 0.0}
    if isinstance(trial.stages[0], ReleasedStage):
        return _train_released(trial.stages[0], trial.seed, model, data, folder, report)
    most = _total_epoch(trial.stages, len(trial.stages), 0)
    records = epochs(model, (data.train, data.valid), trial_run_config(trial), directory=folder, resume=True)
    if trace:
        _complete_trace(folder, model, data, trial.stages)
    for record in records:
        done = _total_epoch(trial.stages, record.stage_number, record.epoch)
        if trace:
            _add_to_trace(folder, done, model, data)
        if report is not None:
            report(done, most)
    finished = read_records(folder)
    chosen = json.loads((folder / "run.json").read_text(encoding="utf-8"))["chosen"]
    facts = {
        "chosen": {"stage": chosen["stage"] + 1, "epoch": chosen["epoch"]},
        "epochs": len(finished),
        "seconds": round(sum(record.seconds for record in finished), 1),
    }
    return _predict_parts(model, data), facts


def _predict_parts(model: nn.Module, data: TrialData) -> dict[str, Tensor]:
    """Return the scores of the validation and the test part."""
    return {part: predict(model, getattr(data, part)) for part in ("valid", "test")}


def _train_released(
    stage: ReleasedStage, seed: int, model: nn.Module, data: TrialData, folder: Path, report: ReportEpoch | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train by the authors' released procedure; the facts include the best test AUPRC of all epochs."""
    result = train_released(model, data, stage, seed=seed, folder=folder, report=report)
    best = result.best_test
    facts = {
        "chosen": {"stage": 1, "epoch": result.epoch},
        "epochs": len(result.records),
        "best_test": {"epoch": best["epoch"], "auprc": round(best["auprc"], 6)},
        "seconds": round(sum(record["seconds"] for record in result.records), 1),
    }
    return result.scores, facts


def _total_epoch(stages: Stages, stage: int, epoch: int) -> int:
    """Return the number of an epoch, counted from the beginning of the first of the stages."""
    return epoch + sum(each.epochs for each in stages[:stage])


def _average_members(trial: Trial, workspace: Workspace) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the mean scores of an ensemble's members, and their keys."""
    each = [read_scores(workspace.run_folder(member)) for member in trial.members]
    scores = {part: torch.stack([member[part] for member in each]).mean(0) for part in ("valid", "test")}
    return scores, {"members": [member.key for member in trial.members]}


def _add_to_trace(folder: Path, epoch: int, model: nn.Module, data: TrialData) -> None:
    """Record the test AUPRC after an epoch."""
    value = float(metrics.auprc(_column(predict(model, data.test)), _column(data.test.labels)))
    values = {**read_trace(folder), epoch: round(value, 5)}
    lines = (json.dumps({"epoch": each, "test_auprc": value}) + "\n" for each, value in values.items())
    write_atomic(folder / TRACE_FILE, "".join(lines).encode())


def read_trace(folder: Path) -> dict[int, float]:
    """Return the recorded test AUPRC by epoch."""
    return {entry["epoch"]: entry["test_auprc"] for entry in read_lines(folder / TRACE_FILE)}


def _complete_trace(folder: Path, model: nn.Module, data: TrialData, stages: Stages) -> None:
    """Record the epoch of the last checkpoint if the run was killed between the checkpoint and its test scores."""
    path = folder / _CHECKPOINT_FILE
    if not (path.exists() or previous_checkpoint(path).exists()):
        return
    state = load_checkpoint(path)
    done = _total_epoch(stages, state["stage"], state["epoch"])
    if state["epoch"] and not state["batch"] and done not in read_trace(folder):
        model.load_state_dict(state["model"])
        _add_to_trace(folder, done, model, data)


def epoch_history(trial: Trial, workspace: Workspace) -> dict[str, Any] | None:
    """Return the values of a traced trial after each of its epochs, or None where none were recorded."""
    folder = workspace.run_folder(trial)
    if trial.members or not ((folder / TRACE_FILE).exists() or trial.settings.get("recompute")):
        return None
    trace, records = read_trace(folder), read_records(folder)
    return {
        "key": trial.key,
        **trial.coordinates,
        "steps": [record.step for record in records],
        "valid_ap": [round(record.valid.ap, 5) if record.valid else None for record in records],
        "train_ap": [round(record.train.ap, 5) if record.train else None for record in records],
        "train_objective": [round(record.train.objective, 5) if record.train else None for record in records],
        "test_auprc": [trace.get(_total_epoch(trial.stages, r.stage_number, r.epoch)) for r in records],
    }


def score_metrics(scores: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return the numbers of rows and positives, AP, trapezoidal AUPRC and AUROC."""
    scores, labels = _column(scores), _column(labels)
    values = metrics.ranking_metrics(scores, labels)
    rounded = {name: round(getattr(values, name), 6) for name in ("ap", "auprc", "auroc")}
    return {"rows": len(labels), "positives": int((labels == 1).sum()), **rounded}


def precision_recall_points(scores: Tensor, labels: Tensor) -> list[list[float]]:
    """Return [recall, precision] at evenly spaced recalls, with the best precision at or beyond each recall.

    >>> precision_recall_points(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 1.0]))[0]
    [0.0, 1.0]
    """
    precision, recall, _ = metrics.precision_recall_curve(_column(scores), _column(labels))
    grid = torch.linspace(0, 1, _CURVE_POINTS + 1, dtype=recall.dtype)
    return [[round(float(r), 4), round(float(precision[recall >= r - 1e-9].max()), 4)] for r in grid]


def _column(values: Tensor) -> Tensor:
    """Return the first column of a matrix; a vector is returned unchanged."""
    return values[:, 0] if values.ndim == 2 else values


def _write_scores(folder: Path, scores: dict[str, Tensor]) -> None:
    """Write the validation and test scores, which ensembles average."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez(buffer, valid=scores["valid"].numpy(), test=scores["test"].numpy())
    write_atomic(folder / SCORES_FILE, buffer.getvalue())


def read_scores(folder: Path) -> dict[str, Tensor]:
    """Return the validation and test scores of a finished run."""
    with np.load(folder / SCORES_FILE, allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def fold_scores(trial: Trial, workspace: Workspace) -> dict[str, Any] | None:
    """Return the test scores of a finished run on a fold of a cross-validation, or None for another run.

    The test parts of all folds together are the data set, so that their scores can be ranked as one. `location` and
    `scale` are mean and standard deviation of the validation scores, which make the folds' scores comparable.
    """
    from apmax.data.molecules.sets import FOLDS

    if trial.split not in FOLDS:
        return None
    scores = {part: _column(values).double() for part, values in read_scores(workspace.run_folder(trial)).items()}
    labels = _column(load_trial_data(trial, workspace.data_dir).test.labels)
    return {
        "key": trial.key,
        **trial.coordinates,
        "location": round(float(scores["valid"].mean()), 6),
        "scale": round(float(scores["valid"].std(correction=0)), 6),
        "labels": "".join("1" if label == 1 else "0" for label in labels.tolist()),
        "scores": encode_scores(scores["test"].numpy()),
        **workspace.origin,
    }


def encode_scores(scores: NDArray[np.float64]) -> str:
    """Return scores as text: 32-bit floating-point numbers, the lowest byte first, in base 64.

    >>> decode_scores(encode_scores(np.array([0.5, -2.0]))).tolist()
    [0.5, -2.0]
    """
    return base64.b64encode(scores.astype("<f4").tobytes()).decode()


def decode_scores(text: str) -> NDArray[np.float64]:
    """Return the scores of `encode_scores`."""
    return np.frombuffer(base64.b64decode(text), dtype="<f4").astype(np.float64)


def is_missing_files(trial: Trial, workspace: Workspace, *, weights: bool) -> bool:
    """Return whether a run's folder lacks its scores, or its weights where these are needed.

    Scores are written last: weights without scores come from a training that was stopped before its end.
    """
    folder = workspace.run_folder(trial)
    return not (folder / SCORES_FILE).exists() or (weights and not (folder / MODEL_FILE).exists())


def remove_unneeded_files(trial: Trial, workspace: Workspace) -> None:
    """Remove the checkpoints of a finished trial, and its weights unless other runs begin from them."""
    folder = workspace.run_folder(trial)
    checkpoint = folder / _CHECKPOINT_FILE
    for path in (checkpoint, previous_checkpoint(checkpoint), folder / RELEASED_CHECKPOINT):
        path.unlink(missing_ok=True)
    if trial.method != "ce":
        (folder / MODEL_FILE).unlink(missing_ok=True)
