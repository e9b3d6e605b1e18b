"""Confidence intervals of average precision, AUPRC and AUROC, with and without weights, and their coverage."""

import dataclasses
import functools
import math
import tracemalloc

import numpy as np
import pytest
import torch
from benchmarks import coverage
from scipy import stats
from sklearn.metrics import average_precision_score

import references
from apmax import metrics
from apmax.metrics import bootstrap, ranking

AUPRC = metrics.auprc_interval, metrics.auprc


INTERVALS = [
    metrics.average_precision_interval,
    metrics.auprc_interval,
    metrics.auroc_interval,
    metrics.bedroc_interval,
]
every_interval = pytest.mark.parametrize("interval", INTERVALS)


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
every_shape = pytest.mark.parametrize("shape", SHAPES)


@functools.cache
def resampled_naively(shape):
    """Return the naive bootstrap of two models of a shape; the tests of one and of both read the same draws."""
    labels, a, b = data(**SHAPES[shape], models=2)
    return labels, (a, b), naive_bootstrap(labels, a, b)


def same_distribution(ours, naive):
    """Kolmogorov-Smirnov at a level that nine comparisons pass, and a shift by a tenth of a deviation does not."""
    return stats.ks_2samp(ours, naive).pvalue > 1e-3


@every_shape
def test_bootstrap_has_the_distribution_of_resampled_rows(shape):
    labels, (scores, _), (naive, _) = resampled_naively(shape)
    (ours,) = bootstrap.resampled_average_precision([ranking.sample(scores, labels)], 8000, seed=1)
    assert same_distribution(ours, naive)


@every_shape
def test_paired_bootstrap_has_the_joint_distribution_of_resampled_rows(shape):
    labels, models, naive = resampled_naively(shape)
    samples = [ranking.sample(scores, labels) for scores in models]
    ours = bootstrap.resampled_average_precision(samples, 8000, seed=1)
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


@pytest.mark.parametrize("confidence", [0.8, 0.95])
def test_beta_interval_is_that_of_clopper_and_pearson(confidence):
    labels, scores = data(30, 300)
    tail = (1 - confidence) / 2
    for interval, metric in ((metrics.average_precision_interval, metrics.average_precision), AUPRC):
        found, value = interval(scores, labels, confidence=confidence), metric(scores, labels).item()
        hits = 30 * value
        low, high = stats.beta.ppf(tail, hits, 31 - hits), stats.beta.ppf(1 - tail, hits + 1, 30 - hits)
        assert dataclasses.astuple(found) == pytest.approx((value, low, high, confidence), rel=1e-9)


def trials_by_differences(scores, labels, weight):
    """Return the variance of average precision over resamples from numerical derivatives, as a number of trials."""

    def value(weights):
        return references.average_precision(scores, labels, weights)

    step, ap, variance = 1e-5, value(weight), 0.0
    slope = np.array(
        [value(weight * (1 + step * row)) - value(weight * (1 - step * row)) for row in np.eye(len(weight))]
    )
    slope /= 2 * step * weight
    for label in (0, 1):
        w, h = weight[labels == label], slope[labels == label]
        square = max(np.mean((w * h) ** 2), np.mean(w**2) * np.mean(h**2))
        variance += len(w) ** 2 / (len(w) - 1) * (square - np.mean(w * h) ** 2)
    return ap, ap * (1 - ap) / variance


@pytest.mark.parametrize("negatives", ["one above all positives", "of unequal weight", "the best of large weight"])
def test_trials_are_fewer_where_the_rows_show_a_larger_variance(negatives):
    labels, scores = data(60, 120, decimals=1, shift=4.0)
    weight = np.ones(180)
    if negatives == "one above all positives":
        scores[-1] = 9.0
    elif negatives == "of unequal weight":
        scores[-12:] += 3
        weight[labels == 0] = np.random.default_rng(1).lognormal(sigma=2, size=120)
    else:
        scores[-12:] += 3
        weight[-12:] = 5
    ap, trials = trials_by_differences(scores, labels, weight)
    assert trials < 50
    hits = trials * ap
    low, high = stats.beta.ppf(0.025, hits, trials + 1 - hits), stats.beta.ppf(0.975, hits + 1, trials - hits)
    found = metrics.average_precision_interval(scores, labels, sample_weight=weight)
    assert (found.estimate, found.low, found.high) == pytest.approx((ap, low, high), rel=1e-6)


