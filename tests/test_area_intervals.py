"""Intervals for the trapezoidal AUPRC and the AUROC, against loops over their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from apmax import metrics

Z = 1.959963984540054
BOTH = pytest.mark.parametrize("interval", [metrics.auprc_interval, metrics.auroc_interval])


def sample(rows=300, shift=1.0, seed=0):
    generator = np.random.default_rng(seed)
    labels = (generator.random(rows) < 0.2).astype(int)
    return np.round(generator.normal(size=rows) + shift * labels, 1), labels


def logit(p):
    return math.log(p / (1 - p))


def test_auroc_interval_is_delongs_by_loops():
    scores, labels = sample()
    hits, misses = scores[labels == 1], scores[labels == 0]

    def wins(a, b):
        return 1.0 if a > b else 0.5 if a == b else 0.0

    v = [sum(wins(a, b) for b in misses) / len(misses) for a in hits]
    w = [sum(wins(a, b) for a in hits) / len(hits) for b in misses]
    area = sum(v) / len(v)
    variance = np.var(v, ddof=1) / len(v) + np.var(w, ddof=1) / len(w)
    got = metrics.auroc_interval(scores, labels)
    assert got.estimate == pytest.approx(area, abs=1e-12)
    for end, side in ((got.low, -1), (got.high, 1)):
        reach = Z * math.sqrt(variance) / (area * (1 - area))
        assert logit(end) == pytest.approx(logit(area) + side * reach, abs=1e-9)


def test_auprc_interval_follows_its_formula():
    scores, labels = sample()
    got = metrics.auprc_interval(scores, labels)
    assert got.estimate == metrics.auprc(scores, labels).item()
    reach = Z / math.sqrt(int(labels.sum()) * got.estimate * (1 - got.estimate))
    assert logit(got.low) == pytest.approx(logit(got.estimate) - reach, abs=1e-9)
    assert logit(got.high) == pytest.approx(logit(got.estimate) + reach, abs=1e-9)


@BOTH
def test_more_confidence_is_a_wider_interval_about_the_same_estimate(interval):
    narrow, wide = (interval(*sample(), confidence=confidence) for confidence in (0.5, 0.99))
    assert narrow.estimate == wide.estimate
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high


@BOTH
def test_a_perfect_ranking_has_an_interval_that_claims_nothing(interval):
    found = interval([4.0, 3.0, 2.0, 1.0], [1, 1, 0, 0])
    assert (found.estimate, found.low, found.high) == (1.0, 0.0, 1.0)


@pytest.mark.parametrize(
    ("scores", "labels", "area"),
    [
        ([1.0, 2.0, 3.0, 4.0], [1, 1, 0, 0], 0.0),
        ([2.0, 3.0, 1.0], [1, 0, 0], 0.5),
        ([1.0] * 7, [1, 1, 1, 0, 0, 0, 0], 0.5),
    ],
    ids=["worst", "one positive", "all tied"],
)
def test_auroc_without_a_spread_has_an_interval_that_claims_nothing(scores, labels, area):
    found = metrics.auroc_interval(scores, labels)
    assert (found.estimate, found.low, found.high) == (area, 0.0, 1.0)


def test_where_the_area_is_undefined_all_is_nan():
    for found in (
        metrics.auprc_interval([1.0, 2.0], [0, 0]),
        metrics.auroc_interval([1.0, 2.0], [0, 0]),
        metrics.auroc_interval([1.0, 2.0], [1, 1]),
    ):
        assert all(math.isnan(value) for value in (found.estimate, found.low, found.high))


@BOTH
def test_tensors_columns_and_lists_are_the_same(interval):
    scores, labels = sample(50)
    expected = interval(scores, labels)
    assert interval(torch.tensor(scores)[:, None], torch.tensor(labels)[:, None]) == expected
    assert interval(scores.tolist(), labels.tolist()) == expected


@BOTH
@pytest.mark.parametrize(
    ("scores", "labels", "confidence", "message"),
    [
        ([1.0, 2.0], [0, 1], 1.0, "confidence"),
        ([1.0, math.nan], [0, 1], 0.95, "scores"),
        ([1.0, 2.0], [0, 2], 0.95, "labels"),
        ([1.0, 2.0, 3.0], [0, 1], 0.95, "shape"),
        ([[1.0, 2.0], [2.0, 1.0]], [[0, 1], [1, 0]], 0.95, "one task"),
    ],
)
def test_errors_name_the_argument(interval, scores, labels, confidence, message):
    with pytest.raises(ValueError, match=message):
        interval(scores, labels, confidence=confidence)


def test_interval_holds_the_true_auroc_as_often_as_it_says():
    truth = 0.5 * (1 + math.erf(1 / 2))  # two normal distributions one deviation apart
    held = [low <= truth <= high for low, high in (ends(seed) for seed in range(400))]
    assert 0.92 <= np.mean(held) <= 0.98


def ends(seed):
    generator = np.random.default_rng(seed)
    labels = np.repeat([1, 0], [30, 300])
    found = metrics.auroc_interval(generator.normal(size=330) + labels, labels)
    return found.low, found.high
