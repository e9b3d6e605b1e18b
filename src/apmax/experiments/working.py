"""A worker: takes the next run that nobody has, brings it to its result, and looks again."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from apmax.experiments.claims import claimed
from apmax.experiments.plan import Search, next_trials
from apmax.experiments.results import Results
from apmax.experiments.running import SCORES, Place, history, run_trial, tidy
from apmax.experiments.trial import Trial

WAIT_SECONDS = 1.0


class Progress(NamedTuple):
    """What a worker says: which run, and how many epochs of at most how many; None when it waits or is done."""

    label: str | None
    epoch: int = 0
    most: int = 0


def work(
    plan: Sequence[Search], results: Results, place: Place, *, say: Callable[[Progress], None], traced: Sequence[str]
) -> None:
    """Run what the plan lacks until nothing is left; what others are at is left to them.

    Args:
        plan: What is wanted.
        results: What is known; added to.
        place: Where runs happen.
        say: Told what goes on.
        traced: Methods whose test AUPRC is noted after every epoch.
    """
    while True:
        results.refresh()
        trial, any_left = None, False
        for each in runnable(plan, results, place):
            any_left = True
            if run_claimed(each, results, place, say=say, trace=each.method in traced):
                trial = each
                break
        if not any_left:
            say(Progress(None))
            return
        if trial is None:
            # All that is left is in others' hands, or waits for what they are at.
            time.sleep(WAIT_SECONDS)


def runnable(plan: Sequence[Search], results: Results, place: Place) -> Iterator[Trial]:
    """Yield what could run now, each after what it begins from."""
    seen: set[str] = set()
    for trial in next_trials(plan, results.lines):
        if trial.key in seen:
            continue
        seen.add(trial.key)
        missing = needed(trial, place)
        yield from missing or [trial]


def needed(trial: Trial, place: Place) -> list[Trial]:
    """Return the runs whose weights or scores this one needs and which are not in their folders."""
    found = []
    if trial.first is not None and not (place.folder(trial.first) / "model.pt").exists():
        found.append(trial.first)
    found += [member for member in trial.members if not (place.folder(member) / SCORES).exists()]
    return found


def run_claimed(trial: Trial, results: Results, place: Place, *, say: Callable[[Progress], None], trace: bool) -> bool:
    """Run the trial if nobody else is at it, and tell whether it was."""
    with claimed(place.work / "claims" / trial.key) as ours:
        if not ours:
            return False
        results.refresh()
        known = results.get(trial.key) is not None
        if known and not is_wanted_again(trial, place):
            return True
        say(Progress(trial.label))
        line = run_trial(trial, place, trace=trace, report=lambda epoch, most: say(Progress(trial.label, epoch, most)))
        if not known:
            results.add(line, history(trial, place))
        tidy(trial, place)
    return True


def is_wanted_again(trial: Trial, place: Place) -> bool:
    """Tell whether a run whose result is known lacks what others need of it, as in a fresh copy of the results."""
    folder = place.folder(trial)
    return not (folder / SCORES).exists() or (trial.method == "ce" and not (folder / "model.pt").exists())
