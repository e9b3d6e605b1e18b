"""The metrics against scikit-learn, RDKit and loops over their definitions, and their invariants."""

import itertools
import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from sklearn import metrics as sk

import references
from apmax import metrics
from apmax.metrics.quantiles import beta_cdf

EXACT = {"rtol": 0, "atol": 1e-12}


def sk_auprc(labels, scores, sample_weight=None):
    precision, recall, _ = sk.precision_recall_curve(labels, scores, sample_weight=sample_weight)
    return sk.auc(recall, precision)


def reference_bedroc(labels, scores, sample_weight=None):
    return references.bedroc(scores, labels, sample_weight)


def reference_enrichment(labels, scores, sample_weight=None):
    return references.enrichment_factor(scores, labels, sample_weight)


PEERS = {
    "average_precision": (metrics.average_precision, sk.average_precision_score),
    "auprc": (metrics.auprc, sk_auprc),
    "auroc": (metrics.auroc, sk.roc_auc_score),
    "bedroc": (metrics.bedroc, reference_bedroc),
    "enrichment": (metrics.enrichment_factor, reference_enrichment),
}
every_metric = pytest.mark.parametrize(("ours", "theirs"), PEERS.values(), ids=PEERS)


def data(n=200, *, seed=0, prevalence=0.1, decimals=None):
    """Return normal scores, tied by rounding on request, and labels with at least one of each class."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(n) < prevalence).astype(np.int64)
    labels[:2] = 0, 1
    scores = rng.normal(size=n) + labels
    return scores if decimals is None else scores.round(decimals), labels


def weights(n, kind, seed=1):
    rng = np.random.default_rng(seed)
    return {
        "none": None,
        "floats": rng.exponential(size=n),
        "zeros": rng.exponential(size=n) * (rng.random(n) < 0.5) + 1e-3 * (np.arange(n) < 2),
        "counts": rng.integers(0, 4, size=n) + (np.arange(n) < 2),
    }[kind]


@every_metric
@pytest.mark.parametrize("kind", ["none", "floats", "zeros", "counts"])
@pytest.mark.parametrize("decimals", [None, 1, 0])
@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64])
def test_equals_the_peer(ours, theirs, kind, decimals, dtype):
    scores, labels = data(decimals=decimals)
    scores, weight = scores.astype(dtype), weights(200, kind)
    value = ours(torch.from_numpy(scores), torch.from_numpy(labels), sample_weight=weight)
    np.testing.assert_allclose(value.item(), theirs(labels, scores, sample_weight=weight), **EXACT)


@every_metric
@pytest.mark.parametrize("kind", ["none", "floats"])
def test_equals_the_peer_on_many_examples(ours, theirs, kind):
    scores, labels = data(100_000, prevalence=0.01, decimals=3)
    weight = weights(100_000, kind)
    value = ours(scores, labels, sample_weight=weight)
    np.testing.assert_allclose(value.item(), theirs(labels, scores, sample_weight=weight), **EXACT)


@pytest.mark.parametrize("kind", ["none", "floats", "zeros"])
def test_curve_equals_scikit_learn(kind):
    scores, labels = data(decimals=1)
    weight = weights(200, kind)
    curve = metrics.precision_recall_curve(scores, labels, sample_weight=weight)
    for mine, theirs in zip(curve, sk.precision_recall_curve(labels, scores, sample_weight=weight), strict=True):
        np.testing.assert_allclose(mine.numpy(), theirs, **EXACT)


@pytest.mark.parametrize("seed", range(5))
def test_average_precision_equals_its_definition(seed):
    scores, labels = data(60, seed=seed, decimals=1, prevalence=0.3)
    value = metrics.average_precision(scores, labels).item()
    assert value == pytest.approx(references.average_precision(scores, labels), abs=1e-12)


@every_metric
@pytest.mark.parametrize("kind", ["none", "floats", "zeros"])
def test_tasks_are_taken_one_by_one_over_their_measured_rows(ours, theirs, kind):
    columns = [data(80, seed=seed, decimals=1, prevalence=p) for seed, p in enumerate([0.05, 0.5, 0.95])]
    scores = np.stack([scores for scores, _ in columns], axis=1)
    labels = np.stack([labels for _, labels in columns], axis=1).astype(float)
    labels[np.random.default_rng(0).random(labels.shape) < 0.3] = np.nan
    labels[:2] = [[0], [1]]
    weight = weights(80, kind)
    expected = []
    for task in range(3):
        measured = ~np.isnan(labels[:, task])
        part = None if weight is None else weight[measured]
        expected.append(theirs(labels[measured, task], scores[measured, task], sample_weight=part))
    np.testing.assert_allclose(ours(scores, labels, sample_weight=weight).numpy(), expected, **EXACT)


def test_undefined_metrics_are_nan():
    scores, one_class = [0.1, 0.2, 0.3], {0: [0, 0, 0], 1: [1, 1, 1]}
    assert metrics.average_precision(scores, one_class[0]).isnan()
    assert metrics.auprc(scores, one_class[0]).isnan()
    assert metrics.auroc(scores, one_class[0]).isnan()
    assert metrics.auroc(scores, one_class[1]).isnan()
    assert metrics.recall_at_k(scores, one_class[0], k=1).isnan()
    assert metrics.precision_recall_curve(scores, one_class[0]).recall[:-1].isnan().all()


def test_positives_of_weight_zero_are_no_positives():
    assert metrics.average_precision([0.1, 0.2], [0, 1], sample_weight=[1.0, 0.0]).isnan()


def test_without_negatives_precision_is_one():
    assert metrics.average_precision([0.1, 0.2], [1, 1]) == 1
    assert metrics.auprc([0.1, 0.2], [1, 1]) == 1


def test_a_task_without_positives_or_measurements_is_nan_and_leaves_the_others_alone():
    nan = math.nan
    labels = torch.tensor([[1.0, 0.0, nan], [0.0, 0.0, nan], [0.0, nan, nan]])
    value = metrics.average_precision(torch.tensor([3.0, 2.0, 1.0])[:, None].expand(3, 3), labels)
    assert torch.equal(value.isnan(), torch.tensor([False, True, True]))
    assert value[0] == 1


def precision_by_enumeration(scores, labels, k):
    """Mean precision of the first k over all orders of the rows, each sorted stably by score."""
    values = []
    for order in itertools.permutations(range(len(scores))):
        ranking = sorted(order, key=lambda row: -scores[row])
        values.append(sum(labels[row] for row in ranking[:k]) / k)
    return sum(values) / len(values)


@pytest.mark.parametrize("k", range(1, 7))
def test_precision_at_k_is_the_mean_over_all_orders_of_tied_rows(k):
    scores, labels = [2, 1, 1, 1, 0, 0], [0, 1, 0, 1, 1, 0]
    expected = precision_by_enumeration(scores, labels, k)
    assert metrics.precision_at_k(scores, labels, k=k).item() == pytest.approx(expected, abs=1e-12)
    assert metrics.recall_at_k(scores, labels, k=k).item() == pytest.approx(expected * k / 3, abs=1e-12)


@pytest.mark.parametrize("k", [1, 7, 40, 150])
def test_at_k_a_weight_counts_as_repeated_rows(k):
    scores, labels = data(decimals=1)
    times = weights(200, "counts")
    weighted = metrics.precision_at_k(scores, labels, k=k, sample_weight=times)
    repeated = metrics.precision_at_k(scores.repeat(times), labels.repeat(times), k=k)
    np.testing.assert_allclose(weighted, repeated, **EXACT)


def test_at_k_takes_tasks_one_by_one_and_is_nan_for_those_too_short():
    nan = math.nan
    scores = torch.tensor([[4.0, 1.0], [3.0, 2.0], [2.0, 3.0], [1.0, 4.0]])
    labels = torch.tensor([[1.0, nan], [0.0, nan], [1.0, 0.0], [0.0, 1.0]])
    assert metrics.precision_at_k(scores, labels, k=2).tolist() == [0.5, 0.5]
    assert metrics.recall_at_k(scores, labels, k=1).tolist() == [0.5, 1.0]
    for weight in (None, torch.ones(4)):
        value = metrics.precision_at_k(scores, labels, k=3, sample_weight=weight)
        assert value[0] == pytest.approx(2 / 3)
        assert value[1].isnan()


def test_k_beyond_the_list_is_an_error():
    with pytest.raises(ValueError, match=r"k must be at most the number .* 3; got 4"):
        metrics.precision_at_k([1, 2, 3], [0, 1, 0], k=4)
    with pytest.raises(ValueError, match="k must be at least 1"):
        metrics.recall_at_k([1, 2, 3], [0, 1, 0], k=0)


@pytest.mark.parametrize("rows", [200, 1000, 2400])
def test_early_recognition_equals_rdkit_without_ties(rows):
    scoring = pytest.importorskip("rdkit.ML.Scoring.Scoring")
    scores, labels = data(rows)
    ranked = labels[np.argsort(-scores)][:, None].tolist()
    for alpha in (1.0, 20.0, 100.0):
        value = metrics.bedroc(scores, labels, alpha=alpha).item()
        assert value == pytest.approx(scoring.CalcBEDROC(ranked, 0, alpha), abs=1e-12)
    for fraction in (0.005, 0.01, 0.125, 0.5):  # of these rows RDKit takes a whole number
        value = metrics.enrichment_factor(scores, labels, fraction=fraction).item()
        assert value == pytest.approx(scoring.CalcEnrichment(ranked, 0, [fraction])[0], abs=1e-12)


def test_a_part_of_a_row_counts_by_its_share_in_the_enrichment():
    # 1.5 of 150 rows: a positive, and half of a negative; 1 % of all rows are positive.
    labels = np.arange(150) == 0
    assert metrics.enrichment_factor(-np.arange(150), labels).item() == pytest.approx(150 / 1.5)


def test_bedroc_is_one_for_the_best_and_zero_for_the_worst_ranking():
    for positives in (1, 10, 90):
        labels = np.arange(100) < positives
        for alpha in (0.5, 20.0, 700.0):
            assert metrics.bedroc(-np.arange(100), labels, alpha=alpha).item() == pytest.approx(1, abs=1e-12)
            assert metrics.bedroc(np.arange(100), labels, alpha=alpha).item() == pytest.approx(0, abs=1e-12)


@pytest.mark.parametrize("weight", [1e-3, 1e-17, 1e-30, 1e-200])
def test_bedroc_of_a_negligible_share_of_negatives_is_that_of_their_limit(weight):
    # Of a negative at place p the limit is 1 - (exp(-α·p) - exp(-α))/(1 - exp(-α)).
    labels, sample_weight = np.array([1, 1, 0, 1, 1]), np.array([1.0, 1.0, weight, 1.0, 1.0])
    for alpha in (0.5, 20.0):
        expected = 1 - (math.exp(-alpha / 2) - math.exp(-alpha)) / (1 - math.exp(-alpha))
        found = metrics.bedroc(-np.arange(5), labels, alpha=alpha, sample_weight=sample_weight).item()
        assert found == pytest.approx(expected, abs=10 * weight + 1e-12)
    for order, value in ((1, 1), (-1, 0)):
        scores = order * labels
        assert metrics.bedroc(scores, labels, sample_weight=sample_weight).item() == pytest.approx(value, abs=1e-12)


def test_errors_of_early_recognition_name_the_argument():
    with pytest.raises(ValueError, match=r"alpha must lie in \(0, inf\), got 0"):
        metrics.bedroc([1, 2], [0, 1], alpha=0)
    for metric in (metrics.bedroc, metrics.bedroc_interval):
        with pytest.raises(ValueError, match="alpha must be at least 1e-06, got 1e-12; take auroc"):
            metric([1, 2], [0, 1], alpha=1e-12)
    for fraction in (0, 1.1):
        with pytest.raises(ValueError, match=r"fraction must lie in \(0, 1\]"):
            metrics.enrichment_factor([1, 2], [0, 1], fraction=fraction)


@pytest.mark.parametrize(
    ("scores", "labels", "weight", "message"),
    [
        ([0.1, math.nan], [0, 1], None, "scores must be finite"),
        ([0.1, math.inf], [0, 1], None, "scores must be finite"),
        ([0.1, 0.2], [0, 2], None, "labels must be 0 or 1"),
        ([0.1, 0.2], [-1, 1], None, "labels of -1/1 become 0/1"),
        ([0.1, 0.2], [0, math.nan], None, "labels must be 0 or 1"),
        ([0.1, 0.2, 0.3], [0, 1], None, r"scores and labels must both have shape .* got \(3,\) and \(2,\)"),
        (["a", "b"], [0, 1], None, "scores must be a tensor, array or list of numbers"),
        ([[0.1], [0.2, 0.3]], [0, 1], None, "scores must be a tensor, array or list of numbers"),
        ([], [], None, "labels must have shape"),
        ([0.1, 0.2], [0, 1], [1.0], "sample_weight must have shape"),
        ([0.1, 0.2], [0, 1], [1.0, -1.0], "sample_weight must not be negative"),
        ([0.1, 0.2], [0, 1], [0.0, 0.0], "sample_weight must not be all zero"),
    ],
)
def test_errors_name_the_argument(scores, labels, weight, message):
    with pytest.raises(ValueError, match=message):
        metrics.average_precision(scores, labels, sample_weight=weight)


def test_a_curve_of_several_tasks_is_an_error():
    with pytest.raises(ValueError, match="one task, got 2 tasks"):
        metrics.precision_recall_curve(torch.zeros(3, 2), torch.ones(3, 2))


def test_large_logits_do_not_tie():
    assert metrics.average_precision(torch.tensor([100.0, 101.0, 102.0]), torch.tensor([0, 0, 1])) == 1
    assert metrics.average_precision([2**24, 2**24 + 1], [0, 1]) == 1


def test_the_largest_numbers_are_scores_like_others():
    largest = torch.finfo(torch.float32).max
    labels = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    scores = torch.tensor([[largest, largest], [-largest, -largest]])
    assert metrics.average_precision(scores, labels).tolist() == [1.0, 0.5]


def read_only(values):
    values.setflags(write=False)
    return values


@pytest.mark.parametrize(
    "form",
    [
        np.ndarray.tolist,
        lambda values: values[::-1].copy()[::-1],
        lambda values: read_only(values.copy()),
        lambda values: torch.from_numpy(values)[:, None],
        lambda values: torch.from_numpy(values).bfloat16(),
        lambda values: torch.from_numpy(values).double().requires_grad_(),
    ],
    ids=["list", "reversed", "read-only", "column", "bfloat16", "with gradient"],
)
def test_any_form_of_scores_gives_a_detached_float64_scalar(form):
    scores, labels = data(50, decimals=0)
    value = metrics.average_precision(form(scores), labels)
    assert value.dtype == torch.float64
    assert value.shape == ()
    assert not value.requires_grad
    assert value == metrics.average_precision(scores, labels)


def test_labels_may_be_booleans():
    scores, labels = data(50)
    assert metrics.average_precision(scores, labels == 1) == metrics.average_precision(scores, labels)


def test_inputs_are_not_changed():
    scores, labels = (torch.from_numpy(values) for values in data(50))
    weight = torch.rand(50, generator=torch.Generator().manual_seed(0))
    before = scores.clone(), labels.clone(), weight.clone()
    for name in ("average_precision", "auprc", "auroc", "bedroc", "enrichment_factor", "precision_recall_curve"):
        getattr(metrics, name)(scores, labels)
        getattr(metrics, name)(scores, labels, sample_weight=weight)
    assert all(torch.equal(old, new) for old, new in zip(before, (scores, labels, weight), strict=True))


def test_average_precision_may_fall_when_a_positive_rises_out_of_a_tie():
    labels = torch.tensor([0] * 10 + [1, 1, 0])
    scores = torch.tensor([2.0] * 10 + [0.0, 0.0, 0.0])
    raised = scores.index_fill(0, torch.tensor([10]), 1.0)
    assert metrics.average_precision(scores, labels).item() == pytest.approx(2 / 13, abs=1e-12)
    assert metrics.average_precision(raised, labels).item() == pytest.approx((1 / 11 + 2 / 13) / 2, abs=1e-12)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@every_metric
@pytest.mark.parametrize("kind", ["none", "floats"])
def test_the_gpu_gives_the_same_numbers(ours, theirs, kind):
    scores, labels = data(decimals=1)
    weight = weights(200, kind)
    value = ours(torch.from_numpy(scores).cuda(), labels, sample_weight=weight)
    assert value.is_cuda
    np.testing.assert_allclose(value.cpu(), theirs(labels, scores, sample_weight=weight), **EXACT)


rows = st.lists(st.tuples(st.integers(-4, 4), st.booleans(), st.integers(0, 3)), min_size=2, max_size=30).filter(
    lambda rows: {label for _, label, times in rows if times} == {False, True}
)


@every_metric
@settings(deadline=None, max_examples=50)
@given(rows=rows, seed=st.integers(0, 2**32 - 1))
def test_the_order_of_rows_does_not_matter(ours, theirs, rows, seed):
    scores, labels, times = (np.array(column) for column in zip(*rows, strict=True))
    order = np.random.default_rng(seed).permutation(len(rows))
    shuffled = ours(scores[order], labels[order], sample_weight=times[order])
    np.testing.assert_allclose(shuffled, ours(scores, labels, sample_weight=times), **EXACT)


@every_metric
@settings(deadline=None, max_examples=50)
@given(rows=rows)
def test_only_the_ranking_matters(ours, theirs, rows):
    scores, labels, _ = (np.array(column) for column in zip(*rows, strict=True))
    assert ours(scores, labels) == ours(np.exp(3.0 * scores) + 100, labels)


@every_metric
@settings(deadline=None, max_examples=50)
@given(rows=rows)
def test_a_weight_counts_as_repeated_rows(ours, theirs, rows):
    scores, labels, times = (np.array(column) for column in zip(*rows, strict=True))
    repeated = ours(scores.repeat(times), labels.repeat(times))
    np.testing.assert_allclose(ours(scores, labels, sample_weight=times), repeated, **EXACT)


@pytest.mark.parametrize("kind", ["none", "floats", "zeros"])
def test_the_bundle_holds_every_metric(kind):
    scores, labels = data(decimals=1)
    weight = weights(200, kind)
    bundle = metrics.ranking_metrics(scores, labels, sample_weight=weight)
    for value, name in zip(bundle, PEERS, strict=True):
        assert value == PEERS[name][0](scores, labels, sample_weight=weight).item()
    assert bundle._fields == ("ap", "auprc", "auroc", "bedroc", "enrichment")


def test_the_bundle_is_the_mean_over_tasks_with_both_classes():
    rng = np.random.default_rng(0)
    scores, labels = rng.normal(size=(50, 4)), rng.integers(0, 2, size=(50, 4)).astype(float)
    labels[:, 1], labels[:, 2] = 0, 1
    labels[::3, 3] = np.nan
    bundle = metrics.ranking_metrics(scores, labels)
    for value, name in zip(bundle, PEERS, strict=True):
        each = PEERS[name][0](scores, labels)
        np.testing.assert_allclose(value, (each[0] + each[3]) / 2, **EXACT)


def test_the_bundle_is_nan_where_a_metric_is_undefined():
    assert all(math.isnan(value) for value in metrics.ranking_metrics([1.0, 2.0], [0, 0]))
    only_positives = metrics.ranking_metrics([1.0, 2.0], [1, 1])
    assert (only_positives.ap, only_positives.auprc, only_positives.enrichment) == (1.0, 1.0, 1.0)
    assert math.isnan(only_positives.auroc)
    assert math.isnan(only_positives.bedroc)


@pytest.mark.parametrize("scale", [1e-300, 1e-200, 1e200, 1e307])
def test_weights_of_any_scale_neither_overflow_nor_vanish(scale):
    rng = np.random.default_rng(0)
    labels = (rng.random(200) < 0.2).astype(float)
    scores, weight = (rng.normal(size=200) + labels).round(1), rng.exponential(size=200)
    found = metrics.ranking_metrics(scores, labels, sample_weight=weight * scale)
    assert found == pytest.approx(metrics.ranking_metrics(scores, labels, sample_weight=weight), rel=1e-9)


@pytest.mark.parametrize("scale", [1e-250, 1e-150, 1e150, 1e250])
def test_the_scale_of_the_weights_of_one_class_does_not_matter_to_the_auroc(scale):
    rng = np.random.default_rng(0)
    labels = (rng.random(200) < 0.2).astype(float)
    scores, weight = (rng.normal(size=200) + labels).round(1), rng.exponential(size=200)
    expected = metrics.auroc(scores, labels, sample_weight=weight).item()
    scaled = metrics.auroc(scores, labels, sample_weight=np.where(labels == 1, scale, 1) * weight)
    assert scaled.item() == pytest.approx(expected, rel=1e-9)


def test_the_first_places_of_weights_of_any_scale():
    scores, labels = [4.0, 3.0, 2.0, 1.0], [1, 0, 1, 0]
    assert metrics.precision_at_k(scores, labels, k=4, sample_weight=[1, 3, 1e280, 1e280]).item() == 0.25
    assert metrics.recall_at_k(scores, labels, k=1, sample_weight=[1e308] * 4).item() == pytest.approx(0, abs=1e-300)


def test_positives_below_a_far_larger_weight_are_found():
    scores, labels, weight = [4.0, 3.0, 3.0, 1.0], [0, 1, 1, 0], [1e30, 1, 3, 1e30]
    assert metrics.enrichment_factor(scores, labels, fraction=1, sample_weight=weight).item() == pytest.approx(1)
    assert metrics.enrichment_factor(scores, labels, fraction=0.6, sample_weight=weight).item() == pytest.approx(
        1 / 0.6
    )
    # In the middle of the list, alone: (e^-10 - e^-20) / (1 - e^-20).
    expected = (math.exp(-10) - math.exp(-20)) / -math.expm1(-20)
    assert metrics.bedroc(scores, labels, sample_weight=weight).item() == pytest.approx(expected)


def test_weights_too_far_apart_for_float64_are_an_error():
    with pytest.raises(ValueError, match="sample_weight must not spread"):
        metrics.auroc([1.0, 2.0], [0, 1], sample_weight=[1e-10, 1e300])


def test_a_list_of_all_examples_is_not_too_long_by_rounding():
    scores, labels, weight = [0.3, 0.2, 0.1], [1, 0, 1], [0.7999999999999999, 0.7, 0.5]
    assert metrics.precision_at_k(scores, labels, k=2, sample_weight=weight) == pytest.approx(0.65)
    assert metrics.recall_at_k(scores, labels, k=2, sample_weight=weight) == pytest.approx(1)


def test_the_beta_distribution_is_mirrored_once():
    a, b, x = 0.008314061484604817, 2.046712115736974, 0.2486578427406062
    assert beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-12)
