"""Which epoch's weights a run ends with: the best smoothed validation AP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


def smoothed(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and its neighbours within `window`, of fewer at the ends.

    >>> smoothed([1.0, 4.0, 1.0, 2.0], 3)
    [2.5, 2.0, 2.3333333333333335, 1.5]
    """
    half = window // 2
    parts = [values[max(0, k - half) : k + half + 1] for k in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def is_over(values: Sequence[float], *, window: int, patience: int | None) -> bool:
    """Tell whether the best smoothed value lies `patience` or more epochs back.

    >>> is_over([0.3, 0.2, 0.1], window=1, patience=2), is_over([0.3, 0.2, 0.4], window=1, patience=2)
    (True, False)
    """
    if patience is None or not values:
        return False
    means = smoothed(values, window)
    return len(means) - 1 - means.index(max(means)) >= patience


@dataclass
class Candidate:
    """Weights that may be chosen: the stage (from 0) and its epoch (from 1), their smoothed AP, and the weights."""

    stage: int
    epoch: int
    value: float | None
    weights: dict[str, Tensor]


@dataclass
class Selection:
    """Choose among the epochs of one stage, and the candidate it was given, by smoothed validation AP.

    An epoch's smoothed value is known only when its later neighbours are, so the weights of up to window // 2 epochs
    wait. Ties go to the earlier. Without validation (AP None) the latest epoch is best.
    """

    window: int
    best: Candidate | None = None
    values: list[float] = field(default_factory=list)
    waiting: list[Candidate] = field(default_factory=list)

    def add(self, candidate: Candidate, ap: float | None) -> None:
        """Take the next epoch's weights and validation AP."""
        if ap is None:
            self.best = candidate
            return
        self.values.append(ap)
        self.waiting.append(candidate)
        while self.waiting and self.waiting[0].epoch + self.window // 2 <= len(self.values):
            self._settle()

    def close(self) -> Candidate | None:
        """Settle what waits, by the neighbours there are, and return the best."""
        while self.waiting:
            self._settle()
        return self.best

    def _settle(self) -> None:
        candidate = self.waiting.pop(0)
        candidate.value = smoothed(self.values, self.window)[candidate.epoch - 1]
        if self.best is None or self.best.value is None or candidate.value > self.best.value:
            self.best = candidate

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain tables."""
        return {
            "best": None if self.best is None else dict(vars(self.best)),
            "values": list(self.values),
            "waiting": [dict(vars(candidate)) for candidate in self.waiting],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved state."""
        self.best = None if state["best"] is None else Candidate(**state["best"])
        self.values = list(state["values"])
        self.waiting = [Candidate(**candidate) for candidate in state["waiting"]]
