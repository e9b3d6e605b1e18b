"""Progress of a committee's training: fits done, the latest one, and the time left."""

from __future__ import annotations

import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

from apmax import extras
from apmax.committee import FitProgress
from apmax.train.display import append_to_log, format_duration


class CommitteeProgress:
    """Shows the fits of a committee: a count with the time left on a terminal, a line for each member elsewhere.

    Args:
        folds: Number of folds.
        log: The file to which a line for every fit is added.
        show: Show something; the log is written in any case.
        target: The target, where there are several.
    """

    def __init__(self, folds: int, log: Path, *, show: bool, target: str = "") -> None:
        self.folds, self.log, self.show = folds, log, show
        self.prefix = f"{target}: " if target else ""
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        self.started = self.updated = time.monotonic()
        self.state: FitProgress | None = None
        self.latest = ""
        self.live: Any = None

    def __enter__(self) -> CommitteeProgress:
        """Take the terminal, if there is one."""
        console = extras.load("rich.console", "train").Console() if self.show else None
        if console is not None and console.is_interactive and sys.stdout.isatty():
            live = extras.load("rich.live", "train").Live
            self.live = live(console=console, transient=True, refresh_per_second=2, get_renderable=self._text)
            self.live.start(refresh=True)
        return self

    def __exit__(self, *_: object) -> None:
        """Release the terminal."""
        if self.live is not None:
            self.live.stop()

    def update(self, state: FitProgress) -> None:
        """Show the state after a fit, or at the start."""
        self.state, self.updated = state, time.monotonic()
        if state.task is None:
            verb = f"resumed after {state.finished} of" if state.finished else "begins:"
            append_to_log(self.log, f"{self.prefix}{verb} {state.total} fits")
            return
        name = state.task.name
        rows = f"fold {state.task.fold + 1} of {self.folds}" if state.task.fold >= 0 else "all rows"
        self.latest = f"{self.prefix}{name}, {rows}: {format_duration(state.seconds)}"
        append_to_log(self.log, self.latest)
        self.seconds[name].append(state.seconds)
        if self.show and self.live is None and len(self.seconds[name]) == self.folds:
            left = f", about {format_duration(state.remaining)} left" if state.finished < state.total else ""
            sys.stdout.write(f"{self.prefix}{name} fitted in {format_duration(sum(self.seconds[name]))}{left}\n")
            sys.stdout.flush()

    def _text(self) -> Any:
        """Return the two lines on a terminal, a `rich.text.Text`."""
        make_text = extras.load("rich.text", "train").Text
        if self.state is None:
            return make_text("preparing the folds")
        now = time.monotonic()
        left = max(self.state.remaining - (now - self.updated), 0.0)
        first = f"{self.state.finished} of {self.state.total} fits, {format_duration(now - self.started)}"
        return make_text(
            f"{first}, about {format_duration(left)} left\n{self.latest}", no_wrap=True, overflow="ellipsis"
        )
