"""Blends of several models' scores."""

from __future__ import annotations

import numpy as np
import pytest

from apmax.blend import BASE_BLEND, METHODS, fit_blend
from apmax.metrics import average_precision
from references import average_precision as reference_ap

METHOD_NAMES = sorted(METHODS)


def members(seed: int, rows: int = 1500, *, useful: int = 2, noise: int = 0, weak: int = 0, share: float = 0.04):
    """Return scores (rows, K) of members that err independently, on different scales, and their labels."""
    rng = np.random.default_rng(seed)
    labels = (rng.random(rows) < share).astype(float)
    signal = np.repeat([1.6, 0.2, 0.0], [useful, weak, noise])
    scores = signal * labels[:, None] + rng.normal(size=(rows, len(signal)))
    return scores * 10.0 ** rng.integers(-2, 3, size=len(signal)) + 5, labels


def ap(scores, labels) -> float:
    return average_precision(scores, labels).item()


@pytest.mark.parametrize("method", ["auto", *METHOD_NAMES])
def test_weights_are_non_negative_with_sum_one(method):
    blend = fit_blend(*members(0, useful=2, weak=1, noise=1), method=method)
    assert blend.weights.shape == (4,)
    assert (blend.weights >= 0).all()
    assert blend.weights.sum() == pytest.approx(1, abs=1e-12)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_score_is_the_weighted_mean_of_standardised_scores(method):
    scores, labels = members(1)
    blend = fit_blend(scores, labels, method=method)
    expected = sum(
        weight * (column - column.mean()) / column.std() for weight, column in zip(blend.weights, scores.T, strict=True)
    )
    assert blend.score(scores) == pytest.approx(expected)


@pytest.mark.parametrize("method", METHOD_NAMES)
@pytest.mark.parametrize("scale", [3.0, 1e-10, 1e-200, 1e200])
def test_weights_do_not_depend_on_the_members_scales(scale, method):
    scores, labels = members(2)
    scaled = (scores - [7.0, 2.0]) * [scale, 0.1]
    found, expected = fit_blend(scaled, labels, method=method), fit_blend(scores, labels, method=method)
    assert found.weights == pytest.approx(expected.weights, abs=1e-3)
    assert found.scale == pytest.approx(expected.scale * [scale, 0.1])
    assert found.score(scaled) == pytest.approx(expected.score(scores), abs=2e-3)


@pytest.mark.parametrize("method", ["greedy", "exact", "logistic"])
def test_blend_of_two_independent_members_beats_both_on_new_rows(method):
    scores, labels = members(3, 6000)
    blend = fit_blend(scores[:3000], labels[:3000], method=method)
    single = max(ap(column[3000:], labels[3000:]) for column in scores.T)
    assert ap(blend.score(scores[3000:]), labels[3000:]) > single + 0.05


@pytest.mark.parametrize("method", [pytest.param("auto", marks=pytest.mark.slow), "greedy", "logistic"])
def test_noise_and_weak_members_do_no_harm(method):
    losses = []
    for seed in range(3):
        scores, labels = members(seed, 1600, useful=2, weak=1, noise=2)
        train, test = slice(0, 800), slice(800, None)
        alone = fit_blend(scores[train, :2], labels[train], method=method).score(scores[test, :2])
        among = fit_blend(scores[train], labels[train], method=method).score(scores[test])
        losses.append(ap(alone, labels[test]) - ap(among, labels[test]))
    assert np.mean(losses) < 0.05


def test_greedy_selection_equals_a_search_by_hand():
    scores, labels = members(4, 300, useful=3)
    standard = (scores - scores.mean(0)) / scores.std(0)
    counts, total, best, chosen, since = np.zeros(3), np.zeros(len(labels)), -1.0, None, 0
    while since < 20:
        values = [ap(total + standard[:, k], labels) for k in range(3)]
        k = int(np.argmax(values))
        counts[k] += 1
        total = total + standard[:, k]
        since += 1
        if values[k] > best:
            best, chosen, since = values[k], counts / counts.sum(), 0
    assert fit_blend(scores, labels, method="greedy").weights == pytest.approx(chosen)


