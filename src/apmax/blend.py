"""Blends: non-negative weights that join the scores of several models into one ranking."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from apmax import extras, metrics, validation
from apmax.data.splits import k_fold
from apmax.functional import ap_objective

_Array = NDArray[np.float64]

FEWEST_POSITIVES = 20
"""Below this number of positives `BASE_BLEND` is taken without comparing it with other methods."""
BASE_BLEND = "logistic"
"""The method that others must beat: on development tables it ranked new rows best, most clearly with few positives."""
_ROUNDS, _PATIENCE = 100, 20
_FOLDS, _RESAMPLES = 5, 200
_PULL = 0.05
# Weights below this share of the largest change the ranking little, but their members cost as much as others.
_LEAST_SHARE = 0.1
_CHUNK = 2**19
_LARGEST_EXPONENT = 512
LEAST_DEVIATION = 1e-9
"""Scores whose standard deviation is less than this share of the largest magnitude are constant, up to rounding."""


@dataclass(frozen=True)
class Blend:
    """A weighted mean of standardised scores.

    Attributes:
        weights: (K,), or (K, targets): non-negative, with sum 1 for each target.
        location: The mean of each member's scores, of the same shape.
        scale: Their standard deviation; 1 for constant scores.
        method: The method of each target: "greedy", "exact", "logistic" or "best".
        reason: Why that method, in one sentence for each target.
        ap: The cross-fitted average precision of every method that was compared, for each target.
    """

    weights: _Array
    location: _Array
    scale: _Array
    method: tuple[str, ...]
    reason: tuple[str, ...] = ()
    ap: tuple[Mapping[str, float], ...] = field(default=())

    def score(self, scores: Any) -> _Array:
        """Return the blended scores, (n,) or (n, targets), of the members' scores (n, K) or (n, K, targets).

        Raises:
            ValueError: Another number of members or targets.
        """
        values = np.asarray(scores, dtype=np.float64)
        if values.shape[1:] != self.weights.shape:
            expected = ", ".join(["n", *map(str, self.weights.shape)])
            raise ValueError(f"scores must have shape ({expected}), got {values.shape}")
        blended: _Array = (self.weights * (values - self.location) / self.scale).sum(1)
        return blended


def fit_blend(
    scores: Any,
    labels: Any,
    *,
    method: str = "auto",
    sample_weight: Any = None,
    groups: Any = None,
    seed: int = 0,
) -> Blend:
    """Return the weights that give the best ranking of rows that the members were not fitted to.

    Each member's scores are standardised first. "greedy" selects members one at a time, with replacement, each time
    the one that raises the average precision of the mean most. "exact" maximises the exact surrogate average precision
    over the simplex, pulled towards the greedy weights; "logistic" minimises the log-loss with non-negative weights;
    "best" is the one member with the highest average precision. "auto" fits all four by cross-fitting over the rows
    and replaces "logistic" only where another gains more than one standard error of the paired difference. With fewer
    than 20 positives it takes "logistic" without a comparison. Weights below a tenth of the largest become 0.

    Args:
        scores: (n, K) of K members, or (n, K, targets); cross-fitted, on any scales. Rows with NaN are left out.
        labels: (n,) or (n, targets) of 0/1; NaN in (n, targets) means "not known".
        method: "auto", "greedy", "exact", "logistic" or "best".
        sample_weight: (n,) non-negative.
        groups: (n,) rows of one group stay together in folds and resamples. Methods are compared where two groups
            hold positives.
        seed: Of the folds and resamples.

    Raises:
        ValueError: Wrong shapes, infinite scores, groups of another number of rows, a target without positives or
            negatives.

    >>> labels = np.array([1, 0, 1, 0, 0, 1, 0, 0])
    >>> useful, noise = labels + np.linspace(0, 0.5, 8), np.array([3.0, 1, 4, 1, 5, 9, 2, 6])
    >>> fit_blend(np.stack([useful, noise], 1), labels).weights
    array([1., 0.])
    """
    validation.choice("method", method, ("auto", *METHODS))
    values, truth, weight = _checked(scores, labels, sample_weight)
    group = None if groups is None else validation.group_array(groups, len(truth))
    several = truth.ndim == 2
    if not several:
        values, truth = values[..., None], truth[:, None]
    fitted = []
    for target in range(truth.shape[1]):
        known = ~np.isnan(truth[:, target]) & np.isfinite(values[:, :, target]).all(1) & (weight > 0)
        rows = _Rows(
            values[known, :, target],
            truth[known, target],
            weight[known],
            None if group is None else group[known],
        )
        fitted.append(_fit_target(rows, method, seed))
    parts = list(zip(*fitted, strict=True))
    weights, location, scale = (np.stack(part, 1) if several else part[0] for part in parts[:3])
    return Blend(weights, location, scale, *map(tuple, parts[3:]))


@dataclass(frozen=True)
class _Rows:
    """Scores (n, K), labels, weights and groups of the rows that a target's blend is fitted to."""

    scores: _Array
    labels: _Array
    weight: _Array
    groups: NDArray[Any] | None

    @property
    def folds(self) -> int:
        """The number of folds, each with positives of its own."""
        return _FOLDS if self.groups is None else min(_FOLDS, len(np.unique(self.groups[self.labels == 1])))

    def take(self, rows: NDArray[np.int64]) -> _Rows:
        groups = None if self.groups is None else self.groups[rows]
        return _Rows(self.scores[rows], self.labels[rows], self.weight[rows], groups)

    def average_precision(self, scores: _Array) -> _Array:
        """Return the average precision of each column of `scores`, (n, m)."""
        weight = None if np.ptp(self.weight) == 0 else self.weight
        values = [metrics.average_precision(column, self.labels, sample_weight=weight) for column in scores.T]
        return torch.stack(values).numpy()

    @cached_property
    def greedy(self) -> _Array:
        """Shares of greedy selection with replacement, of the number of rounds with the highest average precision."""
        members = self.scores.shape[1]
        counts, best_counts = np.zeros(members), np.zeros(members)
        total, best = np.zeros(len(self.labels)), -np.inf
        since = 0
        for _ in range(_ROUNDS):
            ap = self.average_precision(total[:, None] + self.scores)
            chosen = int(np.argmax(ap))
            counts[chosen] += 1
            total += self.scores[:, chosen]
            since += 1
            if ap[chosen] > best:
                best, best_counts, since = ap[chosen], counts.copy(), 0
            if since >= _PATIENCE:
                break
        return _on_simplex(best_counts, best_counts)


