"""The figures that `apmax evaluate` reports, against loops over their definitions."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from apmax.jobs.evaluation import auprc_interval, auroc_interval, evaluate


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
    got = auroc_interval(scores, labels)
    assert got.estimate == pytest.approx(area, abs=1e-12)
    for end, side in ((got.low, -1), (got.high, 1)):
        reach = 1.959963984540054 * math.sqrt(variance) / (area * (1 - area))
        assert logit(end) == pytest.approx(logit(area) + side * reach, abs=1e-9)


def test_auprc_interval_follows_its_formula():
    scores, labels = (torch.tensor(part) for part in sample())
    got = auprc_interval(scores, labels)
    reach = 1.959963984540054 / math.sqrt(int(labels.sum()) * got.estimate * (1 - got.estimate))
    assert logit(got.low) == pytest.approx(logit(got.estimate) - reach, abs=1e-9)
    assert logit(got.high) == pytest.approx(logit(got.estimate) + reach, abs=1e-9)


@pytest.mark.parametrize("scores", [[4.0, 3.0, 2.0, 1.0], [1.0, 2.0, 3.0, 4.0]])
def test_perfect_ranking_has_an_interval_that_claims_nothing(scores):
    result = evaluate(np.array(scores), np.array([1, 1, 0, 0]))
    assert (result.auroc.low, result.auroc.high) == (0.0, 1.0)


def test_interval_holds_the_true_auroc_as_often_as_it_says():
    truth = 0.5 * (1 + math.erf(1 / 2))  # two normal distributions one deviation apart
    held = [low <= truth <= high for low, high in (ends(seed) for seed in range(400))]
    assert 0.92 <= np.mean(held) <= 0.98


def ends(seed):
    generator = np.random.default_rng(seed)
    labels = np.repeat([1, 0], [30, 300])
    found = auroc_interval(generator.normal(size=330) + labels, labels)
    return found.low, found.high


def test_precision_is_reported_at_the_number_of_positives_and_at_no_k_beyond_the_rows():
    scores, labels = sample(60)
    assert list(evaluate(scores, labels).precision_at) == sorted({10, 50, int(labels.sum())})


def test_figures_without_negatives_are_null_in_json():
    table = evaluate(np.array([0.1, 0.2]), np.array([1, 1])).to_table()
    assert table["auroc"]["estimate"] is None
    assert table["ap"]["estimate"] == 1.0
