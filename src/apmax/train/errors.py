"""Errors of training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path


class DivergedError(RuntimeError):
    """The loss, the scores or the weights are not finite.

    `step` is the optimiser step (from 1), `rows` are the training rows of its batch, or those that it was found in;
    empty if it was found in validation. `lr` is 0 in a stage without gradient steps.
    """

    def __init__(self, reason: str, *, step: int, rows: Sequence[int], lr: float) -> None:
        self.step, self.rows = step, list(rows)
        where = f", training rows {shown_rows(self.rows)}" if self.rows else ""
        now = f" (now {lr:g})" if lr else " of the stages before"
        super().__init__(
            f"{reason} at step {step}{where}; look for NaN or huge values in the inputs of these rows, "
            f"or lower the learning rate{now}. A run with a directory can be resumed from its last checkpoint, "
            "which precedes this step."
        )


class NonFiniteScoresError(ValueError):
    """Scores of a dataset are not finite; `rows` are their rows."""

    def __init__(self, rows: Sequence[int]) -> None:
        self.rows = list(rows)
        super().__init__(f"the scores of rows {shown_rows(self.rows)} are not finite: check inputs and weights")


def shown_rows(rows: Sequence[int]) -> str:
    """Return the first ten rows as text.

    >>> shown_rows(range(12))
    '0, 1, 2, 3, 4, 5, 6, 7, 8, 9, …'
    """
    return ", ".join(map(str, rows[:10])) + (", …" if len(rows) > 10 else "")


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