def _checked(scores: Any, labels: Any, sample_weight: Any) -> tuple[_Array, _Array, _Array]:
    values, truth = np.asarray(scores, dtype=np.float64), np.asarray(labels, dtype=np.float64)
    if values.ndim != truth.ndim + 1 or truth.ndim not in (1, 2) or len(values) != len(truth) or values.shape[1] < 1:
        raise ValueError(
            f"scores must have shape (n, K) with labels (n,), or (n, K, targets) with labels (n, targets); "
            f"got {values.shape} and {truth.shape}"
        )
    if truth.ndim == 2 and values.shape[2] != truth.shape[1]:
        raise ValueError(f"scores and labels must have the same targets, got {values.shape[2]} and {truth.shape[1]}")
    if np.isinf(values).any():
        raise ValueError("scores must be finite, or NaN where a member has none; got an infinite one")
    validation.binary(torch.from_numpy(truth))
    weight = np.ones(len(truth))
    if sample_weight is not None:
        weight = validation.weights(np.asarray(sample_weight, dtype=np.float64), (len(truth),)).numpy()
        # Sums of very large weights would not be finite. Division by a power of two is exact.
        weight = np.ldexp(weight, -max(0, np.frexp(weight.max())[1] - _LARGEST_EXPONENT))
    return values, truth, weight


