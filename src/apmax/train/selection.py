"""Model selection: the epoch with the best smoothed validation AP."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor


def smooth_values(values: Sequence[float], window: int) -> list[float]:
    """Return the mean of each value and its neighbours within `window`; fewer neighbours at the ends.

    >>> smooth_values([1.0, 4.0, 1.0, 2.0], 3)
    [2.5, 2.0, 2.3333333333333335, 1.5]
    """
    half = window // 2
    parts = [values[max(0, k - half) : k + half + 1] for k in range(len(values))]
    return [sum(part) / len(part) for part in parts]


def stops_early(values: Sequence[float], *, window: int, patience: int | None) -> bool:
    """Return whether the best smoothed value is at least `patience` epochs old.

    >>> stops_early([0.3, 0.2, 0.1], window=1, patience=2), stops_early([0.3, 0.2, 0.4], window=1, patience=2)
    (True, False)
    """
    if patience is None or not values:
        return False
    means = smooth_values(values, window)
    return len(means) - 1 - means.index(max(means)) >= patience


@dataclass
class Candidate:
    """Weights that may be selected, with their stage (from 0), epoch (from 1) and smoothed validation AP."""

    stage: int
    epoch: int
    value: float | None
    weights: dict[str, Tensor]


@dataclass
class Selection:
    """Selection among the epochs of one stage, and an initial candidate, by smoothed validation AP.

    An epoch's smoothed value is known only after its later neighbours, so the weights of up to window // 2 epochs
    are pending. Ties go to the earlier epoch. Without validation (AP None) the latest epoch is best.
    """

    window: int
    best: Candidate | None = None
    values: list[float] = field(default_factory=list)
    pending: list[Candidate] = field(default_factory=list)

    def add(self, candidate: Candidate, ap: float | None) -> None:
        """Add the next epoch's weights and validation AP."""
        if ap is None:
            self.best = candidate
            return
        self.values.append(ap)
        self.pending.append(candidate)
        while self.pending and self.pending[0].epoch + self.window // 2 <= len(self.values):
            self._compare_next()

    def finish(self) -> Candidate | None:
        """Compare the pending epochs, by the neighbours they have, and return the best candidate."""
        while self.pending:
            self._compare_next()
        return self.best

    def _compare_next(self) -> None:
        candidate = self.pending.pop(0)
        candidate.value = smooth_values(self.values, self.window)[candidate.epoch - 1]
        if self.best is None or self.best.value is None or candidate.value > self.best.value:
            self.best = candidate

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain tables."""
        return {
            "best": None if self.best is None else dict(vars(self.best)),
            "values": list(self.values),
            "pending": [dict(vars(candidate)) for candidate in self.pending],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved state."""
        self.best = None if state["best"] is None else Candidate(**state["best"])
        self.values = list(state["values"])
        self.pending = [Candidate(**candidate) for candidate in state["pending"]]
