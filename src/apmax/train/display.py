"""Progress of a run: position, best AP and time left, shown on a terminal, in a few lines elsewhere, and in a log."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, TextIO

from apmax import extras
from apmax.train.config import Run, Stage
from apmax.train.records import Record

_REFRESH_SECONDS = 0.5
_LATEST_EPOCHS = 5
"""Number of latest epochs of a stage whose mean duration is that of its further epochs."""
_BAR_CELLS = 10
MAX_LINES = 10
"""Number of lines of a whole run where the output is no terminal."""
PROGRESS = (False, True, "epochs")
"""What is shown: nothing, the progress of the run, or a line per epoch as well."""


class RunProgress:
    """The position in a run of several models and stages, the best AP of the current model, and the time left.

    The time left is that of all epochs of all stages and models. An epoch takes as long as the latest ones of its
    stage, or, in a stage that has not begun, as those of the stage before. Stages may stop early: then it is a bound.

    Args:
        run: The configuration; each of its `ensemble` models has all stages.

    >>> progress = RunProgress(Run(stages=(Stage(epochs=3), Stage(epochs=1)), ensemble=2))
    >>> progress.seconds_left() is None
    True
    >>> progress.add(Record("ce", 0, 1, 10, 0.1, 0.5, None, None, seconds=2.0))
    >>> progress.epochs_done, progress.epochs, progress.seconds_left()
    (1, 8, 14.0)
    """

    def __init__(self, run: Run) -> None:
        self.stages = [(stage.name, stage.epochs) for stage in run.stages]
        self.bounded = any(isinstance(stage, Stage) and stage.patience is not None for stage in run.stages)
        self.members = run.ensemble
        self.member = self.stage = self.epoch = self.batch = self.batches = 0
        self.running_ap: float | None = None
        self.best: Record | None = None
        self.spent = 0.0
        self._seconds: list[list[float]] = [[] for _ in self.stages]
        self._epoch_started = time.monotonic()

    @property
    def epochs(self) -> int:
        """Planned number of epochs of all stages and models."""
        return self.members * sum(epochs for _, epochs in self.stages)

    @property
    def epochs_done(self) -> int:
        """Number of planned epochs before the current position; those that were not needed count as done."""
        before = self.member * sum(epochs for _, epochs in self.stages)
        return before + sum(epochs for _, epochs in self.stages[: self.stage]) + self.epoch

    def start_stage(self, member: int, stage: int, epoch: int) -> None:
        """Move to a stage of a model, after so many epochs of it."""
        if member != self.member:
            self.best = None
        self.member, self.stage, self.epoch, self.batch = member, stage, epoch, 0
        self._epoch_started = time.monotonic()

    def add_batch(self, batch: int, batches: int) -> None:
        """Move to a batch of the current epoch."""
        self.batch, self.batches = batch, batches

    def add(self, record: Record) -> None:
        """Move to the end of an epoch."""
        if record.member != self.member:
            self.best = None
        self.member, self.stage, self.epoch, self.batch = record.member, record.stage_number, record.epoch, 0
        if record.stage_number < len(self._seconds):
            self._seconds[record.stage_number].append(record.seconds)
        self.spent += record.seconds
        self._epoch_started = time.monotonic()
        if self.best is None or _selection_ap(record) > _selection_ap(self.best):
            self.best = record

    def seconds_left(self) -> float | None:
        """Return the estimated time left of the whole run, at most that if stages stop early; None if unknown."""
        current = time.monotonic() - self._epoch_started if self.batch else 0.0
        costs = self._epoch_costs(current)
        if costs is None:
            return None
        left = 0.0
        for number, ((_, epochs), cost) in enumerate(zip(self.stages, costs, strict=True)):
            done = epochs if number < self.stage else min(self.epoch, epochs) if number == self.stage else 0
            left += cost * (epochs - done + (self.members - 1 - self.member) * epochs)
        return max(left - current, 0.0)

    def share_done(self) -> float:
        """Return the share of the run's time that is over, between 0 and 1."""
        left = self.seconds_left()
        if left is None:
            return 0.0
        spent = self.spent + (time.monotonic() - self._epoch_started if self.batch else 0.0)
        return spent / max(spent + left, 1e-9)

    def _epoch_costs(self, current: float) -> list[float] | None:
        """Return the expected duration of an epoch of each stage; None before the first batch of the run."""
        known = [sum(each[-_LATEST_EPOCHS:]) / len(each[-_LATEST_EPOCHS:]) if each else None for each in self._seconds]
        if known[self.stage] is None and self.batch:
            known[self.stage] = current * self.batches / self.batch
        latest = next((cost for cost in known if cost is not None), None)
        if latest is None:
            return None
        costs = []
        for cost in known:
            latest = latest if cost is None else cost
            costs.append(latest)
        return costs

    def time_left(self) -> str:
        """Return the time left in words, "" if it is unknown."""
        left = self.seconds_left()
        if left is None:
            return ""
        return f"{'at most ' if self.bounded else ''}{format_duration(left)} left"

    def position(self) -> str:
        """Return the model, the stage and the epoch that are being trained, in words."""
        name, epochs = self.stages[self.stage]
        parts = [f"model {self.member + 1} of {self.members}"] if self.members > 1 else []
        parts += [f"stage {self.stage + 1} of {len(self.stages)} ({name})"]
        return ", ".join([*parts, f"epoch {min(self.epoch + 1, epochs)} of {epochs}"])

    def record_line(self, record: Record) -> str:
        """Return the line of an epoch, with the number of its model if there are several."""
        return (f"model {record.member + 1}  " if self.members > 1 else "") + format_record(record)


