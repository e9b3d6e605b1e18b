"""`APClassifier`, a scikit-learn classifier that maximises average precision."""

from __future__ import annotations

import inspect
import sys
import warnings
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.exceptions import ConvergenceWarning  # type: ignore[import-untyped]
from sklearn.utils.validation import check_is_fitted, validate_data  # type: ignore[import-untyped]

from apmax import validation
from apmax.committee.linear import column_moments, fit_linear, merge_equal_rows
from apmax.committee.network import fit_network, row_dataset
from apmax.estimator.base import RankingClassifier
from apmax.estimator.loss_choice import CANDIDATES, choose_loss
from apmax.losses import LOSSES
from apmax.surrogates import SURROGATES
from apmax.train import MINED_STAGE, fit_platt, predict

_Array = NDArray[np.float64]
SOLVERS = ("exact", "adam", "sgd")
KINKED_SURROGATES = ("hinge", "ramp")
_SOLVER_OPTIONS = ("lr", "epochs", "batch_size", "num_pos", "weight_decay")
_EXACT_PARAMETERS = ("l2", "surrogate", "margin", "max_iter", "tol")
_NETWORK_PARAMETERS = ("hidden", "module", "stages", *_SOLVER_OPTIONS)
# Fitted attributes that only some solvers or losses set.
_OPTIONAL_ATTRIBUTES = (
    "coef_",
    "intercept_",
    "objective_",
    "model_",
    "records_",
    "_scales",
    "loss_scores_",
    "loss_reason_",
)


class _LabelledRows(NamedTuple):
    """Rows, their 0/1 labels and their weights."""

    X: Any
    labels: _Array
    sample_weight: _Array


