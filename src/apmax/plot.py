"""Displays for notebooks in scikit-learn's manner: precision-recall curve with band, leaderboard, calibration.

Each class has `from_estimator`, `from_predictions` and `plot(ax=...)`, and after `plot` the attributes `ax_` and
`figure_`. matplotlib is imported by `plot` only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax import extras, validation
from apmax.committee import Leaderboard
from apmax.metrics import Interval, average_precision_interval, precision_recall_curve
from apmax.metrics.bands import calibration_bins, precision_band

_Array = NDArray[np.float64]


@dataclass
class _Display:
    """What every display has: the axes that it was drawn in."""

    def _axes(self, ax: Any, size: tuple[float, float]) -> Any:
        if ax is None:
            ax = extras.load("matplotlib.pyplot", "report").subplots(figsize=size, layout="constrained")[1]
        self.ax_, self.figure_ = ax, ax.figure
        return ax


@dataclass
class PrecisionRecallDisplay(_Display):
    """Precision-recall curve with the pointwise band of its precision.

    Attributes:
        precision, recall: (m,) points of the curve at falling thresholds.
        band: (3, points) recall, lower and upper limit of the precision (`apmax.metrics.bands.precision_band`); empty
            with fewer than two positives.
        ap: Average precision with its interval.
        prevalence: Share of positives, which is the precision of a random ranking.
        name: The label in the legend.

    >>> display = PrecisionRecallDisplay.from_predictions([1, 0, 1, 0], [0.9, 0.8, 0.7, 0.6])
    >>> round(display.ap.estimate, 3), display.prevalence
    (0.833, 0.5)
    """

    precision: _Array
    recall: _Array
    band: _Array
    ap: Interval
    prevalence: float
    name: str = "model"

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, **options: Any) -> PrecisionRecallDisplay:
        """Return the display of a fitted classifier on rows; `options` are those of `from_predictions`."""
        labels, scores = _estimator_scores(estimator, X, y)
        return cls.from_predictions(labels, scores, **{"name": type(estimator).__name__, **options})

    @classmethod
    def from_predictions(
        cls,
        y_true: Any,
        y_score: Any,
        *,
        sample_weight: Any = None,
        confidence: float = 0.95,
        name: str = "model",
    ) -> PrecisionRecallDisplay:
        """Return the display of scores.

        Args:
            y_true: (n,) labels of 0/1 with at least one positive.
            y_score: (n,) finite scores on any scale.
            sample_weight: (n,) weights.
            confidence: Of the band and of the interval.
            name: The label in the legend.

        Raises:
            ValueError: As `average_precision_interval`, or there is no positive row.
        """
        ap = average_precision_interval(y_score, y_true, confidence=confidence, sample_weight=sample_weight)
        curve = precision_recall_curve(y_score, y_true, sample_weight=sample_weight)
        precision, recall = (part[:-1].flip(0).cpu().numpy() for part in (curve.precision, curve.recall))
        if np.isnan(recall).any():
            raise ValueError("y_true must have a positive row, got none")
        labels = np.asarray(y_true, np.float64).reshape(-1)
        weight = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, np.float64)
        values = np.asarray(y_score, np.float64).reshape(-1)
        limits = precision_band(values, labels, None if sample_weight is None else weight, confidence=confidence)
        band = np.empty((3, 0)) if limits is None else np.array([limits.recall, limits.low, limits.high])
        return cls(precision, recall, band, ap, float(weight @ labels / weight.sum()), name)

    def plot(
        self, ax: Any = None, *, name: str | None = None, band: bool = True, **line: Any
    ) -> PrecisionRecallDisplay:
        """Draw the curve; `line` are arguments of matplotlib's `plot`. Several displays may share `ax`."""
        first = ax is None or not ax.has_data()
        ax = self._axes(ax, (5, 4.2))
        label = f"{name or self.name}: AP {self.ap.estimate:.3f} ({self.ap.low:.3f}–{self.ap.high:.3f})"
        recall, precision = np.append(0.0, self.recall), np.append(self.precision[0], self.precision)
        (self.line_,) = ax.step(recall, precision, where="pre", **{"label": label, "linewidth": 1.5, **line})
        if band:
            color = self.line_.get_color()
            ax.fill_between(self.band[0], self.band[1], self.band[2], alpha=0.18, color=color, linewidth=0)
        if first:
            ax.axhline(self.prevalence, color="0.5", linestyle=":", label=f"no skill: {self.prevalence:.3f}")
            ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="recall", ylabel="precision")
        ax.legend(loc="upper right", fontsize="small", framealpha=0.8)
        return self


