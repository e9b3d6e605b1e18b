"""Network members: cross-entropy first, then average precision or cross-entropy again, in the trainer."""

from __future__ import annotations

import copy
import io
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from apmax.committee.features import Matrix
from apmax.committee.fold_data import FoldData
from apmax.committee.network import feasible_stage, relative_weights
from apmax.models.graphs import GRAPH_MODELS
from apmax.models.tables import build_table_model
from apmax.train import Data, Run, Stage, fit, predict, sized_recipe, table_recipe
from apmax.train.selection import smooth_values

_Array = NDArray[np.float64]
_RowNumbers = NDArray[np.int64]
_STAGE_SEED = 100_000


@dataclass(frozen=True)
class NetworkDesign:
    """What the networks of a member read, how they are built and trained.

    Attributes:
        name: Of the network and its training.
        build: Returns a new network for columns of these sizes, begun at the share of positives if that is given.
        stages: Returns the two stages for a number of rows and of positives.
        dataset: Returns rows in the form that the member scores as a torch data set.
        take: Returns some of the rows.
        rows: Returns the rows of a fold in the form that the member scores.
        batch_size: Rows that are scored at a time.
    """

    name: str
    build: Callable[[Sequence[int], float | None], nn.Module]
    stages: Callable[[int, int], tuple[Stage, ...]]
    dataset: Callable[[Any], Any]
    take: Callable[[Any, _RowNumbers], Any]
    rows: Callable[[FoldData], Any]
    batch_size: int


def _matrix_of(data: FoldData) -> Matrix:
    return data.matrix


def _molecules_of(data: FoldData) -> Any:
    return data.rows


def _matrix_rows(matrix: Matrix, rows: _RowNumbers) -> Matrix:
    return matrix[rows]


def _matrix_dataset(matrix: Matrix) -> TensorDataset:
    return TensorDataset(torch.from_numpy(np.ascontiguousarray(matrix)))


def _build_perceptron(sizes: Sequence[int], prior: float | None) -> nn.Module:
    return build_table_model("mlp", sizes, prior=prior)


def _subset(dataset: Any, rows: _RowNumbers) -> Any:
    return dataset.subset(rows)


def _same(dataset: Any) -> Any:
    return dataset


def _build_graph_network(sizes: Sequence[int], prior: float | None) -> nn.Module:  # noqa: ARG001 - it reads graphs
    return GRAPH_MODELS["gine"](_GRAPH_WIDTH, 1)


def _graph_stages(rows: int, positives: int) -> tuple[Stage, ...]:
    """Return a shorter form of the recipe of `apmax train --model gine`: the folds' networks are averaged."""
    return sized_recipe(rows, positives, steps=_GRAPH_STEPS, joint_steps=_GRAPH_JOINT_STEPS, least_epochs=5)


_GRAPH_WIDTH = 64
_GRAPH_STEPS, _GRAPH_JOINT_STEPS = 6000, 1000
PERCEPTRON = NetworkDesign(
    "mlp",
    _build_perceptron,
    partial(table_recipe, averaged=True),
    _matrix_dataset,
    _matrix_rows,
    _matrix_of,
    batch_size=8192,
)
"""Two hidden layers on the encoded columns; the folds' networks are averaged."""
GRAPH_NETWORK = NetworkDesign(
    "gine", _build_graph_network, _graph_stages, _same, _subset, _molecules_of, batch_size=1024
)
"""GINE on molecular graphs, which reads a `MoleculeDataset`."""


