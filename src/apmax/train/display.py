"""Progress display: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, TextIO

from apmax import extras
from apmax.train.records import Record

_REFRESH_SECONDS = 0.5


class Display:
    """Shows nothing; base class of the displays."""

    def batch(self, stage: str, epoch: int, done: int, total: int, estimate: Callable[[], float]) -> None:
        """Show the progress within the epoch; `estimate()` computes the AP of the latest scores."""

    def epoch(self, record: Record) -> None:
        """Show a finished epoch."""

    def close(self) -> None:
        """Release the terminal."""


class LineDisplay(Display):
    """One line per epoch."""

    def __init__(self, stream: TextIO) -> None:
        self.stream = stream

    def epoch(self, record: Record) -> None:
        """Write the line."""
        self.stream.write(format_record(record) + "\n")
        self.stream.flush()


class BarDisplay(Display):
    """A progress bar per epoch with the running AP, and a line above it for every finished epoch."""

    def __init__(self, console: Any) -> None:
        progress = extras.load("rich.progress", "train")
        columns = ["{task.description}", progress.BarColumn(), progress.MofNCompleteColumn(), "AP ≈ {task.fields[ap]}"]
        self.progress = progress.Progress(*columns, progress.TimeRemainingColumn(), console=console, transient=True)
        self.progress.start()
        self.task = self.progress.add_task("", ap="")
        self.shown = 0.0

    def batch(self, stage: str, epoch: int, done: int, total: int, estimate: Callable[[], float]) -> None:
        """Update the bar, at most twice a second."""
        now = time.monotonic()
        if now - self.shown < _REFRESH_SECONDS and 1 < done < total:
            return
        self.shown = now
        text = f"{stage} {epoch}"
        self.progress.update(self.task, description=text, completed=done, total=total, ap=f"{estimate():.4f}")

    def epoch(self, record: Record) -> None:
        """Write the line above the bar."""
        self.progress.console.print(format_record(record), highlight=False)

    def close(self) -> None:
        """Remove the bar."""
        self.progress.stop()


def format_record(record: Record) -> str:
    """Return the main numbers of a record in one line of at most 80 columns.

    >>> from apmax.train.records import EpochMetrics
    >>> values = EpochMetrics(0.8125, 0.81, 0.9375, -0.5)
    >>> format_record(Record("ap + ce", 1, 12, 4000, 3e-4, -0.51234, values, values, 12.34))
    'ap + ce 12  loss -0.5123  train AP 0.8125  valid AP 0.8125 AUROC 0.938  12.3 s'
    """
    parts = [f"{record.stage} {record.epoch}", f"loss {record.loss:.4g}"]
    if record.train is not None:
        parts.append(f"train AP {record.train.ap:.4f}")
    if record.valid is not None:
        parts.append(f"valid AP {record.valid.ap:.4f} AUROC {record.valid.auroc:.3f}")
    return "  ".join([*parts, f"{record.seconds:.3g} s" if record.seconds < 100 else f"{record.seconds:.0f} s"])


def make_display(enabled: bool, stream: TextIO | None = None) -> Display:
    """Return a display for the stream: a bar on a terminal, lines elsewhere, nothing if not `enabled`."""
    if not enabled:
        return Display()
    stream = stream or sys.stdout
    console = extras.load("rich.console", "train").Console(file=stream)
    return BarDisplay(console) if console.is_terminal else LineDisplay(stream)