def _selection_ap(record: Record) -> float:
    """Return the AP that selects, of validation rows where there are any; -1 where it is undefined."""
    metrics = record.valid or record.train
    return -1.0 if metrics is None or math.isnan(metrics.ap) else metrics.ap


class Display:
    """Shows nothing; base class of the displays and the log."""

    def start_stage(self, progress: RunProgress) -> None:
        """Show that a stage begins, or is resumed."""

    def batch(self, progress: RunProgress, estimate: Callable[[], float]) -> None:
        """Show the position within the epoch; `estimate()` computes the AP of the latest scores."""

    def epoch(self, progress: RunProgress, record: Record) -> None:
        """Show a finished epoch."""

    def end_stage(self, progress: RunProgress) -> None:
        """Show that a stage has ended."""

    def close(self) -> None:
        """Release the terminal."""


class LineDisplay(Display):
    """Lines at evenly spaced epochs of the whole run and at the ends of stages, `MAX_LINES` in all.

    Args:
        stream: Where they are written.
        every_epoch: Write a line for every epoch.
    """

    def __init__(self, stream: TextIO, *, every_epoch: bool = False) -> None:
        self.stream, self.every_epoch = stream, every_epoch
        self.record: Record | None = None
        self.shown = -1

    def epoch(self, progress: RunProgress, record: Record) -> None:
        """Write the line if it is the first epoch's or one is due."""
        self.record = record
        spaced = MAX_LINES - 1 - self._stage_ends(progress)
        line = progress.epochs_done * spaced // progress.epochs
        if self.every_epoch or progress.epochs <= MAX_LINES or line > self.shown:
            self._write(progress, record)
        self.shown = max(self.shown, line)

    def end_stage(self, progress: RunProgress) -> None:
        """Write the line of the stage's last epoch, unless that would be too many lines."""
        if self.record is not None and self._stage_ends(progress):
            self._write(progress, self.record)

    def _stage_ends(self, progress: RunProgress) -> int:
        count = progress.members * len(progress.stages)
        return count if count <= MAX_LINES // 2 else 0

    def _write(self, progress: RunProgress, record: Record) -> None:
        left = progress.time_left() if progress.epochs_done < progress.epochs else ""
        self.stream.write(f"{progress.record_line(record)}{'  ' if left else ''}{left}\n")
        self.stream.flush()
        self.record = None


class LiveDisplay(Display):
    """Two lines on a terminal that are rewritten in place: what is running, the best AP so far and the time left.

    Args:
        console: A `rich.console.Console` on a terminal.
        every_epoch: Write a line above the display for every epoch.
    """

    def __init__(self, console: Any, *, every_epoch: bool = False) -> None:
        self.console, self.every_epoch = console, every_epoch
        self.live: Any = None
        self.progress: RunProgress | None = None
        self.estimated = 0.0

    def start_stage(self, progress: RunProgress) -> None:
        """Take the terminal with the first stage."""
        self.progress = progress
        if self.live is None:
            live = extras.load("rich.live", "train").Live
            self.live = live(
                console=self.console, transient=True, refresh_per_second=1 / _REFRESH_SECONDS, get_renderable=self.text
            )
            self.live.start(refresh=True)

    def batch(self, progress: RunProgress, estimate: Callable[[], float]) -> None:
        """Compute the running AP, at most twice a second."""
        now = time.monotonic()
        if now - self.estimated >= _REFRESH_SECONDS or progress.running_ap is None:
            self.estimated = now
            progress.running_ap = estimate()

    def epoch(self, progress: RunProgress, record: Record) -> None:
        """Write the line of the epoch above the display, if wanted."""
        if self.every_epoch:
            self.console.print(progress.record_line(record), markup=False, highlight=False, soft_wrap=True)

    def close(self) -> None:
        """Remove the display."""
        if self.live is not None:
            self.live.stop()
            self.live = None

    def text(self) -> Any:
        """Return the two lines, a `rich.text.Text`."""
        make_text = extras.load("rich.text", "train").Text
        progress = self.progress
        if progress is None:
            return make_text("")
        first = progress.position()
        if progress.batch:
            first += f", batch {progress.batch} of {progress.batches}"
        parts = []
        if progress.best is not None:
            best = progress.best
            split = "" if best.valid is not None else "training "
            parts.append(f"best {split}AP {_selection_ap(best):.4f} ({best.stage} {best.epoch})")
        elif progress.running_ap is not None and not math.isnan(progress.running_ap):
            parts.append(f"training AP ≈ {progress.running_ap:.4f}")
        parts += [left] if (left := progress.time_left()) else []
        share, cells = progress.share_done(), _BAR_CELLS
        full = min(int(share * cells), cells)
        bar = make_text.assemble(("━" * full, "bold green"), ("━" * (cells - full), "dim"))
        second = make_text.assemble(bar, f" {share:4.0%}  ", "  ".join(parts))
        return make_text.assemble(first, "\n", second, no_wrap=True, overflow="ellipsis")


