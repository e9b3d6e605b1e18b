"""Why a run ends before its time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class DivergedError(RuntimeError):
    """The loss, the scores or the weights stopped being finite.

    `step` is the optimiser step (from 1), `rows` the training rows of its batch.
    """

    def __init__(self, what: str, *, step: int, rows: Sequence[int], lr: float) -> None:
        self.step, self.rows = step, list(rows)
        shown = ", ".join(map(str, self.rows[:10])) + (", …" if len(self.rows) > 10 else "")
        super().__init__(
            f"{what} at step {step}, training rows {shown}; look for NaN or huge values in the inputs of these rows, "
            f"or lower optimizer.lr (now {lr:g}). The last checkpoint is from before and can be resumed."
        )


class Terminated(SystemExit):
    """SIGTERM came: the run was checkpointed and ends with the shell's code for it, 143."""

    def __init__(self) -> None:
        super().__init__(128 + 15)


class NotWrittenError(OSError):
    """A checkpoint could not be written; the one before it is whole."""

    def __init__(self, path: Path, reason: BaseException) -> None:
        super().__init__(
            f"the checkpoint {path} could not be written ({type(reason).__name__}: {reason}); the run is stopped, for "
            "it could not be resumed from here. Make room or choose another directory; the last checkpoint there is "
            "whole and can be resumed"
        )
