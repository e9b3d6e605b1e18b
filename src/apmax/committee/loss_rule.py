"""Rule of the study in docs/explanation/when-ap-pays.md, for the verdict on average precision as a training loss."""

from __future__ import annotations

AP_LOSS_RULE = (
    "AP training can pay where the model is too simple for what separates the top of the list; a more flexible model "
    "trained by cross-entropy pays more"
)
"""The rule in one sentence, as docs/explanation/when-ap-pays.md has it."""


def loss_advice(low: float, high: float) -> str:
    """Return what follows from the interval of the gain of an AP-trained model over the same one by cross-entropy.

    Args:
        low: Lower end of the interval of the difference in average precision.
        high: Upper end.

    Raises:
        ValueError: `low` is above `high`.

    >>> loss_advice(-0.02, 0.01)
    'keep cross-entropy: these rows do not show that AP training is better'
    """
    _check_order(low, high)
    if low > 0:
        return f"{AP_LOSS_RULE}: compare it with the trees and networks on the leaderboard"
    if high < 0:
        return "keep cross-entropy: it uses every row, AP training mainly the rows near the top"
    return "keep cross-entropy: these rows do not show that AP training is better"


def mined_advice(low: float, high: float) -> str:
    """Return what follows from the interval of the gain over the same model by cross-entropy on mined negatives.

    Arguments and errors are those of `loss_advice`.

    >>> mined_advice(-0.02, 0.01)
    'hard negatives may do as much as the AP loss'
    """
    _check_order(low, high)
    if low > 0:
        return "the gain is more than that of hard negatives"
    if high < 0:
        return "hard negatives do more than the AP loss"
    return "hard negatives may do as much as the AP loss"


def _check_order(low: float, high: float) -> None:
    if low > high:
        raise ValueError(f"low must be at most high, got {low} and {high}")