@pytest.mark.parametrize("k", [3, 30, 200])
def test_intervals_at_k_are_those_of_the_trials(k):
    labels, scores = data(30, 300)
    hits = labels[np.argsort(-scores)[:k]].sum()
    found = metrics.precision_at_k_interval(scores, labels, k=k)
    low, high = stats.beta.ppf(0.025, hits, k - hits + 1), stats.beta.ppf(0.975, hits + 1, k - hits)
    assert (found.estimate, found.low) == pytest.approx((hits / k, low if hits else 0), rel=1e-9)
    assert found.high == pytest.approx(high if hits < k else 1, rel=1e-9)
    trials = min(k, 30)
    low, high = stats.beta.ppf(0.025, hits, trials - hits + 1), stats.beta.ppf(0.975, hits + 1, trials - hits)
    recall = metrics.recall_at_k_interval(scores, labels, k=k)
    expected = hits / 30, (low if hits else 0) * trials / 30, (high if hits < trials else 1) * trials / 30
    assert (recall.estimate, recall.low, recall.high) == pytest.approx(expected, rel=1e-9)
    enriched = metrics.enrichment_factor_interval(scores, labels, fraction=k / 330)
    ends = enriched.estimate, enriched.low, enriched.high
    assert ends == pytest.approx(tuple(value * 330 / k for value in expected), rel=1e-9)


def test_bootstrap_interval_holds_the_quantiles_of_the_resamples():
    labels, scores = data(30, 300)
    interval = metrics.average_precision_interval(scores, labels, confidence=0.8, method="bootstrap", seed=3)
    values = bootstrap.resampled_average_precision([ranking.sample(scores, labels)], 1000, 3)[0]
    assert (interval.low, interval.high) == pytest.approx(tuple(np.quantile(values, [0.1, 0.9])), abs=1e-12)
    assert interval.estimate == pytest.approx(average_precision_score(labels, scores), abs=1e-12)


@every_interval
@pytest.mark.parametrize(("positives", "negatives"), [(1, 10), (5, 95), (200, 1800)])
def test_a_perfect_ranking_has_a_lower_limit_that_rises_with_the_positives(interval, positives, negatives):
    labels = np.repeat([1, 0], [positives, negatives])
    found = interval(-np.arange(labels.size), labels)
    assert (found.estimate, found.high) == pytest.approx((1, 1), abs=1e-12)
    assert 0.025 ** (1 / positives) - 1e-9 <= found.low < 1


@every_interval
def test_the_lower_limit_does_not_collapse_where_one_pair_is_swapped(interval):
    labels = np.repeat([1, 0], [200, 1800])
    perfect = interval(-np.arange(2000), labels)
    labels[199:201] = 0, 1
    swapped = interval(-np.arange(2000), labels)
    assert 0.9999 < swapped.estimate < swapped.high <= 1
    assert perfect.low - 0.001 < swapped.low < perfect.low


def test_a_perfect_ranking_leaves_the_bootstrap_no_spread():
    interval = metrics.average_precision_interval([3.0, 2.0, 1.0], [1, 1, 0], method="bootstrap")
    assert (interval.estimate, interval.low, interval.high) == (1, 1, 1)


@pytest.mark.parametrize("method", ["beta", "bootstrap"])
def test_without_positives_the_interval_is_nan(method):
    interval = metrics.average_precision_interval([1.0, 2.0], [0, 0], method=method)
    assert all(map(math.isnan, (interval.estimate, interval.low, interval.high)))


def test_one_positive_has_a_beta_interval_but_no_bootstrap():
    scores, labels = [1.0, 2.0, 3.0], [0, 1, 0]
    beta = metrics.average_precision_interval(scores, labels)
    assert 0 < beta.low < beta.estimate == 0.5 < beta.high < 1
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
    tail = stats.norm.sf(np.sqrt(20 / 19) * stats.t.ppf(0.9, 19))
    low, high = np.quantile(resampled, [tail, 1 - tail])
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
    monkeypatch.setattr(bootstrap, "_CHUNK", 2**14)
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


