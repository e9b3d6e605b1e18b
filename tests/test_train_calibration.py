"""Tests of Platt calibration."""

from __future__ import annotations

import math

import numpy as np
import pytest

from apmax.train import fit_platt


def platt_loss(point, scores, labels, weight):
    positive, negative = sum(weight[labels == 1]), sum(weight[labels == 0])
    total = 0.0
    for score, label, w in zip(scores, labels, weight, strict=True):
        target = (positive + 1) / (positive + 2) if label == 1 else 1 / (negative + 2)
        logit = point[0] * score + point[1]
        total += w * (math.log1p(math.exp(-abs(logit))) + max(logit, 0) - target * logit)
    return total


def test_calibration_minimises_platts_loss():
    rng = np.random.default_rng(0)
    scores, weight = 5 + 3 * rng.standard_normal(80), rng.integers(1, 4, 80).astype(float)
    labels = (scores + 2 * rng.standard_normal(80) > 6).astype(float)
    curve = fit_platt(scores, labels, weight)
    for shift in np.eye(2) * 1e-5:
        above, below = (platt_loss(np.array(curve) + sign * shift, scores, labels, weight) for sign in (1, -1))
        assert (above - below) / 2e-5 == pytest.approx(0, abs=1e-5)


def test_calibration_never_reverses_the_ranking():
    curve = fit_platt(np.array([3.0, 2.0, 1.0]), np.array([0.0, 0.0, 1.0]), np.ones(3))
    assert curve.slope > 0
    # The curve is then constant: the mean target, (1/4 + 1/4 + 2/3)/3 = 7/18.
    assert curve.logit(np.array([2.0]))[0] == pytest.approx(math.log(7 / 11), abs=1e-5)


def test_calibration_of_separated_scores_is_finite():
    curve = fit_platt(np.array([0.0, 1.0, 1e3]), np.array([0.0, 1.0, 1.0]), np.ones(3))
    assert np.isfinite(curve).all()


def test_calibration_takes_small_weights_as_ratios():
    scores, labels = np.arange(6.0), np.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    small = fit_platt(scores, labels, np.full(6, 1e-3))
    np.testing.assert_allclose(small, fit_platt(scores, labels, np.ones(6)), rtol=1e-9)


def test_calibration_takes_weights_as_ratios_if_any_is_small():
    scores, labels = np.arange(6.0), np.array([0.0, 0.0, 1.0, 0.0, 1.0, 1.0])
    weight = np.array([0.5, 3.0, 2.0, 1.0, 4.0, 2.0])
    counts = weight * 6 / 12.5
    found = fit_platt(scores, labels, weight)
    np.testing.assert_allclose(found, fit_platt(scores, labels, weight / 100), rtol=1e-9)
    for shift in np.eye(2) * 1e-5:
        above, below = (platt_loss(np.array(found) + sign * shift, scores, labels, counts) for sign in (1, -1))
        assert (above - below) / 2e-5 == pytest.approx(0, abs=1e-5)