@pytest.mark.parametrize("method", ["greedy", "exact", "logistic"])
def test_weights_below_a_tenth_of_the_largest_are_zero(method, monkeypatch):
    scores, labels = members(8, 2000, useful=2, weak=6, share=0.1)
    weights = fit_blend(scores, labels, method=method).weights
    monkeypatch.setattr("apmax.blend._LEAST_SHARE", 0.0)
    every = fit_blend(scores, labels, method=method).weights
    small = every < 0.1 * every.max()
    assert (every[small] > 0).any(), "the example has no small weight"
    if method != "exact":  # which starts from the greedy weights, without the small ones
        assert weights == pytest.approx(np.where(small, 0, every) / every[~small].sum())
    assert set(weights[weights < 0.1 * weights.max()]) <= {0.0}


def test_best_is_the_member_of_the_highest_average_precision():
    scores, labels = members(5, useful=2, noise=1)
    expected = np.eye(3)[np.argmax([ap(column, labels) for column in scores.T])]
    assert fit_blend(scores, labels, method="best").weights.tolist() == expected.tolist()


def test_exact_weights_minimise_the_pulled_objective_on_a_grid():
    import torch

    from apmax.functional import ap_objective

    scores, labels = members(6, 800)
    standard = torch.from_numpy((scores - scores.mean(0)) / scores.std(0))
    start = fit_blend(scores, labels, method="greedy").weights

    def value(first: float) -> float:
        point = np.array([first, 1 - first])
        blended = standard @ torch.from_numpy(point)
        return (
            ap_objective(blended, torch.from_numpy(labels), "smooth_step").item()
            + 0.05 * np.square(point - start).sum()
        )

    found = fit_blend(scores, labels, method="exact").weights
    assert value(found[0]) <= min(value(first) for first in np.linspace(0, 1, 101)) + 1e-4


def test_logistic_weights_have_the_least_log_loss_on_a_grid():
    from sklearn.linear_model import LogisticRegression

    scores, labels = members(7)
    standard = (scores - scores.mean(0)) / scores.std(0)
    slopes = LogisticRegression(C=1e9).fit(standard, labels).coef_[0]
    assert (slopes > 0).all()
    assert fit_blend(scores, labels, method="logistic").weights == pytest.approx(slopes / slopes.sum(), abs=1e-3)


@pytest.mark.parametrize("exponent", [-1060, 1020])
@pytest.mark.parametrize("method", ["auto", *METHOD_NAMES])
def test_the_scale_of_the_rows_weights_does_not_matter(method, exponent):
    """Sums of the large ones are not finite, and the small ones are among the least that there are."""
    scores, labels = members(3, rows=600)
    weight = np.random.default_rng(3).integers(1, 8, 600).astype(float)
    expected = fit_blend(scores, labels, sample_weight=weight, method=method)
    found = fit_blend(scores, labels, sample_weight=np.ldexp(weight, exponent), method=method)
    np.testing.assert_array_equal(found.weights, expected.weights)
    np.testing.assert_array_equal(found.location, expected.location)


def test_harmful_member_gets_no_logistic_weight():
    scores, labels = members(8)
    scores[:, 1] *= -1
    assert fit_blend(scores, labels, method="logistic").weights[1] == 0


@pytest.mark.parametrize("method", ["auto", *METHOD_NAMES])
def test_targets_are_fitted_one_by_one_on_their_known_rows(method):
    first, one = members(9, 700)
    second, two = members(10, 700, useful=1, noise=1)
    two[:100] = np.nan
    both = fit_blend(np.stack([first, second], 2), np.stack([one, two], 1), method=method)
    for target, (scores, labels) in enumerate([(first, one), (second[100:], two[100:])]):
        alone = fit_blend(scores, labels, method=method)
        assert both.weights[:, target] == pytest.approx(alone.weights)
        assert both.method[target] == alone.method[0]
    assert both.score(np.stack([first, second], 2)).shape == (700, 2)


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_rows_without_scores_are_left_out(method):
    scores, labels = members(11)
    missing = scores.copy()
    missing[:200, 1] = np.nan
    assert fit_blend(missing, labels, method=method).weights == pytest.approx(
        fit_blend(scores[200:], labels[200:], method=method).weights
    )


