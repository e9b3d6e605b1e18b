"""SOAP by loops over the paper's equations, to be held beside it; imports nothing from the package."""

from __future__ import annotations

import math

import numpy as np


def squared_hinge(x, m):
    return max(m + x, 0.0) ** 2


def squared_hinge_slope(x, m):
    return 2 * max(m + x, 0.0)


def smooth_step(x, m):
    z = min(max(x / m, -1.0), 1.0)
    return 0.5 + z * (1 - abs(z) / 2)


def smooth_step_slope(x, m):
    return (1 - min(abs(x / m), 1.0)) / m


def sigmoid(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


VALUES = {"squared_hinge": squared_hinge, "smooth_step": smooth_step}
SLOPES = {"squared_hinge": squared_hinge_slope, "smooth_step": smooth_step_slope}


def coefficients_as_they_are(labels, weights, i):
    """Algorithm 2, line 2: g¹_i and g²_i are plain (weighted) means over the batch; i does not matter."""
    total = sum(weights)
    both = [w / total for w in weights]
    return [c if y == 1 else 0.0 for c, y in zip(both, labels, strict=True)], both


def coefficients_at_prevalence(labels, weights, i, prevalence, total_positive):
    """Design §2: the anchor's own pair counts once among all n₊, the other positives and the negatives by class."""
    others = sum(w for j, (w, y) in enumerate(zip(weights, labels, strict=True)) if y == 1 and j != i)
    negatives = sum(w for w, y in zip(weights, labels, strict=True) if y == 0)
    of_positives, of_all = [], []
    for j, (w, y) in enumerate(zip(weights, labels, strict=True)):
        if j == i:
            # With no other positive in the batch the pair with itself stands for all of them.
            own = prevalence if others == 0 else prevalence * weights[i] / total_positive
            of_positives.append(own)
            of_all.append(own)
        elif y == 1:
            share = prevalence * (total_positive - weights[i]) / total_positive * w / others
            of_positives.append(share)
            of_all.append(share)
        else:
            of_positives.append(0.0)
            of_all.append((1 - prevalence) * w / negatives)
    return of_positives, of_all


class Soap:
    """Algorithms 1 and 2 for one task: `u[row]` is [u¹, u²], absent where never visited.

    `prevalence` None takes the batch as it is (the paper). `floor` is u₀, a number or a function of an anchor's weight.
    """

    def __init__(
        self,
        *,
        surrogate="squared_hinge",
        margin=1.0,
        gamma=0.9,
        start="estimate",
        floor=0.0,
        prevalence=None,
        total_positive=None,
    ):
        self.value, self.slope = VALUES[surrogate], SLOPES[surrogate]
        self.margin, self.gamma, self.start, self.floor = margin, gamma, start, floor
        self.prevalence, self.total_positive = prevalence, total_positive
        self.u = {}

    def coefficients(self, labels, weights, i):
        if self.prevalence is None:
            return coefficients_as_they_are(labels, weights, i)
        return coefficients_at_prevalence(labels, weights, i, self.prevalence, self.total_positive)

    def g(self, scores, labels, weights, i):
        """[g̃_i]¹ and [g̃_i]²."""
        pairs = [self.value(s - scores[i], self.margin) for s in scores]
        return [sum(c * p for c, p in zip(part, pairs, strict=True)) for part in self.coefficients(labels, weights, i)]

    def update(self, scores, labels, rows, weights, i):
        """Algorithm 2, line 3, for one anchor."""
        new = self.g(scores, labels, weights, i)
        visited = rows[i] in self.u
        complete = self.prevalence is None or 0 in labels
        if visited and not complete:
            # Without negatives in the batch what is known of them stays.
            new[1] = new[0] + self.u[rows[i]][1] - self.u[rows[i]][0]
        old = self.u[rows[i]] if visited else (new if self.start == "estimate" else [0.0, 0.0])
        floor = self.floor(weights[i]) if callable(self.floor) else self.floor
        first, second = ((1 - self.gamma) * o + self.gamma * n for o, n in zip(old, new, strict=True))
        if visited or complete:
            # What is not known of the negatives yet stays unknown.
            self.u[rows[i]] = [first, max(second, floor)]
        return first, max(second, floor)

    def step(self, scores, labels, rows, weights=None):
        """Update u and return 1 + mean f(u) over the anchors, and equation 6 with respect to every score."""
        weights = [1.0] * len(scores) if weights is None else weights
        anchors = [i for i, y in enumerate(labels) if y == 1 and weights[i] > 0]
        total = sum(weights[i] for i in anchors)
        loss, gradient = 1.0, np.zeros(len(scores))
        for i in anchors:
            first, second = self.update(scores, labels, rows, weights, i)
            loss -= weights[i] / total * first / second
            of_positives, of_all = self.coefficients(labels, weights, i)
            for j, score in enumerate(scores):
                flow = -of_positives[j] / second + of_all[j] * first / second**2
                flow *= weights[i] / total * self.slope(score - scores[i], self.margin)
                gradient[j] += flow
                gradient[i] -= flow
        return loss, gradient