class LogDisplay(Display):
    """A log file with a line for every epoch, and with the beginnings of stages; a resumed run continues it.

    Args:
        path: The file.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def start_stage(self, progress: RunProgress) -> None:
        """Write a line about the beginning or the resumption of the stage."""
        name, epochs = progress.stages[progress.stage]
        model = f"model {progress.member + 1} of {progress.members}, " if progress.members > 1 else ""
        verb = f"resumed after epoch {progress.epoch}" if progress.epoch else "begins"
        append_to_log(
            self.path, f"{model}stage {progress.stage + 1} of {len(progress.stages)} ({name}, {epochs} epochs) {verb}"
        )

    def epoch(self, progress: RunProgress, record: Record) -> None:
        """Write the line of the epoch."""
        append_to_log(self.path, progress.record_line(record))


def append_to_log(path: Path, line: str) -> None:
    """Add a line to a log file, after the time."""
    with path.open("a", encoding="utf-8") as file:
        file.write(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}  {line}\n")


class RunMonitor:
    """The progress of a run and everything that shows it.

    Args:
        run: The configuration.
        displays: The displays and logs.
    """

    def __init__(self, run: Run, displays: Sequence[Display] = ()) -> None:
        self.progress = RunProgress(run)
        self.displays = list(displays)

    def restore(self, records: Sequence[Record]) -> None:
        """Add the records of a checkpoint."""
        for record in records:
            self.progress.add(record)

    def start_stage(self, member: int, stage: int, epoch: int) -> None:
        """Begin a stage, or resume it after so many epochs."""
        self.progress.start_stage(member, stage, epoch)
        for display in self.displays:
            display.start_stage(self.progress)

    def batch(self, batch: int, batches: int, estimate: Callable[[], float]) -> None:
        """Count a batch of the current epoch; `estimate()` computes the AP of the latest scores."""
        self.progress.add_batch(batch, batches)
        for display in self.displays:
            display.batch(self.progress, estimate)

    def epoch(self, record: Record) -> None:
        """Count an epoch."""
        self.progress.add(record)
        for display in self.displays:
            display.epoch(self.progress, record)

    def end_stage(self) -> None:
        """Count a stage as ended, perhaps before its planned number of epochs."""
        self.progress.epoch = self.progress.stages[self.progress.stage][1]
        for display in self.displays:
            display.end_stage(self.progress)

    def close(self) -> None:
        """Release the terminal."""
        for display in self.displays:
            display.close()


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


def format_duration(seconds: float) -> str:
    """Return a duration in words.

    >>> [format_duration(seconds) for seconds in (8.2, 75, 640, 4000)]
    ['8 s', '1 min 15 s', '11 min', '1 h 07 min']
    """
    if seconds < 59.5:
        return f"{seconds:.0f} s"
    if seconds < 299.5:
        return f"{round(seconds) // 60} min {round(seconds) % 60:02d} s"
    minutes = round(seconds / 60)
    return f"{minutes} min" if minutes < 60 else f"{minutes // 60} h {minutes % 60:02d} min"


def make_monitor(
    run: Run, progress: bool | str, *, log: Path | None = None, stream: TextIO | None = None
) -> RunMonitor:
    """Return the monitor of a run.

    Args:
        run: The configuration.
        progress: One of `PROGRESS`.
        log: The log file, if there is one.
        stream: Where the progress is shown, by default stdout: in place on a terminal, a few lines elsewhere.
    """
    if progress not in PROGRESS:
        raise ValueError(f"progress must be True, False or 'epochs', got {progress!r}")
    displays: list[Display] = [] if log is None else [LogDisplay(log)]
    if progress:
        stream = stream or sys.stdout
        console = extras.load("rich.console", "train").Console(file=stream)
        every_epoch = progress == "epochs"
        # A pipe is no terminal, even if FORCE_COLOR is set.
        if console.is_interactive and stream.isatty():
            displays.append(LiveDisplay(console, every_epoch=every_epoch))
        else:
            displays.append(LineDisplay(stream, every_epoch=every_epoch))
    return RunMonitor(run, displays)
