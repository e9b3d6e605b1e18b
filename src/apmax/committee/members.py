"""Members of a committee: the table of models that it may hold, and how each is fitted, scored and saved."""

from __future__ import annotations

import copy
import io
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import TensorDataset

from apmax import validation
from apmax.committee.features import Matrix
from apmax.committee.linear import column_moments, fit_linear
from apmax.committee.network import feasible_stage, relative_weights
from apmax.committee.trees import MOST_FOREST_ROWS, Boosting, Forest, fit_boosting, fit_forest
from apmax.data.archives import npz_content, read_npz
from apmax.models.tables import OneHot, build_table_model
from apmax.train import Data, Run, Stage, fit, predict, table_recipe
from apmax.train.selection import smooth_values

_Array = NDArray[np.float64]
_LEAST_PROBABILITY = 1e-9
_TREES = 100
_STAGE_SEED = 100_000


@dataclass(frozen=True)
class FoldData:
    """What a member is fitted to: the training rows of one fold.

    Attributes:
        matrix: Encoded rows, (n, d).
        rows: The same rows in their original form, for a user's own estimators.
        labels: (n,) of 0/1.
        sample_weight: (n,) positive.
        sizes: Per column of the matrix 0 for numbers, else the number of codes.
        stopping: Rows to fit and rows to stop or select by; None where there are too few positives for that.
        seed: Of everything random.
        rounds: Fixed numbers of rounds, of each stage for networks, to fit all rows with instead of stopping.
        threads: Number of threads that a fit may use if the result does not depend on it.
        shared: What members of the same fold have in common and need to compute once only, by their own keys.
    """

    matrix: Matrix
    rows: Any
    labels: _Array
    sample_weight: _Array
    sizes: Sequence[int]
    stopping: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    seed: int
    rounds: tuple[int, ...] | None = None
    threads: int = 1
    shared: dict[Any, Any] = field(default_factory=dict)


class FittedMember(Protocol):
    """A member that was fitted to one fold."""

    @property
    def rounds(self) -> tuple[int, ...]:
        """Numbers of rounds that stopping found, of each stage for networks; empty without stopping."""

    def score(self, matrix: Matrix) -> _Array:
        """Return a score for each row, log-odds where the member has probabilities."""

    def to_bytes(self) -> bytes:
        """Return the member in a form whose reading executes no code."""


@dataclass(frozen=True)
class LinearMember:
    """A weighted sum of the encoded columns, categories written out as zeros and ones."""

    sizes: tuple[int, ...]
    weight: _Array
    intercept: float

    @property
    def rounds(self) -> tuple[int, ...]:
        """Empty: there is no stopping."""
        return ()

    def score(self, matrix: Matrix) -> _Array:
        """Return the weighted sums."""
        return one_hot(matrix, self.sizes).astype(np.float64) @ self.weight + self.intercept

    def to_bytes(self) -> bytes:
        """Return the weights as an .npz file."""
        return npz_content(sizes=np.array(self.sizes), weight=self.weight, intercept=self.intercept)

    @staticmethod
    def from_bytes(content: bytes) -> LinearMember:
        """Return the member that `to_bytes` wrote."""
        arrays = read_npz(io.BytesIO(content), ("sizes", "weight", "intercept"))
        sizes = tuple(int(size) for size in arrays["sizes"])
        weight = arrays["weight"].astype(np.float64)
        if weight.shape != (OneHot(sizes).width,):
            raise ValueError(f"not a linear member: {len(weight)} weights for {OneHot(sizes).width} columns")
        return LinearMember(sizes, weight, float(arrays["intercept"]))


@dataclass(frozen=True)
class NetworkMember:
    """A perceptron of the trainer."""

    sizes: tuple[int, ...]
    network: torch.nn.Module
    rounds: tuple[int, ...] = ()

    def score(self, matrix: Matrix) -> _Array:
        """Return the network's scores."""
        scores = predict(self.network, TensorDataset(torch.from_numpy(np.ascontiguousarray(matrix))), batch_size=8192)
        return scores.double().numpy()

    def to_bytes(self) -> bytes:
        """Return sizes and weights, for `torch.load(weights_only=True)`."""
        buffer = io.BytesIO()
        content = {"sizes": list(self.sizes), "rounds": list(self.rounds), "weights": self.network.state_dict()}
        torch.save(content, buffer)
        return buffer.getvalue()

    @staticmethod
    def from_bytes(content: bytes) -> NetworkMember:
        """Return the member that `to_bytes` wrote.

        Raises:
            ValueError: It is no such network.
        """
        try:
            saved = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
            sizes, rounds = (tuple(int(value) for value in saved[name]) for name in ("sizes", "rounds"))
            network = build_table_model("mlp", sizes)
            network.load_state_dict(saved["weights"])
        except Exception as error:  # what torch raises for foreign bytes depends on the first of them
            raise ValueError(f"not a network member: {str(error).splitlines()[:1]}") from None
        return NetworkMember(sizes, network.eval(), rounds)