@dataclass
class LeaderboardDisplay(_Display):
    """Average precision of the members of a committee with intervals, the blend on top.

    Attributes:
        names: Members, the best first; the blend, if there is one, before them.
        intervals: Their average precision.
        prevalence: The average precision of a random ranking; None if it is not known.
    """

    names: Sequence[str]
    intervals: Sequence[Interval]
    prevalence: float | None = None

    @classmethod
    def from_leaderboard(cls, leaderboard: Leaderboard, *, prevalence: float | None = None) -> LeaderboardDisplay:
        """Return the display of a committee's leaderboard."""
        rows = (*([leaderboard.blend] if leaderboard.has_blend else []), *leaderboard.rows)
        return cls([row.name for row in rows], [row.ap for row in rows], prevalence)

    @classmethod
    def from_estimator(cls, estimator: Any) -> LeaderboardDisplay:
        """Return the display of a fitted `APEnsembleClassifier`: cross-fitted values, so it takes no rows."""
        if not hasattr(estimator, "leaderboard_"):
            raise ValueError(f"estimator must be a fitted APEnsembleClassifier, got {type(estimator).__name__}")
        return cls.from_leaderboard(estimator.leaderboard_)

    @classmethod
    def from_predictions(
        cls, y_true: Any, y_scores: dict[str, Any], *, sample_weight: Any = None, confidence: float = 0.95
    ) -> LeaderboardDisplay:
        """Return the display of the scores of several models on the same rows, by name.

        >>> LeaderboardDisplay.from_predictions([1, 0, 0], {"a": [1, 2, 3], "b": [3, 2, 1]}).names
        ['b', 'a']
        """
        each = {
            name: average_precision_interval(scores, y_true, confidence=confidence, sample_weight=sample_weight)
            for name, scores in y_scores.items()
        }
        names = sorted(each, key=lambda name: -each[name].estimate)
        weight = None if sample_weight is None else np.asarray(sample_weight, np.float64)
        share = float(np.average(np.asarray(y_true, np.float64).reshape(-1), weights=weight))
        return cls(names, [each[name] for name in names], share)

    def plot(self, ax: Any = None, **points: Any) -> LeaderboardDisplay:
        """Draw a point and an interval for each; `points` are arguments of matplotlib's `errorbar`."""
        ax = self._axes(ax, (5.5, 0.8 + 0.32 * len(self.names)))
        place = np.arange(len(self.names))
        estimate = np.array([each.estimate for each in self.intervals])
        reach = [
            estimate - [each.low for each in self.intervals],
            np.array([each.high for each in self.intervals]) - estimate,
        ]
        ax.errorbar(estimate, place, xerr=reach, **{"fmt": "o", "capsize": 2, "markersize": 5, **points})
        for value, y in zip(estimate, place, strict=True):
            ax.annotate(f"{value:.3f}", (value, y), (0, 5), textcoords="offset points", ha="center", fontsize="x-small")
        if self.prevalence is not None:
            ax.axvline(self.prevalence, color="0.5", linestyle=":", label=f"no skill: {self.prevalence:.3f}")
            ax.legend(loc="best", fontsize="small")
        ax.set(yticks=place, yticklabels=self.names, xlabel="average precision")
        ax.set_ylim(len(self.names) - 0.4, -0.8)
        return self


