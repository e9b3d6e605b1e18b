"""Loops over the formulas of the eight compared losses, in numpy, to be held beside their papers.

Every reference takes one task: the batch (scores, labels, weights) and the training set (labels, weights).
`prevalence` is None (that of the training set), a number, or "batch".
"""

from __future__ import annotations

import math

import numpy as np


def sigmoid(x):
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
        return alpha * sigmoid(-z) ** focusing * log_loss(z)

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
        h = sigmoid(s)
        if y == 1:
            each = (1 - p) * (h - a) ** 2 + 2 * alpha * (p * (1 - p) * margin - (1 - p) * h)
        else:
            each = p * (h - b) ** 2 + 2 * alpha * (p * (1 - p) * margin + p * h)
        value += w * (each - p * (1 - p) * alpha**2)
    return value


def smooth_ap(scores, labels, weight, train_labels, train_weight, prevalence, *, temperature, squash):
    h = [sigmoid(s) if squash else s for s in scores]
    positives = [i for i, y in enumerate(labels) if y == 1]
    negatives = [i for i, y in enumerate(labels) if y == 0]
    total = class_total(train_labels, train_weight, 1)
    if prevalence != "batch":
        share = training_share(train_labels, train_weight) if prevalence is None else prevalence

    def above(j, i):
        return sigmoid((h[j] - h[i]) / temperature)

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
            histogram[y][b] += w * max(0.0, 1 - abs(sigmoid(s) - b / bins) * bins)
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


REFERENCES = {
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