class APClassifier(RankingClassifier):
    """Binary classifier that maximises average precision.

    `solver="exact"` minimises `P(w) + l2·|w|²` for a linear model on standardised columns by L-BFGS-B, where P is the
    exact objective over all rows (`functional.ap_objective`); it is deterministic. `solver="adam"` and `"sgd"` train a
    network with mini-batches, cross-entropy first and then the loss, exactly as `apmax train` does. In both cases a
    Platt curve turns scores into probabilities, and `predict` returns `classes_[1]` where the probability of that class
    is above one half. For rare positives that is seldom the case: rank by `decision_function`, or choose a threshold.

    Args:
        solver: "exact", "adam" or "sgd".
        loss: Any of `LOSSES`, or "ce_mined" (cross-entropy on mined negatives) with "adam" and "sgd"; "ap" or "ce"
            with "exact". "auto" chooses "ce" or "ap", whichever has the better average precision in an inner
            cross-validation.
        pos_label: The class whose average precision is maximised; None for the last of `classes_`.
        l2: "exact": strength of the L2 penalty. This argument and those down to `tol` are not used by "adam" and "sgd",
            with a warning where they are given.
        surrogate: "exact": the surrogate of P, a name in `SURROGATES` without kinks.
        margin: "exact": margin of the surrogate.
        max_iter: "exact": maximum number of L-BFGS-B iterations.
        tol: "exact": the search ends when no component of the gradient is larger.
        hidden: Widths of the hidden layers, () for a linear model; None for (64, 64). This argument and those down to
            `weight_decay` are for "adam" and "sgd", and an error with "exact".
        module: Instead of `hidden`: a torch module that returns one score per row (copied, training starts from its
            weights), or a function that makes one from the number of features.
        stages: Instead of the two stages: a sequence of `apmax.train.Stage`; then `loss` and the arguments from `lr` to
            `weight_decay` are not used, with a warning where they are given.
        lr: Learning rate; None for 1e-3, or 1e-2 with "sgd" or a linear model.
        epochs: Maximum number of epochs of the first stage; None for about 4,000 steps, 5 to 100 epochs.
        batch_size: Rows in a batch; None for 128, or 64 below 2,048 training rows.
        num_pos: Positives in a batch of the second stage; None for an eighth of the batch.
        weight_decay: Weight decay of the optimiser; None for 0.
        validation_fraction: "adam", "sgd": share of the rows held out to select the epoch and to calibrate.
        cv: Folds for `loss="auto"`: their number, or a splitter or splits of scikit-learn.
        accelerator: "adam", "sgd": as in Lightning Fabric: "auto", "cpu", "cuda".
        random_state: Seed of "adam" and "sgd" and of the folds of `loss="auto"` (None: a fixed one for the folds). An
            int is the seed itself, as `--seed` of the command line.
        verbose: Print the loss that was chosen and the reason, and show the epochs.

    Attributes:
        classes_: The two classes, sorted.
        coef_, intercept_: "exact": (1, d) and (1,) such that `decision_function(X) = X @ coef_.T + intercept_`.
        objective_: "exact": value of the objective at the solution, penalty included.
        model_, records_: "adam", "sgd": the trained torch module (on the CPU, in float64; its inputs are scaled
            columns) and the records of its epochs.
        calibration_: Slope and intercept of the Platt curve, from scores for `pos_label` to logits.
        loss_: The loss used.
        loss_scores_, loss_reason_: `loss="auto"`: average precision by loss and fold, and the reason of the choice.
        n_iter_: Number of iterations, or of epochs.
        n_features_in_, feature_names_in_: As everywhere in scikit-learn.

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
        hidden: tuple[int, ...] | None = None,
        module: Any = None,
        stages: Any = None,
        lr: float | None = None,
        epochs: int | None = None,
        batch_size: int | None = None,
        num_pos: int | None = None,
        weight_decay: float | None = None,
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
        """Fit the classifier to a table (n, d), dense, sparse or a data frame, and labels of two classes.

        Args:
            X: The table; missing values must be imputed before.
            y: (n,) labels: numbers, strings or booleans.
            sample_weight: (n,) non-negative. A row of weight 0 is left out, one of weight 2 counts as two rows.

        Raises:
            ValueError: Invalid parameters, not two classes, missing or infinite values, negative weights.
        """
        self._check_parameters()
        self._warn_of_unused_parameters()
        return self._fit_as_copy(X, y, sample_weight)

    def _fit(self, X: Any, y: Any, sample_weight: Any = None) -> None:
        rows = self._labelled_rows(X, y, sample_weight)
        for name in _OPTIONAL_ATTRIBUTES:
            self.__dict__.pop(name, None)
        # With stages there is nothing to choose: they have losses of their own.
        loss = self._choose_loss(rows) if self.loss == "auto" and self.stages is None else self.loss
        kept = rows.sample_weight > 0
        if not kept.all():
            rows = _LabelledRows(*(part[kept] for part in rows))
        (self._fit_exact if self.solver == "exact" else self._fit_network)(rows, loss)
        self.loss_ = loss

    def decision_function(self, X: Any) -> _Array:
        """Return (n,) calibrated log-odds of `classes_[1]`; their order is the ranking.

        >>> X = np.arange(4.0)[:, None]
        >>> APClassifier().fit(X, [0, 0, 1, 1]).decision_function(X).round(2).tolist()
        [-1.36, -0.45, 0.45, 1.36]
        """
        check_is_fitted(self, "calibration_")
        X = validate_data(self, X, accept_sparse="csr", dtype=np.float64, reset=False)
        if hasattr(self, "coef_"):
            return np.asarray(X @ self.coef_[0] + self.intercept_[0])
        scores = self._network_scores(X)
        return np.asarray(self._sign * self.calibration_.logit(scores))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.sparse = True
        return tags

    def _check_parameters(self) -> None:
        validation.choice("solver", self.solver, SOLVERS)
        validation.choice("loss", self.loss, [*LOSSES, MINED_STAGE, "auto"])
        validation.choice("surrogate", self.surrogate, SURROGATES)
        for name in ("l2", "margin", "tol"):
            validation.interval(name, getattr(self, name), 0, closed="neither")
        validation.whole("max_iter", self.max_iter, 1)
        for name in ("batch_size", "num_pos", "epochs"):
            if getattr(self, name) is not None:
                validation.whole(name, getattr(self, name), 1)
        if isinstance(self.cv, int):
            validation.whole("cv", self.cv, 2)
        if self.lr is not None:
            validation.interval("lr", self.lr, 0, closed="neither")
        if self.weight_decay is not None:
            validation.interval("weight_decay", self.weight_decay, 0)
        validation.interval("validation_fraction", self.validation_fraction, 0, 1, closed="neither")
        if self.hidden is not None:
            if not isinstance(self.hidden, (tuple, list)):
                raise TypeError(f"hidden must be a tuple of widths such as (64, 64), got {self.hidden!r}")
            for width in self.hidden:
                validation.whole("hidden", width, 1)
        if self.solver == "exact":
            self._check_exact_parameters()

    def _check_exact_parameters(self) -> None:
        if self.loss not in (*CANDIDATES, "auto"):
            raise ValueError(
                f"loss={self.loss!r} needs solver='adam' or 'sgd'; the exact solver knows 'ap', 'ce' and 'auto'"
            )
        if self.surrogate in KINKED_SURROGATES:
            raise ValueError(
                f"surrogate={self.surrogate!r} has kinks, and L-BFGS-B needs a continuous gradient; use 'smooth_step'"
            )
        given = [name for name in _NETWORK_PARAMETERS if getattr(self, name) is not None]
        if given:
            raise ValueError(
                f"{', '.join(given)} {'needs' if len(given) == 1 else 'need'} solver='adam' or 'sgd': solver='exact' "
                "fits a linear model without mini-batches. Set solver='adam', or leave out what it does not use"
            )

    def _warn_of_unused_parameters(self) -> None:
        """Warn of parameters that differ from their default but are not used."""
        if self.solver == "exact":
            return  # which refuses them
        default = {name: each.default for name, each in inspect.signature(APClassifier).parameters.items()}
        unused: dict[str, tuple[str, ...]] = {f"solver={self.solver!r}": _EXACT_PARAMETERS}
        if self.stages is not None:
            unused["stages="] = ("loss", *_SOLVER_OPTIONS)
        for reason, names in unused.items():
            given = [name for name in names if getattr(self, name) != default[name]]
            if given:
                words = f"{', '.join(given)} {'is' if len(given) == 1 else 'are'} not used with {reason}"
                warnings.warn(f"{words}: leave out what it does not use", UserWarning, stacklevel=3)

    def _labelled_rows(self, X: Any, y: Any, sample_weight: Any) -> _LabelledRows:
        X, y = validate_data(self, X, y, accept_sparse="csr", dtype=np.float64)
        self.classes_, self._sign, *labelled = self._binary_labels(y, sample_weight)
        return _LabelledRows(X, *labelled)

    def _choose_loss(self, rows: _LabelledRows) -> str:
        seed = 0 if self.random_state is None else self._seed()
        choice = choose_loss(self, *rows, cv=self.cv, seed=seed)
        self.loss_scores_, self.loss_reason_ = choice.scores, choice.reason
        if self.verbose:
            sys.stdout.write(f"APClassifier(loss='auto') chose {choice.reason}\n")
        return choice.loss

    def _fit_exact(self, rows: _LabelledRows, loss: str) -> None:
        X, labels, weight = merge_equal_rows(*rows)
        columns = column_moments(X, weight)
        fit = fit_linear(
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
        if not fit.converged:
            warnings.warn(
                f"L-BFGS-B did not converge in {fit.iterations} iterations; raise max_iter, tol or l2",
                ConvergenceWarning,
                stacklevel=5,  # where `fit` was called
            )
        slopes = fit.weight * columns.inverse
        self.calibration_ = fit_platt(np.asarray(X @ slopes), labels, weight)
        self.coef_ = self._sign * self.calibration_.slope * slopes[None, :]
        self.intercept_ = np.array([self._sign * self.calibration_.intercept])
        self.objective_, self.n_iter_ = fit.value, fit.iterations

    def _fit_network(self, rows: _LabelledRows, loss: str) -> None:
        fit = fit_network(
            *rows,
            module=self.module,
            hidden=self.hidden,
            stages=self.stages,
            loss=loss,
            options={"solver": self.solver, **{name: getattr(self, name) for name in _SOLVER_OPTIONS}},
            share=self.validation_fraction,
            seed=self._seed(),
            accelerator=self.accelerator,
            progress=bool(self.verbose),
        )
        self.model_, self._scales, self.records_ = fit.network, fit.scales, fit.records
        X, labels, weight = (part[fit.held_out] for part in rows)
        self.calibration_ = fit_platt(self._network_scores(X), labels, weight)
        self.n_iter_ = len(self.records_)

    def _network_scores(self, X: Any) -> _Array:
        scores: torch.Tensor = predict(self.model_, row_dataset(self._scales.apply(X)))
        return scores.numpy()
