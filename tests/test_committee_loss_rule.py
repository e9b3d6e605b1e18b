"""The sentences that a verdict on the AP loss can quote."""

from __future__ import annotations

from pathlib import Path

import pytest

from apmax.committee.leaderboard import AP_LOSS_RULE, loss_advice, mined_advice

PAGE = Path(__file__).parent.parent / "docs" / "explanation" / "when-ap-pays.md"


def test_rule_is_that_of_the_page():
    assert AP_LOSS_RULE in " ".join(PAGE.read_text(encoding="utf-8").split())


@pytest.mark.parametrize(
    ("low", "high", "beginning"),
    [(0.01, 0.02, AP_LOSS_RULE), (0.0, 0.02, "keep"), (-0.02, 0.02, "keep"), (-0.03, -0.01, "keep cross-entropy: it")],
)
def test_advice_follows_the_interval(low, high, beginning):
    assert loss_advice(low, high).startswith(beginning)


def test_interval_that_contains_zero_says_nothing_about_what_the_model_can_fit():
    advice = loss_advice(-0.2, 0.3)
    assert "these rows do not show" in advice
    assert "can fit" not in advice


@pytest.mark.parametrize(
    ("low", "high", "text"), [(0.01, 0.02, "the gain is more"), (0.0, 0.02, "may do"), (-0.03, -0.01, "do more than")]
)
def test_advice_on_mined_negatives_follows_the_interval(low, high, text):
    assert text in mined_advice(low, high)


@pytest.mark.parametrize("advice", [loss_advice, mined_advice])
def test_interval_in_the_wrong_order_is_refused(advice):
    with pytest.raises(ValueError, match=r"low must be at most high, got 0.2 and 0.1"):
        advice(0.2, 0.1)
