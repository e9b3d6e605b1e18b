"""Network members: cross-entropy first, then average precision or cross-entropy again, in the trainer."""

from __future__ import annotations

import copy
import io
import threading
from abc import ABC, abstractmethod
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn
from torch.utils.data import TensorDataset

from apmax.committee.features import Matrix
from apmax.committee.fold_data import FoldData
from apmax.committee.linear import fit_columns
from apmax.committee.network import feasible_stage
from apmax.data.scaling import relative_weights
from apmax.models.tables import build_table_model
from apmax.train import MINED_STAGE, Data, Run, Stage, embed, fit, mined_stage, predict, sized_recipe, table_recipe
from apmax.train.selection import smooth_values
from apmax.train.weights import last_linear

_Array = NDArray[np.float64]
_RowNumbers = NDArray[np.int64]
_STAGE_SEED = 100_000


class NetworkDesign(ABC):
    """What the networks of a member read, how they are built and trained.

    By default that is rows in their original form, a data set with `subset`, and networks on the CPU.

    Attributes:
        accelerator: As in Lightning Fabric; "auto" trains and scores on a GPU if there is one.
    """

    accelerator: ClassVar[str] = "cpu"

    @property
    def selects(self) -> bool:
        """Whether held-out rows select the epoch; otherwise networks learn from all rows, to the last epoch."""
        return True

    @property
    def own_code(self) -> bool:
        """Whether `build` calls code of the user's own, which may not know the device "meta"."""
        return False

    def architecture(self, data: FoldData) -> Mapping[str, Any]:  # noqa: ARG002 - overridden
        """Return what the networks of a fold are built from, as plain values that are saved with them."""
        return {}

    @abstractmethod
    def build(self, architecture: Mapping[str, Any], prior: float | None) -> nn.Module:
        """Return a new network of an architecture, begun at the share of positives if that is given."""

    def begin(self, network: nn.Module) -> nn.Module:
        """Return a new network as it is trained from, such as with pretrained weights."""
        return network

    @abstractmethod
    def stages(self, rows: int, positives: int) -> tuple[Stage, ...]:
        """Return the two stages for a number of rows and of positives."""

    def rows(self, data: FoldData) -> Any:
        """Return the rows of a fold in the form that the member scores."""
        return data.rows

    def take(self, rows: Any, places: _RowNumbers) -> Any:
        """Return some of the rows."""
        return rows.subset(places)

    def dataset(self, rows: Any) -> Any:
        """Return the rows as a torch data set."""
        return rows

    def augmented(self, dataset: Any, seed: int) -> Any:  # noqa: ARG002 - overridden
        """Return a data set as it is trained on, changed at random by a seed."""
        return dataset

    @abstractmethod
    def batch_size(self, rows: Any) -> int:
        """Return how many of the rows are scored at a time."""

    def placed(self, network: nn.Module) -> nn.Module:
        """Return the network on the device that it scores on."""
        return network.to("cuda") if self.accelerator == "auto" and torch.cuda.is_available() else network


class Perceptron(NetworkDesign):
    """Two hidden layers on the encoded columns; the folds' networks are averaged."""

    def architecture(self, data: FoldData) -> Mapping[str, Any]:
        """Return the numbers of codes of the columns."""
        return {"sizes": [int(size) for size in data.sizes]}

    def build(self, architecture: Mapping[str, Any], prior: float | None) -> nn.Module:
        """Return a new perceptron."""
        return build_table_model("mlp", [int(size) for size in architecture["sizes"]], prior=prior)

    def stages(self, rows: int, positives: int) -> tuple[Stage, ...]:
        """Return the short form of the recipe of tables."""
        return table_recipe(rows, positives, averaged=True)

    def rows(self, data: FoldData) -> Matrix:
        """Return the encoded rows."""
        return data.matrix

    def take(self, rows: Matrix, places: _RowNumbers) -> Matrix:
        """Return some of the rows."""
        return rows[places]

    def dataset(self, rows: Matrix) -> TensorDataset:
        """Return the rows as tensors."""
        return TensorDataset(torch.from_numpy(np.ascontiguousarray(rows)))

    def batch_size(self, rows: Matrix) -> int:  # noqa: ARG002 - of any size
        """Return a number for rows of any size."""
        return 8192


