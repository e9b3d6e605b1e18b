"""One run of one method, and the name that its resolved configuration gives it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

from apmax.reproduce.grid import DataSet, Grid, Network
from apmax.reproduce.schemes import FROM_FIRST, SCHEMES, Stages, first_stage
from apmax.reproduce.settings import Settings, resolve
from apmax.train import stage_to_table

MEMBER_SEEDS = 1000
"""How far apart the seeds of an ensemble's members are: beyond those of any table."""


@dataclass(frozen=True)
class Trial:
    """A data set and split, a network, a method with its settings, and a seed."""

    grid: Grid = field(repr=False)
    data: str
    model: str
    method: str
    split: str | None
    seed: int
    settings: Settings = field(repr=False)
    candidate: int = 0

    @property
    def data_set(self) -> DataSet:
        """The data set's entry."""
        return self.grid.data[self.data]

    @property
    def network(self) -> Network:
        """The network's entry."""
        return self.grid.models[self.model]

    @property
    def scheme(self) -> str:
        """How it is trained."""
        return self.grid.methods[self.method].scheme

    @cached_property
    def stages(self) -> Stages:
        """What is trained, after the first stage if it begins from that."""
        return SCHEMES[self.scheme](self.settings, self.grid.methods[self.method].loss)

    @cached_property
    def first(self) -> Trial | None:
        """The run whose best weights this one begins from: the published cross-entropy."""
        if self.scheme not in FROM_FIRST:
            return None
        return replace(self, method="ce", candidate=0, settings=resolve(self.grid, self.data, self.model, "ce"))

    @cached_property
    def members(self) -> tuple[Trial, ...]:
        """The runs whose scores an ensemble averages, of the settings given."""
        method = self.grid.methods[self.method]
        if method.of is None:
            return ()
        return tuple(
            replace(self, method=method.of, seed=self.seed + number * MEMBER_SEEDS) for number in range(method.members)
        )

    @property
    def size(self) -> dict[str, int]:
        """The network's width under the name of its argument."""
        return {name: self.settings[name] for name in ("hidden", "width") if name in self.settings}

    @cached_property
    def key(self) -> str:
        """A name made of all that decides the run's numbers; equal runs of different tables have the same."""
        return hashlib.sha256(json.dumps(self.resolved, sort_keys=True).encode()).hexdigest()[:16]

    @property
    def resolved(self) -> dict[str, Any]:
        """All that decides the run's numbers."""
        if self.members:
            return {"ensemble": [member.key for member in self.members]}
        table: dict[str, Any] = {
            "data": self.data_set.source,
            "task": self.data_set.task,
            "split": self.split,
            "network": self.network.network,
            **self.size,
            "seed": self.seed,
            "stages": [stage_to_table(stage) for stage in self.stages],
        }
        if self.first is not None:
            table["first"] = [stage_to_table(stage) for stage in first_stage(self.first.settings)]
        if self.settings.get("recompute"):
            table["train_metrics"] = "full"
        return table

    @property
    def place(self) -> dict[str, Any]:
        """Where its result stands in the tables."""
        names = ("data", "model", "method", "split", "seed", "candidate")
        return {name: getattr(self, name) for name in names}

    @property
    def label(self) -> str:
        """What a person calls it."""
        split = f" {self.split}" if self.split else ""
        tuned = f" #{self.candidate}" if self.candidate else ""
        return f"{self.data}{split} {self.model} {self.method}{tuned} seed {self.seed}"


def tuned_choices(settings: Mapping[str, Any], published: Mapping[str, Any]) -> dict[str, Any]:
    """Return what of the settings differs from the published ones, inner tables by dotted names.

    >>> tuned_choices({"lr": 1, "options": {"margin": 2}}, {"lr": 1, "options": {"margin": 5}})
    {'options.margin': 2}
    """
    found: dict[str, Any] = {}
    for name, value in settings.items():
        other = published.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            found.update({f"{name}.{inner}": part for inner, part in tuned_choices(value, other).items()})
        elif value != other:
            found[name] = value
    return found