@dataclass(frozen=True)
class EstimatorMember:
    """A user's own scikit-learn estimator; it scores the rows in their original form and cannot be saved."""

    estimator: Any

    @property
    def rounds(self) -> tuple[int, ...]:
        """Empty: there is no stopping."""
        return ()

    def score(self, rows: Any) -> _Array:
        """Return decision values, or the log-odds of probabilities."""
        if hasattr(self.estimator, "decision_function"):
            return np.asarray(self.estimator.decision_function(rows), np.float64)
        probability = np.clip(self.estimator.predict_proba(rows)[:, 1], _LEAST_PROBABILITY, 1 - _LEAST_PROBABILITY)
        return np.asarray(np.log(probability / (1 - probability)), np.float64)

    def to_bytes(self) -> bytes:
        """Raise: how a foreign estimator is saved is not known."""
        name = type(self.estimator).__name__
        raise ValueError(f"members: {name} is an estimator of your own, and apmax cannot save it without pickle")


EFFORTS = ("quick", "standard", "best")
"""How much a committee may take: one member on one split; all on several folds; more folds, trees and seeds."""


@dataclass(frozen=True)
class Cost:
    """Time of one fit and the scoring of its held-out rows, measured on one core; for plans."""

    fixed: float
    per_row: float
    per_value: float
    most_rows: float = math.inf

    def seconds(self, rows: float, columns: int) -> float:
        """Return the estimated time for this many training rows, of which at most `most_rows` count."""
        return self.fixed + min(rows, self.most_rows) * (self.per_row + columns * self.per_value)

    def times(self, factor: float) -> Cost:
        """Return the cost of so many fits."""
        return Cost(factor * self.fixed, factor * self.per_row, factor * self.per_value, self.most_rows)


@dataclass(frozen=True)
class Member:
    """An entry of the table of members.

    Attributes:
        fit: Fits the member to one fold.
        read: Restores a fitted one from its bytes; None for a user's own estimators.
        suffix: Of its files.
        cost: Estimated time of one fit.
        raw: Whether it scores rows in their original form.
        serial: Whether its fits are Python code, which threads do not speed up, or seed global generators.
        effort: The effort that `fit` makes and `read` expects.
    """

    fit: Callable[[FoldData], FittedMember]
    read: Callable[[bytes], FittedMember] | None
    suffix: str
    cost: Cost
    raw: bool = False
    serial: bool = False
    effort: str = "standard"


def one_hot(matrix: Matrix, sizes: Sequence[int]) -> Matrix:
    """Return the matrix with every column of codes written out as zeros and ones.

    >>> one_hot(np.array([[0.5, 1.0], [1.5, -1.0]], np.float32), [0, 2]).tolist()
    [[0.5, 0.0, 1.0], [1.5, 0.0, 0.0]]
    """
    if not any(sizes):
        return matrix
    written_out: Matrix = OneHot(sizes)(torch.from_numpy(matrix)).numpy()
    return written_out


def _fit_gbdt(data: FoldData, *, parameters: Mapping[str, Any] | None = None, **options: Any) -> Boosting:
    return fit_boosting(
        data.matrix,
        data.labels,
        data.sample_weight,
        sizes=data.sizes,
        stopping=data.stopping,
        seed=data.seed,
        rounds=None if data.rounds is None else data.rounds[0],
        parameters={"num_threads": data.threads, **(parameters or {})},
        **options,
    )


@dataclass(frozen=True)
class _OneHotForest:
    """A forest on columns whose categories are written out."""

    sizes: tuple[int, ...]
    forest: Forest

    @property
    def rounds(self) -> tuple[int, ...]:
        return ()

    def score(self, matrix: Matrix) -> _Array:
        return self.forest.score(one_hot(matrix, self.sizes))

    def to_bytes(self) -> bytes:
        return npz_content(sizes=np.array(self.sizes), forest=np.frombuffer(self.forest.to_bytes(), np.uint8))

    @staticmethod
    def from_bytes(content: bytes) -> _OneHotForest:
        arrays = read_npz(io.BytesIO(content), ("sizes", "forest"))
        sizes = tuple(int(size) for size in arrays["sizes"])
        forest = Forest.from_bytes(arrays["forest"].astype(np.uint8).tobytes())
        if forest.features != OneHot(sizes).width:
            raise ValueError(f"not a forest: it reads {forest.features} columns of {OneHot(sizes).width}")
        return _OneHotForest(sizes, forest)


