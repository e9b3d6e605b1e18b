"""The grid method for logistic and sigmoid: its error bound, the spacing rule, and what is too wide for it."""

import math

import numpy as np
import pytest
import torch

from apmax.exact import grid, kernel, pair_sums
from apmax.exact.grid import MAX_POINTS, GridTable, grid_points
from apmax.exact.kernel import DensePairs
from apmax.exact.tables import TabulatedPairs
from apmax.surrogates import SURROGATES

smooth_surrogate = pytest.mark.parametrize("name", ["logistic", "sigmoid"])
EPS = np.finfo(np.float64).eps


def problem(spread, *, outlier=None, n=400, k=25, seed=0):
    """Return scores over `spread`, crowded around its middle, anchors among them, and weights by class."""
    rng = np.random.default_rng(seed)
    scores = np.concatenate([rng.uniform(0, spread, n // 2), spread / 2 + rng.normal(size=n - n // 2)])
    rng.shuffle(scores)
    if outlier is not None:
        scores[k] = outlier
    weight = rng.exponential(size=n)
    positive = np.arange(n) < k
    return tuple(map(torch.from_numpy, (scores, scores[:k], weight * positive, weight * ~positive)))


def grid_of(name, scores, anchors, scale=1.0):
    return GridTable(anchors, SURROGATES[name], scale, scores.min(), scores.max())


def fft_rounding(table, scores, weight, scale):
    """Return how far rounding may carry a convolution of length 2G: eps·log₂(2G) of the largest terms' norms."""
    largest = scale * float(scores.max() - scores.min()) + 1
    return EPS * math.log2(2 * table.points) * largest * math.sqrt(2 * table.points) * float(weight.norm())


@smooth_surrogate
@pytest.mark.parametrize(
    ("spread", "outlier", "scale"),
    [(10, None, 1.0), (1e3, None, 1.0), (10, 1e4, 1.0), (10, -1e4, 0.5), (1.0, None, 30.0), (1e5, None, 1.0)],
)
def test_sums_stay_within_the_error_bound(name, spread, outlier, scale):
    scores, anchors, positive, negative = problem(spread, outlier=outlier)
    table = grid_of(name, scores, anchors, scale)
    found, expected = (
        pair_sums(scores, anchors, positive, negative, surrogate=name, margin=scale, method=method)
        for method in ("grid", "dense")
    )
    for column, weight in enumerate((positive, negative)):
        bound = table.error_bound * float(weight.sum()) + fft_rounding(table, scores, weight, scale)
        assert (found - expected)[column].abs().max() <= bound
    assert table.error_bound <= 1.1e-7


@smooth_surrogate
@pytest.mark.parametrize(("spread", "outlier"), [(10, None), (1e3, None), (10, 1e4)])
def test_relative_error_is_below_1e_6_and_that_of_the_gradients_too(name, spread, outlier):
    scores, anchors, positive, negative = problem(spread, outlier=outlier)
    results = []
    for method in ("grid", "dense"):
        leaves = [part.clone().requires_grad_() for part in (scores, anchors)]
        sums = pair_sums(*leaves, positive, negative, surrogate=name, method=method)
        precision = sums[0] / sums.sum(0)
        results.append([precision.detach(), *torch.autograd.grad(precision.mean(), leaves)])
    for found, expected in zip(*results, strict=True):
        assert (found - expected).abs().max() <= 1e-6 * expected.abs().max()


@smooth_surrogate
def test_bound_is_of_the_order_of_the_error(name):
    # The spacing as wide as the rule allows, all weight on one example: a bound much above the worst case would
    # hide a loss of accuracy, and one below it would be wrong.
    table = GridTable(torch.linspace(0, 9, 2001), SURROGATES[name], 1.0, torch.tensor(0.0), torch.tensor(9.0))
    worst = 0.0
    for score in torch.linspace(4, 5, 50, dtype=torch.float64):
        table.moments.zero_()
        table.add(table.locate(score[None]), torch.ones(2, 1))
        exact = SURROGATES[name](score - table.anchors)
        worst = max(worst, float((table.sums()[0] - exact).abs().max()))
    assert 0.2 * table.error_bound <= worst <= table.error_bound


@smooth_surrogate
def test_constants_of_the_bound_are_the_largest_fourth_derivatives(name):
    x = torch.linspace(-8, 8, 160_001, dtype=torch.float64)
    s = x.sigmoid()
    third = s * (1 - s) * (1 - 6 * s + 6 * s**2)
    fourth = third if name == "logistic" else s * (1 - s) * (1 - 2 * s) * (1 - 12 * s + 12 * s**2)
    assert 0.99 * grid._FOURTH_DERIVATIVE[name] <= fourth.abs().max() <= grid._FOURTH_DERIVATIVE[name]


@pytest.mark.parametrize("scale", [0.1, 1.0, 7.0])
@pytest.mark.parametrize("spread", [0.0, 1e-9, 1.0, 30.0, 31.5, 1e3])
def test_spacing_is_at_most_a_sixteenth_of_the_scale_and_the_grid_covers_the_range(spread, scale):
    ends = torch.tensor([0.0, spread], dtype=torch.float64)
    table = GridTable(ends, SURROGATES["sigmoid"], scale, ends[0], ends[1])
    assert scale * table.spacing * 16 <= 1
    # One point before the smallest score and two after the largest make room for the stencils.
    assert spread / table.spacing + 3 <= table.points - 1
    assert table.points == grid_points(spread, scale) >= math.floor(16 * scale * spread) + 8
    assert table.points.bit_count() == 1


@smooth_surrogate
def test_auto_takes_the_grid_where_pairs_are_many_and_the_range_is_moderate(name):
    scores = torch.linspace(0, 20, 4000, dtype=torch.float64)
    weight = torch.ones(2, 4000, dtype=torch.float64)
    assert isinstance(kernel.pair_kernel(scores, scores[::20], weight, SURROGATES[name], 1.0), TabulatedPairs)
    assert isinstance(kernel.pair_kernel(scores, scores[::20], weight, SURROGATES[name], 100.0), DensePairs)


@smooth_surrogate
@pytest.mark.parametrize("widest", [2.0 * MAX_POINTS / 16, 1e12, 1e300])
def test_too_wide_a_range_is_an_error_for_grid_and_dense_for_auto(name, widest):
    scores, anchors, positive, negative = problem(10, outlier=widest, n=2000, k=120)
    assert len(scores) * len(anchors) > kernel.DENSE_PAIRS
    with pytest.raises(ValueError, match=r"scores spread over .*use method='dense' or 'auto'"):
        pair_sums(scores, anchors, positive, negative, surrogate=name, method="grid")
    found, expected = (
        pair_sums(scores, anchors, positive, negative, surrogate=name, method=method) for method in ("auto", "dense")
    )
    assert torch.equal(found, expected)
