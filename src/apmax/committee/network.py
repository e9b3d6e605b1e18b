"""Network solver: a torch module trained on a table with the stack of `apmax train`.

The parts are those of the command line: `split_stratified`, `RobustScale`, `build_table_model`, `table_recipe` and
`fit`. The same rows, seed and options give the same scores.
"""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from apmax.committee.linear import column_moments
from apmax.data import RobustScale, split_stratified
from apmax.data.scaling import relative_weights
from apmax.models.tables import build_table_model
from apmax.train import MINED_STAGE, Data, Optimizer, Record, Run, Sampler, Stage, fit, mined_stage, table_recipe

_Array = NDArray[np.float64]
_RowNumbers = NDArray[np.int64]
_SGD_LEARNING_RATE = 1e-2
_SGD_MOMENTUM = 0.9


class NetworkFit(NamedTuple):
    """Trained network (on the CPU, in float64), column scales, records of the epochs, and the held-out rows."""

    network: nn.Module
    scales: ColumnScales
    records: list[Record]
    held_out: _RowNumbers


class ColumnScales(NamedTuple):
    """Scales of all columns: robust ones of a dense table, divisors alone of a sparse table, which stays sparse."""

    dense: tuple[RobustScale, ...] | None
    inverse: _Array | None

    @staticmethod
    def fit(X: Any, sample_weight: _Array) -> ColumnScales:
        """Fit the scales to training rows; a row of weight 2 counts as two rows."""
        if sparse.issparse(X):
            return ColumnScales(None, column_moments(X, sample_weight).inverse)
        weight = relative_weights(sample_weight)
        return ColumnScales(tuple(RobustScale.fit(column, weight) for column in X.T), None)

    def apply(self, X: Any) -> Any:
        """Return the scaled table, dense or sparse as it is stored; both forms can be given to either fit."""
        if self.dense is None:
            return (X @ sparse.diags(self.inverse)).tocsr() if sparse.issparse(X) else X * self.inverse
        table = X.toarray() if sparse.issparse(X) else X
        return np.stack([scale(column) for scale, column in zip(self.dense, table.T, strict=True)], axis=1)


class SparseRows(Dataset[Tensor]):
    """Data set of the rows of a sparse table; batches are made dense when they are read."""

    def __init__(self, table: Any) -> None:
        self.table = table.tocsr()

    def __len__(self) -> int:
        return int(self.table.shape[0])

    def __getitem__(self, row: int) -> Tensor:
        return self.__getitems__([row])[0]

    def __getitems__(self, rows: list[int]) -> Tensor:
        """Return these rows, (len(rows), d)."""
        return torch.from_numpy(self.table[rows].toarray())

    @staticmethod
    def collate(batch: Tensor) -> Tensor:
        """Return the batch, which is a tensor already."""
        return batch


def row_dataset(table: Any) -> Dataset[Any]:
    """Return the rows of a dense or sparse table as a torch data set."""
    return SparseRows(table) if sparse.issparse(table) else TensorDataset(torch.from_numpy(np.ascontiguousarray(table)))


def hold_out_rows(labels: _Array, share: float, seed: int) -> tuple[_RowNumbers, _RowNumbers]:
    """Return the training rows and the held-out rows, stratified by class.

    A class of one row cannot be divided; then all rows are in both parts.

    >>> train, held_out = hold_out_rows(np.array([0.0] * 8 + [1.0] * 2), 0.25, seed=0)
    >>> len(train), len(held_out)
    (7, 3)
    """
    if min((labels == 0).sum(), (labels == 1).sum()) < 2:
        return np.arange(len(labels)), np.arange(len(labels))
    return split_stratified(labels, share, seed=seed)


def build_network(
    module: Any, features: int, *, hidden: Sequence[int] | None = None, prior: float | None = None, seed: int
) -> nn.Module:
    """Return the network to train.

    Args:
        module: A torch module, which is copied; a function that makes one from the number of features; or None for a
            perceptron, a linear model if `hidden` is empty.
        features: Number of columns.
        hidden: Widths of the perceptron's hidden layers; None for the default of `MLP`.
        prior: Share of positives, at whose log-odds the perceptron starts.
        seed: Seed of the initial weights.

    Raises:
        TypeError: The function does not return a torch module.

    >>> [tuple(weight.shape) for weight in build_network(None, 2, hidden=(4,), prior=0.1, seed=0).parameters()]
    [(4, 2), (4,), (1, 4), (1,)]
    """
    if isinstance(module, nn.Module):
        return copy.deepcopy(module)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        if module is None:
            options = {} if not hidden else {"hidden": hidden}
            name = "linear" if hidden is not None and not len(hidden) else "mlp"
            return build_table_model(name, [0] * features, prior=prior, **options)
        network = module(features)
    if not isinstance(network, nn.Module):
        raise TypeError(f"module must be a torch module or make one from the number of features, got {network!r}")
    return network


