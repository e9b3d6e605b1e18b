"""Curves of a report: thinned counts by threshold, the band, calibration, scores by class, subgroups."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from apmax.metrics import average_precision, precision_at_k
from apmax.metrics.bands import calibration_bins, precision_band
from apmax.report.curves import score_histogram, threshold_curve
from apmax.report.rankings import headline, score_part, subgroup_table
from apmax.train import PlattCurve

COLUMNS = 64


def ranking(seed=0, count=20_000, ties=False, share=0.05):
    generator = np.random.default_rng(seed)
    labels = (generator.random(count) < share).astype(float)
    scores = generator.normal(size=count) + 1.2 * labels
    return (np.round(scores, 2) if ties else scores), labels


def counts(scores, labels, threshold):
    """Return flagged and found rows by a plain comparison."""
    return float((scores >= threshold).sum()), float(labels[scores >= threshold].sum())


@pytest.mark.parametrize("ties", [False, True])
def test_thinned_counts_are_those_of_the_rows(ties):
    scores, labels = ranking(ties=ties)
    curve = threshold_curve(scores, labels, columns=COLUMNS)
    assert ties or len(curve.threshold) < 10 * COLUMNS + 3000
    assert list(curve.threshold) == sorted(curve.threshold, reverse=True)
    for k in range(0, len(curve.threshold), 37):
        assert (curve.flagged[k], curve.found[k]) == counts(scores, labels, curve.threshold[k])
    assert (curve.flagged[-1], curve.found[-1]) == (len(labels), labels.sum())


def test_thinned_curve_covers_the_same_pixels():
    scores, labels = ranking()
    whole, thin = (threshold_curve(scores, labels, columns=columns) for columns in (len(scores), COLUMNS))
    assert len(whole.threshold) == len(scores) > 5 * len(thin.threshold)

    def extent(curve):
        recall, precision = np.array(curve.found) / labels.sum(), np.array(curve.found) / np.array(curve.flagged)
        column = np.minimum((recall * COLUMNS).astype(int), COLUMNS - 1)
        return [(precision[column == k].min(), precision[column == k].max()) for k in range(COLUMNS)]

    assert extent(thin) == extent(whole)


@pytest.mark.parametrize("ties", [False, True])
@pytest.mark.parametrize("k", [1, 7, 42, 999, 1230, 19_900, 20_000])
def test_count_at_round_numbers_is_exact(ties, k):
    scores, labels = ranking(ties=ties)
    curve = threshold_curve(scores, labels, columns=COLUMNS)
    found = np.interp(k, [0, *curve.flagged], [0, *curve.found])
    assert found / k == pytest.approx(precision_at_k(scores, labels, k=k).item(), abs=1e-12)


def test_counts_at_all_round_numbers_are_those_of_the_whole_curve():
    scores, labels = ranking(ties=True)
    thin, whole = (threshold_curve(scores, labels, columns=columns) for columns in (COLUMNS, len(scores)))
    assert len(thin.threshold) < len(whole.threshold)
    numbers = [k for k in range(1, 20_001) if len(str(k).rstrip("0")) <= 3]
    counts = [np.interp(numbers, [0, *curve.flagged], [0, *curve.found]) for curve in (thin, whole)]
    np.testing.assert_allclose(*counts, atol=1e-9)


@given(st.floats(0.001, 0.999), st.floats(0.01, 100), st.integers(0, 3), st.booleans())
def test_least_cost_survives_thinning(prevalence, cost_missed, seed, ties):
    scores, labels = ranking(seed, count=3000, ties=ties)

    def least(columns):
        curve = threshold_curve(scores, labels, columns=columns, digits=1)
        found, flagged = np.array([0, *curve.found]), np.array([0, *curve.flagged])
        missed, false = 1 - found / labels.sum(), (flagged - found) / (1 - labels).sum()
        return (prevalence * cost_missed * missed + (1 - prevalence) * false).min()

    assert least(16) == pytest.approx(least(len(scores)), abs=1e-12)


def test_weights_count_as_equal_rows():
    scores, labels = ranking(count=200, ties=True)
    weight = np.random.default_rng(1).integers(1, 4, 200)
    repeated = np.repeat(np.arange(200), weight)
    weighted = score_part("a", scores, labels, weight)
    plain = score_part("a", scores[repeated], labels[repeated])
    assert weighted.curve == plain.curve
    assert weighted.ap.estimate == pytest.approx(plain.ap.estimate)
    assert weighted.no_skill == pytest.approx(plain.no_skill)
    assert weighted.histogram.positives == pytest.approx(plain.histogram.positives)
    assert weighted.histogram.negatives == pytest.approx(plain.histogram.negatives)
    assert (weighted.rows, plain.rows) == (200, weight.sum())


def test_rows_of_weight_zero_are_left_out():
    part = score_part("a", np.array([9.0, 3, 2, 1]), np.array([0, 1, 0, 0]), np.array([0.0, 1, 1, 2]))
    assert (part.rows, part.ap.estimate, part.no_skill) == (3, 1.0, 0.25)


@pytest.mark.parametrize("value", [0, 1])
def test_one_class_is_an_error(value):
    word = "positive" if value == 0 else "negative"
    with pytest.raises(ValueError, match=f"labels: test has no {word} row"):
        score_part("test", np.arange(4.0), np.full(4, value))


def test_band_surrounds_the_curve_and_has_width_for_a_perfect_ranking():
    scores, labels = ranking(count=2000)
    band = precision_band(scores, labels)
    order = np.argsort(-scores)
    found = labels[order].cumsum()
    for recall, low, high in zip(band.recall, band.low, band.high, strict=True):
        first = int(np.argmax(found >= max(1, recall * labels.sum() - 1e-9)))
        assert low <= found[first] / (first + 1) <= high
    assert 0 <= min(band.low) < max(band.high) <= 1
    perfect = precision_band(np.arange(20.0), np.arange(20) >= 15)
    assert max(perfect.low) < 1
    assert min(perfect.high) > 0.999


def test_band_needs_two_positives():
    assert precision_band(np.arange(3.0), np.array([0.0, 1, 0])) is None


def test_band_of_many_positives_agrees_with_the_whole(monkeypatch):
    from apmax.metrics import bands

    scores, labels = ranking(count=1500, share=0.4)
    whole = precision_band(scores, labels)
    monkeypatch.setattr(bands, "BAND_LEVELS", 200)
    thin = precision_band(scores, labels)
    assert np.abs(np.array(thin.low) - whole.low)[5:].max() < 0.05
    assert np.abs(np.array(thin.high) - whole.high)[5:].max() < 0.05


def test_rows_of_weight_zero_are_as_if_absent_from_the_band():
    rng = np.random.default_rng(3)
    labels = (np.arange(60) % 6 == 0).astype(float)
    scores, weight = rng.normal(size=60) + labels, rng.uniform(0.5, 2, 60) * (rng.random(60) < 0.5)
    counted = weight > 0
    assert (labels[counted] == 1).any()
    assert precision_band(scores, labels, weight) == precision_band(scores[counted], labels[counted], weight[counted])
    lone = precision_band(np.array([3.0, 2, 1, 0]), np.array([1.0, 1, 0, 0]), np.array([0.0, 1, 1, 1]))
    assert lone is None


@pytest.mark.parametrize("scale", [2.0**-700, 2.0**700])
def test_the_scale_of_weights_does_not_matter_to_bands_and_bins(scale):
    rng = np.random.default_rng(3)
    labels = (np.arange(60) % 6 == 0).astype(float)
    scores, weight = rng.uniform(size=60), rng.uniform(0.5, 2, 60)
    assert precision_band(scores, labels, weight * scale) == precision_band(scores, labels, weight)
    for scaled, found in zip(*(calibration_bins(scores, labels, w) for w in (weight * scale, weight)), strict=True):
        assert (scaled.observed, scaled.low, scaled.high) == (found.observed, found.low, found.high)


def test_calibration_bins_hold_every_row_once_and_equal_probabilities_together():
    generator = np.random.default_rng(0)
    probabilities = np.round(generator.beta(0.3, 8, 5000), 2)
    labels = (generator.random(5000) < probabilities).astype(float)
    bins = calibration_bins(probabilities, labels)
    assert sum(each.rows for each in bins) == 5000
    assert sum(each.rows * each.observed for each in bins) == pytest.approx(labels.sum())
    assert sum(each.rows * each.predicted for each in bins) == pytest.approx(probabilities.sum())
    assert [each.predicted for each in bins] == sorted(each.predicted for each in bins)
    expected = [each.rows * each.predicted for each in bins]
    assert max(expected) < 2.5 * probabilities.sum() / len(bins)
    assert np.mean([each.low <= each.predicted <= each.high for each in bins]) >= 0.8
    assert all(each.low <= each.observed <= each.high for each in bins)


def test_histogram_has_all_of_each_class():
    scores, labels = ranking(count=500)
    histogram = score_histogram(scores, labels)
    assert sum(histogram.positives) == pytest.approx(1)
    assert sum(histogram.negatives) == pytest.approx(1)
    assert score_histogram(np.zeros(3), np.array([0.0, 1, 1])).positives[0] == 1


def test_probabilities_are_those_of_the_calibration():
    scores, labels = ranking(count=400)
    part = score_part("a", scores, labels, calibration=PlattCurve(2.0, -1.0), calibration_fitted=True)
    assert part.platt == (2.0, -1.0)
    mean = 1 / (1 + np.exp(-(2 * scores - 1)))
    assert sum(each.rows * each.predicted for each in part.calibration) == pytest.approx(mean.sum())


def test_headline_says_what_the_interval_allows():
    good = headline(score_part("test", *ranking(count=2000)))
    assert "times that of a random ranking" in good
    unsure = headline(score_part("test", np.arange(6.0), np.array([0, 1, 0, 1, 0, 1])))
    assert unsure.endswith("it cannot be told from that of a random ranking (0.500).")
    labels = (np.arange(600) < 300).astype(float)
    assert "below that of a random ranking" in headline(score_part("test", np.arange(600.0), labels))


@pytest.mark.parametrize("weighted", [False, True])
def test_subgroups_are_ranked_by_themselves(weighted):
    scores, labels = ranking(count=600, share=0.2)
    city = np.random.default_rng(2).choice(["oslo", "rome", None], 600, p=[0.5, 0.3, 0.2])
    weight = np.random.default_rng(3).exponential(size=600) if weighted else np.ones(600)
    table = subgroup_table("city", list(city), "test", scores, labels, sample_weight=weight if weighted else None)
    assert [each.value for each in table.each] == ["oslo", "rome", "(missing)"]
    top = np.argsort(-scores)[: int(labels.sum())]
    for each in table.each:
        own = np.array([("(missing)" if name is None else name) == each.value for name in city])
        ap = average_precision(scores[own], labels[own], sample_weight=weight[own]).item()
        assert each.ap.estimate == pytest.approx(ap)
        assert each.no_skill == pytest.approx(np.average(labels[own], weights=weight[own]))
        assert (each.rows, each.positives) == (own.sum(), labels[own].sum())
        assert each.share_of_top == pytest.approx(own[top].mean())


def test_subgroups_of_many_numbers_are_quarters():
    scores, labels = ranking(count=400, share=0.3)
    age = [None if k == 7 else float(k) for k in range(400)]
    table = subgroup_table("age", age, "test", scores, labels)
    assert [each.rows for each in table.each] == [100, 99, 100, 100, 1]
    assert table.each[-1].value == "(missing)"


def test_rare_subgroups_are_left_out():
    scores, labels = ranking(count=300, share=0.3)
    names = [f"group {k % 25}" for k in range(300)]
    assert subgroup_table("x", names, "test", scores, labels).left_out == 5


def test_quarters_of_close_numbers_have_titles_of_their_own():
    scores, labels = ranking(count=400, share=0.3)
    month = [202300.0 + k % 99 for k in range(398)] + [np.inf, None]
    table = subgroup_table("month", month, "test", scores, labels)
    assert len({each.value for each in table.each}) == len(table.each) == 5
    assert sum(each.rows for each in table.each) == 400
    assert (table.each[-1].value, table.each[-1].rows) == ("(missing)", 2)


def test_rows_of_weight_zero_are_in_no_subgroup():
    scores, labels = ranking(count=300, share=0.3)
    city = ["oslo", "rome", "bonn"] * 100
    weight = np.array([1.0, 2.0, 0.0] * 100)
    table = subgroup_table("city", city, "test", scores, labels, sample_weight=weight)
    kept = weight > 0
    expected = subgroup_table(
        "city",
        [each for each in city if each != "bonn"],
        "test",
        scores[kept],
        labels[kept],
        sample_weight=weight[kept],
    )
    assert table == expected
