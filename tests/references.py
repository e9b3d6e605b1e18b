"""Reference implementations: loops over the papers' equations, in numpy, importing nothing from the package.

First the SOAP paper, in its letters: h scores, y labels, ℓ the surrogate of 1[h_s >= h_i], g inner, f outer, u moving
average; beyond the paper: weights w (1 where the paper has none), the prevalence-corrected g, and more surrogates. Then
SOAP as a whole, the eight other losses, the Adam-style update and the proximal term.
"""

from __future__ import annotations

import math
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


def tied_places(h, y, w=None):
    """Return first place, last place and share of positives of the rows of each score, from the top."""
    w = np.ones(len(h)) if w is None else np.asarray(w, float)
    h, y, w = np.asarray(h)[w > 0], np.asarray(y)[w > 0], w[w > 0]
    _, level = np.unique(-h, return_inverse=True)
    size = np.bincount(level, weights=w)
    last = np.cumsum(size)
    return last - size, last, np.bincount(level, weights=w * y) / size


def enrichment_factor(h, y, w=None, *, fraction=0.01):
    """The share of positives on the first `fraction` of the places over that on all, ties in random order."""
    first, last, share = tied_places(h, y, w)
    cut = fraction * last[-1]
    found = fsum(share[g] * (min(last[g], cut) - first[g]) for g in range(len(share)) if first[g] < cut)
    return found / cut / (fsum(share * (last - first)) / last[-1])


def bedroc(h, y, w=None, *, alpha=20.0):
    """Truchon and Bayly (2007), equations 34 to 36, with whole weights as repeated rows and ties in random order.

    For other weights the sum of exp(-α·r/n) over the places r of a score is continued as that geometric series.
    """
    first, last, share = tied_places(h, y, w)
    n, total, active = last[-1], 0.0, fsum(share * (last - first))
    for g in range(len(share)):
        if first[g] % 1 == last[g] % 1 == 0:
            series = fsum(exp(-alpha * (r + 1) / n) for r in range(int(first[g]), int(last[g])))
        else:
            series = (exp(-alpha * first[g] / n) - exp(-alpha * last[g] / n)) / (exp(alpha / n) - 1)
        total += share[g] * series
    ratio = active / n
    rie = (total / active) / ((1 / n) * (1 - exp(-alpha)) / (exp(alpha / n) - 1))
    scale = ratio * math.sinh(alpha / 2) / (math.cosh(alpha / 2) - math.cosh(alpha / 2 - alpha * ratio))
    return rie * scale + 1 / (1 - exp(alpha * (1 - ratio)))


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


def newton_terms(h, y, margin, w=None, *, prevalence=None, damping):
    """Gradient and curvature of W₊·P with the smooth step, from the push λ of every pair (anchor i, other s).

    Curvature: Σ |λ| / margin over an example's pairs, plus damping·w·W₊/W.
    """
    n, w = len(h), np.ones(len(h)) if w is None else w
    positives = [i for i in range(n) if y[i] == 1 and w[i] > 0]
    weight = {c: fsum(w[j] for j in range(n) if y[j] == c) for c in (0, 1)}
    factor = {1: 1, 0: 1}
    if prevalence is not None:
        factor = {1: prevalence / weight[1], 0: (1 - prevalence) / weight[0] if weight[0] else 1}
    gradient, pushes = np.zeros(n), np.zeros(n)
    for i in positives:
        above = [factor[y[s]] * w[s] * smooth_step(h[s] - h[i], margin)[0] for s in range(n)]
        of_positives, of_all = fsum(above[s] for s in range(n) if y[s] == 1), fsum(above)
        for s in range(n):
            if s == i:
                continue
            slope = of_positives / of_all**2 - (y[s] == 1) / of_all
            push = w[i] * slope * factor[y[s]] * w[s] * smooth_step(h[s] - h[i], margin)[1]
            gradient[s] += push
            gradient[i] -= push
            pushes[s] += abs(push)
            pushes[i] += abs(push)
    return gradient, pushes / margin + damping * np.array(w) * weight[1] / fsum(w)


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
    """Σ_j w_j ℓ(h_j - a_i) by either weight, (2, k)."""
    ell = SURROGATES[surrogate]
    return np.array(
        [[fsum(w[j] * ell(h[j] - a, margin)[0] for j in range(len(h))) for a in anchors] for w in (positive, negative)]
    )