@pytest.mark.parametrize("method", METHOD_NAMES)
def test_a_row_of_weight_two_counts_as_two_rows(method):
    scores, labels = members(12, 600)
    weight = np.random.default_rng(0).integers(0, 3, size=600)
    repeated = np.repeat(np.arange(600), weight)
    weighted = fit_blend(scores, labels, method=method, sample_weight=weight)
    assert weighted.weights == pytest.approx(
        fit_blend(scores[repeated], labels[repeated], method=method).weights, abs=2e-3
    )


def test_few_positives_take_logistic_weights_and_say_so():
    scores, labels = members(13, 400, share=0.03)
    assert labels.sum() < 20
    blend = fit_blend(scores, labels)
    assert blend.method == ("logistic",)
    assert blend.reason == (f"{int(labels.sum())} positives are too few to compare methods",)


def fixed_methods(**weights):
    """Return methods whose weights do not depend on the rows."""
    return {name: lambda rows, fixed=fixed: np.array(fixed, float) for name, fixed in weights.items()}


def resampled_errors(columns, labels, weight, groups, base, resamples=150):
    """Return the standard deviation of each column's gain in AP over column `base` by drawing rows, or groups, again.

    Rows are drawn within their class; groups within those that hold a positive and those that do not.
    """
    rng = np.random.default_rng(99)
    _, unit = np.unique(np.arange(len(labels)) if groups is None else groups, return_inverse=True)
    members = [np.flatnonzero(unit == each) for each in range(unit.max() + 1)]
    positive = np.array([labels[rows].any() for rows in members])
    gains = []
    for _ in range(resamples):
        units = np.concatenate([rng.choice(part, len(part)) for part in map(np.flatnonzero, (positive, ~positive))])
        rows = np.concatenate([members[each] for each in units])
        values = [average_precision(column[rows], labels[rows], sample_weight=weight[rows]) for column in columns.T]
        gains.append([(value - values[base]).item() for value in values])
    return np.std(gains, 0, ddof=1)


@pytest.mark.parametrize("case", ["rows", "weights", "groups"])
def test_another_method_replaces_logistic_weights_only_for_more_than_one_standard_error(case, monkeypatch):
    # The cross-fitted scores are then the members' own, and all of it can be computed here.
    fixed = {"greedy": [0, 1], "logistic": [1, 0]}
    monkeypatch.setattr("apmax.blend.METHODS", fixed_methods(**fixed))
    replaced = []
    for seed, better in ((3, 1.55), (4, 2.2)):
        rng = np.random.default_rng(seed)
        labels = (rng.random(400) < 0.1).astype(float)
        # Rounded, so that scores are tied.
        scores = (rng.normal(size=(400, 2)) + labels[:, None] * [1.5, better]).round(1)
        weight = rng.integers(1, 6, 400).astype(float) ** 2 if case == "weights" else np.ones(400)
        groups = np.arange(400) // 8 if case == "groups" else None
        found = fit_blend(scores, labels, sample_weight=weight, groups=groups)
        values = {name: average_precision(scores @ w, labels, sample_weight=weight).item() for name, w in fixed.items()}
        assert found.ap[0] == pytest.approx(values)
        gain = values["greedy"] - values["logistic"]
        error = resampled_errors(scores, labels, weight, groups, base=0)[1]
        if found.method == ("greedy",):
            assert float(found.reason[0].split()[-1]) == pytest.approx(error, rel=0.25)
        assert abs(gain / error - 1) > 0.2, "the example is too near to the limit"
        assert (found.method == ("greedy",)) == (gain > error)
        replaced.append(found.method == ("greedy",))
    assert set(replaced) == {True, False}


