"""Records: the metrics of an epoch, and their JSON lines."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from apmax import functional
from apmax.metrics import ranking_metrics
from apmax.train.config import Objective


@dataclass(frozen=True)
class EpochMetrics:
    """Average precision, trapezoidal AUPRC, AUROC and the exact objective P in [-1, 0]; means over tasks.

    NaN where undefined: AUROC without negatives.
    """

    ap: float
    auprc: float
    auroc: float
    objective: float


def compute_metrics(
    scores: Tensor, labels: Tensor, *, objective: Objective | None = None, sample_weight: Tensor | None = None
) -> EpochMetrics:
    """Return AP, AUPRC, AUROC and the exact objective of `scores` of shape (n,) or (n, tasks).

    A row of `sample_weight` (n,) 2 counts as two rows.

    >>> result = compute_metrics(torch.tensor([0.9, 0.8, 0.1]), torch.tensor([1.0, 0.0, 0.0]))
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
    values = ranking_metrics(scores, labels, sample_weight=sample_weight)
    return EpochMetrics(values.ap, values.auprc, values.auroc, objective=float(exact))


@dataclass(frozen=True)
class Record:
    """One epoch of a run.

    Args:
        stage: The stage's name.
        stage_number: Its position in the run, from 0.
        epoch: The epoch within the stage, from 1.
        step: Optimiser steps since the beginning of the run.
        lr: The learning rate of the last step.
        loss: Mean training loss of the epoch.
        train: Metrics of the epoch's training rows; `Run.train_metrics` says from which scores.
        valid: Metrics of the validation split, of the averaged weights if the stage averages.
        seconds: Duration of the epoch, evaluation included.
        member: The number of the model in an ensemble, from 0.
    """

    stage: str
    stage_number: int
    epoch: int
    step: int
    lr: float
    loss: float
    train: EpochMetrics | None
    valid: EpochMetrics | None
    seconds: float
    member: int = 0

    def to_json(self) -> str:
        """Return the record as one line of JSON with null for undefined numbers."""
        return json.dumps(nan_to_none(dataclasses.asdict(self)))

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> Record:
        """Return the record of a parsed line of JSON, or of `dataclasses.asdict`."""
        fields = dict(table)
        for split in ("train", "valid"):
            if fields[split] is not None:
                numbers = {name: math.nan if value is None else value for name, value in fields[split].items()}
                fields[split] = EpochMetrics(**numbers)
        return Record(**fields)


def parse_records(text: str) -> list[Record]:
    """Return the records of a text with one `Record.to_json()` per line."""
    return [Record.from_table(json.loads(line)) for line in text.splitlines()]


def nan_to_none(value: Any) -> Any:
    """Return nested dicts and lists ready for strict JSON: string keys, and None for NaN and infinities.

    >>> nan_to_none({10: 0.5, "auroc": float("nan")})
    {'10': 0.5, 'auroc': None}
    """
    if isinstance(value, Mapping):
        return {str(key): nan_to_none(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [nan_to_none(item) for item in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def latest_scores(rows: Tensor, scores: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """Return the distinct rows, ascending, and for each the score with the greatest `order`.

    >>> latest_scores(torch.tensor([5, 2, 5]), torch.tensor([0.1, 0.2, 0.3]), torch.tensor([0, 0, 1]))
    (tensor([2, 5]), tensor([0.2000, 0.3000]))
    """
    distinct, position = rows.unique(return_inverse=True)
    latest = torch.full_like(distinct, -1).scatter_reduce_(0, position, order, "amax")
    chosen = (order == latest[position]).nonzero()[:, 0]
    result = scores.new_empty((len(distinct), *scores.shape[1:]))
    result[position[chosen]] = scores[chosen]
    return distinct, result
