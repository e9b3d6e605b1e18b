"""Tree members: gradient boosting by LightGBM, random forests and extra trees, saved without pickle."""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]

from apmax import extras, validation
from apmax.committee.features import Matrix
from apmax.data.archives import npz_content, read_npz
from apmax.metrics import average_precision

_Array = NDArray[np.float64]
_MOST_ROUNDS, _PATIENCE = 1000, 50
# With few positives held-out rows stop too early; this many rounds rank better ("Choices for tables" in
# docs/results/committees.md).
_LEAST_ROUNDS = 100
_LEARNING_RATE = 0.1
_SMOOTHED_ROUNDS = 21

STOPPING_RULES = ("log_loss", "ap", "ap_smoothed")
"""What boosting may stop by: log-loss or average precision of held-out rows, the latter also smoothed over rounds."""
MOST_LEAVES = 4096
"""The largest number of leaves of a tree in a forest."""
MOST_FOREST_ROWS = 16_384
"""With more rows than that, blocks of trees in a forest are grown on samples."""
_BLOCK_TREES, _BLOCK_SEED = 10, 10_000
# Rows of a sparse matrix that are made dense at a time.
_DENSE_ROWS = 4096
# For so many rows, finding the leaves takes about as long as making the tree.
_SMALL_CALL = 128
# Arrays of a file with their types; in memory they are smaller.
_NODE_FIELDS = {
    "left": np.int32,
    "right": np.int32,
    "feature": np.int32,
    "threshold": np.float32,
    "probability": np.float32,
}


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
    def rounds(self) -> tuple[int, ...]:
        """Number of trees."""
        return (int(self.booster.num_trees()),)


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
        matrix: (n, d), dense or CSR; codes of categories as whole numbers, negative where missing.
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
            return Boosting.from_bytes(_model_text(booster, rounds))
        # Their rows and gradients are freed before those of the second fit are made.
        del booster, train
    booster = lightgbm.train(chosen, dataset(slice(None)), rounds or least_rounds)
    return Boosting.from_bytes(_model_text(booster))


def _model_text(booster: Any, rounds: int | None = None) -> bytes:
    """Return the text of a model, which does not depend on the number of threads that fitted it."""
    text: str = booster.model_to_string(num_iteration=rounds)
    return re.sub(r"^\[num_threads: \d+\]$", "[num_threads: 1]", text, count=1, flags=re.MULTILINE).encode()


def running_average_precision(rounds: int) -> Callable[[_Array, Any], tuple[str, float, bool]]:
    """Return an evaluation function of LightGBM: the mean average precision of the last `rounds` rounds."""
    values: list[float] = []

    def evaluate(scores: _Array, data: Any) -> tuple[str, float, bool]:
        weight = data.get_weight()
        values.append(float(average_precision(scores, data.get_label(), sample_weight=weight)))
        return "average precision", float(np.mean(values[-rounds:])), True

    return evaluate


class _Nodes(NamedTuple):
    """Nodes of trees in the form that `Forest` describes."""

    left: NDArray[Any]
    right: NDArray[Any] | None
    feature: NDArray[Any]
    value: NDArray[np.float32]

    def right_children(self) -> NDArray[Any]:
        """Return the right child of every node."""
        if self.right is not None:
            return self.right
        # In 32 bits: the number after the largest left child may need more than those have.
        return np.where(self.left < 0, np.int32(-1), self.left.astype(np.int32) + 1)


def _compact_nodes(
    left: NDArray[Any],
    right: NDArray[Any],
    feature: NDArray[Any],
    threshold: NDArray[np.float32],
    probability: NDArray[np.float32],
) -> _Nodes:
    """Return nodes without what no row reads: the feature and threshold of leaves, the share of others."""
    leaf = left < 0
    follows = np.array_equal(right, np.where(leaf, -1, left + 1))
    return _Nodes(
        _compact(left),
        None if follows else _compact(right),
        _compact(np.where(leaf, -1, feature)),
        np.where(leaf, probability, threshold),
    )


