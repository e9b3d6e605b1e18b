"""How often a checkpoint is written."""

from __future__ import annotations

import time

from apmax.train.config import Checkpoints


class Pace:
    """When the next checkpoint is due."""

    def __init__(self, wanted: Checkpoints) -> None:
        self.wanted = wanted
        self.epoch, self.step, self.time, self.started = 0, 0, time.monotonic(), time.monotonic()
        self.spent = self.latest = 0.0
        # Before the first is written its cost is unknown; this is a cautious guess for a small model.
        self.cost = 0.05

    def due(self, step: int, *, epoch: int = 0, writing: bool = False) -> bool:
        """Tell whether it is time: by epochs, steps or seconds, or because all together stay within their share.

        While one is being `writing`, the training would have to wait for it. A number of epochs or steps was asked for
        outright and is worth that; the others come later.
        """
        now, wanted, every_seconds = time.monotonic(), self.wanted, self.wanted.every_seconds
        counts = ((wanted.every_epochs, epoch - self.epoch), (wanted.every_steps, step - self.step))
        if any(every is not None and passed >= every for every, passed in counts):
            return True
        if writing or (every_seconds is None and any(every is not None for every, _ in counts)):
            return False
        if every_seconds is not None:
            return now - self.time >= every_seconds
        return self.spent + self.cost <= self.wanted.share * (now - self.started)

    def saved(self, step: int, cost: float, *, epoch: int = 0) -> None:
        """Take note of a checkpoint and of the seconds for which it held the training up."""
        self.epoch, self.step, self.time, self.latest = epoch, step, time.monotonic(), 0.0
        self.charge(cost)

    def charge(self, seconds: float) -> None:
        """Add what the latest checkpoint cost besides; the next is expected to cost as much as the dearest.

        The seconds in which it was written count in full, as if the training had waited: a machine whose cores are all
        busy has no others for it.
        """
        self.spent += seconds
        self.latest += seconds
        self.cost = max(self.cost, self.latest)