def solver_stages(
    loss: str,
    *,
    solver: str,
    rows: int,
    positives: int,
    linear: bool = False,
    lr: float | None = None,
    epochs: int | None = None,
    batch_size: int | None = None,
    num_pos: int | None = None,
    weight_decay: float | None = None,
) -> tuple[Stage, ...]:
    """Return the table recipe with the options of `APClassifier`: cross-entropy, then `loss`.

    "ap" is trained together with cross-entropy, other losses alone; "ce" leaves the second stage out. With `epochs`
    given the second stage has an eighth of them, at least 3; the patience stays that of the recipe.

    >>> stages = solver_stages("focal", solver="adam", epochs=32, rows=4000, positives=100)
    >>> [(stage.name, stage.epochs) for stage in stages]
    [('ce', 32), ('focal', 4)]
    """
    recipe = table_recipe(rows, positives, model="linear" if linear else "mlp", batch_size=batch_size)
    first, second = recipe
    if lr is None:
        lr = _SGD_LEARNING_RATE if solver == "sgd" else first.optimizer.lr
    if epochs is not None:
        first = dataclasses.replace(first, epochs=epochs)
        second = dataclasses.replace(second, epochs=max(3, epochs // 8))
    if num_pos is not None:
        second = dataclasses.replace(second, sampler=dataclasses.replace(second.sampler, num_pos=num_pos))
    momentum = _SGD_MOMENTUM if solver == "sgd" else 0.0
    first, second = (
        dataclasses.replace(
            stage, optimizer=Optimizer(name=solver, lr=rate, weight_decay=weight_decay or 0.0, momentum=momentum)
        )
        for stage, rate in ((first, lr), (second, lr / 3))
    )
    if loss == "ce":
        return (first,)
    if loss == MINED_STAGE:
        return first, mined_stage(second)
    return (first, second if loss == "ap" else dataclasses.replace(second, loss=loss, name=""))


def feasible_stage(stage: Any, rows: int, positives: int) -> Any:
    """Return the stage with at most `positives` positives in a batch, and at least one negative."""
    sampler = getattr(stage, "sampler", None)
    if not isinstance(sampler, Sampler) or not sampler.has_positives:
        return stage
    size = min(sampler.batch_size, rows)
    num_pos = min(sampler.num_pos, positives, max(1, size - 1))
    return dataclasses.replace(stage, sampler=dataclasses.replace(sampler, num_pos=num_pos))


def fit_network(
    X: Any,
    labels: _Array,
    sample_weight: _Array,
    *,
    module: Any = None,
    hidden: Sequence[int] | None = None,
    stages: Sequence[Any] | None = None,
    loss: str = "ap",
    options: dict[str, Any],
    share: float,
    seed: int,
    accelerator: str,
    progress: bool,
) -> NetworkFit:
    """Train a network; average precision on held-out rows selects the epoch.

    Args:
        X: (n, d) dense or sparse.
        labels: (n,) of 0/1, both present.
        sample_weight: (n,) positive; weighs rows in the losses and in the average precision that selects.
        module: As in `build_network`.
        hidden: Likewise.
        stages: Stages to train; None for `solver_stages`.
        loss: As in `solver_stages`.
        options: Keyword arguments of `solver_stages`.
        share: Share of the rows that is held out.
        seed: Seed of the split, the initial weights and the training.
        accelerator: As in Lightning Fabric.
        progress: Show the epochs.
    """
    train, held_out = hold_out_rows(labels, share, seed)
    train_weight, train_labels = sample_weight[train], labels[train]
    scales = ColumnScales.fit(X[train], train_weight)
    network = build_network(
        module,
        X.shape[1],
        hidden=hidden,
        prior=float(train_weight @ train_labels / train_weight.sum()),
        seed=seed,
    )
    positives = int(train_labels.sum())
    if stages is None:
        linear = module is None and hidden is not None and not len(hidden)
        stages = solver_stages(loss, rows=len(train), positives=positives, linear=linear, **options)
    data = Data(
        row_dataset(scales.apply(X[train]).astype(np.float32)),
        row_dataset(scales.apply(X[held_out]).astype(np.float32)),
        labels=torch.from_numpy(train_labels).float(),
        valid_labels=torch.from_numpy(labels[held_out]).float(),
        sample_weight=relative_weights(train_weight),
        valid_sample_weight=relative_weights(sample_weight[held_out]),
    )
    feasible = tuple(feasible_stage(stage, len(train), positives) for stage in stages)
    result = fit(network, data, Run(stages=feasible, seed=seed, accelerator=accelerator), progress=progress)
    # In float64 the score of a row does not depend on the other rows of its batch, to seven digits and more.
    return NetworkFit(result.model.cpu().double(), scales, result.records, held_out)