@dataclass(frozen=True)
class Forest:
    """A forest of decision trees as arrays of nodes, all trees one after the other.

    Attributes:
        starts: (trees + 1,) the first node of each tree, and the number of all nodes.
        left: Left child of each node within its tree; -1 for leaves.
        right: Right child; None where it follows the left one everywhere, as in trees that are grown best first.
        feature, value: A row goes left where its feature is at most the value; that of a leaf is its share of
            positives.
        features: Number of columns.
    """

    starts: NDArray[np.int64]
    left: NDArray[np.int16 | np.int32]
    right: NDArray[np.int16 | np.int32] | None
    feature: NDArray[np.int8 | np.int16 | np.int32]
    value: NDArray[np.float32]
    features: int

    def score(self, matrix: Matrix) -> _Array:
        """Return the log-odds of the mean probability p of T trees, smoothed to (T·p + ½)/(T + 1)."""
        if matrix.ndim != 2 or matrix.shape[1] != self.features:
            raise ValueError(f"matrix must have shape (n, {self.features}), got {matrix.shape}")
        if sparse.issparse(matrix):
            # The leaves of dense rows are found faster, and a few thousand of them are small.
            parts: list[Any] = [matrix[start : start + _DENSE_ROWS] for start in range(0, matrix.shape[0], _DENSE_ROWS)]
            return np.concatenate([self.score(part.toarray()) for part in parts] or [np.zeros(0)])
        rows = np.ascontiguousarray(matrix, np.float32)
        trees = len(self.starts) - 1
        # scikit-learn's trees are four times as large as the arrays: they stay for small calls only, which would
        # take longer to make them than to use them.
        compiled = self._trees if len(rows) <= _SMALL_CALL else self._make_trees()
        total = np.zeros(len(rows))
        for start, tree in zip(self.starts, compiled, strict=False):
            total += self.value[start + tree.apply(rows)]
        smoothed = (total + 0.5) / (trees + 1)
        return np.log(smoothed / (1 - smoothed))

    @cached_property
    def _trees(self) -> list[Any]:
        return list(self._make_trees())

    def _make_trees(self) -> Iterator[Any]:
        """Return the trees one after the other as scikit-learn's, whose compiled code finds the leaf of each row."""
        # Compiled code follows any index: the arrays are checked here, once more than in `from_bytes`.
        self.check()
        compiled = extras.load("sklearn.tree._tree", "sklearn")
        return (self._tree(compiled, *bounds) for bounds in itertools.pairwise(self.starts.tolist()))

    def _tree(self, compiled: Any, start: int, end: int) -> Any:
        # The fields of a node differ between versions of scikit-learn; those that `apply` does not read stay 0.
        nodes = np.zeros(end - start, dtype=compiled.NODE_DTYPE)
        own = self._nodes(slice(start, end))
        nodes["left_child"], nodes["right_child"] = own.left, own.right_children()
        nodes["feature"], nodes["threshold"] = own.feature, own.value
        tree = compiled.Tree(self.features, np.array([1], dtype=np.intp), 1)
        # The depth is only read by `decision_path`.
        tree.__setstate__(
            {"max_depth": 1, "node_count": len(nodes), "nodes": nodes, "values": np.zeros((len(nodes), 1, 1))}
        )
        return tree

    def _nodes(self, part: slice) -> _Nodes:
        return _Nodes(
            self.left[part], None if self.right is None else self.right[part], self.feature[part], self.value[part]
        )

    def __getstate__(self) -> dict[str, Any]:
        """Return the arrays alone: the trees are rebuilt where they are needed."""
        return {name: value for name, value in self.__dict__.items() if name != "_trees"}

    def to_bytes(self) -> bytes:
        """Return the arrays as an .npz file."""
        leaf = self.left < 0
        return npz_content(
            starts=self.starts,
            features=np.array(self.features),
            left=self.left.astype(np.int32),
            right=self._nodes(slice(None)).right_children().astype(np.int32),
            feature=self.feature.astype(np.int32),
            threshold=np.where(leaf, np.float32(0), self.value),
            probability=np.where(leaf, self.value, np.float32(0)),
        )

    @staticmethod
    def from_bytes(content: bytes) -> Forest:
        """Return the forest that `to_bytes` wrote.

        Raises:
            ValueError: Arrays are missing, or do not describe trees.
        """
        arrays = read_npz(io.BytesIO(content), ("starts", "features", *_NODE_FIELDS))
        if arrays["features"].shape != () or any(arrays[name].ndim != 1 for name in ("starts", *_NODE_FIELDS)):
            raise ValueError("not a forest: its arrays have other shapes")
        if any(arrays[name].dtype.kind not in "iuf" for name in ("starts", "features", *_NODE_FIELDS)):
            raise ValueError("not a forest: its arrays are not numbers")
        nodes: list[NDArray[Any]] = [arrays[name].astype(kind) for name, kind in _NODE_FIELDS.items()]
        if len({len(each) for each in nodes}) > 1:
            raise ValueError("not a forest: its arrays differ in length")
        forest = Forest(arrays["starts"].astype(np.int64), *_compact_nodes(*nodes), features=int(arrays["features"]))
        forest.check()
        return forest

    def check(self) -> None:
        """Raise `ValueError` unless every path from a root ends in a leaf and reads an existing column."""
        nodes = len(self.left)
        if any(len(each) != nodes for each in (self.right, self.feature, self.value) if each is not None):
            raise ValueError("not a forest: its arrays differ in length")
        if len(self.starts) < 2 or self.starts[0] != 0 or self.starts[-1] != nodes or (np.diff(self.starts) < 1).any():
            raise ValueError("not a forest: its trees do not fill its nodes")
        # Tree by tree: numbers of all nodes would take more memory than the forest.
        for start, end in itertools.pairwise(self.starts.tolist()):
            self._check_tree(self._nodes(slice(start, end)))

    def _check_tree(self, nodes: _Nodes) -> None:
        left, feature, value = nodes.left, nodes.feature, nodes.value
        inner = left >= 0
        own = np.flatnonzero(inner)
        for child in (left[inner], nodes.right_children()[inner]):
            # Children stand behind their parent, so that no path can go in a circle.
            if (child <= own).any() or (child >= len(left)).any():
                raise ValueError("not a forest: a node's child is not in its tree")
        # scikit-learn knows a leaf by its left child, which must be exactly -1.
        if (left[~inner] != -1).any():
            raise ValueError("not a forest: a node's child is not in its tree")
        if ((feature[inner] < 0) | (feature[inner] >= self.features)).any():
            raise ValueError("not a forest: a node reads a column that does not exist")
        if not np.isfinite(value[inner]).all():
            raise ValueError("not a forest: a threshold is not finite")
        if not ((value[~inner] >= 0) & (value[~inner] <= 1)).all():
            raise ValueError("not a forest: a probability is not between 0 and 1")