def pair_sums_pulled_back(cotangent, h, anchors, positive, negative, surrogate, margin):
    """The gradients of Σ cotangent·pair_sums with respect to h and to the anchors."""
    of_scores, of_anchors = np.zeros(len(h)), np.zeros(len(anchors))
    for i, a in enumerate(anchors):
        for j in range(len(h)):
            incoming = cotangent[0][i] * positive[j] + cotangent[1][i] * negative[j]
            step = incoming * SURROGATES[surrogate](h[j] - a, margin)[1]
            of_scores[j] += step
            of_anchors[i] -= step
    return of_scores, of_anchors


def plain_coefficients(labels, weights, i):
    """Algorithm 2, line 2: g¹_i and g²_i are plain (weighted) means over the batch; i does not matter."""
    total = sum(weights)
    both = [w / total for w in weights]
    return [c if y == 1 else 0.0 for c, y in zip(both, labels, strict=True)], both


def coefficients_at_prevalence(labels, weights, i, prevalence, total_positive):
    """The prevalence correction: an anchor's own pair counts once among all n₊, all other examples by class."""
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

    `prevalence` None means no correction (the paper). `floor` is u₀, a number or a function of an anchor's weight.
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
        self.surrogate = SURROGATES[surrogate]
        self.margin, self.gamma, self.start, self.floor = margin, gamma, start, floor
        self.prevalence, self.total_positive = prevalence, total_positive
        self.u = {}

    def coefficients(self, labels, weights, i):
        if self.prevalence is None:
            return plain_coefficients(labels, weights, i)
        return coefficients_at_prevalence(labels, weights, i, self.prevalence, self.total_positive)

    def g(self, scores, labels, weights, i):
        """[g̃_i]¹ and [g̃_i]²."""
        pairs = [self.surrogate(s - scores[i], self.margin)[0] for s in scores]
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
                flow *= weights[i] / total * self.surrogate(score - scores[i], self.margin)[1]
                gradient[j] += flow
                gradient[i] -= flow
        return loss, gradient


# The eight other losses, each for one task: the batch (scores, labels, weights) and the training set (labels, weights).
# `prevalence` is None (that of the training set), a number, or "batch".


def expit(x):
    return 1 / (1 + math.exp(-x)) if x >= 0 else math.exp(x) / (1 + math.exp(x))


def training_share(train_labels, train_weight):
    positive = sum(w for y, w in zip(train_labels, train_weight, strict=True) if y == 1)
    return positive / sum(train_weight)


def class_total(labels, weight, which):
    return sum(w for y, w in zip(labels, weight, strict=True) if y == which)


def population_weights(labels, weight, train_labels, train_weight, prevalence):
    """Each example's weight: its share of its class's mean, times the share of that class in the population."""
    total = {which: class_total(labels, weight, which) for which in (0, 1)}
    if prevalence == "batch":
        return [w / (total[0] + total[1]) for w in weight]
    share = training_share(train_labels, train_weight) if prevalence is None else prevalence
    return [(share if y == 1 else 1 - share) * w / total[y] for y, w in zip(labels, weight, strict=True)]


def pointwise(each, scores, labels, weight, train_labels, train_weight, prevalence):
    weights = population_weights(labels, weight, train_labels, train_weight, prevalence)
    return sum(w * each(s if y == 1 else -s, y) for s, y, w in zip(scores, labels, weights, strict=True))


def log_loss(z):
    return max(-z, 0) + math.log1p(math.exp(-abs(z)))