def _fit_forest(data: FoldData, *, kind: str, trees: int = _TREES) -> FittedMember:
    matrix = one_hot(data.matrix, data.sizes)
    forest = fit_forest(matrix, data.labels, data.sample_weight, kind=kind, trees=trees, seed=data.seed)
    return _OneHotForest(tuple(data.sizes), forest)


def _fit_linear(data: FoldData, *, loss: str) -> FittedMember:
    matrix = one_hot(data.matrix, data.sizes).astype(np.float64)
    moments = column_moments(matrix, data.sample_weight)
    found = fit_linear(matrix, data.labels, data.sample_weight, moments, loss=loss)
    weight = found.weight * moments.inverse
    return LinearMember(tuple(data.sizes), weight, float(-moments.mean @ weight))


def _fit_network(data: FoldData, *, loss: str, averaged: bool = True) -> FittedMember:
    """Fit the perceptron: cross-entropy first, which the members of both losses share, then the loss."""
    recipe = partial(table_recipe, averaged=averaged)
    key = ("network", averaged, data.seed, data.rounds and data.rounds[0])
    if key not in data.shared:
        data.shared[key] = _train_stage(data, _new_network(data), recipe, 0)
    start: _TrainedStage = data.shared[key]
    # The same number of epochs for both losses, so that the verdict compares losses and not the length of training.
    end = _train_stage(data, copy.deepcopy(start.network), recipe, 1, loss={"ce": 1.0} if loss == "ce" else None)
    best, rounds = (start, (start.epoch, 0)) if start.value >= end.value else (end, (start.epoch, end.epoch))
    return NetworkMember(tuple(data.sizes), copy.deepcopy(best.network), data.rounds or rounds)


class _TrainedStage(NamedTuple):
    """The selected network of a stage, its epoch and its smoothed validation AP."""

    network: torch.nn.Module
    epoch: int
    value: float


def _network_rows(data: FoldData) -> NDArray[np.int64]:
    return np.arange(len(data.labels)) if data.rounds is not None or data.stopping is None else data.stopping[0]


def _new_network(data: FoldData) -> torch.nn.Module:
    train = _network_rows(data)
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(data.seed)
        return build_table_model("mlp", data.sizes, prior=data.labels[train].sum() / len(train))


