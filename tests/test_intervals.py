"""Intervals for average precision, and the bootstrap against one that resamples rows."""

import dataclasses
import math
import tracemalloc

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from sklearn.metrics import average_precision_score

from apmax import metrics
from apmax.metrics import bootstrap, ranking


def data(n_pos, n_neg, *, seed=0, shift=1.0, decimals=None, models=1):
    """Return labels and, for each model, scores that share half of their variance."""
    rng = np.random.default_rng(seed)
    labels = np.r_[np.ones(n_pos), np.zeros(n_neg)]
    shared = rng.normal(size=labels.size)
    scores = [shift * labels + (shared + rng.normal(size=labels.size)) / math.sqrt(2) for _ in range(models)]
    return labels, *(values if decimals is None else values.round(decimals) for values in scores)


def average_precision_by_definition(scores, labels):
    """Eq. 1 of the paper: the mean over positives of the share of positives at or above them."""
    above = scores[None, :] >= scores[labels == 1][:, None]
    return (above[:, labels == 1].sum(1) / above.sum(1)).mean()


def naive_bootstrap(labels, *scores, resamples=4000, seed=2):
    """Average precision of each model on rows drawn with replacement within each class."""
    rng = np.random.default_rng(seed)
    positive, negative = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    values = []
    for _ in range(resamples):
        rows = np.r_[rng.choice(positive, positive.size), rng.choice(negative, negative.size)]
        values.append([average_precision_by_definition(model[rows], labels[rows]) for model in scores])
    return np.array(values).T


# Few negatives are drawn one by one, many to a gap as crowds; whole-number scores tie within and across the classes.
SHAPES = {
    "singles": {"n_pos": 12, "n_neg": 40},
    "crowds": {"n_pos": 12, "n_neg": 600},
    "ties": {"n_pos": 40, "n_neg": 300, "decimals": 0},
}
every_shape = pytest.mark.parametrize("shape", SHAPES.values(), ids=SHAPES)


def same_distribution(ours, naive):
    """Kolmogorov-Smirnov at a level that nine comparisons pass, and a shift by a tenth of a deviation does not."""
    return stats.ks_2samp(ours, naive).pvalue > 1e-3


@every_shape
def test_bootstrap_has_the_distribution_of_resampled_rows(shape):
    labels, scores = data(**shape)
    (ours,) = bootstrap.resampled_average_precision([ranking.sample(scores, labels)], 8000, seed=1)
    assert same_distribution(ours, naive_bootstrap(labels, scores)[0])


@every_shape
def test_paired_bootstrap_has_the_joint_distribution_of_resampled_rows(shape):
    labels, a, b = data(**shape, models=2)
    samples = [ranking.sample(a, labels), ranking.sample(b, labels)]
    ours, naive = bootstrap.resampled_average_precision(samples, 8000, seed=1), naive_bootstrap(labels, a, b)
    assert same_distribution(ours[0] - ours[1], naive[0] - naive[1])
    assert same_distribution(ours[0] + ours[1], naive[0] + naive[1])


def test_average_precision_of_a_draw_equals_that_of_the_repeated_rows():
    rng = np.random.default_rng(0)
    positives, negatives = rng.integers(0, 3, size=(20, 8)), rng.integers(0, 4, size=(20, 9))
    positives[:, 3] += 1
    values = bootstrap._average_precision(positives, negatives)
    for value, pos, neg in zip(values, positives, negatives, strict=True):
        # A negative in the gap of level j is taken in by the threshold at level j: here it ties with that level.
        scores = np.r_[np.repeat(-np.arange(8), pos), np.repeat(-np.arange(9), neg)]
        labels = np.r_[np.ones(pos.sum()), np.zeros(neg.sum())]
        assert value == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


@pytest.mark.parametrize("counts", [[1, 2, 3, 4], [100, 50, 25], [1, 100, 2, 30]], ids=["singles", "crowds", "both"])
def test_draws_have_the_moments_of_a_multinomial(counts):
    total, draws = sum(counts), 20_000
    stratum = bootstrap.Stratum([np.repeat(np.arange(len(counts)), counts)], [len(counts)])
    (drawn,) = stratum.draw(np.random.default_rng(0), draws)
    share = np.array(counts) / total
    covariance = total * (np.diag(share) - np.outer(share, share))
    assert (drawn.sum(1) == total).all()
    tolerance = 5 * np.sqrt(np.diag(covariance) / draws)
    assert (abs(drawn.mean(0) - counts) < tolerance).all()
    np.testing.assert_allclose(np.cov(drawn.T), covariance, atol=0.05 * np.diag(covariance).max())


