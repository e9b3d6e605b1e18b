"""Runs one trial to its result: resumable at any moment, the test part scored for the record only."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apmax import metrics
from apmax.reproduce.parts import Parts, network_of, parts_of
from apmax.reproduce.schemes import Stages
from apmax.reproduce.settings import resolve
from apmax.reproduce.trial import Trial, tuned_choices
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
    write_atomic,
)

SCORES, TRACE = "scores.npz", "trace.jsonl"
CURVE_POINTS = 60
Report = Callable[[int, int], None]


@dataclass(frozen=True)
class Place:
    """Where runs happen: the folder of their folders, the data, and what is said of their origin."""

    work: Path
    data_dir: str | PathLike[str] | None
    origin: dict[str, str]

    def folder(self, trial: Trial) -> Path:
        """The trial's own folder."""
        return self.work / trial.key


def run_trial(trial: Trial, place: Place, *, trace: bool = False, report: Report | None = None) -> dict[str, Any]:
    """Train what is not trained yet and return the result's line; what the trial begins from must be there.

    Args:
        trial: What to run.
        place: Where.
        trace: Score the test part after every epoch, for a figure; nothing is chosen by it.
        report: Called with (epochs done, epochs at most) after every epoch.
    """
    parts = parts_of(trial, place.data_dir)
    try:
        scores, facts = joined(trial, place) if trial.members else trained(trial, parts, place, trace, report)
    except DivergedError as error:
        return without_value(trial, place, str(error))
    write_scores(place.folder(trial), scores)
    return {
        **named(trial),
        **facts,
        "valid": quality(scores["valid"], parts.valid.labels),
        "test": quality(scores["test"], parts.test.labels),
        **({"curve": curve(scores["test"], parts.test.labels)} if is_drawn(trial) else {}),
        **place.origin,
    }


def named(trial: Trial) -> dict[str, Any]:
    """Return how a result's line begins: what was run."""
    return {"key": trial.key, **trial.place, "settings": tuned_choices(trial.settings, published(trial))}


def without_value(trial: Trial, place: Place, reason: str) -> dict[str, Any]:
    """Return the line of a run that ended without a value."""
    return {**named(trial), "diverged": reason, "valid": None, "test": None, **place.origin}


def published(trial: Trial) -> dict[str, Any]:
    """Return the settings from which the tuned ones differ."""
    method = trial.grid.methods[trial.method].of or trial.method
    return resolve(trial.grid, trial.data, trial.model, method)


def is_drawn(trial: Trial) -> bool:
    """Tell whether its precision-recall curve is: of the first replicate, where a figure has it."""
    return trial.seed == 0 and trial.data in trial.grid.items["pr-curves"].data


def is_traced(trial: Trial) -> bool:
    """Tell whether its test part is scored after every epoch: where the figure of convergence has it."""
    item = trial.grid.items["convergence"]
    return trial.method in item.rows and trial.data in item.data and trial.model in item.models


def trained(
    trial: Trial, parts: Parts, place: Place, trace: bool, report: Report | None
) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Train the trial from its last checkpoint and return its scores and what became of it."""
    folder, model = place.folder(trial), network_of(trial)
    if trial.first is not None:
        weights = torch.load(place.folder(trial.first) / "model.pt", weights_only=True)
        model.load_state_dict(weights)
    run = run_of(trial)
    most = epoch_of_all(trial.stages, len(trial.stages), 0)
    records_to_come = epochs(model, (parts.train, parts.valid), run, directory=folder, resume=True)
    if trace:
        catch_up(folder, model, parts, trial.stages)
    for record in records_to_come:
        done = epoch_of_all(trial.stages, record.stage_number, record.epoch)
        if trace:
            add_trace(folder, done, model, parts)
        if report is not None:
            report(done, most)
    records = read_records(folder)
    chosen = json.loads((folder / "run.json").read_text(encoding="utf-8"))["chosen"]
    facts = {
        "chosen": {"stage": chosen["stage"] + 1, "epoch": chosen["epoch"]},
        "epochs": len(records),
        "seconds": round(sum(record.seconds for record in records), 1),
    }
    return {part: predict(model, getattr(parts, part)) for part in ("valid", "test")}, facts


def epoch_of_all(stages: Stages, stage: int, epoch: int) -> int:
    """Return the number of an epoch of a stage when those of the stages before are counted too."""
    return epoch + sum(each.epochs for each in stages[:stage])


def run_of(trial: Trial) -> Run:
    """Return the run; a method whose objective is drawn has it measured in its own terms."""
    options = trial.settings["options"]
    own = Objective(options["surrogate"], options["margin"], options["sigmoid"]) if "surrogate" in options else None
    return Run(
        stages=trial.stages,
        seed=trial.seed,
        accelerator="cpu",
        train_metrics="full" if trial.settings.get("recompute") else "seen",
        objective=own or Objective(),
        # A run that is killed loses an epoch at most.
        checkpoints=Checkpoints(every_epochs=1),
    )


def add_trace(folder: Path, epoch: int, model: nn.Module, parts: Parts) -> None:
    """Note the test part's AUPRC after an epoch."""
    value = float(metrics.auprc(flat(predict(model, parts.test)), flat(parts.test.labels)))
    values = {**read_trace(folder), epoch: round(value, 5)}
    lines = (json.dumps({"epoch": each, "test_auprc": value}) + "\n" for each, value in values.items())
    write_atomic(folder / TRACE, "".join(lines).encode())


