"""The plan: the runs that fill the cells of a table, each named by its resolved configuration."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, lru_cache
from typing import Any

from apmax.reproduce.grid import (
    ExperimentGrid,
    GridCell,
    GridDataset,
    GridNetwork,
    candidate_settings,
    resolve_settings,
)
from apmax.reproduce.schemes import SCHEMES, Scheme, Settings, Stages
from apmax.train import config_to_table

ResultLines = Mapping[str, Mapping[str, Any]]
"""Results by the keys of their trials."""
_MEMBER_SEEDS = 1000
"""The distance between the seeds of an ensemble's members: larger than any seed of a table."""


@dataclass(frozen=True)
class Trial:
    """One run: a data set and split, a network, a method with its settings, and a seed."""

    grid: ExperimentGrid = field(repr=False)
    data: str
    model: str
    method: str
    split: str | None
    seed: int
    settings: Settings = field(repr=False)
    candidate: int = 0

    @property
    def data_set(self) -> GridDataset:
        """The entry of the data set."""
        return self.grid.data[self.data]

    @property
    def network(self) -> GridNetwork:
        """The entry of the network."""
        return self.grid.models[self.model]

    @property
    def scheme(self) -> Scheme:
        """The training scheme of the method."""
        return SCHEMES[self.grid.methods[self.method].scheme]

    @cached_property
    def stages(self) -> Stages:
        """The stages to train, without the first stage where that is a run of its own."""
        return self.scheme.build(self.settings, self.grid.methods[self.method].loss)

    @cached_property
    def first(self) -> Trial | None:
        """The run whose best weights this one begins from: cross-entropy with the published settings."""
        if not self.scheme.from_first:
            return None
        settings = resolve_settings(self.grid, self.data, self.model, "ce")
        return replace(self, method="ce", candidate=0, settings=settings)

    @cached_property
    def members(self) -> tuple[Trial, ...]:
        """The runs whose scores an ensemble averages; none for other methods."""
        method = self.grid.methods[self.method]
        if method.of is None:
            return ()
        return tuple(
            replace(self, method=method.of, seed=self.seed + number * _MEMBER_SEEDS) for number in range(method.members)
        )

    @property
    def prerequisites(self) -> tuple[Trial, ...]:
        """The runs that this one continues or averages."""
        return (*((self.first,) if self.first is not None else ()), *self.members)

    @property
    def size(self) -> dict[str, int]:
        """The network's width under the name of its argument."""
        return {name: self.settings[name] for name in ("hidden", "width") if name in self.settings}

    @cached_property
    def key(self) -> str:
        """The hash of the resolved configuration; equal runs of different tables have the same key."""
        return hashlib.sha256(json.dumps(self.resolved, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def resolved(self) -> dict[str, Any]:
        """The resolved configuration: everything that decides the run's numbers."""
        if self.members:
            return {"ensemble": [member.key for member in self.members]}
        table: dict[str, Any] = {
            "data": self.data_set.source,
            "task": self.data_set.task,
            "split": self.split,
            "network": self.network.network,
            **self.size,
            "seed": self.seed,
            "stages": [{"kind": stage.kind, **config_to_table(stage)} for stage in self.stages],
        }
        if self.network.revision > 1:
            table["revision"] = self.network.revision
        if self.scheme.from_authors:
            table["weights"] = "authors"
        if self.first is not None:
            table["first"] = [{"kind": stage.kind, **config_to_table(stage)} for stage in self.first.stages]
        if self.settings.get("recompute"):
            table["train_metrics"] = "full"
        return table

    @property
    def coordinates(self) -> dict[str, Any]:
        """The position of the run's result in the tables."""
        names = ("data", "model", "method", "split", "seed", "candidate")
        return {name: getattr(self, name) for name in names}

    @property
    def label(self) -> str:
        """The run's name in messages."""
        return run_label(self.coordinates)


def run_label(coordinates: Mapping[str, Any]) -> str:
    """Return the name of a run in messages, from its coordinates or its result line.

    >>> run_label({"data": "hiv", "model": "gine", "method": "ce", "split": None, "seed": 0, "candidate": 2})
    'hiv gine ce #2 seed 0'
    """
    words = [coordinates[name] for name in ("data", "split", "model", "method") if coordinates[name]]
    tuned = [f"#{coordinates['candidate']}"] if coordinates["candidate"] else []
    return " ".join([*words, *tuned, f"seed {coordinates['seed']}"])


@dataclass(frozen=True)
class Search:
    """One method on one split of a cell: its configurations at the first seed, then the chosen one at all seeds."""

    grid: ExperimentGrid
    data: str
    model: str
    method: str
    split: str | None
    seeds: tuple[int, ...]
    budget: int

    @cached_property
    def tuning(self) -> list[Trial]:
        """The runs that validation chooses from: one per configuration, at the first seed."""
        candidates = candidate_settings(self.grid, self.data, self.model, self.tuned, self.budget)
        return [self.trial(self.seeds[0], settings, number) for number, settings in enumerate(candidates)]

    @property
    def tuned(self) -> str:
        """The method whose configurations are compared: of an ensemble, that of its members."""
        return self.grid.methods[self.method].of or self.method

    def trial(self, seed: int, settings: Settings, candidate: int, method: str | None = None) -> Trial:
        """Return one run of this search."""
        return Trial(self.grid, self.data, self.model, method or self.tuned, self.split, seed, settings, candidate)

    def chosen(self, lines: ResultLines) -> Trial | None:
        """Return the configuration of the highest validation AP, the first of equal ones; None until all have run."""
        results = [lines.get(trial.key) for trial in self.tuning]
        if any(line is None for line in results):
            return None
        values = [line["valid"]["ap"] if line and line.get("valid") else -1.0 for line in results]
        return self.tuning[values.index(max(values))]

    def final(self, lines: ResultLines) -> list[Trial] | None:
        """Return the runs that stand in the table, one per seed; None until the configuration is chosen."""
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

    def outstanding(self, lines: ResultLines) -> list[Trial]:
        """Return the runs without a result: configurations first, then seeds."""
        trials = self.final(lines)
        return [trial for trial in (self.tuning if trials is None else trials) if trial.key not in lines]

    def count(self, lines: ResultLines) -> tuple[int, int]:
        """Return the numbers of finished runs and of all runs."""
        keys = {trial.key for trial in self.tuning} if self.tuned == self.method else set()
        final = self.final(lines)
        others = len(self.seeds) - (1 if keys else 0)
        done = sum(key in lines for key in keys)
        if final is not None:
            done += sum(trial.key in lines for trial in final if trial.key not in keys)
        return done, len(keys) + others


def plan_searches(
    grid: ExperimentGrid,
    cells: Sequence[GridCell],
    methods: Sequence[str],
    *,
    budget: int = 1,
    seeds: int | None = None,
    splits: Sequence[str] | None = None,
) -> list[Search]:
    """Return the searches that fill some cells: all methods of a split before the next split.

    Args:
        grid: All experiments.
        cells: The (data set, network) pairs.
        methods: The rows.
        budget: The number of configurations per method.
        seeds: The number of seeds per split; by default as in the grid.
        splits: Only these splits.

    Raises:
        ValueError: A data set has none of the splits.
    """
    searches = []
    for data, model in cells:
        entry = grid.data[data]
        if splits is not None and not set(splits) & set(entry.splits):
            known = ", ".join(str(split) for split in entry.splits)
            raise ValueError(f"split must be one of those of {data} ({known}), got {', '.join(splits)!r}")
        for number, split in enumerate(entry.splits):
            if splits is not None and split not in splits:
                continue
            # Each split has seeds of its own, so that the initial weights differ between splits.
            own = tuple(number + k * len(entry.splits) for k in range(entry.seeds if seeds is None else seeds))
            searches += [_cached_search(grid, data, model, method, split, own, budget) for method in methods]
    return searches


# Tables of results share cells, and the keys of a search take a while to compute.
_cached_search = lru_cache(maxsize=10_000)(Search)


def next_trials(plan: Sequence[Search], lines: ResultLines) -> Iterator[Trial]:
    """Yield the runs without a result in the plan's order, the members of an ensemble before it."""
    for search in plan:
        for trial in search.outstanding(lines):
            yield from (member for member in trial.members if member.key not in lines)
            yield trial
