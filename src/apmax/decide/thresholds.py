"""The threshold for a precision, a recall, a number of rows or the least expected cost, with bounds.

A threshold is chosen on scores of rows that the model was not fitted to, such as the cross-fitted or validation scores
in a model's folder. What is said of it holds for new rows from the same population, or from one with another share of
positives: then the share of positives above the threshold (recall) and that of negatives remain, and the rest follows.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from apmax import validation
from apmax.metrics.quantiles import beta_cdf, beta_quantile
from apmax.metrics.ranking import one_weighted_task

_Array = NDArray[np.float64]
_ERROR_SHARES = {
    ("precision", "precision"): 1 / 2,
    ("precision", "recall"): 1 / 2,
    ("cost", "precision"): 1 / 6,
    ("cost", "recall"): 1 / 16,
    ("cost", "cost"): 1 / 3,
}
"""Share of the error that the bound of a quantity may use where a rule chose the threshold on the same rows.

By simulation (benchmarks/decisions.py): such rows favour the threshold, most of all where scores say nothing and all
thresholds cost the same. A number of rows or of positives to be taken is fixed before they are seen, and needs no such
share.
"""
_SEQUENCE_GROWTH = 1.05
_START_GROWTH = 4


class Bounded(NamedTuple):
    """An estimate and its one-sided confidence bound: the lower one of precision and recall, the upper one of cost."""

    estimate: float
    bound: float


@dataclass(frozen=True)
class Decision:
    """A threshold and what it means; a row is taken if its score is at least the threshold.

    Attributes:
        threshold: The least score that is taken.
        rule: What chose it: "precision", "recall", "top", "cost", or "threshold" if it was given.
        requested: The value that was asked for; of "cost" those of a false positive and of a false negative.
        share: Share of all rows that is taken.
        precision: Share of positives among the rows that are taken, and its lower bound.
        recall: Share of the positives that is taken, and its lower bound.
        cost: Mean cost of a row with its upper bound; None without costs.
        prevalence: Share of positives for which all of this holds.
        confidence: Probability with which each bound holds.
        guaranteed: Whether the bound, and not only the estimate, is at least what was asked for.
        positives, negatives: Numbers of rows that the threshold was chosen on.
        costs: Costs of a false positive and of a false negative, if they were given.

    >>> print(choose_threshold([0.9, 0.8, 0.7, 0.6, 0.5], [1, 1, 0, 1, 0], precision=0.75))
    score >= 0.6 takes 80 % of the rows: precision 0.750 (at least 0.194, 95 % sure), recall 1.000 (at least 0.292)
    """

    threshold: float
    rule: str
    requested: float | tuple[float, float]
    share: float
    precision: Bounded
    recall: Bounded
    cost: Bounded | None
    prevalence: float
    confidence: float
    guaranteed: bool
    positives: int
    negatives: int
    costs: tuple[float, float] | None = None

    def __str__(self) -> str:
        if math.isnan(self.precision.estimate):
            # All digits: rounded, the threshold could be a score that is there.
            return f"score >= {self.threshold!r} takes no row: recall {self.recall.estimate:.3f}"
        return (
            f"score >= {self.threshold:.6g} takes {100 * self.share:.3g} % of the rows: "
            f"precision {self.precision.estimate:.3f} (at least {self.precision.bound:.3f}, "
            f"{100 * self.confidence:.4g} % sure), recall {self.recall.estimate:.3f} (at least {self.recall.bound:.3f})"
        )

    def expected_counts(self, rows: float) -> dict[str, float]:
        """Return how many of so many rows are expected to be taken, to be hits, false alarms and missed positives.

        >>> decision = choose_threshold([4, 3, 2, 1], [1, 0, 1, 0], recall=0.5)
        >>> decision.expected_counts(1000)
        {'taken': 250.0, 'hits': 250.0, 'false alarms': 0.0, 'missed': 250.0}
        """
        taken, hits = self.share * rows, self.recall.estimate * self.prevalence * rows
        return {
            "taken": taken,
            "hits": hits,
            "false alarms": max(0.0, taken - hits),
            "missed": self.prevalence * rows - hits,
        }

    @property
    def costs_without(self) -> tuple[float, float] | None:
        """The mean costs of a row if no row were taken, and if all were; None without costs."""
        if self.costs is None:
            return None
        return self.costs[1] * self.prevalence, self.costs[0] * (1 - self.prevalence)


def choose_threshold(
    scores: Any,
    labels: Any,
    *,
    precision: float | None = None,
    recall: float | None = None,
    top: int | None = None,
    cost: Sequence[float] | None = None,
    budget: int | None = None,
    rows: int | None = None,
    prevalence: float | None = None,
    confidence: float = 0.95,
    guarantee: bool = False,
    sample_weight: Any = None,
) -> Decision:
    """Choose the threshold for one of: a precision, a recall, a number of rows, the least expected cost.

    * precision: the lowest threshold whose estimated precision is at least that (so the recall is highest).
    * recall: the highest threshold whose estimated recall is at least that (so the precision is highest).
    * top: the lowest threshold that takes at most so many rows, or the best score if that is shared by more.
    * cost: the highest threshold of the least mean cost `FP·share of false positives + FN·share of missed positives`,
      with `budget` among those that take at most so many rows: the best k for a budget.

    Bounds are exact binomial (Clopper-Pearson) ones, of the cost those of both errors together; they hold for the
    stated prevalence. Those of the rules "precision" and "cost" use a part of the error, because the same rows chose
    the threshold. docs/guide/decide.md shows how often bounds hold. With `guarantee` the bound itself is at
    least the value asked for: of recall by the order statistics of the positives, of precision by binomial tests along
    the ranking with a joint error of 1 - confidence.

    Args:
        scores: Finite scores on any scale, (n,) or (n, 1), of rows that the model was not fitted to.
        labels: 0/1 of the same shape, with both classes.
        precision: Above 0, at most 1.
        recall: Above 0, at most 1.
        top: Number of rows to take.
        cost: Costs of a false positive and of a false negative, not negative and not both 0.
        budget: The largest number of rows to take, with `cost`.
        rows: Number of rows that `top` and `budget` are taken from; by default as many as are given here.
        prevalence: Share of positives where the threshold is to be used; by default that of the rows given here.
        confidence: Of the bounds, between 0 and 1.
        guarantee: With precision or recall, require the bound and not only the estimate.
        sample_weight: Weights (n,); bounds use Kish's effective numbers of rows.

    Raises:
        ValueError: Not exactly one rule, a value out of range, one class only, or no threshold does it.

    >>> decision = choose_threshold([0.9, 0.8, 0.7, 0.6, 0.5], [1, 1, 0, 1, 0], precision=0.75)
    >>> decision.threshold, round(decision.precision.estimate, 3), decision.recall.estimate
    (0.6, 0.75, 1.0)
    """
    rules = {"precision": precision, "recall": recall, "top": top, "cost": cost}
    given = [name for name, value in rules.items() if value is not None]
    if budget is not None and cost is None:
        raise ValueError("budget needs cost=(FP, FN): without costs, top=K takes so many rows")
    if len(given) != 1:
        found = " and ".join(f"{name}={rules[name]}" for name in given) or "none"
        raise ValueError(f"give exactly one of precision=P, recall=R, top=K and cost=(FP, FN); got {found}")
    rule = given[0]
    if guarantee and rule not in ("precision", "recall"):
        raise ValueError(f"guarantee needs precision=P or recall=R, got {rule}={rules[rule]}")
    if rows is not None and top is None and budget is None:
        raise ValueError("rows needs top=K or budget=K: it is the number of rows that these are taken from")
    cuts = _count(scores, labels, sample_weight, prevalence, confidence)
    if precision is not None:
        wanted = validation.interval("precision", precision, 0, 1, closed="right")
        number = cuts.guaranteed_precision(wanted) if guarantee else cuts.estimated_precision(wanted)
        return cuts.decision(number, rule, wanted, guaranteed=guarantee)
    if recall is not None:
        wanted = validation.interval("recall", recall, 0, 1, closed="right")
        number = cuts.guaranteed_recall(wanted) if guarantee else int(np.argmax(cuts.recall >= wanted - 1e-12))
        return cuts.decision(number, rule, wanted, guaranteed=guarantee)
    size = sum(cuts.counts) if rows is None else validation.whole("rows", rows, 1)
    if top is not None:
        wanted = validation.whole("top", top, 1)
        return cuts.decision(cuts.at_most("top", wanted, size), rule, wanted)
    costs = _checked_costs(cost)
    limit = len(cuts.thresholds) - 1
    if budget is not None:
        wanted = validation.whole("budget", budget, 1)
        limit = cuts.at_most("budget", wanted, size)
        least = cuts.share[limit] * size
        if least > wanted * (1 + 1e-12):
            raise ValueError(
                f"budget: no threshold takes at most {wanted:,} of {size:,} rows, the best score alone takes "
                f"{math.ceil(least - 1e-9):,}: raise the budget, or rank the rows and take the first {wanted:,}"
            )
    return cuts.decision(cuts.least_cost(costs, limit), rule, costs, costs=costs)


def assess_threshold(
    scores: Any,
    labels: Any,
    threshold: float,
    *,
    cost: Sequence[float] | None = None,
    prevalence: float | None = None,
    confidence: float = 0.95,
    sample_weight: Any = None,
) -> Decision:
    """Return what a given threshold means on other rows than those that chose it.

    Arguments and errors are those of `choose_threshold`.

    >>> result = assess_threshold([0.9, 0.8, 0.7, 0.6], [1, 0, 1, 0], 0.75)
    >>> result.precision.estimate, result.recall.estimate, round(result.recall.bound, 4)
    (0.5, 0.5, 0.0253)
    """
    threshold = validation.interval("threshold", threshold, -math.inf, math.inf, closed="neither")
    cuts = _count(scores, labels, sample_weight, prevalence, confidence)
    costs = None if cost is None else _checked_costs(cost)
    number = int((cuts.thresholds >= threshold).sum()) - 1
    return cuts.decision(number, "threshold", threshold, costs=costs, threshold=threshold)


def _count(scores: Any, labels: Any, sample_weight: Any, prevalence: float | None, confidence: float) -> _Cuts:
    """Return the thresholds of checked arguments."""
    confidence = validation.interval("confidence", confidence, 0, 1, closed="neither")
    given = one_weighted_task(scores, labels, sample_weight)
    positives, negatives = given.positives(), given.negatives()
    counts = len(positives.keys), len(negatives.keys)
    if 0 in counts:
        raise ValueError(f"labels must have both classes, got {counts[0]:,} positive and {counts[1]:,} negative rows")
    own = (positives.total / (positives.total + negatives.total)).item()
    # Not from the share, which rounds to 1 where all negatives together weigh too little.
    odds = (positives.total / negatives.total).item()
    if prevalence is not None:
        own = validation.interval("prevalence", prevalence, 0, 1, closed="neither")
        odds = own / (1 - own)
    keys = given.keys.unique(sorted=True)
    found, false = (
        (each.above(keys, ties=True) * (each.effective_size() / each.total)).cpu().numpy()
        for each in (positives, negatives)
    )
    return _Cuts(-keys.double().cpu().numpy(), found, false, own, odds, confidence, counts)


def _checked_costs(cost: Any) -> tuple[float, float]:
    """Return the costs of a false positive and of a false negative."""
    if isinstance(cost, str) or np.shape(cost) != (2,):
        raise ValueError(f"cost must be two numbers, of a false positive and of a false negative, got {cost!r}")
    costs = tuple(validation.interval("cost", each, 0) for each in cost)
    if not any(costs) or not all(map(math.isfinite, costs)):
        raise ValueError(f"cost must be finite and not 0 for both errors, got {cost!r}")
    return costs[0], costs[1]


def _starts(precision: float, error: float, rows: float) -> list[float]:
    """Return the numbers of rows at which sequences of tests start, the first one where a test can reject at all."""
    if precision >= 1:
        return []
    size, starts = float(math.ceil(math.log(error / 8) / math.log(precision))), []
    while size <= rows:
        starts.append(size)
        size *= _START_GROWTH
    return starts


class _Cuts:
    """All thresholds of a sample, from the best score down, with counts of the rows at or above each.

    Weighted counts are scaled to Kish's effective numbers of the classes, so that they can be used as binomial ones.
    """

    def __init__(
        self,
        thresholds: _Array,
        found: _Array,
        false: _Array,
        prevalence: float,
        odds: float,
        confidence: float,
        counts: tuple[int, int],
    ) -> None:
        self.thresholds, self.found, self.false = thresholds, found, false
        self.positives, self.negatives = float(found[-1]), float(false[-1])
        self.prevalence, self.confidence, self.error, self.counts = prevalence, confidence, 1 - confidence, counts
        self.recall, self.false_rate = found / self.positives, false / self.negatives
        self.share = prevalence * self.recall + (1 - prevalence) * self.false_rate
        # The odds of a positive above any threshold, relative to those in the sample.
        self.odds_ratio = odds * self.negatives / self.positives
        self.precision = found * self.odds_ratio / (found * self.odds_ratio + false)

    def estimated_precision(self, wanted: float) -> int:
        """Return the lowest threshold whose precision is at least `wanted`."""
        good = np.flatnonzero(self.precision >= wanted - 1e-12)
        if not len(good):
            raise ValueError(
                f"precision: no threshold has an estimated precision of {wanted:g}; the highest is "
                f"{self.precision.max():.3f}"
            )
        return int(good[-1])

    def guaranteed_precision(self, wanted: float) -> int:
        """Return the lowest threshold that is reached by a sequence of tests, each "precision below `wanted`?".

        A sequence starts at a number of rows fixed in advance, goes down the ranking by steps of 5 % and ends at the
        first test that does not reject: its error is that of one test, however long it is. The starts, each four times
        as far down as the one before, share the error.
        """
        odds = wanted / (1 - wanted) / self.odds_ratio if wanted < 1 else math.inf
        in_sample = odds / (1 + odds) if wanted < 1 else 1.0
        taken = self.found + self.false
        starts = _starts(in_sample, self.error, taken[-1])
        last = -1
        for start in starts:
            size = start
            while size <= taken[-1]:
                number = int(np.searchsorted(taken, size - 1e-9))
                hits, others = self.found[number], self.false[number]
                if not hits or beta_cdf(in_sample, hits, others + 1) > self.error / len(starts):
                    break
                last = max(last, number)
                size = max(size + 1, size * _SEQUENCE_GROWTH)
        if last < 0:
            raise ValueError(
                f"guarantee: no threshold has a precision of {wanted:g} with {self.confidence:.0%} confidence on "
                f"{self.counts[0]:,} positive and {self.counts[1]:,} negative rows: ask for less, or for the estimate"
            )
        return last

    def guaranteed_recall(self, wanted: float) -> int:
        """Return the highest threshold whose recall has a lower bound of at least `wanted`."""
        low, high = 0, len(self.thresholds) - 1
        if self.recall_bound(self.positives) < wanted:
            needed = "no number of them shows it"
            if wanted < 1:
                needed = f"it takes {math.ceil(math.log(self.error) / math.log(wanted)):,} of them"
            raise ValueError(
                f"guarantee: no threshold has a recall of {wanted:g} with {self.confidence:.0%} confidence on "
                f"{self.counts[0]:,} positive rows; {needed}: ask for less, or for the estimate"
            )
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if self.recall_bound(self.found[middle]) >= wanted else (middle + 1, high)
        return low

    def at_most(self, name: str, rows: int, of: float) -> int:
        """Return the lowest threshold that takes at most `rows` of `of` rows, or the first one."""
        if rows > of:
            raise ValueError(f"{name} must be at most the number of rows, {of:g}, got {rows}")
        return max(0, int((self.share * of <= rows * (1 + 1e-12)).sum()) - 1)

    def least_cost(self, costs: tuple[float, float], limit: int) -> int:
        """Return the highest of the thresholds up to `limit` with the least cost; -1 where taking no row is best."""
        mean = self.mean_cost(costs, self.recall[: limit + 1], self.false_rate[: limit + 1])
        number = int(np.argmin(mean))
        return -1 if costs[1] * self.prevalence <= mean[number] else number

    def mean_cost(self, costs: tuple[float, float], recall: Any, false_rate: Any) -> Any:
        return costs[1] * self.prevalence * (1 - recall) + costs[0] * (1 - self.prevalence) * false_rate

    def recall_bound(self, found: float, error: float | None = None) -> float:
        error = self.error if error is None else error
        return beta_quantile(error, float(found), float(self.positives - found + 1)) if found > 0 else 0.0

    def decision(
        self,
        number: int,
        rule: str,
        requested: float | tuple[float, float],
        *,
        guaranteed: bool = False,
        costs: tuple[float, float] | None = None,
        threshold: float | None = None,
    ) -> Decision:
        """Return the decision for a threshold by its number; -1 is above all scores."""
        none = number < 0
        found, false = (0.0, 0.0) if none else (float(self.found[number]), float(self.false[number]))
        recall, false_rate = found / self.positives, false / self.negatives
        above_all = float(np.nextafter(self.thresholds[0], np.inf))
        chosen = above_all if none else float(self.thresholds[number])
        errors = {each: self.error * _ERROR_SHARES.get((rule, each), 1.0) for each in ("precision", "recall", "cost")}
        low = beta_quantile(errors["precision"], found, false + 1) if found else 0.0
        bound = low * self.odds_ratio / (low * self.odds_ratio + 1 - low)
        if guaranteed and rule == "precision" and isinstance(requested, float):
            bound = requested  # what the tests have shown
        cost = None
        if costs is not None:
            each = errors["cost"] / 2
            worst = 1.0 if false >= self.negatives else beta_quantile(1 - each, false + 1, self.negatives - false)
            expected = float(self.mean_cost(costs, recall, false_rate))
            cost = Bounded(expected, float(self.mean_cost(costs, self.recall_bound(found, each), worst)))
        return Decision(
            threshold=chosen if threshold is None else threshold,
            rule=rule,
            requested=requested,
            share=0.0 if none else float(self.share[number]),
            precision=Bounded(math.nan if none else float(self.precision[number]), math.nan if none else bound),
            recall=Bounded(recall, self.recall_bound(found, errors["recall"])),
            cost=cost,
            prevalence=self.prevalence,
            confidence=self.confidence,
            guaranteed=guaranteed,
            positives=self.counts[0],
            negatives=self.counts[1],
            costs=costs,
        )
