"""Leaderboard of a committee, and the verdict on average precision as a training loss."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apmax.blend import Blend
from apmax.committee.members import LOSS_PAIRS, MINED_SUFFIX
from apmax.metrics import Difference, Interval, average_precision_interval, paired_difference

_Array = NDArray[np.float64]
CROSS_FITTED, HELD_OUT = "cross-fitted", "held-out"
"""Rows scored by models that were not fitted to them: in turn by those of several folds, or those of one split."""
AP_LOSS_RULE = (
    "AP training can pay where the model is too simple for what separates the top of the list; a more flexible model "
    "trained by cross-entropy pays more"
)
"""When training by average precision pays, in one sentence: the result of docs/explanation/when-ap-pays.md."""


@dataclass(frozen=True)
class LeaderboardRow:
    """A member: average precision on rows it was not fitted to with 95 % interval, weight in the blend, and time."""

    name: str
    ap: Interval
    weight: float
    seconds: float


@dataclass(frozen=True)
class LossVerdict:
    """Difference in average precision of a member trained by AP and the same one by cross-entropy, on the same rows.

    The other one sees all negatives, or mined ones: those that the model in training scores highest. The interval is
    that of the rows (a paired bootstrap); it does not contain the randomness of training.
    """

    ap_member: str
    ce_member: str
    difference: Difference

    @property
    def sentence(self) -> str:
        """The verdict in words."""
        gain = self.difference
        text = f"{gain.estimate:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
        if gain.low > 0:
            conclusion = "the AP loss pays here"
        elif gain.high < 0:
            conclusion = "the AP loss costs average precision here"
        else:
            conclusion = "no difference can be told"
        mined = self.ce_member.endswith(MINED_SUFFIX)
        advice = (mined_advice if mined else loss_advice)(gain.low, gain.high)
        other = "cross-entropy on mined negatives" if mined else "cross-entropy"
        return f"{self.ap_member} trained by AP against {other}: {text}: {conclusion}; {advice}"


@dataclass(frozen=True)
class Leaderboard:
    """Members by descending average precision, the blend, the verdicts on the AP loss, and notes on how it was made.

    Attributes:
        rows: The members.
        blend: The blend.
        verdicts: What the AP loss gained.
        notes: What a reader should know about the committee.
        part: The scored rows: "cross-fitted" of several folds, "held-out" of one split.
    """

    rows: tuple[LeaderboardRow, ...]
    blend: LeaderboardRow
    verdicts: tuple[LossVerdict, ...]
    notes: tuple[str, ...] = ()
    part: str = CROSS_FITTED

    @property
    def has_blend(self) -> bool:
        """Whether the blend joins several members, so that it is a ranking of its own."""
        return len(self.rows) > 1


def make_leaderboard(
    scores: Mapping[str, _Array],
    blended: _Array,
    labels: _Array,
    sample_weight: _Array,
    *,
    blend: Blend,
    seconds: Mapping[str, float],
    notes: tuple[str, ...] = (),
    part: str = CROSS_FITTED,
) -> Leaderboard:
    """Return the leaderboard of aligned scores of rows that the members were not fitted to.

    Args:
        scores: Each member's, (n,).
        blended: The blend's; its weights were fitted to the same rows, which favours it a little.
        labels: (n,) of 0/1.
        sample_weight: (n,) positive.
        blend: The blend.
        seconds: Time of each member over all folds.
        notes: What a reader should know about the committee.
        part: What the rows are, "cross-fitted" or "held-out".
    """
    weight = None if np.ptp(sample_weight) == 0 else sample_weight
    rows = [
        LeaderboardRow(
            name,
            average_precision_interval(own, labels, sample_weight=weight),
            float(share),
            seconds[name],
        )
        for (name, own), share in zip(scores.items(), blend.weights, strict=True)
    ]
    verdicts = [
        LossVerdict(ap, ce, paired_difference(scores[ap], scores[ce], labels, sample_weight=weight))
        for ap, ce in LOSS_PAIRS
        if ap in scores and ce in scores
    ]
    total = LeaderboardRow(
        "blend", average_precision_interval(blended, labels, sample_weight=weight), 1.0, sum(seconds.values())
    )
    return Leaderboard(tuple(sorted(rows, key=lambda row: -row.ap.estimate)), total, tuple(verdicts), notes, part)


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