@pytest.mark.parametrize(("examples", "bins"), [(2, 2), (3, 3), (1000, 1000), (3 * 2**30, 3)])
def test_choice_of_examples_is_uniform(examples, bins):
    # Of 2³² words for 3·2³⁰ examples a quarter must be drawn again: as they come they favour every third example.
    chosen = bootstrap._choose(np.random.default_rng(0), examples, 100_001)
    assert chosen.size == 100_001
    assert chosen.min() >= 0
    assert chosen.max() < examples
    assert stats.chisquare(np.bincount(chosen % bins, minlength=bins)).pvalue > 0.01


def test_logit_interval_equals_its_formula():
    labels, scores = data(30, 300)
    interval = metrics.average_precision_interval(scores, labels, confidence=0.9)
    ap = average_precision_score(labels, scores)
    logit, tau = math.log(ap / (1 - ap)), (30 * ap * (1 - ap)) ** -0.5
    low, high = (1 / (1 + math.exp(-(logit + z * tau))) for z in (-1.6448536269514722, 1.6448536269514722))
    assert dataclasses.astuple(interval) == pytest.approx((ap, low, high, 0.9), abs=1e-12)


def test_bootstrap_interval_holds_the_quantiles_of_the_resamples():
    labels, scores = data(30, 300)
    interval = metrics.average_precision_interval(scores, labels, confidence=0.8, method="bootstrap", seed=3)
    values = bootstrap.resampled_average_precision([ranking.sample(scores, labels)], 1000, 3)[0]
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(values, [0.1, 0.9])), abs=1e-12)
    assert interval.estimate == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


def test_a_perfect_ranking_tells_the_logit_interval_nothing():
    interval = metrics.average_precision_interval([3.0, 2.0, 1.0], [1, 1, 0])
    assert (interval.estimate, interval.low, interval.high) == (1, 0, 1)


def test_a_perfect_ranking_leaves_the_bootstrap_no_spread():
    interval = metrics.average_precision_interval([3.0, 2.0, 1.0], [1, 1, 0], method="bootstrap")
    assert (interval.estimate, interval.low, interval.high) == (1, 1, 1)


@pytest.mark.parametrize("method", ["logit", "bootstrap"])
def test_without_positives_the_interval_is_nan(method):
    interval = metrics.average_precision_interval([1.0, 2.0], [0, 0], method=method)
    assert all(map(math.isnan, (interval.estimate, interval.low, interval.high)))


def test_one_positive_has_a_logit_interval_but_no_bootstrap():
    scores, labels = [1.0, 2.0, 3.0], [0, 1, 0]
    logit = metrics.average_precision_interval(scores, labels)
    assert 0 < logit.low < logit.estimate == 0.5 < logit.high < 1
    resampled = metrics.average_precision_interval(scores, labels, method="bootstrap")
    assert resampled.estimate == 0.5
    assert math.isnan(resampled.low)
    assert math.isnan(resampled.high)
    paired = metrics.paired_difference(scores, scores, labels)
    assert paired.estimate == 0
    assert math.isnan(paired.share_above_zero)


def test_without_negatives_every_resample_is_perfect():
    interval = metrics.average_precision_interval([1.0, 2.0, 3.0], [1, 1, 1], method="bootstrap")
    assert (interval.estimate, interval.low, interval.high) == (1, 1, 1)


def test_a_model_does_not_differ_from_its_monotone_transform():
    labels, scores = data(20, 200)
    difference = metrics.paired_difference(scores, np.exp(scores), labels)
    assert dataclasses.astuple(difference) == (0, 0, 0, 0.95, 0.5)