def fit_forest(matrix: Matrix, labels: _Array, sample_weight: _Array, *, kind: str, trees: int, seed: int) -> Forest:
    """Fit a random forest ("forest") or extremely randomised trees ("trees") to numeric columns, dense or CSR.

    A tree has at most 4,096 leaves, which bounds the size of the forest. With more than 16,384 rows each block of ten
    trees has its own sample of so many: all positives (at most half of the sample), and negatives. That changes the
    offset of the log-odds, which alignment removes; the ranking is rather better than with samples of all rows.
    """
    ensemble = extras.load("sklearn.ensemble", "sklearn")
    estimator = {"forest": ensemble.RandomForestClassifier, "trees": ensemble.ExtraTreesClassifier}[kind]
    parts = []
    for number, (rows, count) in enumerate(_sampled_blocks(labels, trees, seed)):
        weight = sample_weight[rows]
        fitted = estimator(
            n_estimators=count,
            # Without a limit that matters scikit-learn grows trees depth first, which is a little faster.
            max_leaf_nodes=MOST_LEAVES if len(weight) > MOST_LEAVES else None,
            random_state=(seed + _BLOCK_SEED * number) % 2**32,
            n_jobs=1,
        )
        # By columns a forest of mostly zeros is the same one, fitted in a tenth of the time.
        part = matrix[rows].tocsc() if sparse.issparse(matrix) else matrix[rows]
        # Equal weights are left out: scikit-learn draws other bootstrap samples where weights are given.
        fitted.fit(part, labels[rows], sample_weight=None if np.ptp(weight) == 0 else weight)
        positive = list(fitted.classes_).index(1.0)
        parts += [_kept_nodes(each.tree_, positive) for each in fitted.estimators_]
    follows = all(part.right is None for part in parts)
    return Forest(
        starts=np.cumsum([0, *(len(part.left) for part in parts)]),
        left=np.concatenate([part.left for part in parts]),
        right=None if follows else np.concatenate([part.right_children() for part in parts]),
        feature=np.concatenate([part.feature for part in parts]),
        value=np.concatenate([part.value for part in parts]),
        features=matrix.shape[1],
    )


def _kept_nodes(tree: Any, positive: int) -> _Nodes:
    """Return the nodes of one of scikit-learn's trees, which takes eight times the memory."""
    probability = tree.value[:, 0, positive].astype(np.float32).clip(0, 1)
    return _compact_nodes(
        tree.children_left, tree.children_right, tree.feature, _round_down(tree.threshold), probability
    )


def _compact(values: NDArray[Any]) -> NDArray[Any]:
    """Return whole numbers in 8 or 16 bits if they fit, as all those of 4,096 leaves do, else in 32."""
    low, high = values.min(initial=0), values.max(initial=0)
    fits = (kind for kind in (np.int8, np.int16) if np.iinfo(kind).min <= low and high <= np.iinfo(kind).max)
    return values.astype(next(fits, np.int32))


def _sampled_blocks(labels: _Array, trees: int, seed: int) -> list[tuple[Any, int]]:
    """Return rows and number of trees of each block of a forest."""
    if len(labels) <= MOST_FOREST_ROWS:
        return [(slice(None), trees)]
    generator = np.random.default_rng(seed)
    positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    blocks = []
    for _ in range(0, trees, _BLOCK_TREES):
        some = positives
        if len(positives) > MOST_FOREST_ROWS // 2:
            some = generator.choice(positives, max(MOST_FOREST_ROWS // 2, MOST_FOREST_ROWS - len(negatives)), False)
        others = generator.choice(negatives, min(len(negatives), MOST_FOREST_ROWS - len(some)), False)
        blocks.append((np.sort(np.concatenate([some, others])), _BLOCK_TREES))
    return blocks


def _round_down(values: _Array) -> NDArray[np.float32]:
    """Return the largest float32 that is not above each value: float32 features are split as by the value itself."""
    nearest = values.astype(np.float32)
    return np.where(nearest > values, np.nextafter(nearest, np.float32(-np.inf)), nearest).astype(np.float32)