def effective_number_weights(train_labels, train_weight, beta):
    raw = {y: (1 - beta) / (1 - beta ** class_total(train_labels, train_weight, y)) for y in (0, 1)}
    return {y: 2 * raw[y] / (raw[0] + raw[1]) for y in (0, 1)}


def cross_entropy(scores, labels, weight, train_labels, train_weight, prevalence):
    return pointwise(lambda z, y: log_loss(z), scores, labels, weight, train_labels, train_weight, prevalence)


def class_balanced(scores, labels, weight, train_labels, train_weight, prevalence, *, beta):
    alpha = effective_number_weights(train_labels, train_weight, beta)
    return pointwise(
        lambda z, y: alpha[y] * log_loss(z), scores, labels, weight, train_labels, train_weight, prevalence
    )


def focal(scores, labels, weight, train_labels, train_weight, prevalence, *, focusing, balance):
    def each(z, y):
        alpha = 1.0 if balance is None else (balance if y == 1 else 1 - balance)
        return alpha * expit(-z) ** focusing * log_loss(z)

    return pointwise(each, scores, labels, weight, train_labels, train_weight, prevalence)


def ldam(
    scores, labels, weight, train_labels, train_weight, prevalence, *, max_margin, scale, beta, defer_epoch, epoch
):
    raw = {y: class_total(train_labels, train_weight, y) ** -0.25 for y in (0, 1)}
    margin = {y: max_margin * raw[y] / max(raw.values()) for y in (0, 1)}
    alpha = {0: 1.0, 1: 1.0}
    if epoch >= defer_epoch:
        alpha = effective_number_weights(train_labels, train_weight, beta)

    def each(z, y):
        # Two-class softmax on logits (z_0, z_1) = (-s/2, s/2); z = s for a positive and -s for a negative.
        own, other = scale * (z / 2 - margin[y]), scale * (-z / 2)
        top = max(own, other)
        return alpha[y] * (top + math.log(math.exp(own - top) + math.exp(other - top)) - own)

    return pointwise(each, scores, labels, weight, train_labels, train_weight, prevalence)


def auc_m(scores, labels, weight, train_labels, train_weight, prevalence, *, margin, a, b, alpha):
    if prevalence == "batch":
        p = class_total(labels, weight, 1) / sum(weight)
    else:
        p = training_share(train_labels, train_weight) if prevalence is None else prevalence
    weights = population_weights(labels, weight, train_labels, train_weight, prevalence)
    value = 0.0
    for s, y, w in zip(scores, labels, weights, strict=True):
        h = expit(s)
        if y == 1:
            each = (1 - p) * (h - a) ** 2 + 2 * alpha * (p * (1 - p) * margin - (1 - p) * h)
        else:
            each = p * (h - b) ** 2 + 2 * alpha * (p * (1 - p) * margin + p * h)
        value += w * (each - p * (1 - p) * alpha**2)
    return value


def smooth_ap(scores, labels, weight, train_labels, train_weight, prevalence, *, temperature, squash):
    h = [expit(s) if squash else s for s in scores]
    positives = [i for i, y in enumerate(labels) if y == 1]
    negatives = [i for i, y in enumerate(labels) if y == 0]
    total = class_total(train_labels, train_weight, 1)
    if prevalence != "batch":
        share = training_share(train_labels, train_weight) if prevalence is None else prevalence

    def above(j, i):
        return expit((h[j] - h[i]) / temperature)

    value = 0.0
    for i in positives:
        others = [j for j in positives if j != i]
        ahead = sum(weight[j] * above(j, i) for j in others)
        behind = sum(weight[j] * above(j, i) for j in negatives)
        if prevalence != "batch":
            ahead = (total - weight[i]) * (ahead / sum(weight[j] for j in others) if others else 0.5)
            behind = total * (1 - share) / share * behind / sum(weight[j] for j in negatives)
        value += weight[i] * (weight[i] + ahead) / (weight[i] + ahead + behind)
    return 1 - value / sum(weight[i] for i in positives)


