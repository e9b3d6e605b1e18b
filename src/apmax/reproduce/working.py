"""A worker: takes the next run that nobody has, brings it to its result, and looks again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from apmax.reproduce.claims import claimed
from apmax.reproduce.plan import Lines, Search, next_trials
from apmax.reproduce.results import Results
from apmax.reproduce.running import SCORES, Place, history, is_traced, run_trial, tidy, without_value
from apmax.reproduce.trial import Trial

WAIT_SECONDS = 1.0


class Progress(NamedTuple):
    """What a worker says: which run, and how many epochs of at most how many; None when it waits or is done."""

    label: str | None
    epoch: int = 0
    most: int = 0


def work(plan: Sequence[Search], results: Results, place: Place, *, say: Callable[[Progress], None]) -> None:
    """Run what the plan lacks until nothing is left; what others are at is left to them.

    Args:
        plan: What is wanted.
        results: What is known; added to.
        place: Where runs happen.
        say: Told what goes on.
    """
    while True:
        results.refresh()
        trial, any_left = None, False
        for each in runnable(plan, results, place):
            any_left = True
            if run_claimed(each, results, place, say=say):
                trial = each
                break
        if not any_left:
            say(Progress(None))
            return
        if trial is None:
            # All that is left is in others' hands, or waits for what they are at.
            time.sleep(WAIT_SECONDS)


def runnable(plan: Sequence[Search], results: Results, place: Place) -> Iterator[Trial]:
    """Yield what could run now, each after what it begins from; of what diverged there is nothing to wait for."""
    seen: set[str] = set()
    for trial in next_trials(plan, results.lines):
        if trial.key in seen:
            continue
        seen.add(trial.key)
        missing = [] if diverged(trial, results.lines) else needed(trial, place)
        yield from missing or [trial]


def needed(trial: Trial, place: Place) -> list[Trial]:
    """Return the runs whose weights or scores this one needs and which are not in their folders."""
    return [each for each in begun_from(trial) if lacks(each, place, weights=each is trial.first)]


def begun_from(trial: Trial) -> list[Trial]:
    """Return the runs that this one continues or averages."""
    return [*([trial.first] if trial.first is not None else []), *trial.members]


def lacks(trial: Trial, place: Place, *, weights: bool) -> bool:
    """Tell whether a run's scores, or its weights where those are wanted, are not in its folder.

    Scores are written last: weights without them are those of a training that was left before its end.
    """
    folder = place.folder(trial)
    return not (folder / SCORES).exists() or (weights and not (folder / "model.pt").exists())


def diverged(trial: Trial, lines: Lines) -> str | None:
    """Return why a run can have no value: one that it begins from has none. None where all have."""
    for each in begun_from(trial):
        line = lines.get(each.key)
        if line is not None and line["test"] is None:
            return f"{each.label}, which it begins from, diverged: {line['diverged']}"
    return None


def run_claimed(trial: Trial, results: Results, place: Place, *, say: Callable[[Progress], None]) -> bool:
    """Run the trial if nobody else is at it, and tell whether it was."""
    with claimed(place.work / "claims" / trial.key) as ours:
        if not ours:
            return False
        results.refresh()
        known = results.get(trial.key)
        # A run whose result is known is wanted again where others need of it what is not here, as in a fresh copy of
        # the results.
        if known is not None and (known["test"] is None or not lacks(trial, place, weights=trial.method == "ce")):
            return True
        say(Progress(trial.label))
        reason = diverged(trial, results.lines)
        if reason is not None:
            results.add(without_value(trial, place, reason))
            return True
        line = run_trial(
            trial, place, trace=is_traced(trial), report=lambda epoch, most: say(Progress(trial.label, epoch, most))
        )
        results.refresh()
        # A command with another folder for its work does not see our claims, and may have been faster.
        if results.get(trial.key) is None:
            results.add(line, history(trial, place))
        tidy(trial, place)
    return True