def delong(scores, labels, weight):
    """Return the area and DeLong's variance with weights, by loops."""
    classes = []
    for own, other in ((1, 0), (0, 1)):
        share = weight * (labels == own) / weight[labels == own].sum()
        against = weight * (labels == other) / weight[labels == other].sum()
        wins = (scores[:, None] > scores) + (scores[:, None] == scores) / 2
        values = (wins if own else 1 - wins) @ against
        classes.append((share[labels == own], values[labels == own]))
    area = (classes[0][0] * classes[0][1]).sum()
    return area, sum((s**2 * (v - area) ** 2).sum() / (1 - (s**2).sum()) for s, v in classes)


def hanley_mcneil(area, n, m):
    q1, q2 = area / (2 - area), 2 * area**2 / (1 + area)
    return (area * (1 - area) + (n - 1) * (q1 - area**2) + (m - 1) * (q2 - area**2)) / (n * m)


@pytest.mark.parametrize("shift", [0.0, 1.0, 3.0, 5.0])
@pytest.mark.parametrize("weighted", [False, True])
def test_both_ends_of_the_auroc_interval_are_z_deviations_away(shift, weighted):
    labels, scores = data(40, 160, shift=shift, decimals=1)
    weight = np.random.default_rng(0).exponential(size=200) if weighted else np.ones(200)
    area, variance = delong(scores, labels, weight)
    n, m = (weight[labels == which].sum() ** 2 / (weight[labels == which] ** 2).sum() for which in (1, 0))
    found = metrics.auroc_interval(scores, labels, confidence=0.9, sample_weight=weight)
    assert found.estimate == pytest.approx(area, abs=1e-12)
    for end in (found.low, found.high):
        scaled = variance * end * (1 - end) / (area * (1 - area))
        deviation = math.sqrt(max(scaled, hanley_mcneil(end, n, m), hanley_mcneil(end, m, n)))
        assert abs(end - area) == pytest.approx(1.6448536269514722 * deviation, rel=1e-6)
    assert found.low < area < found.high


def test_the_auroc_interval_of_reversed_scores_is_mirrored():
    labels, scores = data(10, 90)
    found, mirrored = metrics.auroc_interval(scores, labels), metrics.auroc_interval(-scores, labels)
    assert (1 - mirrored.high, 1 - mirrored.low) == pytest.approx((found.low, found.high), rel=1e-9)


@pytest.mark.parametrize(
    ("scores", "labels", "area"),
    [
        ([1.0, 2.0, 3.0, 4.0], [1, 1, 0, 0], 0.0),
        ([2.0, 3.0, 1.0], [1, 0, 0], 0.5),
        ([1.0] * 7, [1, 1, 1, 0, 0, 0, 0], 0.5),
    ],
    ids=["worst", "one positive", "all tied"],
)
def test_auroc_without_an_observed_spread_still_has_an_interval(scores, labels, area):
    found = metrics.auroc_interval(scores, labels)
    assert found.estimate == area
    assert found.high - found.low > 0.6


def test_where_the_area_is_undefined_all_is_nan():
    for found in (
        metrics.auprc_interval([1.0, 2.0], [0, 0]),
        metrics.auroc_interval([1.0, 2.0], [0, 0]),
        metrics.auroc_interval([1.0, 2.0], [1, 1]),
    ):
        assert all(math.isnan(value) for value in (found.estimate, found.low, found.high))


@every_interval
def test_more_confidence_is_a_wider_interval_about_the_same_estimate(interval):
    labels, scores = data(30, 300)
    narrow, wide = (interval(scores, labels, confidence=confidence) for confidence in (0.5, 0.99))
    assert narrow.estimate == wide.estimate
    assert wide.low < narrow.low < narrow.estimate < narrow.high < wide.high