@dataclass
class CalibrationDisplay(_Display):
    """Observed share of positives against the predicted probability, with exact binomial intervals.

    Attributes:
        predicted: (bins,) mean probability of the rows of each bin.
        observed: (bins,) share of positives among them.
        low, high: (bins,) its limits.
        name: The label in the legend.

    >>> display = CalibrationDisplay.from_predictions([0, 1, 1], [0.2, 0.2, 0.8], n_bins=2)
    >>> display.observed.tolist()
    [0.5, 1.0]
    """

    predicted: _Array
    observed: _Array
    low: _Array
    high: _Array
    name: str = "model"

    @classmethod
    def from_estimator(cls, estimator: Any, X: Any, y: Any, **options: Any) -> CalibrationDisplay:
        """Return the display of a fitted classifier on rows; `options` are those of `from_predictions`."""
        labels = _estimator_labels(estimator, y)
        probability = np.asarray(estimator.predict_proba(X))[:, 1]
        return cls.from_predictions(labels, probability, **{"name": type(estimator).__name__, **options})

    @classmethod
    def from_predictions(
        cls, y_true: Any, y_prob: Any, *, n_bins: int = 10, confidence: float = 0.95, name: str = "model"
    ) -> CalibrationDisplay:
        """Return the display of probabilities.

        The bins hold about the same expected number of positives: with rare positives, bins of equal numbers of rows
        would all but one lie near 0. Rows of one probability stay together.

        Args:
            y_true: (n,) labels of 0/1.
            y_prob: (n,) probabilities.
            n_bins: The most bins.
            confidence: Of the intervals.
            name: The label in the legend.

        Raises:
            ValueError: Probabilities outside of [0, 1], labels other than 0/1, or shapes that differ.
        """
        n_bins = validation.whole("n_bins", n_bins, 1)
        labels = validation.label_array(y_true, "y_true").double().numpy()
        probability = np.asarray(y_prob, np.float64).reshape(-1)
        if probability.shape != labels.shape or not ((probability >= 0) & (probability <= 1)).all():
            raise ValueError(f"y_prob must be {len(labels)} probabilities from 0 to 1; calibrate scores first")
        bins = calibration_bins(probability, labels, bins=n_bins, confidence=confidence)
        return cls(
            np.array([each.predicted for each in bins]),
            np.array([each.observed for each in bins]),
            np.array([each.low for each in bins]),
            np.array([each.high for each in bins]),
            name,
        )

    def plot(self, ax: Any = None, *, name: str | None = None, **points: Any) -> CalibrationDisplay:
        """Draw the bins; `points` are arguments of matplotlib's `errorbar`."""
        first = ax is None or not ax.has_data()
        ax = self._axes(ax, (4.4, 4.2))
        if first:
            ax.plot([0, 1], [0, 1], color="0.5", linestyle=":", label="perfectly calibrated")
            ax.set(xlim=(0, 1), ylim=(0, 1.02), xlabel="predicted probability", ylabel="observed share of positives")
        reach = [self.observed - self.low, self.high - self.observed]
        style = {"fmt": "o-", "capsize": 2, "markersize": 4, "linewidth": 1, "label": name or self.name}
        ax.errorbar(self.predicted, self.observed, yerr=reach, **{**style, **points})
        ax.legend(loc="upper left", fontsize="small")
        return self


def _estimator_labels(estimator: Any, y: Any) -> _Array:
    """Return 1 for the rows of the estimator's second class."""
    return np.asarray(np.asarray(y) == estimator.classes_[1], np.float64)


def _estimator_scores(estimator: Any, X: Any, y: Any) -> tuple[_Array, _Array]:
    if hasattr(estimator, "decision_function"):
        return _estimator_labels(estimator, y), np.asarray(estimator.decision_function(X))
    return _estimator_labels(estimator, y), np.asarray(estimator.predict_proba(X))[:, 1]
