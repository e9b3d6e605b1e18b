"""Loops over the equations of the SOAP paper, in numpy, to be held beside its text; nothing of the package is used.

Letters are the paper's: h scores, y labels, ℓ the surrogate of 1[h_s >= h_i], g inner, f outer, u moving average.
Beyond the paper: weights w (1 where the paper has none), the prevalence-corrected g, and more surrogates.
"""

from __future__ import annotations

from math import exp, fsum, log1p

import numpy as np

# ℓ(x) and ℓ′(x) at x = h_s - h_i; the derivative from the right where there is a kink.


def squared_hinge(x, m):
    return (max(m + x, 0) ** 2, 2 * max(m + x, 0))


def hinge(x, m):
    return (max(m + x, 0), 1 if x >= -m else 0)


def smoothed_hinge(x, m):
    if x < -m:
        return 0, 0
    return ((x + m) ** 2 / (2 * m), (x + m) / m) if x < 0 else (x + m / 2, 1)


def ramp(x, m):
    if x < -m:
        return 0, 0
    return ((x + m) / (2 * m), 1 / (2 * m)) if x < m else (1, 0)


def smooth_step(x, m):
    z = min(max(x / m, -1), 1)
    return 1 / 2 + z * (1 - abs(z) / 2), (1 - abs(z)) / m


def logistic(x, c):
    return max(c * x, 0) + log1p(exp(-abs(c * x))), c * sigmoid(x, c)[0]


def sigmoid(x, c):
    small = exp(-abs(c * x))
    return (1 if x >= 0 else small) / (1 + small), c * small / (1 + small) ** 2


def exponential(x, c):
    return exp(min(c * x, 80)), c * exp(c * x) if c * x < 80 else 0


SURROGATES = {
    each.__name__: each
    for each in (squared_hinge, hinge, smoothed_hinge, ramp, smooth_step, logistic, sigmoid, exponential)
}


def average_precision(h, y, w=None):
    """Equation 1."""
    w = np.ones(len(h)) if w is None else w
    positives = [i for i in range(len(h)) if y[i] == 1]
    total = 0.0
    for i in positives:
        above = [s for s in range(len(h)) if h[s] >= h[i]]
        total += w[i] * fsum(w[s] for s in above if y[s] == 1) / fsum(w[s] for s in above) if w[i] else 0
    return total / fsum(w[i] for i in positives)


def objective(h, y, surrogate, margin, w=None):
    """Equation 2: P(w)."""
    ell, w = SURROGATES[surrogate], np.ones(len(h)) if w is None else w
    positives = [i for i in range(len(h)) if y[i] == 1 and w[i] > 0]
    total = 0.0
    for i in positives:
        above = [w[s] * ell(h[s] - h[i], margin)[0] for s in range(len(h))]
        total += w[i] * -fsum(above[s] for s in range(len(h)) if y[s] == 1) / fsum(above)
    return total / fsum(w[i] for i in positives)


def objective_gradient(h, y, surrogate, margin, w=None):
    """Equation 5, with respect to the scores: Σ_i ∇g_i·∇f(g_i) / n₊."""
    ell, n = SURROGATES[surrogate], len(h)
    w = np.ones(n) if w is None else w
    positives = [i for i in range(n) if y[i] == 1 and w[i] > 0]
    weight, gradient = fsum(w[i] for i in positives), np.zeros(n)
    for i in positives:
        g = inner(h[i], h, y, surrogate, margin, w)
        for s in range(n):
            of_all = g[0] / g[1] ** 2 - (y[s] == 1) / g[1]
            step = w[i] / weight * of_all * w[s] * ell(h[s] - h[i], margin)[1] / fsum(w)
            gradient[s] += step
            gradient[i] -= step
    return gradient


def inner(anchor, h, y, surrogate, margin, w=None):
    """Equation 3, and step 2 of Algorithm 2: (g¹, g²) of one anchor over a batch."""
    ell, w = SURROGATES[surrogate], np.ones(len(h)) if w is None else w
    above = [w[j] * ell(h[j] - anchor, margin)[0] for j in range(len(h))]
    return np.array([fsum(above[j] for j in range(len(h)) if y[j] == 1), fsum(above)]) / fsum(w)


def corrected_inner(i, rows, h, y, surrogate, margin, w=None, prevalence=None):
    """The prevalence-corrected (g¹_i, g²_i) of training row i from a batch of distinct training rows that holds it.

    g¹_i = π [w_i ℓ_ii + (W₊ - w_i)·wmean_{j ∈ S₊, j ≠ i} ℓ_ji] / W₊;   g²_i = g¹_i + (1 - π)·wmean_{j ∈ S₋} ℓ_ji
    """
    w = np.ones(len(h)) if w is None else w
    total = fsum(w[j] for j in range(len(h)) if y[j] == 1)
    share = total / fsum(w) if prevalence is None else prevalence

    def pair(j):
        return SURROGATES[surrogate](h[j] - h[i], margin)[0]

    def mean(of, where_empty):
        return fsum(w[j] * pair(j) for j in of) / fsum(w[j] for j in of) if of else where_empty

    others = mean([j for j in rows if y[j] == 1 and j != i], pair(i))
    positives = share * (w[i] * pair(i) + (total - w[i]) * others) / total
    return np.array([positives, positives + (1 - share) * mean([j for j in rows if y[j] == 0], 0)])


def f(s):
    """The outer function."""
    return -s[0] / s[1]


def update_u(u, anchors, h, y, surrogate, margin, gamma, floor):
    """Algorithm 2, UG: the new u of every anchor of the batch, {row: (u¹, u²)}; `anchors` is {row: score}."""
    new = dict(u)
    for row, anchor in anchors.items():
        g = inner(anchor, h, y, surrogate, margin)
        first = (1 - gamma) * u[row][0] + gamma * g[0]
        second = max((1 - gamma) * u[row][1] + gamma * g[1], floor)
        new[row] = np.array([first, second])
    return new


def gradient_estimate(u, anchors, h, y, surrogate, margin):
    """Equation 6: G with respect to the anchors' scores and with respect to the batch's; u and anchors in one order."""
    of_anchors, of_batch = np.zeros(len(anchors)), np.zeros(len(h))
    for i, anchor in enumerate(anchors):
        for j in range(len(h)):
            slope = SURROGATES[surrogate](h[j] - anchor, margin)[1]
            step = (u[i][0] - u[i][1] * (y[j] == 1)) * slope / (len(h) * u[i][1] ** 2) / len(anchors)
            of_batch[j] += step
            of_anchors[i] -= step
    return of_anchors, of_batch


def pair_sums(h, anchors, positive, negative, surrogate, margin):
    """Σ_j w_j ℓ(h_j - a_i) by either weight, (k, 2)."""
    ell = SURROGATES[surrogate]
    return np.array(
        [[fsum(w[j] * ell(h[j] - a, margin)[0] for j in range(len(h))) for w in (positive, negative)] for a in anchors]
    )


def pair_sums_pulled_back(cotangent, h, anchors, positive, negative, surrogate, margin):
    """The gradients of Σ cotangent·pair_sums with respect to h and to the anchors."""
    of_scores, of_anchors = np.zeros(len(h)), np.zeros(len(anchors))
    for i, a in enumerate(anchors):
        for j in range(len(h)):
            incoming = cotangent[i][0] * positive[j] + cotangent[i][1] * negative[j]
            step = incoming * SURROGATES[surrogate](h[j] - a, margin)[1]
            of_scores[j] += step
            of_anchors[i] -= step
    return of_scores, of_anchors