@every_interval
def test_tensors_columns_and_lists_are_the_same(interval):
    labels, scores = data(10, 40)
    expected = interval(scores, labels)
    assert interval(torch.tensor(scores)[:, None], torch.tensor(labels)[:, None]) == expected
    assert interval(scores.tolist(), labels.tolist()) == expected


@every_interval
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"confidence": 1.0}, "confidence"),
        ({"scores": [1.0, math.nan]}, "scores"),
        ({"labels": [0, 2]}, "labels"),
        ({"scores": [1.0, 2.0, 3.0]}, "shape"),
        ({"scores": [[1.0, 2.0], [2.0, 1.0]], "labels": [[0, 1], [1, 0]]}, "one task"),
        ({"sample_weight": [1.0, -1.0]}, "sample_weight must not be negative"),
        ({"sample_weight": [1.0]}, "sample_weight must have shape"),
    ],
)
def test_errors_of_every_interval_name_the_argument(interval, arguments, message):
    with pytest.raises(ValueError, match=message):
        interval(**({"scores": [1.0, 2.0], "labels": [0, 1]} | arguments))


def resampled(scores, labels, **options):
    return metrics.average_precision_interval(scores, labels, method="bootstrap", resamples=200, **options)


def paired(scores, labels, **options):
    return metrics.paired_difference(scores, scores + np.sin(9 * scores), labels, resamples=200, **options)


def enrichment(scores, labels, **options):
    return metrics.enrichment_factor_interval(scores, labels, fraction=0.2, **options)


WEIGHTED = [*INTERVALS, resampled, paired, enrichment]
every_weighted = pytest.mark.parametrize("interval", WEIGHTED, ids=lambda function: function.__name__)


@every_weighted
def test_equal_weights_are_no_weights(interval):
    labels, scores = data(20, 200, decimals=1)
    assert interval(scores, labels, sample_weight=np.full(220, 0.3)) == interval(scores, labels)


@every_weighted
def test_the_scale_of_weights_does_not_matter(interval):
    labels, scores = data(20, 200, decimals=1)
    weight = np.random.default_rng(0).exponential(size=220)
    found, scaled = (interval(scores, labels, sample_weight=weight * scale) for scale in (1, 1e6))
    assert dataclasses.astuple(scaled) == pytest.approx(dataclasses.astuple(found), rel=1e-9)


@pytest.mark.parametrize("scale", [1e-200, 1e200])
def test_the_scale_of_one_class_does_not_matter_to_the_auroc(scale):
    labels, scores = data(20, 200, decimals=1)
    weight = np.random.default_rng(0).exponential(size=220)
    found, scaled = (
        metrics.auroc_interval(scores, labels, sample_weight=np.where(labels == 1, factor, 1) * weight)
        for factor in (1, scale)
    )
    assert dataclasses.astuple(scaled) == pytest.approx(dataclasses.astuple(found), rel=1e-9)


def test_weights_far_below_that_of_the_last_row_have_the_bootstrap_of_their_own():
    """The last row is below all positives: its weight matters to no average precision."""
    labels, first, second = data(20, 40, models=2)
    first[-1] = second[-1] = -10.0
    weight = np.random.default_rng(1).uniform(0.5, 1, 60)
    weight[-1] = 2.0
    tiny = np.where(np.arange(60) == 59, 1.0, weight * 1e-200)
    for found, expected in (
        [
            metrics.average_precision_interval(first, labels, method="bootstrap", sample_weight=w)
            for w in (tiny, weight)
        ],
        [metrics.paired_difference(first, second, labels, sample_weight=w) for w in (tiny, weight)],
    ):
        assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected), rel=1e-9)


def test_rows_below_a_far_larger_weight_have_an_interval():
    found = metrics.recall_at_k_interval([4.0, 3.0, 2.0], [0, 1, 1], k=1, sample_weight=[1e30, 1, 3])
    assert all(math.isfinite(value) for value in dataclasses.astuple(found))


@every_weighted
def test_rows_of_weight_zero_are_as_if_absent(interval):
    labels, scores = data(20, 200, decimals=1)
    weight = np.random.default_rng(0).exponential(size=220) * (np.arange(220) % 3 > 0)
    kept = weight > 0
    found = interval(scores, labels, sample_weight=weight)
    assert found == interval(scores[kept], labels[kept], sample_weight=weight[kept])


