"""What an epoch reports, and how good scores are in the terms it reports."""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apmax import functional, metrics
from apmax.train.config import Objective


@dataclass(frozen=True)
class Metrics:
    """Average precision, trapezoidal AUPRC, AUROC and the exact objective P in [-1, 0]; means over tasks.

    NaN where undefined: AUROC without negatives.
    """

    ap: float
    auprc: float
    auroc: float
    objective: float


def measure(
    scores: Tensor, labels: Tensor, *, objective: Objective | None = None, sample_weight: Tensor | None = None
) -> Metrics:
    """Return all four for `scores` of shape (n,) or (n, tasks); tasks without positives are left out of the means.

    A row of `sample_weight` (n,) 2 counts as two rows.

    >>> result = measure(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([1.0, 0.0, 0.0]))
    >>> result.ap, round(result.objective, 3)
    (1.0, -0.541)
    """
    objective = objective or Objective()
    labels = labels.to(scores.device)
    exact = functional.ap_objective(
        scores.sigmoid() if objective.sigmoid else scores,
        labels,
        objective.surrogate,
        objective.margin,
        sample_weight=sample_weight,
    )
    kinds = metrics.average_precision, metrics.auprc, metrics.auroc
    values = [metric(scores, labels, sample_weight=sample_weight) for metric in kinds]
    ap, auprc, auroc = (float(value.nanmean()) for value in values)
    return Metrics(ap, auprc, auroc, float(exact))


@dataclass(frozen=True)
class Record:
    """One epoch of a run.

    Args:
        stage: The stage's name.
        stage_number: Its place in the run, from 0.
        epoch: The epoch within the stage, from 1.
        step: Optimiser steps since the run began.
        lr: The learning rate of the last step.
        loss: Mean training loss of the epoch.
        train: Metrics on the training rows met, each at the score it had when last met (or recomputed).
        valid: Metrics on the validation split, of the averaged weights where there are such.
        seconds: Time the epoch took, evaluation included.
        member: Which model of an ensemble, from 0.
    """

    stage: str
    stage_number: int
    epoch: int
    step: int
    lr: float
    loss: float
    train: Metrics | None
    valid: Metrics | None
    seconds: float
    member: int = 0

    def to_json(self) -> str:
        """Return the record as one line of JSON; what is undefined becomes null."""
        return json.dumps(plain(dataclasses.asdict(self)))

    @staticmethod
    def from_table(table: dict[str, Any]) -> Record:
        """Return the record that `dataclasses.asdict`, or a line of JSON, describes."""
        fields = dict(table)
        for split in ("train", "valid"):
            if fields[split] is not None:
                fields[split] = Metrics(**{k: math.nan if v is None else v for k, v in fields[split].items()})
        return Record(**fields)


def from_lines(text: str) -> list[Record]:
    """Return the records whose `to_json()` stand one below the other."""
    return [Record.from_table(json.loads(line)) for line in text.splitlines()]


def plain(value: Any) -> Any:
    """Return nested dicts with NaN and infinities as None, which is all that JSON knows."""
    if isinstance(value, dict):
        return {key: plain(part) for key, part in value.items()}
    return None if isinstance(value, float) and not math.isfinite(value) else value


def last_met(rows: Tensor, scores: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return every row that was met once, ascending, with the score of its greatest `order`.

    >>> last_met(torch.tensor([5, 2, 5]), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 0, 1]))
    (tensor([2, 5]), tensor([0.2000, 0.3000]))
    """
    met, place = rows.unique(return_inverse=True)
    newest = torch.full_like(met, -1).scatter_reduce_(0, place, order, "amax")
    chosen = (order == newest[place]).nonzero()[:, 0]
    result = scores.new_empty((len(met), *scores.shape[1:]))
    result[place[chosen]] = scores[chosen]
    return met, result
