"""The paper's experiments, read from `grid.toml`: items, data sets, networks and methods as values."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from apmax import extras, validation

SCHEMES = ("first", "second", "continued", "recipe", "joint_ce", "averaged", "head", "ensemble")


@dataclass(frozen=True)
class Item:
    """A table or figure: which data sets and networks, and which methods are its rows."""

    name: str
    title: str
    data: tuple[str, ...]
    models: tuple[str, ...]
    rows: tuple[str, ...]
    paper: str | None = None


@dataclass(frozen=True)
class DataSet:
    """A data set with a task, its splits, and how many seeds each split is run with."""

    name: str
    label: str
    domain: str
    source: str
    task: str | None = None
    splits: tuple[str | None, ...] = (None,)
    seeds: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)
    at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Network:
    """A network under the name that the tables use."""

    name: str
    label: str
    domain: str
    network: str
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Method:
    """A row: how it trains, and what of that is tuned."""

    name: str
    label: str
    scheme: str = "second"
    loss: str | None = None
    ours: bool = False
    options: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    molecules: Mapping[str, Any] = field(default_factory=dict)
    images: Mapping[str, Any] = field(default_factory=dict)
    at: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    grid: Mapping[str, Sequence[Any]] = field(default_factory=dict)
    tunes: tuple[str, ...] = ("lr", "weight_decay")
    like: str | None = None
    controls: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    of: str | None = None
    members: int = 1


@dataclass(frozen=True)
class Grid:
    """All of `grid.toml`."""

    budgets: Mapping[str, int]
    items: Mapping[str, Item]
    domains: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, DataSet]
    models: Mapping[str, Network]
    methods: Mapping[str, Method]

    def cells(
        self,
        item: Item,
        *,
        data: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        splits: Sequence[str] | None = None,
    ) -> list[tuple[str, str]]:
        """Return the (data set, network) pairs of an item, those wanted, where the field is the same.

        Of splits only the data sets that have one of them are wanted.

        Raises:
            ValueError: A data set, network or split that the item does not have, or that do not go together.
        """
        for argument, wanted, known in (("dataset", data, item.data), ("model", models, item.models)):
            for name in wanted or ():
                validation.choice(argument, name, known)
        wanted_data = item.data if data is None else data
        known_splits = dict.fromkeys(split for name in wanted_data for split in self.data[name].splits if split)
        for split in splits or ():
            validation.choice("splits", split, known_splits)
        pairs = [
            (name, model)
            for name in wanted_data
            if splits is None or set(splits) & set(self.data[name].splits)
            for model in (item.models if models is None else models)
            if self.data[name].domain == self.models[model].domain
        ]
        if not pairs:
            raise ValueError(
                f"{item.name} has no cell of dataset {data!r} and model {models!r}: they do not go together"
            )
        return pairs


def read(table: Mapping[str, Any]) -> Grid:
    """Return the grid that a plain table describes; an unknown key is an error."""
    methods: dict[str, Method] = {}
    for name, entry in table["methods"].items():
        own: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        base = methods[entry["like"]] if "like" in entry else None
        if base is not None:
            # The kind of training and what is tuned come along; settings and options are merged when they are resolved.
            inherited = {key: getattr(base, key) for key in ("scheme", "loss", "tunes")}
            # What the variant is about is not tuned away.
            fixed = {*entry.get("settings", {}), *(f"options.{option}" for option in entry.get("options", {}))}
            inherited["grid"] = {axis: values for axis, values in base.grid.items() if axis not in fixed}
            own = {**inherited, **own}
        methods[name] = Method(name=name, **own)
        validation.choice(f"the scheme of {name}", methods[name].scheme, SCHEMES)
    rows = {name: tuple(members) for name, members in table["rows"].items()}
    items = {
        name: Item(
            name=name,
            title=entry["title"],
            data=tuple(entry["data"]),
            models=tuple(entry["models"]),
            rows=rows[entry["rows"]],
            paper=entry.get("paper"),
        )
        for name, entry in table["items"].items()
    }
    data = {
        name: DataSet(
            name=name,
            **{"source": name, **entry, "splits": tuple(entry.get("splits", (None,)))},
        )
        for name, entry in table["data"].items()
    }
    models = {name: Network(name=name, **{"network": name, **entry}) for name, entry in table["models"].items()}
    return Grid(table["budgets"], items, table["domains"], data, models, methods)


@cache
def grid() -> Grid:
    """Return the grid that comes with the package.

    >>> grid().items["table6"].models
    ('gine', 'mpnn', 'ml-mpnn')
    """
    toml = extras.load("tomllib" if sys.version_info >= (3, 11) else "tomli", "train")
    return read(toml.loads(resources.files("apmax.reproduce").joinpath("grid.toml").read_text(encoding="utf-8")))
