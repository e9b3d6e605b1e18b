"""The eight surrogates: value, derivative, stability, and that every entry of the table is one."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import references
from apmax import surrogates
from apmax.surrogates import SURROGATES

every_surrogate = pytest.mark.parametrize("name", SURROGATES)
margins = pytest.mark.parametrize("margin", [0.3, 1.0, 2.5])
GRID = torch.linspace(-12, 12, 481, dtype=torch.float64)  # steps of 0.05: kinks at ±0.3, ±1 and ±2.5 are met exactly

# As they stand in textbooks, stable for moderate x only.
TEXTBOOK = {
    "squared_hinge": lambda x, m: (m + x).clamp_min(0) ** 2,
    "hinge": lambda x, m: (m + x).clamp_min(0),
    "smoothed_hinge": lambda x, m: ((x + m).clamp_min(0) ** 2 - x.clamp_min(0) ** 2) / (2 * m),
    "ramp": lambda x, m: ((x + m) / (2 * m)).clamp(0, 1),
    "smooth_step": lambda x, m: (
        ((x + m).clamp_min(0) ** 2 - 2 * x.clamp_min(0) ** 2 + (x - m).clamp_min(0) ** 2) / (2 * m**2)
    ),
    "logistic": lambda x, c: (1 + (c * x).exp()).log(),
    "sigmoid": lambda x, c: 1 / (1 + (-c * x).exp()),
    "exponential": lambda x, c: (c * x).exp(),
}


def by_loop(name, x, margin):
    return torch.tensor([references.SURROGATES[name](v, margin) for v in x.tolist()], dtype=torch.float64).T


@every_surrogate
@margins
def test_value_equals_the_loop(name, margin):
    expected, _ = by_loop(name, GRID, margin)
    torch.testing.assert_close(SURROGATES[name](GRID, margin), expected, rtol=1e-12, atol=1e-14)


@every_surrogate
@pytest.mark.parametrize("margin", [0.5, 1.0, 2.5])
def test_derivative_equals_the_loop_and_at_kinks_is_that_from_the_right(name, margin):
    # Binary fractions, so that both sides see the kinks at ±margin exactly.
    x = torch.arange(-64, 64, dtype=torch.float64) / 8
    _, expected = by_loop(name, x, margin)
    torch.testing.assert_close(SURROGATES[name].derivative(x, margin), expected, rtol=1e-12, atol=1e-14)


@every_surrogate
@margins
def test_value_equals_the_textbook_formula_where_that_is_stable(name, margin):
    torch.testing.assert_close(SURROGATES[name](GRID, margin), TEXTBOOK[name](GRID, margin), rtol=1e-12, atol=1e-12)


@every_surrogate
@margins
def test_gradient_is_that_of_the_value(name, margin):
    away_from_kinks = (GRID[::7] + 0.0137).requires_grad_()
    assert torch.autograd.gradcheck(lambda x: SURROGATES[name](x, margin), away_from_kinks)


@every_surrogate
@pytest.mark.parametrize("margin", [1e-3, 1.0, 1e3])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_no_finite_input_gives_nan_or_a_negative(name, margin, dtype):
    largest = torch.finfo(dtype).max
    x = torch.tensor([0, 1e-30, 80, 1e4, 1e30, largest], dtype=dtype)
    x = torch.cat([-x, x])
    value, slope = SURROGATES[name](x, margin), SURROGATES[name].derivative(x, margin)
    assert (value >= 0).all()
    assert (slope >= 0).all()


@every_surrogate
@pytest.mark.parametrize("x", [-1e4, -500.0, -30.0, 30.0, 500.0, 1e4])
def test_float32_keeps_its_digits_far_from_zero(name, x):
    expected = by_loop(name, torch.tensor([x]), 1.0)[:, 0].float()
    single = torch.tensor([x])
    found = torch.cat([SURROGATES[name](single), SURROGATES[name].derivative(single)])
    torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-37)


@settings(deadline=None)
@given(
    x=st.floats(-1e6, 1e6),
    step=st.floats(0, 1e3),
    margin=st.floats(1e-3, 1e3),
    name=st.sampled_from(sorted(SURROGATES)),
)
def test_surrogates_increase(x, step, margin, name):
    low, high = SURROGATES[name](torch.tensor([x, x + step], dtype=torch.float64), margin).tolist()
    assert 0 <= low <= high * (1 + 1e-15) + 1e-16


@settings(deadline=None)
@given(x=st.floats(width=32, allow_nan=False, allow_infinity=False), margin=st.floats(1e-3, 1e3))
def test_smooth_step_stays_within_0_and_1(x, margin):
    assert 0 <= SURROGATES["smooth_step"](torch.tensor(x, dtype=torch.float32), margin) <= 1


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_smooth_step_is_monotone_to_the_last_digit_but_one(dtype):
    x = torch.linspace(-1.001, 1.001, 40_001, dtype=dtype)
    assert torch.diff(SURROGATES["smooth_step"](x, 1.0)).min() >= -torch.finfo(dtype).eps


def test_exponential_is_constant_from_exponent_80_on():
    x = torch.tensor([39.999, 40.0, 1e30], dtype=torch.float64)
    value, slope = SURROGATES["exponential"](x, 2.0), SURROGATES["exponential"].derivative(x, 2.0)
    assert value[1] == value[2] == math.exp(80) > value[0]
    assert slope[0] == 2 * value[0]
    assert slope[1:].tolist() == [0, 0]


@every_surrogate
@margins
def test_pieces_add_up_to_the_surrogate(name, margin):
    if SURROGATES[name].pieces is None:
        assert name in ("logistic", "sigmoid", "exponential")
        return
    pieces = SURROGATES[name].pieces(margin)
    total = torch.zeros_like(GRID)
    for start, stop, coefficients in pieces:
        y = GRID - start
        inside = (y >= 0) & ((math.inf if stop is None else stop) > GRID)
        total += torch.where(inside, sum(c * y**p for p, c in enumerate(coefficients)), 0)
    torch.testing.assert_close(total, SURROGATES[name](GRID, margin), rtol=1e-12, atol=1e-12)
    assert [piece.stop for piece in pieces] == [piece.start for piece in pieces[1:]] + [None]


@margins
def test_value_at_zero_is_that_of_an_examples_pair_with_itself(margin):
    found = {name: surrogate.at_zero(margin) for name, surrogate in SURROGATES.items()}
    assert found == {
        "squared_hinge": margin**2,
        "hinge": margin,
        "smoothed_hinge": pytest.approx(margin / 2),
        "ramp": 0.5,
        "smooth_step": 0.5,
        "logistic": pytest.approx(math.log(2)),
        "sigmoid": 0.5,
        "exponential": 1,
    }


@every_surrogate
def test_half_precision_is_computed_in_float32_and_gets_its_gradient_back(name):
    x = torch.tensor([-0.25, 0.5], dtype=torch.float16, requires_grad=True)
    value = SURROGATES[name](x, 1.0)
    value.sum().backward()
    assert value.dtype == torch.float32
    assert x.grad.dtype == torch.float16
    torch.testing.assert_close(value, SURROGATES[name](x.detach().float(), 1.0), rtol=0, atol=0)


@every_surrogate
def test_input_is_not_changed(name):
    x = torch.tensor([-2.0, 0.0, 2.0])
    SURROGATES[name](x, 1.0)
    SURROGATES[name].derivative(x, 1.0)
    assert x.tolist() == [-2, 0, 2]


def test_second_derivative_raises_instead_of_being_wrong():
    x = torch.tensor([0.5], requires_grad=True)
    (slope,) = torch.autograd.grad(SURROGATES["sigmoid"](x).square().sum(), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        slope.backward()


@every_surrogate
def test_table_is_keyed_by_name_and_get_finds_it(name):
    assert SURROGATES[name].name == name
    assert surrogates.get(name, 1.0) is surrogates.get(SURROGATES[name], 1.0) is SURROGATES[name]


def test_table_holds_what_the_references_hold():
    assert list(SURROGATES) == list(references.SURROGATES)


def test_unknown_name_is_an_error_that_suggests_the_right_one():
    with pytest.raises(ValueError, match=r"surrogate must be one of .*did you mean 'smooth_step'"):
        surrogates.get("smoothstep", 1.0)


@pytest.mark.parametrize("margin", [0, -1.0, math.inf, math.nan, np.float32(0)])
def test_margin_that_is_not_positive_and_finite_is_an_error(margin):
    with pytest.raises(ValueError, match="margin"):
        surrogates.get("hinge", margin)