class MoleculeNetwork(NetworkDesign):
    """GINE on molecular graphs, which reads a `MoleculeDataset`."""

    def build(self, architecture: Mapping[str, Any], prior: float | None) -> nn.Module:  # noqa: ARG002
        """Return a new network."""
        # Imported here, because it brings the readers of molecules and pyarrow, which tables as arrays do not need.
        from apmax.models.graphs import GRAPH_MODELS

        return GRAPH_MODELS["gine"](_GRAPH_WIDTH, 1)

    def stages(self, rows: int, positives: int) -> tuple[Stage, ...]:
        """Return a shorter form of the recipe of `apmax train --model gine`: the folds' networks are averaged."""
        return sized_recipe(rows, positives, steps=_GRAPH_STEPS, joint_steps=_GRAPH_JOINT_STEPS, least_epochs=5)

    def batch_size(self, rows: Any) -> int:  # noqa: ARG002 - of any size
        """Return a number for molecules of any size."""
        return 1024


_GRAPH_WIDTH = 64
_GRAPH_STEPS, _GRAPH_JOINT_STEPS = 6000, 1000
PERCEPTRON, GRAPH_NETWORK = Perceptron(), MoleculeNetwork()
# A large network takes all cores for a batch: several at a time would be no faster and take more memory.
_SCORING = threading.Lock()


@dataclass(frozen=True)
class NetworkMember:
    """A network of the trainer.

    Attributes:
        architecture: What it was built from.
        network: The network.
        rounds: Numbers of epochs of its stages.
        design: How it is built and what it reads.
    """

    architecture: Mapping[str, Any]
    network: nn.Module
    rounds: tuple[int, ...] = ()
    design: NetworkDesign = PERCEPTRON

    def score(self, rows: Any) -> _Array:
        """Return the network's scores."""
        design = self.design
        with _SCORING if design.accelerator == "auto" else nullcontext():
            network = design.placed(self.network)
            scores = predict(network, design.dataset(rows), batch_size=design.batch_size(rows))
        return scores.double().numpy()

    def to_bytes(self) -> bytes:
        """Return architecture and weights, for `torch.load(weights_only=True)`."""
        buffer = io.BytesIO()
        weights = {name: value.cpu() for name, value in self.network.state_dict().items()}
        content = {"architecture": dict(self.architecture), "rounds": list(self.rounds), "weights": weights}
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
            architecture, rounds = dict(saved["architecture"]), tuple(int(value) for value in saved["rounds"])
            # Shapes first, which take no memory: an architecture of unknown origin may ask for any amount of it.
            with torch.device("cpu" if design.own_code else "meta"):
                expected = design.build(architecture, None).state_dict()
            if {name: value.shape for name, value in saved["weights"].items()} != {
                name: value.shape for name, value in expected.items()
            }:
                raise ValueError(f"its weights are not those of the architecture {architecture}")
            network = design.build(architecture, None)
            network.load_state_dict(saved["weights"])
        except Exception as error:  # what torch raises for foreign bytes depends on the first of them
            raise ValueError(f"not a network member: {str(error).splitlines()[:1]}") from None
        return NetworkMember(architecture, network.eval(), rounds, design)


class _TrainedStage(NamedTuple):
    """The selected network of a stage, its epoch and its smoothed validation AP."""

    network: nn.Module
    epoch: int
    value: float


def fit_network_member(data: FoldData, *, loss: str, design: NetworkDesign = PERCEPTRON) -> NetworkMember:
    """Fit a network: cross-entropy first, which the members of all losses share, then "ap", "ce" or "ce_mined"."""
    start = _first_stage(data, design)
    # The same number of epochs for all losses, so that the verdict compares losses and not the length of training.
    end = _train_stage(data, design, copy.deepcopy(start.network), 1, loss)
    best, rounds = (start, (start.epoch, 0)) if start.value >= end.value else (end, (start.epoch, end.epoch))
    return NetworkMember(design.architecture(data), copy.deepcopy(best.network), data.rounds or rounds, design)