def _train_stage(
    data: FoldData,
    network: torch.nn.Module,
    recipe: Callable[[int, int], Sequence[Stage]],
    number: int,
    loss: dict[str, float] | None = None,
) -> _TrainedStage:
    """Train a stage of a recipe; validation selects the epoch, or the number of rounds is fixed."""
    train = _network_rows(data)
    labels, matrix = torch.from_numpy(data.labels).float(), torch.from_numpy(np.ascontiguousarray(data.matrix))
    positives = int(data.labels[train].sum())
    stage = recipe(len(train), positives)[number]
    stage = feasible_stage(stage if loss is None else replace(stage, loss=loss, name=""), len(train), positives)
    fixed = None if data.rounds is None else data.rounds[number]
    if fixed == 0:
        return _TrainedStage(network, 0, -np.inf)
    held_out: dict[str, Any] = {}
    if fixed is None:
        valid = train if data.stopping is None else data.stopping[1]
        held_out = {
            "valid": TensorDataset(matrix[valid]),
            "valid_labels": labels[valid],
            "valid_sample_weight": relative_weights(data.sample_weight[valid]),
        }
    else:
        # Without a validation split the last epoch is taken.
        stage = replace(stage, epochs=fixed, patience=None)
    rows = Data(
        TensorDataset(matrix[train]),
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


@dataclass(frozen=True)
class SeedAverage:
    """A member that was fitted several times with different seeds; its score is the mean."""

    parts: tuple[FittedMember, ...]

    @property
    def rounds(self) -> tuple[int, ...]:
        """The rounds of the first part."""
        return self.parts[0].rounds

    def score(self, matrix: Matrix) -> _Array:
        """Return the mean of the parts' scores."""
        mean: _Array = np.mean([part.score(matrix) for part in self.parts], axis=0)
        return mean

    def to_bytes(self) -> bytes:
        """Return the bytes of the parts as arrays of an .npz file."""
        parts = {f"part{number}": np.frombuffer(part.to_bytes(), np.uint8) for number, part in enumerate(self.parts)}
        return npz_content(**parts)

    @staticmethod
    def from_bytes(content: bytes, *, read: Callable[[bytes], FittedMember]) -> SeedAverage:
        """Return the member that `to_bytes` wrote; `read` restores a part."""
        names = [f"part{number}" for number in range(_BEST_SEEDS)]
        arrays = read_npz(io.BytesIO(content), names)
        return SeedAverage(tuple(read(arrays[name].astype(np.uint8).tobytes()) for name in names))


def _fit_seeds(data: FoldData, *, fit: Callable[[FoldData], FittedMember]) -> FittedMember:
    # Seeds of the folds are consecutive; these stay apart from them.
    return SeedAverage(tuple(fit(replace(data, seed=data.seed + 1000 * number)) for number in range(_BEST_SEEDS)))


def _fit_own(data: FoldData, *, estimator: Any) -> FittedMember:
    from sklearn.base import clone  # type: ignore[import-untyped]
    from sklearn.utils.validation import has_fit_parameter  # type: ignore[import-untyped]

    copy = clone(estimator)
    if np.ptp(data.sample_weight) == 0:
        return EstimatorMember(copy.fit(data.rows, data.labels))
    if not has_fit_parameter(copy, "sample_weight"):
        raise ValueError(f"members: {type(copy).__name__} takes no sample_weight; leave it out or fit unweighted")
    return EstimatorMember(copy.fit(data.rows, data.labels, sample_weight=data.sample_weight))


_COSTS = {
    "gbdt": Cost(0.2, 5e-6, 1.7e-6),
    "forest": Cost(0.3, 3e-4, 1e-5, MOST_FOREST_ROWS),
    "trees": Cost(0.2, 5e-5, 2e-6, MOST_FOREST_ROWS),
    "linear": Cost(0.05, 2e-6, 1e-7),
    "mlp": Cost(1.1, 6e-5, 0.0),
    "linear_ce": Cost(0.01, 5e-7, 2e-8),
    # Beside mlp, whose first stage it shares.
    "mlp_ce": Cost(0.3, 1.6e-5, 0.0),
}

MEMBERS: dict[str, Member] = {
    "gbdt": Member(_fit_gbdt, Boosting.from_bytes, ".txt", _COSTS["gbdt"]),
    "forest": Member(partial(_fit_forest, kind="forest"), _OneHotForest.from_bytes, ".npz", _COSTS["forest"]),
    "trees": Member(partial(_fit_forest, kind="trees"), _OneHotForest.from_bytes, ".npz", _COSTS["trees"]),
    "linear": Member(partial(_fit_linear, loss="ap"), LinearMember.from_bytes, ".npz", _COSTS["linear"]),
    "mlp": Member(partial(_fit_network, loss="ap"), NetworkMember.from_bytes, ".pt", _COSTS["mlp"], serial=True),
    "linear_ce": Member(partial(_fit_linear, loss="ce"), LinearMember.from_bytes, ".npz", _COSTS["linear_ce"]),
    "mlp_ce": Member(partial(_fit_network, loss="ce"), NetworkMember.from_bytes, ".pt", _COSTS["mlp_ce"], serial=True),
}
"""Members for tables by name."""

LOSS_PAIRS = (("linear", "linear_ce"), ("mlp", "mlp_ce"))
"""Members that differ in their loss only: average precision against cross-entropy."""


_OWN_COST = Cost(1.0, 1e-5, 1e-5)
_BEST_SEEDS, _BEST_TREES = 3, 400


def _at_best(name: str) -> Member:
    """Return a member with more trees or, where chance decides, the mean of several seeds."""
    member = MEMBERS[name]
    if name in ("forest", "trees"):
        fit = partial(_fit_forest, kind=name, trees=_BEST_TREES)
        return replace(member, fit=fit, cost=member.cost.times(_BEST_TREES / _TREES), effort="best")
    if name in ("linear", "linear_ce"):
        return replace(member, effort="best")
    assert member.read is not None
    return Member(
        partial(_fit_seeds, fit=member.fit),
        partial(SeedAverage.from_bytes, read=member.read),
        ".npz",
        member.cost.times(_BEST_SEEDS),
        serial=member.serial,
        effort="best",
    )


def find_members(members: Any, *, effort: str = "standard") -> dict[str, Member]:
    """Return members by name.

    Args:
        members: None for all of `MEMBERS`; or a list of their names and of pairs (name, estimator).
        effort: One of `EFFORTS`. With "best", forests have 400 trees instead of 100, and gradient boosting and
            networks are the mean of three seeds.

    Raises:
        ValueError: An unknown name, one twice, or none at all.
    """
    validation.choice("effort", effort, EFFORTS)
    found: dict[str, Member] = {}
    for entry in MEMBERS if members is None else members:
        if isinstance(entry, tuple):
            name, member = entry[0], Member(partial(_fit_own, estimator=entry[1]), None, "", _OWN_COST, raw=True)
        else:
            name = validation.choice("members", entry, MEMBERS)
            member = _at_best(name) if effort == "best" else MEMBERS[name]
        if name in found:
            raise ValueError(f"members must have different names, got {name!r} twice")
        found[name] = member
    if not found:
        raise ValueError("members must name at least one member, got none")
    return found