def test_paired_difference_reports_estimate_quantiles_and_share():
    labels, a, b = data(20, 200, models=2)
    difference = metrics.paired_difference(a, b, labels, confidence=0.8, resamples=500, seed=4)
    values = bootstrap.resampled_average_precision([ranking.sample(s, labels) for s in (a, b)], 500, 4)
    resampled = values[0] - values[1]
    estimate = average_precision_score(labels, a) - average_precision_score(labels, b)
    low, high = np.quantile(resampled, [0.1, 0.9])
    expected = (estimate, low, high, 0.8, (resampled > 0).mean())
    assert dataclasses.astuple(difference) == pytest.approx(expected, abs=1e-12)


def test_pairing_narrows_the_interval_of_the_difference_of_similar_models():
    labels, a, noise = data(100, 2000, models=2)
    b = a + 0.2 * noise
    paired = metrics.paired_difference(a, b, labels)
    alone = [metrics.average_precision_interval(s, labels, method="bootstrap") for s in (a, b)]
    unpaired = math.hypot(*(interval.high - interval.low for interval in alone))
    assert paired.high - paired.low < 0.6 * unpaired


def test_a_seed_fixes_the_bootstrap_and_no_global_generator_is_touched():
    labels, scores = data(20, 200)
    numpy_state, torch_state = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first, again, other = (
        metrics.average_precision_interval(scores, labels, method="bootstrap", seed=seed) for seed in (1, 1, 2)
    )
    assert first == again != other
    assert (np.random.get_state()[1] == numpy_state).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), torch_state)


def test_the_order_of_rows_does_not_change_a_bootstrap():
    labels, a, b = data(20, 400, models=2, decimals=1)
    order = np.random.default_rng(0).permutation(labels.size)
    assert metrics.paired_difference(a[order], b[order], labels[order]) == metrics.paired_difference(a, b, labels)


def test_memory_does_not_grow_with_the_number_of_resamples(monkeypatch):
    monkeypatch.setattr(bootstrap, "CHUNK", 2**14)
    labels, a, b = data(100, 10_000, models=2)
    peaks = []
    for resamples in (200, 1000):
        tracemalloc.start()
        metrics.paired_difference(a, b, labels, resamples=resamples)
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
    every_resample_held = 1000 * 100 * 8
    assert peaks[1] < peaks[0] + 0.1 * every_resample_held


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"confidence": 1.0}, "confidence must lie in"),
        ({"method": "bootstap"}, "did you mean 'bootstrap'"),
        ({"resamples": 0}, "resamples must be at least 1"),
        ({"seed": -1}, "seed must be at least 0"),
    ],
)
def test_errors_name_the_argument(arguments, message):
    with pytest.raises(ValueError, match=message):
        metrics.average_precision_interval([1.0, 2.0], [0, 1], **arguments)


def test_errors_of_a_pair_name_the_model():
    with pytest.raises(ValueError, match="scores_b must be finite"):
        metrics.paired_difference([1.0, 2.0], [1.0, math.nan], [0, 1])
    with pytest.raises(ValueError, match="scores_a and labels must both have shape"):
        metrics.paired_difference([1.0], [1.0, 2.0], [0, 1])


def test_several_tasks_are_an_error():
    with pytest.raises(ValueError, match="one task, got 2 tasks"):
        metrics.average_precision_interval(torch.zeros(3, 2), torch.ones(3, 2))


def test_intervals_hold_the_truth_about_as_often_as_they_say():
    n_pos, n_neg, shift, prevalence = 100, 900, 1.5, 0.1
    above, top = stats.norm(shift).sf, stats.norm.sf
    truth = integrate.quad(
        lambda c: (
            stats.norm.pdf(c, shift) * (prevalence * above(c)) / (prevalence * above(c) + (1 - prevalence) * top(c))
        ),
        -7,
        9,
    )[0]
    held = {"logit": 0, "bootstrap": 0}
    for seed in range(200):
        labels, scores = data(n_pos, n_neg, seed=seed, shift=shift)
        for method in held:
            interval = metrics.average_precision_interval(scores, labels, method=method, resamples=200)
            held[method] += interval.low <= truth <= interval.high
    assert 0.93 * 200 <= held["logit"] <= 200
    assert 0.89 * 200 <= held["bootstrap"] <= 0.99 * 200
