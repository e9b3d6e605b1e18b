"""Any torch module on a table, by the project's own trainer."""

from __future__ import annotations

import copy
import dataclasses
import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from apmax.estimator import rows as rows_of
from apmax.models.tables import MLP
from apmax.train import RECIPES, Data, Record, Run, Sampler, Stage, fit

Array = NDArray[np.float64]
LEARNING_RATES = {"adam": 1e-3, "sgd": 1e-2}
_MOMENTUM = 0.9
_STEPS, _PATIENT_STEPS, _FEWEST_EPOCHS, _MOST_EPOCHS = 1000, 400, 20, 200


def build_module(module: Any, hidden: Sequence[int], features: int, *, share: float, seed: int) -> nn.Module:
    """Return the network to train: a copy of `module`, what it makes of the number of features, or a perceptron.

    The perceptron's first scores are about the log-odds of the positives' `share`. Otherwise hundreds of steps are lost
    on that one number first, and selection by average precision sees nothing but noise.

    >>> [tuple(weight.shape) for weight in build_module(None, (4,), 2, share=0.1, seed=0).parameters()]
    [(4, 2), (4,), (1, 4), (1,)]
    """
    if isinstance(module, nn.Module):
        return copy.deepcopy(module)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = _perceptron(features, hidden, share) if module is None else module(features)
    if not isinstance(network, nn.Module):
        raise TypeError(f"module must be a torch module or make one from the number of features, got {network!r}")
    return network


def _perceptron(features: int, hidden: Sequence[int], share: float) -> nn.Module:
    network = MLP([0] * features, hidden=hidden)
    nn.init.constant_(network.head.bias, math.log(share / (1 - share)))
    return network


def two_stages(
    loss: str,
    *,
    solver: str,
    lr: float | None,
    epochs: int | None,
    batch_size: int,
    num_pos: int,
    weight_decay: float,
    rows: int,
) -> tuple[Stage, ...]:
    """Return cross-entropy and then `loss`: "ap" jointly with cross-entropy (the default recipe), others alone.

    Without `epochs` there are at least 20, and on small tables as many as make a thousand steps, 200 at most. The first
    stage ends early after 10 epochs and 400 steps without a better validation.

    >>> stages = two_stages("focal", solver="adam", lr=None, epochs=None, batch_size=128, num_pos=16,
    ...                     weight_decay=0.0, rows=4000)
    >>> [(stage.name, stage.epochs) for stage in stages]
    [('ce', 32), ('focal', 4)]
    """
    batches = math.ceil(rows / batch_size)
    if epochs is None:
        epochs = min(_MOST_EPOCHS, max(_FEWEST_EPOCHS, math.ceil(_STEPS / batches)))
    stages = RECIPES["default"](
        lr=LEARNING_RATES[solver] if lr is None else lr,
        epochs=epochs,
        joint_epochs=max(3, epochs // 8),
        batch_size=batch_size,
        num_pos=num_pos,
        weight_decay=weight_decay,
        optimizer=solver,
        patience=max(10, math.ceil(_PATIENT_STEPS / batches)),
    )
    if solver == "sgd":
        rules = [dataclasses.replace(stage.optimizer, momentum=_MOMENTUM) for stage in stages]
        stages = tuple(dataclasses.replace(s, optimizer=rule) for s, rule in zip(stages, rules, strict=True))
    if loss == "ce":
        return stages[:1]
    return stages if loss == "ap" else (stages[0], dataclasses.replace(stages[1], loss=loss, name=""))


def train_network(
    network: nn.Module,
    table: Any,
    labels: Array,
    sample_weight: Array,
    *,
    parts: tuple[NDArray[np.int64], NDArray[np.int64]],
    stages: Callable[[int], Sequence[Any]],
    seed: int,
    accelerator: str,
    progress: bool,
) -> tuple[nn.Module, list[Record]]:
    """Train on the first of `parts`, select by average precision on the second; return model and records.

    The model comes back on the CPU and in float64.

    Args:
        network: Trained in place.
        table: (n, d), dense or sparse.
        labels: (n,) of 0/1.
        sample_weight: (n,) positive; weighs rows in the losses and in the average precision that selects.
        parts: The rows to train on and those to select by.
        stages: The stages of the run, from the number of training rows.
        seed: Everything random follows from it.
        accelerator: As in Lightning Fabric.
        progress: Show the epochs.
    """
    (train, valid), truth = parts, torch.from_numpy(labels).float()
    data = Data(
        rows_of.dataset(table[train].astype(np.float32)),
        rows_of.dataset(table[valid].astype(np.float32)),
        labels=truth[train],
        valid_labels=truth[valid],
        sample_weight=rows_of.relative(sample_weight[train]),
        valid_sample_weight=rows_of.relative(sample_weight[valid]),
    )
    positives = int(truth[train].sum())
    fitting = tuple(feasible(stage, len(train), positives) for stage in stages(len(train)))
    result = fit(network, data, Run(stages=fitting, seed=seed, accelerator=accelerator), progress=progress)
    # In float64 a row's score does not depend on the rows it is scored with, to seven digits and more.
    return result.model.cpu().double(), result.records


def feasible(stage: Any, rows: int, positives: int) -> Any:
    """Return the stage with no more positives in a batch than there are, and room for a negative beside them."""
    sampler = getattr(stage, "sampler", None)
    if not isinstance(sampler, Sampler) or sampler.name != "positive":
        return stage
    size = min(sampler.batch_size, rows)
    num_pos = min(sampler.num_pos, positives, max(1, size - 1))
    return dataclasses.replace(stage, sampler=dataclasses.replace(sampler, num_pos=num_pos))