def _fit_target(rows: _Rows, method: str, seed: int) -> tuple[_Array, _Array, _Array, str, str, Mapping[str, float]]:
    """Return weights, location, scale, method, reason and compared average precisions of one target."""
    positives = int(rows.labels.sum())
    if not 0 < positives < len(rows.labels):
        raise ValueError("labels must hold a positive and a negative row with scores for every target")
    share = rows.weight / rows.weight.sum()
    # In place: the rows are copies of the caller's. Over a power of two, which is exact: squares of very large and very
    # small scores are not finite or 0.
    scores = rows.scores
    exponent = np.frexp(np.abs(scores).max(0))[1]
    np.ldexp(scores, -exponent, out=scores)
    location = share @ scores
    scores -= location
    deviation = np.sqrt(share @ np.square(scores))
    constant = deviation <= LEAST_DEVIATION
    scale = np.where(constant, 1.0, deviation)
    scores /= scale
    scores[:, constant] = 0.0
    location, scale = np.ldexp(location, exponent), np.where(constant, 1.0, np.ldexp(scale, exponent))
    compared: Mapping[str, float] = {}
    if method != "auto":
        chosen, reason = method, f"{method} was requested"
    elif rows.scores.shape[1] == 1:
        chosen, reason = "best", "there is one member"
    elif positives < FEWEST_POSITIVES:
        chosen, reason = BASE_BLEND, f"{positives} positives are too few to compare methods"
    elif rows.folds < 2:
        chosen, reason = BASE_BLEND, "positives of one group are too few to compare methods"
    else:
        chosen, reason, compared = _choose(rows, seed)
    return METHODS[chosen](rows), location, scale, chosen, reason, compared


def _choose(rows: _Rows, seed: int) -> tuple[str, str, Mapping[str, float]]:
    """Return the method, the reason and the cross-fitted average precision of each."""
    blended = {name: np.empty(len(rows.labels)) for name in METHODS}
    for train, test in k_fold(rows.labels, rows.folds, groups=rows.groups, seed=seed):
        part = rows.take(train)
        for name, fit in METHODS.items():
            blended[name][test] = rows.scores[test] @ fit(part)
    table = np.stack(list(blended.values()), 1)
    ap = dict(zip(METHODS, rows.average_precision(table).tolist(), strict=True))
    resampled = dict(zip(METHODS, _resampled(table, rows, seed), strict=True))
    gains = {name: ap[name] - ap[BASE_BLEND] for name in METHODS if name != BASE_BLEND}
    errors = {name: float(np.std(resampled[name] - resampled[BASE_BLEND], ddof=1)) for name in gains}
    better = {name: gain for name, gain in gains.items() if gain > errors[name]}
    if not better:
        return BASE_BLEND, "no other method gains more than one standard error of the difference", ap
    name = max(better, key=lambda each: better[each])
    return name, f"{name} gains {gains[name]:.4f} over {BASE_BLEND} weights, standard error {errors[name]:.4f}", ap