@dataclass(frozen=True)
class NetworkMember:
    """A network of the trainer."""

    sizes: tuple[int, ...]
    network: nn.Module
    rounds: tuple[int, ...] = ()
    design: NetworkDesign = PERCEPTRON

    def score(self, rows: Any) -> _Array:
        """Return the network's scores."""
        scores = predict(self.network, self.design.dataset(rows), batch_size=self.design.batch_size)
        return scores.double().numpy()

    def to_bytes(self) -> bytes:
        """Return sizes and weights, for `torch.load(weights_only=True)`."""
        buffer = io.BytesIO()
        content = {"sizes": list(self.sizes), "rounds": list(self.rounds), "weights": self.network.state_dict()}
        torch.save(content, buffer)
        return buffer.getvalue()

    @staticmethod
    def from_bytes(content: bytes, *, design: NetworkDesign = PERCEPTRON) -> NetworkMember:
        """Return the member that `to_bytes` wrote.

        Raises:
            ValueError: It is no such network.
        """
        try:
            saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            sizes, rounds = (tuple(int(value) for value in saved[name]) for name in ("sizes", "rounds"))
            network = design.build(sizes, None)
            network.load_state_dict(saved["weights"])
        except Exception as error:  # what torch raises for foreign bytes depends on the first of them
            raise ValueError(f"not a network member: {str(error).splitlines()[:1]}") from None
        return NetworkMember(sizes, network.eval(), rounds, design)


class _TrainedStage(NamedTuple):
    """The selected network of a stage, its epoch and its smoothed validation AP."""

    network: nn.Module
    epoch: int
    value: float


def fit_network_member(data: FoldData, *, loss: str, design: NetworkDesign = PERCEPTRON) -> NetworkMember:
    """Fit a network: cross-entropy first, which the members of both losses share, then the loss ("ap" or "ce")."""
    key = (design.name, data.seed, data.rounds and data.rounds[0])
    if key not in data.shared:
        data.shared[key] = _train_stage(data, design, _new_network(data, design), 0)
    start: _TrainedStage = data.shared[key]
    # The same number of epochs for both losses, so that the verdict compares losses and not the length of training.
    end = _train_stage(data, design, copy.deepcopy(start.network), 1, loss={"ce": 1.0} if loss == "ce" else None)
    best, rounds = (start, (start.epoch, 0)) if start.value >= end.value else (end, (start.epoch, end.epoch))
    return NetworkMember(tuple(data.sizes), copy.deepcopy(best.network), data.rounds or rounds, design)


def _training_rows(data: FoldData) -> _RowNumbers:
    return np.arange(len(data.labels)) if data.rounds is not None or data.stopping is None else data.stopping[0]


def _new_network(data: FoldData, design: NetworkDesign) -> nn.Module:
    train = _training_rows(data)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(data.seed)
        return design.build(data.sizes, data.labels[train].sum() / len(train))


def _train_stage(
    data: FoldData, design: NetworkDesign, network: nn.Module, number: int, loss: dict[str, float] | None = None
) -> _TrainedStage:
    """Train a stage of the recipe; validation selects the epoch, or the number of rounds is fixed."""
    train, every = _training_rows(data), design.rows(data)
    labels = torch.from_numpy(data.labels).float()
    positives = int(data.labels[train].sum())
    stage = design.stages(len(train), positives)[number]
    stage = feasible_stage(stage if loss is None else replace(stage, loss=loss, name=""), len(train), positives)
    fixed = None if data.rounds is None else data.rounds[number]
    if fixed == 0:
        return _TrainedStage(network, 0, -np.inf)
    held_out: dict[str, Any] = {}
    if fixed is None:
        valid = train if data.stopping is None else data.stopping[1]
        held_out = {
            "valid": design.dataset(design.take(every, valid)),
            "valid_labels": labels[valid],
            "valid_sample_weight": relative_weights(data.sample_weight[valid]),
        }
    else:
        # Without a validation split the last epoch is taken.
        stage = replace(stage, epochs=fixed, patience=None)
    rows = Data(
        design.dataset(design.take(every, train)),
        labels=labels[train],
        sample_weight=relative_weights(data.sample_weight[train]),
        **held_out,
    )
    # Another seed for the second stage: its batches are not those of the first.
    run = Run(stages=(stage,), seed=data.seed + _STAGE_SEED * number, accelerator="cpu")
    found = fit(network, rows, run)
    values = smooth_values([record.valid.ap for record in found.records if record.valid is not None], stage.smooth)
    best = max(values, default=float(number))
    return _TrainedStage(found.model.cpu(), values.index(best) + 1 if values else len(found.records), best)
