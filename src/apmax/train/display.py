"""Progress for people: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from apmax import extras
from apmax.train.records import Record

REFRESH_SECONDS = 0.5


class Display:
    """Shows nothing; the base of those that do."""

    def batch(self, stage: str, epoch: int, done: int, total: int, estimate: Callable[[], float]) -> None:
        """Show how far the epoch is; `estimate` computes the AP of the latest scores when called."""

    def epoch(self, record: Record) -> None:
        """Show a finished epoch."""

    def close(self) -> None:
        """Give the terminal back."""


class Lines(Display):
    """One line per epoch."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def epoch(self, record: Record) -> None:
        """Write the line."""
        self.stream.write(summary(record) + "\n")
        self.stream.flush()


class Bar(Display):
    """A bar per epoch with the running AP estimate, and a line above it for every finished epoch."""

    def __init__(self, console: Any) -> None:
        progress = extras.load("rich.progress", "train")
        columns = ["{task.description}", progress.BarColumn(), progress.MofNCompleteColumn(), "AP ≈ {task.fields[ap]}"]
        self.progress = progress.Progress(*columns, progress.TimeRemainingColumn(), console=console, transient=True)
        self.progress.start()
        self.task = self.progress.add_task("", ap="")
        self.shown = 0.0

    def batch(self, stage: str, epoch: int, done: int, total: int, estimate: Callable[[], float]) -> None:
        """Move the bar, a few times a second."""
        now = time.monotonic()
        if now - self.shown < REFRESH_SECONDS and 1 < done < total:
            return
        self.shown = now
        text = f"{stage} {epoch}"
        self.progress.update(self.task, description=text, completed=done, total=total, ap=f"{estimate():.4f}")

    def epoch(self, record: Record) -> None:
        """Write the line above the bar."""
        self.progress.console.print(summary(record), highlight=False)

    def close(self) -> None:
        """Take the bar away."""
        self.progress.stop()


def summary(record: Record) -> str:
    """Return a record in one line that fits a terminal of 80 columns; the run's directory has all of it.

    >>> from apmax.train.records import Metrics
    >>> reached = Metrics(0.8125, 0.81, 0.9375, -0.5)
    >>> summary(Record("ap + ce", 1, 12, 4000, 3e-4, -0.51234, reached, reached, 12.34))
    'ap + ce 12  loss -0.5123  train AP 0.8125  valid AP 0.8125 AUROC 0.938  12.3 s'
    """
    parts = [f"{record.stage} {record.epoch}", f"loss {record.loss:.4g}"]
    if record.train is not None:
        parts.append(f"train AP {record.train.ap:.4f}")
    if record.valid is not None:
        parts.append(f"valid AP {record.valid.ap:.4f} AUROC {record.valid.auroc:.3f}")
    return "  ".join([*parts, f"{record.seconds:.3g} s" if record.seconds < 100 else f"{record.seconds:.0f} s"])


def display_for(wanted: bool, stream: TextIO | None = None) -> Display:
    """Return what suits the stream: a bar if it is a terminal, lines if not, nothing if not wanted."""
    if not wanted:
        return Display()
    stream = stream or sys.stdout
    console = extras.load("rich.console", "train").Console(file=stream)
    return Bar(console) if console.is_terminal else Lines(stream)
