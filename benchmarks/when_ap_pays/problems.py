"""Ranking problems of which everything is known: mixtures of Gaussians with identity covariance.

A problem has an easy bulk of negatives around the origin and positives in clusters. In all problems but "smooth" each
cluster also has contested negatives, which only a cue separates from the positives: this is the top of the ranking.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FEATURES = 20
TOPS = ("smooth", "linear", "opposed", "nonlinear", "groups")
"""What separates the positives from the negatives that reach the top:

smooth: nothing but the distance to the bulk, with which the clusters overlap; there are no contested negatives.
linear: a shift of one feature, the same in all clusters.
opposed: the same, and the bulk lies on the positives' side of that feature.
nonlinear: whether two features have the same sign.
groups: a shift of one feature, upwards in the first cluster and downwards in the second. The first has one contested
negative per positive, the second nine; both have equally many positives.
"""
_FAR, _NEAR, _SHIFT, _CORNER, _OPPOSED = 4.0, 2.0, 0.75, 1.5, 3.0
_CONTESTED = 2.0
_GROUP_CONTESTED = (1.0, 9.0)
_DIRECTIONS = slice(4, 12)
_TEST_ROWS = {"positive": 10_000, "contested": 20_000, "bulk": 30_000}

_Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Cell:
    """One problem and the size of the model: the coordinates of a result.

    Args:
        top: One of `TOPS`.
        model: A key of `study.MODELS`.
        rows: Training rows; validation has a quarter as many in addition.
        prevalence: Share of positives.
        clusters: Number of clusters of positives; always 2 with "groups".
        noise: Share of the rows labelled positive that are rows of the bulk, in training and validation.
        steps: Steps of the optimiser, at least four epochs.
    """

    top: str
    model: str
    rows: int = 10_000
    prevalence: float = 0.02
    clusters: int = 3
    noise: float = 0.0
    steps: int = 600


class Component(NamedTuple):
    """One Gaussian: its kind ("positive", "contested" or "bulk"), its cluster (-1: none), mass and mean."""

    kind: str
    cluster: int
    mass: float
    mean: _Floats


class Rows(NamedTuple):
    """Features (n, d), labels (n,), weights (n,) and clusters (n,) of sampled rows."""

    features: _Floats
    labels: _Floats
    weight: _Floats
    cluster: NDArray[np.int64]


@dataclass(frozen=True)
class Problem:
    """A mixture of Gaussians with identity covariance."""

    components: tuple[Component, ...]
    noise: float = 0.0

    def sample(self, rows: int, generator: np.random.Generator) -> Rows:
        """Draw rows with the prevalence of the mixture; the number of positives is not random.

        A share `noise` of the rows labelled positive are drawn from the bulk instead.
        """
        positives = max(2, round(rows * self.prevalence))
        wrong = round(self.noise * positives)
        kinds = [component.kind for component in self.components]
        masses = np.array([component.mass for component in self.components])
        is_positive = np.array([kind == "positive" for kind in kinds])
        true = generator.choice(len(masses), positives - wrong, p=masses * is_positive / masses[is_positive].sum())
        negative = generator.choice(len(masses), rows - positives, p=masses * ~is_positive / masses[~is_positive].sum())
        chosen = np.concatenate([true, np.full(wrong, kinds.index("bulk")), negative])
        labels = (np.arange(rows) < positives).astype(np.float64)
        return self._draw(chosen, labels, np.ones(rows), generator)

    def sample_test(self, generator: np.random.Generator) -> Rows:
        """Draw a large sample without label noise, stratified by kind; its weights restore the masses."""
        kinds = [component.kind for component in self.components]
        chosen = np.concatenate([np.repeat(k, _TEST_ROWS[kind] // kinds.count(kind)) for k, kind in enumerate(kinds)])
        masses = np.array([component.mass for component in self.components])
        labels = np.array([kind == "positive" for kind in kinds])[chosen].astype(np.float64)
        return self._draw(chosen, labels, (masses / np.bincount(chosen))[chosen], generator)

    def _draw(
        self, chosen: NDArray[np.int64], labels: _Floats, weight: _Floats, generator: np.random.Generator
    ) -> Rows:
        means = np.stack([component.mean for component in self.components])
        features = means[chosen] + generator.standard_normal((len(chosen), FEATURES))
        clusters = np.array([component.cluster for component in self.components])
        return Rows(features, labels, weight, clusters[chosen])

    @property
    def prevalence(self) -> float:
        """The share of positives."""
        return sum(component.mass for component in self.components if component.kind == "positive")

    def log_odds(self, features: _Floats) -> _Floats:
        """Return the true log-odds of a positive, (n,): no ranking has a higher expected precision at any recall."""
        means = np.stack([component.mean for component in self.components])
        masses = np.array([component.mass for component in self.components])
        exponents = features @ means.T - (means**2).sum(1) / 2 + np.log(masses)
        positive = np.array([component.kind == "positive" for component in self.components])
        result: _Floats = np.logaddexp.reduce(exponents[:, positive], axis=1)
        return result - np.logaddexp.reduce(exponents[:, ~positive], axis=1)


def make_problem(cell: Cell, generator: np.random.Generator) -> Problem:
    """Return the problem of a cell, with clusters in random directions.

    Raises:
        ValueError: Unknown top, or contested negatives and positives that leave no room for the bulk.
    """
    if cell.top not in TOPS:
        raise ValueError(f"top must be one of {', '.join(TOPS)}, got {cell.top!r}")
    clusters = 2 if cell.top == "groups" else cell.clusters
    directions = np.zeros((clusters, FEATURES))
    drawn = generator.standard_normal((clusters, _DIRECTIONS.stop - _DIRECTIONS.start))
    directions[:, _DIRECTIONS] = drawn / np.linalg.norm(drawn, axis=1, keepdims=True)
    first, second = np.eye(FEATURES)[:2]
    share = cell.prevalence / clusters
    parts: list[Component] = []
    for number, direction in enumerate(directions):
        centre = direction * (_NEAR if cell.top == "smooth" else _FAR)
        ratio = _GROUP_CONTESTED[number] if cell.top == "groups" else _CONTESTED
        if cell.top == "smooth":
            cues, ratio = (np.zeros((1, FEATURES)), np.zeros((0, FEATURES))), 0.0
        elif cell.top == "nonlinear":
            same, opposite = _CORNER * (first + second), _CORNER * (first - second)
            cues = np.stack([same, -same]), np.stack([opposite, -opposite])
        else:
            sign = -1 if cell.top == "groups" and number == 1 else 1
            cues = np.stack([sign * _SHIFT * first]), np.stack([-sign * _SHIFT * first])
        for kind, shifts, mass in (("positive", cues[0], share), ("contested", cues[1], share * ratio)):
            parts += [Component(kind, number, mass / len(shifts), centre + shift) for shift in shifts]
    rest = 1 - sum(part.mass for part in parts)
    if rest <= 0:
        raise ValueError(f"prevalence {cell.prevalence} leaves no room for the bulk beside the contested negatives")
    bulk = _OPPOSED * first if cell.top == "opposed" else np.zeros(FEATURES)
    return Problem((*parts, Component("bulk", -1, rest, bulk)), cell.noise)