@every_weighted
def test_the_order_of_weighted_rows_does_not_matter(interval):
    labels, scores = data(20, 200, decimals=0)
    weight = np.random.default_rng(0).exponential(size=220)
    order = np.random.default_rng(1).permutation(220)
    found = interval(scores[order], labels[order], sample_weight=weight[order])
    expected = interval(scores, labels, sample_weight=weight)
    assert dataclasses.astuple(found) == pytest.approx(dataclasses.astuple(expected), rel=1e-9)


@every_interval
def test_unequal_weights_widen_the_interval(interval):
    labels, scores = data(40, 400)
    weight = np.random.default_rng(0).exponential(size=440)
    plain, found = interval(scores, labels), interval(scores, labels, sample_weight=weight)
    assert found.high - found.low > 1.1 * (plain.high - plain.low)


@every_interval
def test_the_estimate_is_the_weighted_metric(interval):
    labels, scores = data(40, 400, decimals=1)
    weight = np.random.default_rng(0).exponential(size=440)
    metric = getattr(metrics, interval.__name__.removesuffix("_interval"))
    expected = metric(scores, labels, sample_weight=weight).item()
    assert interval(scores, labels, sample_weight=weight).estimate == pytest.approx(expected, rel=1e-12)


def test_the_weighted_bootstrap_has_the_distribution_of_resampled_rows():
    labels, scores = data(12, 60, decimals=1)
    weight = np.random.default_rng(0).exponential(size=72)
    (ours,) = bootstrap.resampled_average_precision([ranking.sample(scores, labels, weight)], 8000, seed=1)
    rng, naive = np.random.default_rng(2), []
    positive, negative = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    for _ in range(4000):
        hits, rows = rng.choice(positive, positive.size), rng.choice(negative, negative.size)
        found = (scores[hits] >= scores[hits][:, None]) @ weight[hits]
        false = (scores[rows] >= scores[hits][:, None]) @ weight[rows]
        naive.append(np.average(found / (found + false), weights=weight[hits]))
    assert same_distribution(ours, naive)


# Random weights make the weighted share of positives random, and these intervals hold for a given one.
GIVEN_SHARE = ("precision at n₊", "enrichment")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("metric", "weights"),
    [
        (metric, weights)
        for metric in coverage.INTERVALS
        for weights in (None, *coverage.WEIGHTS)
        if weights is None or metric not in GIVEN_SHARE
    ],
)
@pytest.mark.parametrize("truth", coverage.TRUTHS)
@pytest.mark.parametrize("num_pos", coverage.POSITIVES)
def test_intervals_hold_the_truth_as_often_as_they_claim(metric, truth, num_pos, weights):
    assert coverage.missed(metric, truth, num_pos, trials=400, weights=weights) <= coverage.MAX_MISSED


@pytest.mark.parametrize("metric", ["AP", "AUPRC"])
def test_intervals_hold_the_truth_where_a_few_negatives_have_most_of_the_weight(metric):
    assert coverage.missed(metric, 0.5, 100, trials=100, weights="negatives") <= 0.09


@pytest.mark.slow
@pytest.mark.parametrize(("gain", "correlation"), coverage.DIFFERENCES.values(), ids=str)
@pytest.mark.parametrize("truth", [0.2, 0.5])
@pytest.mark.parametrize("num_pos", [5, 10])
def test_paired_differences_of_few_positives_hold_the_truth(num_pos, truth, gain, correlation):
    missed = coverage.difference_missed((truth, truth - gain), num_pos, correlation, trials=300)
    assert missed <= coverage.MAX_MISSED


@pytest.mark.parametrize("metric", coverage.INTERVALS)
def test_intervals_of_a_small_simulation_hold_the_truth(metric):
    assert coverage.missed(metric, 0.9, 20, trials=100) <= 0.09


def test_the_bootstrap_holds_the_truth_about_as_often_as_it_claims():
    missed = coverage.missed("AP", 0.5, 100, trials=100, method="bootstrap", resamples=200)
    assert 0.01 <= missed <= 0.13