@pytest.mark.parametrize("grouped", [False, True])
def test_resamples_draw_within_the_class_and_carry_the_rows_weights(grouped, monkeypatch):
    from apmax import blend as module

    drawn = []

    class Spy(module._Ranking):
        def average_precision(self, weight):
            drawn.append(weight)
            return super().average_precision(weight)

    monkeypatch.setattr(module, "_Ranking", Spy)
    monkeypatch.setattr(module, "METHODS", fixed_methods(greedy=[0, 1], logistic=[1, 0]))
    scores, labels = members(21, 400, share=0.1)
    rng = np.random.default_rng(0)
    weight = rng.integers(1, 4, 400).astype(float)
    groups = rng.integers(0, 60, 400) if grouped else np.arange(400)
    fit_blend(scores, labels, sample_weight=weight, groups=groups if grouped else None)
    _, first, unit = np.unique(groups, return_index=True, return_inverse=True)
    positive = np.bincount(unit, weights=labels) > 0
    assert len(drawn) == 200 * 2
    for each in drawn:
        times = each / weight
        of_units = times[first]
        assert np.array_equal(times, of_units[unit]), "a group is drawn whole"
        assert np.array_equal(of_units, of_units.round())
        assert (of_units[positive].sum(), of_units[~positive].sum()) == (positive.sum(), (~positive).sum())


def test_average_precision_of_drawn_rows_is_that_of_the_repeated_rows():
    from apmax.blend import _Ranking

    rng = np.random.default_rng(0)
    for _ in range(20):
        labels, times = (rng.random(40) < 0.3).astype(float), rng.integers(0, 3, 40)
        labels[0] = times[0] = 1
        scores = rng.integers(0, 12, 40).astype(float)
        found = _Ranking.of(scores, labels).average_precision(times.astype(float))
        assert found == pytest.approx(reference_ap(scores.repeat(times), labels.repeat(times)))


def test_groups_stay_together_in_the_folds(monkeypatch):
    from apmax import blend as module

    scores, labels = members(15, 700)
    groups = np.arange(700) // 5
    divided = []
    original = module.k_fold

    def spy(*arguments, **options):
        folds = original(*arguments, **options)
        divided.extend(set(groups[train]) & set(groups[test]) for train, test in folds)
        return folds

    monkeypatch.setattr(module, "k_fold", spy)
    fit_blend(scores, labels, groups=groups)
    assert divided
    assert not any(divided)


@pytest.mark.parametrize("count", [2, 3, 4])
def test_few_groups_are_as_many_folds(count):
    scores, labels = members(17, 700)
    found = fit_blend(scores, labels, groups=np.arange(700) % count)
    assert set(found.ap[0]) == set(METHODS), "all methods were compared"


def test_positives_of_one_group_compare_nothing_and_say_so():
    scores, labels = members(18)
    found = fit_blend(scores, labels, groups=np.where(labels == 1, 0, np.arange(1500) % 7))
    assert found.method == (BASE_BLEND,)
    assert found.reason == ("positives of one group are too few to compare methods",)


def test_groups_of_another_number_of_rows_are_refused():
    scores, labels = members(19)
    with pytest.raises(ValueError, match=r"groups must have one entry per row, shape \(1500,\), got \(1501,\)"):
        fit_blend(scores, labels, groups=np.zeros(1501))


@pytest.mark.parametrize("constant", [0.1, 1e6 + 0.1])
def test_constant_scores_have_scale_one_and_no_weight(constant):
    scores, labels = members(20, useful=1)
    found = fit_blend(np.column_stack([np.full(1500, constant), scores[:, 0]]), labels)
    assert found.scale[0] == 1
    assert found.weights.tolist() == [0, 1]


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        (np.zeros(4), [0, 1, 0, 1], r"scores must have shape \(n, K\)"),
        (np.zeros((4, 2, 3)), np.zeros((4, 2)), "same targets, got 3 and 2"),
        (np.full((4, 2), np.inf), [0, 1, 0, 1], "scores must be finite"),
        (np.zeros((4, 2)), [0, 0, 0, 0], "a positive and a negative row"),
        (np.zeros((4, 2)), [0, 2, 0, 1], "labels must"),
    ],
)
def test_wrong_input_is_an_error_that_names_the_argument(scores, labels, message):
    with pytest.raises(ValueError, match=message):
        fit_blend(scores, labels)


def test_score_refuses_another_number_of_members():
    blend = fit_blend(*members(16), method="logistic")
    with pytest.raises(ValueError, match=r"scores must have shape \(n, 2\), got \(5, 3\)"):
        blend.score(np.zeros((5, 3)))
