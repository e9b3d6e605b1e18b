"""Tree members: gradient boosting by LightGBM, random forests and extra trees, saved without pickle."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax import extras, validation
from apmax.committee.features import Matrix
from apmax.data.archives import npz_content, read_npz
from apmax.metrics import average_precision

_Array = NDArray[np.float64]
_MOST_ROUNDS, _PATIENCE = 1000, 50
# With few positives held-out rows stop too early; this many rounds rank better (docs/committee.md, "Evidence").
_LEAST_ROUNDS = 100
_LEARNING_RATE = 0.05
_SMOOTHED_ROUNDS = 21

STOPPING_RULES = ("log_loss", "ap", "ap_smoothed")
"""What boosting may stop by: log-loss or average precision of held-out rows, the latter also smoothed over rounds."""
_NODE_FIELDS = ("left", "right", "feature", "threshold", "probability")


@dataclass(frozen=True)
class Boosting:
    """A LightGBM model; its text is the saved form."""

    text: str
    booster: Any

    def score(self, matrix: Matrix) -> _Array:
        """Return the raw scores, log-odds of the positive class."""
        scores: _Array = self.booster.predict(matrix, raw_score=True, num_threads=1)
        return scores

    def to_bytes(self) -> bytes:
        """Return LightGBM's model text."""
        return self.text.encode()

    @staticmethod
    def from_bytes(content: bytes) -> Boosting:
        """Return the model that `to_bytes` wrote.

        Raises:
            ValueError: It is no LightGBM model.
        """
        lightgbm = extras.load("lightgbm", "boosting")
        text = content.decode()
        if not text.startswith("tree\n"):
            raise ValueError("not a LightGBM model: its text begins otherwise")
        try:
            return Boosting(text, lightgbm.Booster(model_str=text))
        except lightgbm.basic.LightGBMError as error:
            raise ValueError(f"not a LightGBM model: {error}") from None

    @property
    def rounds(self) -> int:
        """Number of trees."""
        return int(self.booster.num_trees())