def _resampled(scores: _Array, rows: _Rows, seed: int) -> list[_Array]:
    """Return the average precision of each column in bootstrap resamples by class or, with groups, by group."""
    generator = np.random.default_rng(seed)
    if rows.groups is None:
        unit, stratum = np.arange(len(rows.labels)), rows.labels
    else:
        _, unit = np.unique(rows.groups, return_inverse=True)
        stratum = (np.bincount(unit, weights=rows.labels) > 0).astype(float)
    rankings = [_Ranking.of(column, rows.labels) for column in scores.T]
    values: list[list[float]] = [[] for _ in rankings]
    step = max(1, _CHUNK // len(rows.labels))
    for start in range(0, _RESAMPLES, step):
        counts = np.zeros((min(step, _RESAMPLES - start), len(stratum)))
        for value in (0.0, 1.0):
            members = np.flatnonzero(stratum == value)
            if len(members):
                draws = generator.multinomial(len(members), np.full(len(members), 1 / len(members)), size=len(counts))
                counts[:, members] = draws
        for drawn in counts:
            weight = drawn[unit] * rows.weight
            for kept, ranking in zip(values, rankings, strict=True):
                kept.append(ranking.average_precision(weight))
    return [np.array(kept) for kept in values]


class _Ranking(NamedTuple):
    """Rows by descending score, and where the positives stand: average precision gains nothing between them.

    Attributes:
        order: The rows.
        hits: Places of the positives.
        ends: The last place of every tied score that a positive has.
        last: Of the positives with such a score, the number of the last.
    """

    order: NDArray[np.int64]
    hits: NDArray[np.int64]
    ends: NDArray[np.int64]
    last: NDArray[np.int64]

    @staticmethod
    def of(scores: _Array, labels: _Array) -> _Ranking:
        order = np.argsort(-scores, kind="stable")
        ranked, hits = scores[order], np.flatnonzero(labels[order] == 1)
        ends = np.flatnonzero(np.append(ranked[1:] != ranked[:-1], True))
        own = np.searchsorted(ends, hits)
        last = np.flatnonzero(np.append(own[1:] != own[:-1], True))
        return _Ranking(order, hits, ends[own[last]], last)

    def average_precision(self, weight: _Array) -> float:
        """Return the average precision of rows that count by a weight, such as the number of times they were drawn."""
        ranked = weight[self.order]
        found = ranked[self.hits].cumsum()[self.last]
        precision = found / np.maximum(ranked.cumsum()[self.ends], np.finfo(float).tiny)
        # In this order, as cumulated sums are: `sum` adds in another one.
        total = (np.diff(found, prepend=0.0) * precision).cumsum()[-1]
        return float(total / np.maximum(found[-1], np.finfo(float).tiny))


def _greedy(rows: _Rows) -> _Array:
    """Return the weights of greedy selection."""
    return rows.greedy


def _best(rows: _Rows) -> _Array:
    """Return weight 1 for the member with the highest average precision."""
    weights: _Array = np.eye(rows.scores.shape[1])[int(np.argmax(rows.average_precision(rows.scores)))]
    return weights


def _exact(rows: _Rows) -> _Array:
    """Return the simplex weights of the highest exact surrogate AP, pulled towards the greedy ones."""
    optimize = extras.load("scipy.optimize", "sklearn")
    start = rows.greedy
    members, labels = torch.from_numpy(rows.scores), torch.from_numpy(rows.labels)
    weight = torch.from_numpy(rows.weight)

    def objective(point: _Array) -> tuple[float, _Array]:
        blended = (members @ torch.from_numpy(point)).requires_grad_()
        value = ap_objective(blended, labels, "smooth_step", 1.0, sample_weight=weight)
        (gradient,) = torch.autograd.grad(value, blended)
        pull = point - start
        return value.item() + _PULL * float(pull @ pull), (members.T @ gradient).numpy() + 2 * _PULL * pull

    result = optimize.minimize(
        objective,
        start,
        jac=True,
        method="SLSQP",
        bounds=[(0, 1)] * len(start),
        constraints={"type": "eq", "fun": lambda point: point.sum() - 1, "jac": np.ones_like},
    )
    return _on_simplex(result.x, start)


def _logistic(rows: _Rows) -> _Array:
    """Return the non-negative weights of the least log-loss, scaled to sum 1."""
    optimize = extras.load("scipy.optimize", "sklearn")
    share = rows.weight / rows.weight.sum()
    sign = 2 * rows.labels - 1

    def objective(point: _Array) -> tuple[float, _Array]:
        margin = sign * (rows.scores @ point[:-1] + point[-1])
        slope = -share * sign / (1 + np.exp(np.clip(margin, -700, 700)))
        return float(share @ np.logaddexp(0, -margin)), np.append(slope @ rows.scores, slope.sum())

    members = rows.scores.shape[1]
    bounds = [(0, None)] * members + [(None, None)]
    result = optimize.minimize(objective, np.zeros(members + 1), jac=True, method="L-BFGS-B", bounds=bounds)
    return _on_simplex(result.x[:-1], _best(rows))


def _on_simplex(weights: _Array, otherwise: _Array) -> _Array:
    """Return non-negative weights without small ones, scaled to sum 1; `otherwise` where they are all zero."""
    positive = np.clip(weights, 0, None)
    positive[positive < _LEAST_SHARE * positive.max(initial=0)] = 0
    total = positive.sum()
    return positive / total if np.isfinite(total) and total > 0 else otherwise


METHODS: dict[str, Callable[[_Rows], _Array]] = {
    "greedy": _greedy,
    "exact": _exact,
    "logistic": _logistic,
    "best": _best,
}
