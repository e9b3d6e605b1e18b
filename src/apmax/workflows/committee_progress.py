"""Progress of a committee's training: fits done, the latest ones, and the time left."""

from __future__ import annotations

import sys
import time
from collections import Counter, defaultdict
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from typing import Any

from apmax import extras
from apmax.committee import FitResult
from apmax.train.display import format_duration


class CommitteeProgress:
    """Shows the fits of a committee: a bar with the time left on a terminal, a line for each member elsewhere.

    Args:
        expected: Estimated seconds of one fit of each member.
        folds: Number of folds.
        finished: Results of an earlier, interrupted training.
        log: The file to which a line for every fit is added.
        show: Show something; the log is written in any case.
    """

    def __init__(
        self,
        expected: Mapping[str, float],
        folds: int,
        finished: Mapping[tuple[int, str], FitResult],
        log: Path,
        *,
        show: bool,
    ) -> None:
        self.expected, self.folds, self.log, self.show = expected, folds, log, show
        self.total = folds * len(expected)
        self.resumed = self.done = len(finished)
        self.fitted = 0.0
        """Expected seconds of the fits that were done here."""
        self.fits = Counter(name for _, name in finished)
        self.seconds: defaultdict[str, float] = defaultdict(float)
        self.latest = ""
        self.started = time.monotonic()
        self.live: Any = None

    def __enter__(self) -> CommitteeProgress:
        if self.resumed:
            self._write_log(f"resumed after {self.resumed} of {self.total} fits")
        console = extras.load("rich.console", "train").Console() if self.show else None
        if console is not None and console.is_interactive and sys.stdout.isatty():
            live = extras.load("rich.live", "train").Live
            self.live = live(console=console, transient=True, refresh_per_second=2, get_renderable=self._text)
            self.live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()

    def add(self, result: FitResult) -> None:
        """Count a new result."""
        name, fold = result.task.name, result.task.fold
        self.done += 1
        self.fits[name] += 1
        self.seconds[name] += result.seconds
        self.fitted += self.expected[name]
        self.latest = f"{name}, fold {fold + 1} of {self.folds}: {format_duration(result.seconds)}"
        self._write_log(self.latest)
        if self.show and self.live is None and self.fits[name] == self.folds:
            left = self.seconds_left()
            rest = f", about {format_duration(left)} left" if left else ""
            sys.stdout.write(f"{name} fitted in {format_duration(self.seconds[name])}{rest}\n")
            sys.stdout.flush()

    def seconds_left(self) -> float | None:
        """Return the estimated time left; None before the first fit.

        The expected times give the shares of the work, and the time so far gives the pace.
        """
        left = sum((self.folds - self.fits[name]) * seconds for name, seconds in self.expected.items())
        if not self.fitted:
            return None
        return (time.monotonic() - self.started) * left / self.fitted

    def _text(self) -> Any:
        """Return the two lines on a terminal, a `rich.text.Text`."""
        make_text = extras.load("rich.text", "train").Text
        left = self.seconds_left()
        text = f"{self.done} of {self.total} fits, {format_duration(time.monotonic() - self.started)}"
        time_left = "" if left is None else f", about {format_duration(left)} left"
        return make_text(f"{text}{time_left}\n{self.latest}", no_wrap=True, overflow="ellipsis")

    def _write_log(self, line: str) -> None:
        with self.log.open("a", encoding="utf-8") as file:
            file.write(f"{datetime.now().astimezone():%Y-%m-%d %H:%M:%S}  {line}\n")
