"""Errors of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class DivergedError(RuntimeError):
    """The loss, the scores or the weights are not finite.

    `step` is the optimiser step (from 1), `rows` are the training rows of its batch.
    """

    def __init__(self, reason: str, *, step: int, rows: Sequence[int], lr: float) -> None:
        self.step, self.rows = step, list(rows)
        shown = ", ".join(map(str, self.rows[:10])) + (", …" if len(self.rows) > 10 else "")
        super().__init__(
            f"{reason} at step {step}, training rows {shown}; look for NaN or huge values in the inputs of these rows, "
            f"or lower optimizer.lr (now {lr:g}). The last checkpoint precedes this step and can be resumed."
        )


class CheckpointError(ValueError):
    """A file is not an intact checkpoint of this format, or a state cannot be saved as one."""


class NotWrittenError(OSError):
    """A checkpoint could not be written; the previous one is intact."""

    def __init__(self, path: Path, reason: BaseException) -> None:
        super().__init__(
            f"the checkpoint {path} could not be written ({type(reason).__name__}: {reason}), so the run was stopped. "
            "Free some space or choose another directory; the previous checkpoint is intact and can be resumed"
        )


class Terminated(SystemExit):
    """The process received SIGTERM: the run was checkpointed and exits with the shell's code for it, 143."""

    def __init__(self) -> None:
        super().__init__(128 + 15)
