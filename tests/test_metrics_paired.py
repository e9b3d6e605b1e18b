"""Paired comparison over cells with Student's interval, and the quantiles that intervals are made of."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from scipy import stats

from apmax.metrics import compare
from apmax.metrics.quantiles import beta_quantile, t_quantile


@pytest.mark.parametrize("freedom", [1, 2, 3, 4, 9, 10, 29, 100, 301])
@pytest.mark.parametrize("probability", [0.5, 0.75, 0.975, 0.9999])
def test_quantile_is_that_of_students_t(probability, freedom):
    """By the distribution function: scipy 1.11.1's own quantiles are off by up to 3e-9."""
    above = stats.t.sf(t_quantile(probability, freedom), freedom)
    assert above == pytest.approx(1 - probability, rel=1e-10, abs=1e-14)


@pytest.mark.parametrize("cells", [2, 3, 10, 57])
def test_interval_is_that_of_the_paired_t_test(cells):
    generator = np.random.default_rng(cells)
    a, b = generator.random(cells), generator.random(cells)
    got = compare(list(a), list(b))
    low, high = stats.ttest_rel(a, b).confidence_interval(0.95)
    assert (got.difference, got.low, got.high) == pytest.approx((np.mean(a - b), low, high), rel=1e-8)
    assert (got.won, got.cells) == ((a > b).sum(), cells)


@pytest.mark.parametrize("kind", [np.array, torch.tensor, tuple], ids=["array", "tensor", "tuple"])
def test_arrays_are_the_same_as_lists(kind):
    values, base = [0.5, 0.75, 1.0], [0.5, 0.5, 0.5]
    assert compare(kind(values), kind(base)) == compare(values, base)
    with pytest.raises(ValueError, match="values and base must be of the same cells"):
        compare(kind([]), kind([]))


def test_one_cell_has_a_difference_and_no_interval():
    got = compare([0.5], [0.4])
    assert got.difference == pytest.approx(0.1)
    assert math.isnan(got.low)
    assert math.isnan(got.high)


@pytest.mark.parametrize(("values", "base"), [([], []), ([0.5], []), ([0.5, 0.6], [0.5])])
def test_values_of_other_cells_are_refused(values, base):
    with pytest.raises(ValueError, match="values and base must be of the same cells"):
        compare(values, base)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_values_that_are_not_finite_are_refused(value):
    with pytest.raises(ValueError, match=f"base must be finite, got {value} in cell 1; leave that cell out of both"):
        compare([0.1, 0.2], [0.3, value])


@pytest.mark.parametrize(("probability", "freedom"), [(0.4, 3), (1.0, 3), (0.9, 0)])
def test_quantile_that_does_not_exist_is_refused(probability, freedom):
    with pytest.raises(ValueError, match="must"):
        t_quantile(probability, freedom)


@pytest.mark.parametrize("probability", [1e-9, 0.025, 0.5, 0.975])
@pytest.mark.parametrize(("a", "b"), [(0.5, 3.3), (1, 1), (5, 1), (200, 1), (1e5, 37.5), (12.7, 1e6)])
def test_quantile_is_that_of_the_beta_distribution(probability, a, b):
    assert beta_quantile(probability, a, b) == pytest.approx(stats.beta.ppf(probability, a, b), rel=1e-8)


@pytest.mark.parametrize(("probability", "a", "b"), [(-0.1, 1, 1), (1.1, 1, 1), (0.5, 0, 1), (0.5, 1, 0)])
def test_beta_quantile_that_does_not_exist_is_an_error(probability, a, b):
    with pytest.raises(ValueError, match="must lie in"):
        beta_quantile(probability, a, b)