def fit_head(data: FoldData, *, design: NetworkDesign) -> NetworkMember:
    """Fit the last layer of the cross-entropy network by exact average precision over all rows of the fold.

    The network of the first stage is that of the other members; what its last layer reads is computed once.
    """
    start, rows = _first_stage(data, design), design.rows(data)
    # Not in the cache folder: no other fit has these weights.
    network = design.placed(copy.deepcopy(start.network))
    features = embed(network, design.dataset(rows), batch_size=design.batch_size(rows)).double().numpy()
    weight, intercept = fit_columns(features, data.labels, data.sample_weight, loss="ap")
    head = last_linear(network.cpu())
    with torch.no_grad():
        head.weight.copy_(torch.from_numpy(weight)[None])
        if head.bias is not None:
            head.bias.fill_(intercept)
    return NetworkMember(design.architecture(data), network, data.rounds or (start.epoch,), design)


def _first_stage(data: FoldData, design: NetworkDesign) -> _TrainedStage:
    """Return the cross-entropy network of a fold, which several members begin from."""
    key = (type(design), data.seed, data.rounds and data.rounds[0])
    if key not in data.shared:
        data.shared[key] = _train_stage(data, design, _new_network(data, design), 0)
    found: _TrainedStage = data.shared[key]
    return found


def _training_rows(data: FoldData, design: NetworkDesign) -> _RowNumbers:
    if data.rounds is not None or data.stopping is None or not design.selects:
        return np.arange(len(data.labels))
    return data.stopping[0]


def _new_network(data: FoldData, design: NetworkDesign) -> nn.Module:
    train = _training_rows(data, design)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(data.seed)
        network = design.build(design.architecture(data), data.labels[train].sum() / len(train))
    return design.begin(network)


def _with_loss(stage: Stage, loss: str | None) -> Stage:
    """Return the stage with cross-entropy, on its own batches or on mined negatives; of average precision as it is."""
    if loss == MINED_STAGE:
        return mined_stage(stage)
    return replace(stage, loss={"ce": 1.0}, name="") if loss == "ce" else stage


def _train_stage(
    data: FoldData, design: NetworkDesign, network: nn.Module, number: int, loss: str | None = None
) -> _TrainedStage:
    """Train a stage of the recipe, of its own or another loss; validation selects the epoch, or rounds are fixed."""
    train, every = _training_rows(data, design), design.rows(data)
    labels = torch.from_numpy(data.labels).float()
    positives = int(data.labels[train].sum())
    stage = _with_loss(design.stages(len(train), positives)[number], loss)
    stage = feasible_stage(stage, len(train), positives)
    fixed = None if data.rounds is None else data.rounds[number]
    if fixed == 0:
        return _TrainedStage(network, 0, -np.inf)
    held_out: dict[str, Any] = {}
    if fixed is not None:
        # Without a validation split the last epoch is taken.
        stage = replace(stage, epochs=fixed, patience=None)
    elif design.selects:
        valid = train if data.stopping is None else data.stopping[1]
        held_out = {
            "valid": design.dataset(design.take(every, valid)),
            "valid_labels": labels[valid],
            "valid_sample_weight": relative_weights(data.sample_weight[valid]),
        }
    # Another seed for the second stage: its batches are not those of the first.
    seed = data.seed + _STAGE_SEED * number
    rows = Data(
        design.augmented(design.dataset(design.take(every, train)), seed),
        labels=labels[train],
        sample_weight=relative_weights(data.sample_weight[train]),
        **held_out,
    )
    run = Run(stages=(stage,), seed=seed, accelerator=design.accelerator, train_metrics="none")
    run = replace(run, eval_batch_size=min(run.eval_batch_size, design.batch_size(every)))
    found = fit(network, rows, run)
    values = smooth_values([record.valid.ap for record in found.records if record.valid is not None], stage.smooth)
    best = max(values, default=float(number))
    return _TrainedStage(found.model.cpu(), values.index(best) + 1 if values else len(found.records), best)