def fit_boosting(
    matrix: Matrix,
    labels: _Array,
    sample_weight: _Array,
    *,
    sizes: Sequence[int],
    stopping: tuple[NDArray[np.int64], NDArray[np.int64]] | None,
    seed: int,
    rounds: int | None = None,
    stop_by: str = "log_loss",
    least_rounds: int = _LEAST_ROUNDS,
    refit: bool = True,
    parameters: Mapping[str, Any] | None = None,
) -> Boosting:
    """Fit gradient boosting by log-loss, stopped by held-out rows.

    Args:
        matrix: (n, d); codes of categories as whole numbers, negative where missing.
        labels: (n,) of 0/1.
        sample_weight: (n,) positive.
        sizes: Per column 0 for numbers, else the number of codes.
        stopping: Rows to fit and rows to stop by; None for `least_rounds` on all rows.
        seed: Seed of LightGBM.
        rounds: A fixed number of rounds on all rows instead of stopping.
        stop_by: One of `STOPPING_RULES`.
        least_rounds: The least number of rounds, whatever the held-out rows say.
        refit: Whether to fit all rows again with the number of rounds that the stopping found.
        parameters: Parameters of LightGBM that replace ours.
    """
    lightgbm = extras.load("lightgbm", "boosting")
    validation.choice("stop_by", stop_by, STOPPING_RULES)
    chosen = {
        "objective": "binary",
        "learning_rate": _LEARNING_RATE,
        "seed": seed,
        "deterministic": True,
        "force_row_wise": True,
        "num_threads": 1,
        "verbosity": -1,
        **(parameters or {}),
    }
    categories = [column for column, size in enumerate(sizes) if size]

    def dataset(rows: Any, reference: Any = None) -> Any:
        return lightgbm.Dataset(
            matrix[rows],
            labels[rows],
            weight=sample_weight[rows],
            categorical_feature=categories,
            reference=reference,
            free_raw_data=False,
        )

    if rounds is None and stopping is not None:
        train = dataset(stopping[0])
        smoothed = _SMOOTHED_ROUNDS if stop_by == "ap_smoothed" else 1
        booster = lightgbm.train(
            chosen if stop_by == "log_loss" else chosen | {"metric": "None"},
            train,
            _MOST_ROUNDS,
            valid_sets=[dataset(stopping[1], train)],
            feval=None if stop_by == "log_loss" else running_average_precision(smoothed),
            callbacks=[lightgbm.early_stopping(_PATIENCE, verbose=False)],
        )
        # The mean of the last rounds belongs to the one in their middle.
        rounds = max(least_rounds, booster.best_iteration - smoothed // 2)
        if not refit:
            return Boosting.from_bytes(booster.model_to_string(num_iteration=rounds).encode())
    booster = lightgbm.train(chosen, dataset(slice(None)), rounds or least_rounds)
    return Boosting.from_bytes(booster.model_to_string().encode())


def running_average_precision(rounds: int) -> Callable[[_Array, Any], tuple[str, float, bool]]:
    """Return an evaluation function of LightGBM: the mean average precision of the last `rounds` rounds."""
    values: list[float] = []

    def evaluate(scores: _Array, data: Any) -> tuple[str, float, bool]:
        weight = data.get_weight()
        values.append(float(average_precision(scores, data.get_label(), sample_weight=weight)))
        return "average precision", float(np.mean(values[-rounds:])), True

    return evaluate


@dataclass(frozen=True)
class Forest:
    """A forest of decision trees as arrays of nodes, all trees one after the other.

    Attributes:
        starts: (trees + 1,) the first node of each tree, and the number of all nodes.
        left, right: Children of each node within its tree; -1 for leaves.
        feature, threshold: A row goes left where its feature is at most the threshold.
        probability: Share of positives in each node.
        features: Number of columns.
    """

    starts: NDArray[np.int64]
    left: NDArray[np.int32]
    right: NDArray[np.int32]
    feature: NDArray[np.int32]
    threshold: _Array
    probability: _Array
    features: int

    def score(self, matrix: Matrix) -> _Array:
        """Return the log-odds of the mean probability p of T trees, smoothed to (T·p + ½)/(T + 1)."""
        count = len(self.starts) - 1
        total = np.zeros(len(matrix))
        rows = np.arange(len(matrix))
        for start in self.starts[:-1]:
            node = np.full(len(matrix), start)
            inside = rows
            while len(inside):
                at = node[inside]
                is_inner = self.left[at] >= 0
                inside, at = inside[is_inner], at[is_inner]
                goes_left = matrix[inside, self.feature[at]] <= self.threshold[at]
                node[inside] = start + np.where(goes_left, self.left[at], self.right[at])
            total += self.probability[node]
        smoothed = (total + 0.5) / (count + 1)
        return np.log(smoothed / (1 - smoothed))

    def to_bytes(self) -> bytes:
        """Return the arrays as an .npz file."""
        return npz_content(
            starts=self.starts,
            features=np.array(self.features),
            **{name: getattr(self, name) for name in _NODE_FIELDS},
        )

    @staticmethod
    def from_bytes(content: bytes) -> Forest:
        """Return the forest that `to_bytes` wrote.

        Raises:
            ValueError: Arrays are missing, or do not describe trees.
        """
        arrays = read_npz(io.BytesIO(content), ("starts", "features", *_NODE_FIELDS))
        forest = Forest(
            starts=arrays["starts"].astype(np.int64),
            left=arrays["left"].astype(np.int32),
            right=arrays["right"].astype(np.int32),
            feature=arrays["feature"].astype(np.int32),
            threshold=arrays["threshold"].astype(np.float64),
            probability=arrays["probability"].astype(np.float64),
            features=int(arrays["features"]),
        )
        forest.check()
        return forest

    def check(self) -> None:
        """Raise `ValueError` unless every path from a root ends in a leaf and reads an existing column."""
        nodes = len(self.left)
        if any(len(getattr(self, name)) != nodes for name in _NODE_FIELDS):
            raise ValueError("not a forest: its arrays differ in length")
        if len(self.starts) < 2 or self.starts[0] != 0 or self.starts[-1] != nodes or (np.diff(self.starts) < 1).any():
            raise ValueError("not a forest: its trees do not fill its nodes")
        sizes = np.diff(self.starts)
        own = np.arange(nodes) - np.repeat(self.starts[:-1], sizes)
        limit = np.repeat(sizes, sizes)
        inner = self.left >= 0
        for child in (self.left[inner], self.right[inner]):
            # Children stand behind their parent, so that no path can go in a circle.
            if (child <= own[inner]).any() or (child >= limit[inner]).any():
                raise ValueError("not a forest: a node's child is not in its tree")
        if ((self.feature[inner] < 0) | (self.feature[inner] >= self.features)).any():
            raise ValueError("not a forest: a node reads a column that does not exist")
        if not ((self.probability >= 0) & (self.probability <= 1)).all():
            raise ValueError("not a forest: a probability is not between 0 and 1")


def fit_forest(matrix: Matrix, labels: _Array, sample_weight: _Array, *, kind: str, trees: int, seed: int) -> Forest:
    """Fit a random forest ("forest") or extremely randomised trees ("trees") to numeric columns."""
    ensemble = extras.load("sklearn.ensemble", "sklearn")
    estimator = {"forest": ensemble.RandomForestClassifier, "trees": ensemble.ExtraTreesClassifier}[kind]
    # Equal weights are left out: scikit-learn draws other bootstrap samples where weights are given.
    weight = None if np.ptp(sample_weight) == 0 else sample_weight
    fitted = estimator(n_estimators=trees, random_state=seed, n_jobs=1).fit(matrix, labels, sample_weight=weight)
    positive = list(fitted.classes_).index(1.0)
    parts = [each.tree_ for each in fitted.estimators_]
    probability = [tree.value[:, 0, positive] / tree.value[:, 0, :].sum(1) for tree in parts]
    return Forest(
        starts=np.cumsum([0, *(tree.node_count for tree in parts)]),
        left=np.concatenate([tree.children_left for tree in parts]).astype(np.int32),
        right=np.concatenate([tree.children_right for tree in parts]).astype(np.int32),
        feature=np.concatenate([tree.feature for tree in parts]).astype(np.int32),
        threshold=np.concatenate([tree.threshold for tree in parts]),
        probability=np.concatenate(probability),
        features=matrix.shape[1],
    )
