"""From the scores of members to a ranking: alignment, weights, few positives, calibration."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("lightgbm")

from apmax.blend import BASE_BLEND, fit_blend
from apmax.committee import (
    ArrayFeatures,
    TrainingRows,
    find_members,
    fit_committee,
)
from apmax.committee.crossfit import make_folds, number_of_folds
from apmax.committee.members import Cost, Member
from apmax.committee.storage import load_committee, save_committee
from apmax.metrics import average_precision, paired_difference
from apmax.train import fit_platt
from small_committees import FAST, shifted_table, training_rows


@pytest.mark.parametrize(
    ("positives", "kind"),
    [
        (2, "plain"),
        (3, "plain"),
        (5, "plain"),
        (10, "plain"),
        (20, "plain"),
        (5, "groups"),
        (3, "times"),
        (10, "times"),
    ],
)
def test_few_positives_give_finite_scores_and_no_comparison_of_blends(positives, kind):
    X, y = shifted_table(positives, rows=120, positives=positives)
    more = {}
    if kind == "groups":
        more = {"groups": np.arange(120) // 2}
    if kind == "times":
        # One positive in each of equal blocks, so that every window has some.
        y = np.zeros(120)
        y[np.linspace(5, 115, positives).astype(int)] = 1
        more = {"times": np.arange(120.0)}
    rows = training_rows(X, y, **more)
    count = number_of_folds(y, rows.groups, 5, times=rows.times)
    assert count <= min(5, positives)
    fitted = fit_committee(rows, find_members(["linear", "linear_ce"]), folds=5 if count >= 2 else 1)
    assert np.isfinite(fitted.log_odds(fitted.score(X))).all()
    scored = positives if kind != "times" else sum(int(y[test].sum()) for _, test in make_folds(rows, 5, 0))
    if count >= 2 and scored < 20:
        assert fitted.blend.method == (BASE_BLEND,)
        assert "too few to compare" in fitted.blend.reason[0]


@pytest.mark.parametrize("name", ["gbdt", "forest", "trees", "linear", "linear_ce"])
def test_weights_reach_fits_and_leaderboard(name):
    X, y = shifted_table(3, rows=150, positives=50)
    # Every row a second time with the other label and next to no weight; with equal weights nothing could be learnt.
    twice, labels, weight = np.tile(X, (2, 1)), np.append(y, 1 - y), np.repeat([1.0, 1e-6], 150)
    rows = TrainingRows(ArrayFeatures(twice), labels, weight, groups=np.tile(np.arange(150), 2))
    fitted = fit_committee(rows, find_members([name]), folds=2)
    new, truth = shifted_table(4, rows=300, positives=100)
    # By chance 0.33; and 0.5 in a leaderboard that counts both labels of a row alike.
    assert average_precision(fitted.score(new), truth).item() > 0.6
    assert fitted.leaderboard.blend.ap.estimate > 0.6


class FirstColumn:
    """A fitted member that scores by the first column, or by rounding errors only."""

    rounds = ()

    def __init__(self, constant):
        self.constant = constant

    def score(self, matrix):
        noise = 1e-17 * np.arange(len(matrix))
        return 0.1 + noise + 0.2 if self.constant else matrix[:, 0].astype(float)


def test_constant_scores_of_a_fold_are_not_blown_up():
    """Held-out scores of a fold that differ by rounding only have no deviation to divide by."""
    X, y = shifted_table(rows=60, positives=20)
    member = Member(lambda data: FirstColumn(data.seed == 1), None, "", Cost(0, 0, 0))
    fitted = fit_committee(training_rows(X, y), {"own": member}, folds=3)
    assert np.abs(fitted.score(X)).max() < 10
    assert average_precision(fitted.score(X), y) > 0.8


def test_members_are_aligned_by_the_weighted_moments_of_held_out_rows():
    X, y = shifted_table(rows=60, positives=20)
    weight = np.random.default_rng(1).exponential(size=60)
    rows = TrainingRows(ArrayFeatures(X), y, weight)
    split = make_folds(rows, 3, seed=0)
    fitted = fit_committee(rows, {"own": Member(lambda _: FirstColumn(False), None, "", Cost(0, 0, 0))}, folds=split)
    for (_, held_out), fold in zip(split, fitted.folds, strict=True):
        scores = fold.features.matrix(X[held_out])[:, 0]
        mean = np.average(scores, weights=weight[held_out])
        deviation = np.average((scores - mean) ** 2, weights=weight[held_out]) ** 0.5
        assert (fold.location["own"], fold.scale["own"]) == pytest.approx((mean, deviation), rel=1e-6)


class Column:
    """A fitted member that scores by one column."""

    rounds = ()

    def __init__(self, number):
        self.number = number

    def score(self, matrix):
        return matrix[:, self.number].astype(float)


@pytest.mark.parametrize("grouped", [False, True])
def test_blend_calibration_and_leaderboard_are_of_the_weighted_rows(grouped):
    X, y = shifted_table(positives=50)
    X[:, 1] += 1.5 * y
    weight = np.random.default_rng(1).exponential(size=200) * np.where(y == 1, 4, 1)
    groups = np.arange(200) // 4 if grouped else None
    members = {
        name: Member(lambda _, number=number: Column(number), None, "", Cost(0, 0, 0))
        for number, name in enumerate(("linear", "linear_ce"))
    }
    found = fit_committee(TrainingRows(ArrayFeatures(X), y, weight, groups=groups), members, folds=3)
    scores = found.cross_fitted
    blend = fit_blend(scores, y, sample_weight=weight, groups=groups)
    assert (found.blend.weights.tolist(), found.blend.ap) == (blend.weights.tolist(), blend.ap)
    assert fit_blend(scores, y, groups=groups).ap != blend.ap, "weights make no difference"
    if grouped:
        assert fit_blend(scores, y, sample_weight=weight).ap != blend.ap, "groups make no difference"
    blended = blend.score(scores)
    assert tuple(found.calibration) == pytest.approx(tuple(fit_platt(blended, y, weight)))
    board = found.leaderboard
    assert board.blend.ap.estimate == pytest.approx(average_precision(blended, y, sample_weight=weight).item())
    for row in board.rows:
        own = scores[:, list(members).index(row.name)]
        assert row.ap.estimate == pytest.approx(average_precision(own, y, sample_weight=weight).item())
    (verdict,) = board.verdicts
    assert verdict.difference == paired_difference(scores[:, 0], scores[:, 1], y, sample_weight=weight)


def test_a_member_of_rounding_errors_has_no_weight():
    X, y = shifted_table(rows=60, positives=20)
    members = {
        name: Member(lambda _, constant=constant: FirstColumn(constant), None, "", Cost(0, 0, 0))
        for name, constant in {"rounding": True, "own": False}.items()
    }
    fitted = fit_committee(training_rows(X, y), members, folds=3)
    assert fitted.blend.weights.tolist() == [0, 1]
    assert not fitted.cross_fitted[:, 0].any()


def test_a_committee_without_held_out_classes_has_no_calibration(tmp_path):
    X, y = shifted_table(positives=1)
    fitted = fit_committee(training_rows(X, y), find_members(FAST), folds=1)
    assert fitted.calibration is None
    np.testing.assert_array_equal(fitted.log_odds(fitted.score(X)), fitted.score(X))
    save_committee(tmp_path, fitted)
    assert load_committee(tmp_path).calibration is None
