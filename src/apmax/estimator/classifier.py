"""`APClassifier`: average precision with scikit-learn's contract."""

from __future__ import annotations

import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import expit  # type: ignore[import-untyped]
from sklearn.base import BaseEstimator, ClassifierMixin  # type: ignore[import-untyped]
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.utils import check_random_state  # type: ignore[import-untyped]
from sklearn.utils.multiclass import check_classification_targets, type_of_target  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]

from apmax import validation
from apmax.data.splits import split_stratified
from apmax.estimator.calibration import calibrate
from apmax.estimator.canonical import canonical
from apmax.estimator.choosing import CANDIDATES, choose_loss
from apmax.estimator.columns import measure_columns
from apmax.estimator.exact import fit_linear
from apmax.estimator.network import build_module, train_network, two_stages
from apmax.estimator.rows import dataset
from apmax.losses import LOSSES
from apmax.surrogates import SURROGATES
from apmax.train import predict

Array = NDArray[np.float64]
SOLVERS = ("exact", "adam", "sgd")
KINKED = ("hinge", "ramp")
OF_ONE_SOLVER = ("coef_", "intercept_", "objective_", "model_", "records_", "_columns", "loss_scores_", "loss_reason_")


class Problem(NamedTuple):
    """What is to be learnt: rows, their 0/1 labels and their weights."""

    X: Any
    labels: Array
    sample_weight: Array


class APClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A binary classifier trained to rank: it maximises average precision.

    `solver="exact"` minimises `P(w) + l2·|w|²` for a linear model on standardised columns by L-BFGS, P being the exact
    objective over all rows (`functional.ap_objective`); deterministic. `solver="adam"` and `"sgd"` train a network
    with mini-batches: cross-entropy first, then the loss. Either way Platt's curve turns scores into probabilities,
    and `predict` says `classes_[1]` where the probability of that class is above one half; for rare positives that
    is seldom: rank by `decision_function`, or choose a threshold.

    Args:
        solver: "exact", "adam" or "sgd".
        loss: Any of `LOSSES` with "adam" and "sgd"; "ap" or "ce" with "exact". "auto" takes "ce" or "ap", whichever has
            the better average precision in an inner cross-validation.
        pos_label: The class whose average precision is maximised; None for the last of `classes_`.
        l2: "exact": strength of the L2 penalty.
        surrogate: "exact": the surrogate of P, a name in `SURROGATES` without kinks.
        margin: Its margin.
        max_iter: "exact": iterations of L-BFGS at most.
        tol: "exact": L-BFGS ends where no component of the gradient is larger.
        hidden: "adam", "sgd": widths of the hidden layers.
        module: Instead of `hidden`: a torch module that returns one score per row (copied, its weights are the start),
            or a function that makes one from the number of features.
        stages: Instead of the two stages: any of `apmax.train.config.Stage`; then `loss` and the arguments down to
            `weight_decay` are not used.
        lr: Learning rate; None for 1e-3 (adam) or 1e-2 (sgd).
        epochs: Of the first stage, at most; None for 20, more on small tables.
        batch_size: Rows in a batch.
        num_pos: Positives in a batch of the second stage.
        weight_decay: Of the optimiser.
        validation_fraction: "adam", "sgd": share of the rows held out to select the epoch and to calibrate.
        cv: Folds for `loss="auto"`: their number, or a splitter or splits of scikit-learn.
        accelerator: As in Lightning Fabric: "auto", "cpu", "cuda".
        random_state: Seed of "adam", "sgd" and of the folds of `loss="auto"` (None: a fixed one for the folds).
        verbose: Say which loss was chosen and why, and show the epochs.

    Attributes:
        classes_: The two classes, sorted.
        coef_, intercept_: "exact": (1, d) and (1,) such that `decision_function(X) = X @ coef_.T + intercept_`.
        objective_: "exact": the minimum of the objective reached, penalty included.
        model_, records_: "adam", "sgd": the trained torch module (on the CPU, in float64; its input are
            standardised columns) and the records of its epochs.
        calibration_: Platt's slope and intercept, from scores for `pos_label` to logits.
        loss_: The loss used.
        loss_scores_, loss_reason_: `loss="auto"`: average precision by loss and fold, and the reason of the choice.
        n_iter_: Iterations, or epochs.
        n_features_in_, feature_names_in_: As in all of scikit-learn.

    >>> X = np.array([[0.0], [1.0], [2.0], [3.0]])
    >>> model = APClassifier().fit(X, ["no", "no", "yes", "yes"])
    >>> model.predict(X).tolist(), model.predict_proba(X)[:, 1].round(2).tolist()
    (['no', 'no', 'yes', 'yes'], [0.2, 0.39, 0.61, 0.8])
    """

    def __init__(
        self,
        *,
        solver: str = "exact",
        loss: str = "ap",
        pos_label: Any = None,
        l2: float = 1e-2,
        surrogate: str = "smooth_step",
        margin: float = 1.0,
        max_iter: int = 500,
        tol: float = 1e-5,
        hidden: tuple[int, ...] = (64, 64),
        module: Any = None,
        stages: Any = None,
        lr: float | None = None,
        epochs: int | None = None,
        batch_size: int = 128,
        num_pos: int = 16,
        weight_decay: float = 0.0,
        validation_fraction: float = 0.2,
        cv: Any = 5,
        accelerator: str = "auto",
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.solver = solver
        self.loss = loss
        self.pos_label = pos_label
        self.l2 = l2
        self.surrogate = surrogate
        self.margin = margin
        self.max_iter = max_iter
        self.tol = tol
        self.hidden = hidden
        self.module = module
        self.stages = stages
        self.lr = lr
        self.epochs = epochs
        self.batch_size = batch_size
        self.num_pos = num_pos
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.cv = cv
        self.accelerator = accelerator
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> APClassifier:
        """Learn from a table (n, d), dense, sparse or a data frame, and labels of two classes.

        Args:
            X: The table; missing values must have been filled in.
            y: (n,) labels: numbers, strings or booleans.
            sample_weight: (n,) non-negative. A row of weight 0 is left out, one of weight 2 counts as two rows.

        Raises:
            ValueError: Wrong settings, not two classes, missing or infinite values, negative weights.
        """
        self._check_settings()
        problem = self._problem(X, y, sample_weight)
        for name in OF_ONE_SOLVER:
            self.__dict__.pop(name, None)
        loss = self._choose(problem) if self.loss == "auto" else self.loss
        kept = problem.sample_weight > 0
        if not kept.all():
            problem = Problem(*(part[kept] for part in problem))
        (self._fit_exact if self.solver == "exact" else self._fit_network)(problem, loss)
        self.loss_ = loss
        return self

    def decision_function(self, X: Any) -> Array:
        """Return (n,) calibrated log-odds of `classes_[1]`; their order is the ranking.

        >>> X = np.arange(4.0)[:, None]
        >>> APClassifier().fit(X, [0, 0, 1, 1]).decision_function(X).round(2).tolist()
        [-1.36, -0.45, 0.45, 1.36]
        """
        check_is_fitted(self, "calibration_")
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        if hasattr(self, "coef_"):
            return np.asarray(X @ self.coef_[0] + self.intercept_[0])
        scores = self._network_scores(self._columns.standardised(X))
        return np.asarray(self._sign * self.calibration_.logit(scores))

    def predict_proba(self, X: Any) -> Array:
        """Return (n, 2) probabilities of the two classes."""
        positive = expit(self.decision_function(X))
        return np.stack([1 - positive, positive], axis=1)

    def predict(self, X: Any) -> NDArray[Any]:
        """Return (n,) the likelier class of each row."""
        second = self.decision_function(X) > 0
        return np.asarray(self.classes_[second.astype(np.intp)])

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.classifier_tags.multi_class = False
        tags.input_tags.sparse = True
        return tags

    def _check_settings(self) -> None:
        validation.choice("solver", self.solver, SOLVERS)
        validation.choice("loss", self.loss, [*LOSSES, "auto"])
        validation.choice("surrogate", self.surrogate, SURROGATES)
        for name in ("l2", "margin", "tol"):
            validation.interval(name, getattr(self, name), 0, closed="neither")
        for name in ("max_iter", "batch_size", "num_pos"):
            validation.whole(name, getattr(self, name), 1)
        if isinstance(self.cv, int):
            validation.whole("cv", self.cv, 2)
        if self.epochs is not None:
            validation.whole("epochs", self.epochs, 1)
        if self.lr is not None:
            validation.interval("lr", self.lr, 0, closed="neither")
        validation.interval("validation_fraction", self.validation_fraction, 0, 1, closed="neither")
        if not isinstance(self.hidden, (tuple, list)):
            raise TypeError(f"hidden must be a tuple of widths such as (64, 64), got {self.hidden!r}")
        for width in self.hidden:
            validation.whole("hidden", width, 1)
        if self.solver != "exact":
            return
        if self.loss not in (*CANDIDATES, "auto"):
            raise ValueError(
                f"loss={self.loss!r} needs solver='adam' or 'sgd'; the exact solver knows 'ap', 'ce' and 'auto'"
            )
        if self.surrogate in KINKED:
            raise ValueError(f"surrogate={self.surrogate!r} has kinks that L-BFGS cannot pass; take 'smooth_step'")
        for name in ("module", "stages"):
            if getattr(self, name) is not None:
                raise ValueError(f"{name} needs solver='adam' or 'sgd'; the exact solver fits a linear model")

    def _problem(self, X: Any, y: Any, sample_weight: Any) -> Problem:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        check_classification_targets(y)
        kind = type_of_target(y, input_name="y", raise_unknown=True)
        if kind != "binary":
            raise ValueError(f"Only binary classification is supported. The type of the target is {kind}.")
        weight = np.ones(len(y))
        if sample_weight is not None:
            given = np.asarray(sample_weight, dtype=np.float64)
            weight = validation.weights(given, y.shape).numpy()
        classes = np.unique(y[weight > 0])
        if len(classes) < 2:
            raise ValueError(
                f"APClassifier ranks one class before another: y holds one class only, {classes.tolist()!r}, "
                "among the rows of positive weight"
            )
        if self.pos_label is not None and self.pos_label not in classes.tolist():
            raise ValueError(f"pos_label must be one of the classes {classes.tolist()!r}, got {self.pos_label!r}")
        self.classes_ = classes
        positive = classes[1] if self.pos_label is None else self.pos_label
        self._sign = 1.0 if positive == classes[1] else -1.0
        return Problem(X, (y == positive).astype(np.float64), weight)

    def _choose(self, problem: Problem) -> str:
        seed = 0 if self.random_state is None else self._seed()
        choice = choose_loss(self, *problem, cv=self.cv, seed=seed)
        self.loss_scores_, self.loss_reason_ = choice.scores, choice.reason
        if self.verbose:
            sys.stdout.write(f"APClassifier(loss='auto') chose {choice.reason}\n")
        return choice.loss

    def _fit_exact(self, problem: Problem, loss: str) -> None:
        X, labels, weight = canonical(*problem)
        columns = measure_columns(X, weight)
        found = fit_linear(
            X,
            labels,
            weight,
            columns,
            loss=loss,
            l2=self.l2,
            surrogate=self.surrogate,
            margin=self.margin,
            max_iter=self.max_iter,
            tol=self.tol,
        )
        if not found.converged:
            warnings.warn(
                f"L-BFGS did not converge in {found.iterations} iterations; raise max_iter, tol or l2",
                ConvergenceWarning,
                stacklevel=3,
            )
        slopes = found.point * columns.inverse
        self.calibration_ = calibrate(np.asarray(X @ slopes), labels, weight)
        self.coef_ = self._sign * self.calibration_.slope * slopes[None, :]
        self.intercept_ = np.array([self._sign * self.calibration_.intercept])
        self.objective_, self.n_iter_ = found.value, found.iterations

    def _fit_network(self, problem: Problem, loss: str) -> None:
        X, labels, weight = problem
        seed = self._seed()
        self._columns = measure_columns(X, weight)
        table = self._columns.standardised(X)
        if min((labels == 0).sum(), (labels == 1).sum()) < 2:
            # A class of one row cannot be divided: all rows are in both parts.
            parts = np.arange(len(labels)), np.arange(len(labels))
        else:
            parts = split_stratified(labels, self.validation_fraction, seed=seed)

        def stages(rows: int) -> Any:
            if self.stages is not None:
                return self.stages
            return two_stages(
                loss,
                solver=self.solver,
                lr=self.lr,
                epochs=self.epochs,
                batch_size=self.batch_size,
                num_pos=self.num_pos,
                weight_decay=self.weight_decay,
                rows=rows,
            )

        self.model_, self.records_ = train_network(
            build_module(self.module, self.hidden, X.shape[1], share=weight @ labels / weight.sum(), seed=seed),
            table,
            labels,
            weight,
            parts=parts,
            stages=stages,
            seed=seed,
            accelerator=self.accelerator,
            progress=bool(self.verbose),
        )
        held_out = parts[1]
        self.calibration_ = calibrate(self._network_scores(table[held_out]), labels[held_out], weight[held_out])
        self.n_iter_ = len(self.records_)

    def _network_scores(self, table: Any) -> Array:
        scores: torch.Tensor = predict(self.model_, dataset(table))
        return scores.numpy()

    def _seed(self) -> int:
        return int(check_random_state(self.random_state).randint(np.iinfo(np.int32).max))
