"""Which runs the wanted cells need, and which of them are next."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from apmax.reproduce.grid import Grid
from apmax.reproduce.settings import candidates
from apmax.reproduce.trial import Trial

Lines = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class Search:
    """One method on one split of a cell: its configurations at the first seed, then the chosen one at all seeds."""

    grid: Grid
    data: str
    model: str
    method: str
    split: str | None
    seeds: tuple[int, ...]
    budget: int

    @cached_property
    def tuning(self) -> list[Trial]:
        """The runs that validation chooses from, one per configuration, at the first seed."""
        options = candidates(self.grid, self.data, self.model, self.tuned, self.budget)
        return [self.trial(self.seeds[0], settings, number) for number, settings in enumerate(options)]

    @property
    def tuned(self) -> str:
        """The method whose configurations are compared: an ensemble has those of its members."""
        return self.grid.methods[self.method].of or self.method

    def trial(self, seed: int, settings: dict[str, Any], number: int, method: str | None = None) -> Trial:
        """Return one run of this search."""
        return Trial(self.grid, self.data, self.model, method or self.tuned, self.split, seed, settings, number)

    def chosen(self, lines: Lines) -> Trial | None:
        """Return the configuration of the best validation AP, the earlier one if equal; None until all are run."""
        trials = self.tuning
        found = [lines.get(trial.key) for trial in trials]
        if any(line is None for line in found):
            return None
        values = [line["valid"]["ap"] if line and line.get("valid") else -1.0 for line in found]
        return trials[values.index(max(values))]

    def final(self, lines: Lines) -> list[Trial] | None:
        """Return the runs that stand in the table, one per seed; None while the choice is open."""
        chosen = self.chosen(lines)
        if chosen is None:
            return None
        if chosen.candidate not in self._finals:
            trials = [self.trial(seed, chosen.settings, chosen.candidate, self.method) for seed in self.seeds]
            self._finals[chosen.candidate] = trials
        return self._finals[chosen.candidate]

    @cached_property
    def _finals(self) -> dict[int, list[Trial]]:
        return {}

    def outstanding(self, lines: Lines) -> list[Trial]:
        """Return what has yet to run: configurations first, then seeds; an ensemble after its members."""
        final = self.final(lines)
        if final is None:
            return [trial for trial in self.tuning if trial.key not in lines]
        return [trial for trial in final if trial.key not in lines]

    def count(self, lines: Lines) -> tuple[int, int]:
        """Return how many runs are done, and how many it has."""
        keys = {trial.key for trial in self.tuning} if self.tuned == self.method else set()
        final = self.final(lines)
        others = len(self.seeds) - (1 if keys else 0)
        done = sum(key in lines for key in keys)
        if final is not None:
            done += sum(trial.key in lines for trial in final if trial.key not in keys)
        return done, len(keys) + others


def searches(
    grid: Grid,
    cells: Sequence[tuple[str, str]],
    methods: Sequence[str],
    *,
    budget: int = 1,
    seeds: int | None = None,
    splits: Sequence[str] | None = None,
) -> list[Search]:
    """Return what fills these cells, replicate by replicate, so that whole comparisons come first.

    Raises:
        ValueError: A data set has none of the splits.
    """
    found = []
    for data, model in cells:
        entry = grid.data[data]
        if splits is not None and not set(splits) & set(entry.splits):
            known = ", ".join(str(split) for split in entry.splits)
            raise ValueError(f"split must be one of those of {data} ({known}), got {', '.join(splits)!r}")
        for number, split in enumerate(entry.splits):
            if splits is not None and split not in splits:
                continue
            # A split's seeds are its own, so that the first weights differ from split to split.
            own = tuple(number + k * len(entry.splits) for k in range(entry.seeds if seeds is None else seeds))
            found += [Search(grid, data, model, method, split, own, budget) for method in methods]
    return found


def next_trials(plan: Sequence[Search], lines: Lines) -> Iterator[Trial]:
    """Yield what can run now, in the plan's order; what a run begins from stands before it."""
    for search in plan:
        for trial in search.outstanding(lines):
            yield from (member for member in trial.members if member.key not in lines)
            yield trial