def read_trace(folder: Path) -> dict[int, float]:
    """Return the test part's AUPRC by epoch, of those that were noted."""
    path = folder / TRACE
    if not path.exists():
        return {}
    entries = map(json.loads, path.read_text(encoding="utf-8").splitlines())
    return {entry["epoch"]: entry["test_auprc"] for entry in entries}


def catch_up(folder: Path, model: nn.Module, parts: Parts, stages: Stages) -> None:
    """Note the epoch whose checkpoint was written but whose test part was not scored yet when the run was killed."""
    path = folder / "checkpoint.pt"
    if not (path.exists() or previous_checkpoint(path).exists()):
        return
    state = load_checkpoint(path)
    done = epoch_of_all(stages, state["stage"], state["epoch"])
    if state["epoch"] and not state["batch"] and done not in read_trace(folder):
        model.load_state_dict(state["model"])
        add_trace(folder, done, model, parts)


def history(trial: Trial, place: Place) -> dict[str, Any] | None:
    """Return how the epochs of a traced trial went, or None if there is nothing to show."""
    folder = place.folder(trial)
    if trial.members or not ((folder / TRACE).exists() or trial.settings.get("recompute")):
        return None
    traced, records = read_trace(folder), read_records(folder)
    return {
        "key": trial.key,
        **trial.place,
        "steps": [record.step for record in records],
        "valid_ap": [round(record.valid.ap, 5) if record.valid else None for record in records],
        "train_ap": [round(record.train.ap, 5) if record.train else None for record in records],
        "train_objective": [round(record.train.objective, 5) if record.train else None for record in records],
        "test_auprc": [traced.get(epoch_of_all(trial.stages, r.stage_number, r.epoch)) for r in records],
    }


def joined(trial: Trial, place: Place) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """Return the mean scores of an ensemble's members."""
    each = [read_scores(place.folder(member)) for member in trial.members]
    scores = {part: torch.stack([member[part] for member in each]).mean(0) for part in ("valid", "test")}
    return scores, {"members": [member.key for member in trial.members]}


def quality(scores: Tensor, labels: Tensor) -> dict[str, Any]:
    """Return AP, trapezoidal AUPRC and AUROC, and of how many rows and positives."""
    scores, labels = flat(scores), flat(labels)
    values = {name: float(getattr(metrics, function)(scores, labels)) for name, function in METRICS.items()}
    rounded = {name: round(value, 6) for name, value in values.items()}
    return {"rows": len(labels), "positives": int((labels == 1).sum()), **rounded}


METRICS = {"ap": "average_precision", "auprc": "auprc", "auroc": "auroc"}


def curve(scores: Tensor, labels: Tensor) -> list[list[float]]:
    """Return [recall, precision] at evenly spaced recalls, the best precision at or beyond each.

    >>> curve(torch.tensor([3.0, 2.0, 1.0]), torch.tensor([1.0, 0.0, 1.0]))[0]
    [0.0, 1.0]
    """
    precision, recall, _ = metrics.precision_recall_curve(flat(scores), flat(labels))
    wanted = torch.linspace(0, 1, CURVE_POINTS + 1, dtype=recall.dtype)
    return [[round(float(r), 4), round(float(precision[recall >= r - 1e-9].max()), 4)] for r in wanted]


def flat(values: Tensor) -> Tensor:
    """Return one column as a vector."""
    return values[:, 0] if values.ndim == 2 else values


def write_scores(folder: Path, scores: dict[str, Tensor]) -> None:
    """Keep the scores for ensembles."""
    folder.mkdir(parents=True, exist_ok=True)
    buffer = io.BytesIO()
    np.savez(buffer, valid=scores["valid"].numpy(), test=scores["test"].numpy())
    write_atomic(folder / SCORES, buffer.getvalue())


def read_scores(folder: Path) -> dict[str, Tensor]:
    """Return the scores that `write_scores` kept."""
    with np.load(folder / SCORES, allow_pickle=False) as file:
        return {name: torch.from_numpy(file[name]) for name in file.files}


def tidy(trial: Trial, place: Place) -> None:
    """Remove what a finished trial needs no more: its checkpoints, and its weights unless others begin from them."""
    folder = place.folder(trial)
    for path in (folder / "checkpoint.pt", previous_checkpoint(folder / "checkpoint.pt")):
        path.unlink(missing_ok=True)
    if trial.method != "ce":
        (folder / "model.pt").unlink(missing_ok=True)