def fast_ap(scores, labels, weight, train_labels, train_weight, prevalence, *, bins):
    weights = population_weights(labels, weight, train_labels, train_weight, prevalence)
    histogram = {y: [0.0] * (bins + 1) for y in (0, 1)}
    for s, y, w in zip(scores, labels, weights, strict=True):
        for b in range(bins + 1):
            histogram[y][b] += w * max(0.0, 1 - abs(expit(s) - b / bins) * bins)
    value = 0.0
    for b in range(bins + 1):
        hits, intruders = sum(histogram[1][b:]), sum(histogram[0][b:])
        if histogram[1][b] > 0:
            value += histogram[1][b] * hits / (hits + intruders)
    return 1 - value / sum(histogram[1])


def minmax(scores, labels, weight, train_labels, train_weight, prevalence, *, thresholds, multipliers):
    start = prevalence if isinstance(prevalence, float) else training_share(train_labels, train_weight)
    weights = population_weights(labels, weight, train_labels, train_weight, prevalence)
    anchors = len(thresholds)
    value = 0.0
    for k in range(anchors):
        precision = start + (1 - start) * (k + 1) / (anchors + 1)
        missed = admitted = positives = 0.0
        for s, y, w in zip(scores, labels, weights, strict=True):
            if y == 1:
                missed += w * max(0.0, 1 - (s - thresholds[k]))
                positives += w
            else:
                admitted += w * max(0.0, 1 + (s - thresholds[k]))
        odds = precision / (1 - precision)
        lagrangian = (1 + multipliers[k]) * missed + multipliers[k] * odds * admitted - multipliers[k] * positives
        value += (1 - start) / (anchors + 1) * lagrangian
    return value


BASELINES = {
    "ce": cross_entropy,
    "cb_ce": class_balanced,
    "focal": focal,
    "ldam": ldam,
    "auc_m": auc_m,
    "smooth_ap": smooth_ap,
    "fast_ap": fast_ap,
    "minmax": minmax,
}


def mean_over_tasks(reference, scores, labels, weight, train_labels, train_weight, prevalence, options):
    """The mean over the tasks measured in the batch; `options` holds one dict of hyper-parameters for each task."""
    values = []
    for task in range(labels.shape[1]):
        known, train_known = ~np.isnan(labels[:, task]), ~np.isnan(train_labels[:, task])
        if known.any():
            values.append(
                reference(
                    scores[known, task],
                    labels[known, task],
                    weight[known],
                    train_labels[train_known, task],
                    train_weight[train_known],
                    prevalence,
                    **options[task],
                )
            )
    return sum(values) / len(values)


def algorithm_3(w, gradients, *, lr, betas, eps, amsgrad, weight_decay=0.0, maximize=False):
    """Return w after every step of the Adam-style update, one coordinate at a time, as the paper writes it."""
    eta1, eta2 = betas
    w = np.array(w, dtype=np.float64)
    h, v_hat = np.zeros_like(w), np.zeros_like(w)
    history = []
    for gradient in gradients:
        for k in range(w.size):
            g = (-gradient[k] if maximize else gradient[k]) + weight_decay * w[k]
            h[k] = eta1 * h[k] + (1 - eta1) * g
            v = eta2 * v_hat[k] + (1 - eta2) * g**2
            v_hat[k] = max(v_hat[k], v) if amsgrad else v
            w[k] = w[k] - lr * h[k] / np.sqrt(eps + v_hat[k])
        history.append(w.copy())
    return np.array(history)


def proximal_sgd(w, gradients, *, lr, weight, every, average):
    """Return w after every step of w ← w - lr·(G + weight·(w - w_ref))."""
    w = np.array(w, dtype=np.float64)
    reference, since, history = w.copy(), [], []
    for gradient in gradients:
        if len(since) == every:
            reference = np.mean(since, axis=0) if average else w.copy()
            since = []
        since.append(w.copy())
        w = w - lr * (np.array(gradient) + weight * (w - reference))
        history.append(w.copy())
    return np.array(history)
