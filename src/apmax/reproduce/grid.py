"""The grid of the paper's experiments (`grid.toml`), and the settings that it gives each run."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any

from apmax import validation
from apmax.losses import PAPER_OPTIONS
from apmax.reproduce.schemes import SCHEMES, Settings
from apmax.train import parse_toml

GridCell = tuple[str, str]
"""The names of a data set and a network."""


@dataclass(frozen=True)
class Item:
    """A table, figure or ablation: its data sets and networks, and the methods that are its rows."""

    name: str
    title: str
    data: tuple[str, ...]
    models: tuple[str, ...]
    rows: tuple[str, ...]
    paper: str | None = None


@dataclass(frozen=True)
class GridDataset:
    """A data set with a task, its splits, and the number of seeds per split."""

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
class GridNetwork:
    """A network under the name that the tables use.

    `revision` is raised when the network changes, so that its earlier results no longer count and are run again.
    """

    name: str
    label: str
    domain: str
    network: str
    revision: int = 1
    settings: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class GridMethod:
    """A method, which is a row of a table: how it is trained, and which of its settings are tuned.

    With `paper_options` the options of its loss are `apmax.losses.PAPER_OPTIONS`, changed by `options`.
    """

    name: str
    label: str
    scheme: str = "second"
    loss: str | None = None
    ours: bool = False
    paper_options: bool = False
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


@dataclass(frozen=True, eq=False)
class ExperimentGrid:
    """All of `grid.toml`; two grids are equal only if they are the same object, so that plans can be cached by it."""

    budgets: Mapping[str, int]
    items: Mapping[str, Item]
    domains: Mapping[str, Mapping[str, Any]]
    data: Mapping[str, GridDataset]
    models: Mapping[str, GridNetwork]
    methods: Mapping[str, GridMethod]

    @property
    def default_budget(self) -> str:
        """The name of the smallest budget: the published configurations."""
        return next(iter(self.budgets))

    def cells(
        self,
        item: Item,
        *,
        data: Sequence[str] | None = None,
        models: Sequence[str] | None = None,
        splits: Sequence[str] | None = None,
    ) -> list[GridCell]:
        """Return the (data set, network) pairs of an item whose domains agree.

        Args:
            item: The table or figure.
            data: Only these data sets.
            models: Only these networks.
            splits: Only data sets that have one of these splits.

        Raises:
            ValueError: The item lacks a data set, network or split, or they do not go together.
        """
        for argument, selected, known in (("dataset", data, item.data), ("model", models, item.models)):
            for name in selected or ():
                validation.choice(argument, name, known)
        selected_data = item.data if data is None else data
        known_splits = dict.fromkeys(split for name in selected_data for split in self.data[name].splits if split)
        for split in splits or ():
            validation.choice("splits", split, known_splits)
        pairs = [
            (name, model)
            for name in selected_data
            if splits is None or set(splits) & set(self.data[name].splits)
            for model in (item.models if models is None else models)
            if self.data[name].domain == self.models[model].domain
        ]
        if not pairs:
            raise ValueError(
                f"{item.name} has no cell of dataset {data!r} and model {models!r}: they do not go together"
            )
        return pairs

    def cell_label(self, cell: GridCell) -> str:
        """Return a cell's name in tables.

        >>> load_grid().cell_label(("hiv", "gine"))
        'HIV, GINE'
        """
        return f"{self.data[cell[0]].label}, {self.models[cell[1]].label}"


def parse_grid(table: Mapping[str, Any]) -> ExperimentGrid:
    """Return the grid described by a plain table; an unknown key is an error."""
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
        name: GridDataset(
            name=name,
            **{"source": name, **entry, "splits": tuple(entry.get("splits", (None,)))},
        )
        for name, entry in table["data"].items()
    }
    models = {name: GridNetwork(name=name, **{"network": name, **entry}) for name, entry in table["models"].items()}
    return ExperimentGrid(table["budgets"], items, table["domains"], data, models, _parse_methods(table["methods"]))


def _parse_methods(table: Mapping[str, Any]) -> dict[str, GridMethod]:
    """Return the methods of a plain table; a method that is `like` another takes over its scheme, loss and tuning."""
    methods: dict[str, GridMethod] = {}
    for name, entry in table.items():
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in entry.items()}
        base = methods[entry["like"]] if "like" in entry else None
        if base is not None:
            # Settings and options are not taken over here: they are merged when the settings are resolved.
            inherited = {key: getattr(base, key) for key in ("scheme", "loss", "tunes")}
            # The setting that defines a variant is not tuned.
            fixed = {*entry.get("settings", {}), *(f"options.{option}" for option in entry.get("options", {}))}
            inherited["grid"] = {axis: values for axis, values in base.grid.items() if axis not in fixed}
            values = {**inherited, **values}
        methods[name] = GridMethod(name=name, **values)
        validation.choice(f"the scheme of {name}", methods[name].scheme, SCHEMES)
    return methods


@cache
def load_grid() -> ExperimentGrid:
    """Return the grid that comes with the package.

    >>> load_grid().items["table6"].models
    ('gine', 'mpnn', 'ml-mpnn')
    """
    return parse_grid(parse_toml(resources.files("apmax.reproduce").joinpath("grid.toml").read_text(encoding="utf-8")))


def resolve_settings(grid: ExperimentGrid, data: str, model: str, method: str) -> Settings:
    """Return all published settings of a method on a data set and network.

    >>> resolve_settings(load_grid(), "aicures", "gine", "soap")["options"]["margin"]
    10.0
    """
    entry = grid.data[data]
    settings = {key: value for key, value in grid.domains[entry.domain].items() if key != "grid"}
    settings = _merged(settings, entry.settings, grid.models[model].settings, entry.at.get(model, {}), {"options": {}})
    return _with_method(grid, settings, grid.methods[method], data, model)


def _with_method(grid: ExperimentGrid, settings: Settings, method: GridMethod, data: str, model: str) -> Settings:
    """Return `settings` with those of a method.

    Later ones win: the method that it is like, its own, those of the domain, the data set, the network, and of both.
    """
    if method.like is not None:
        settings = _with_method(grid, settings, grid.methods[method.like], data, model)
    paper = PAPER_OPTIONS if method.paper_options else {}
    settings = _merged(settings, method.settings, {"options": {**paper, **method.options}})
    local = (method.at.get(place, {}) for place in (data, model, f"{data} {model}"))
    for table in (getattr(method, grid.data[data].domain), *local):
        settings = _merged(settings, table.get("settings", {}), {"options": table.get("options", {})})
    for name in method.without:
        settings["options"].pop(name, None)
    return settings


def _merged(settings: Settings, *tables: Mapping[str, Any]) -> Settings:
    """Return a copy in which later tables win; inner tables are merged key by key."""
    result = deepcopy(settings)
    for table in tables:
        for key, value in table.items():
            inner = isinstance(value, Mapping) and isinstance(result.get(key), dict)
            result[key] = _merged(result[key], value) if inner else deepcopy(value)
    return result


def candidate_settings(grid: ExperimentGrid, data: str, model: str, method: str, count: int) -> list[Settings]:
    """Return `count` configurations: the published one, then others drawn from the method's grid.

    Fewer where the whole grid has fewer. The draw is fixed, so that a larger budget keeps the runs of a smaller one.
    """
    published = resolve_settings(grid, data, model, method)
    entry, data_set = grid.methods[method], grid.data[data]
    axes_of_place = {**grid.domains[data_set.domain]["grid"], **data_set.grid}
    axes = {**{name: axes_of_place[name] for name in entry.tunes}, **entry.grid}
    if not axes or entry.of is not None:
        return [published]
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    random.Random(f"{data} {model} {method}").shuffle(points)
    result = [published]
    for point in points:
        if len(result) == count:
            break
        settings = _with_values(published, point)
        if settings not in result:
            result.append(settings)
    return result


def _with_values(settings: Settings, values: Mapping[str, Any]) -> Settings:
    """Return `settings` with other values; a dotted name leads into an inner table.

    >>> _with_values({"lr": 1, "options": {"margin": 2}}, {"options.margin": 5})
    {'lr': 1, 'options': {'margin': 5}}
    """
    result = deepcopy(settings)
    for path, value in values.items():
        *outer, last = path.split(".")
        table = result
        for name in outer:
            table = table[name]
        table[last] = value
    return result


def tuned_settings(settings: Mapping[str, Any], published: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that differ from the published ones, those of inner tables under dotted names.

    >>> tuned_settings({"lr": 1, "options": {"margin": 2}}, {"lr": 1, "options": {"margin": 5}})
    {'options.margin': 2}
    """
    changed: dict[str, Any] = {}
    for name, value in settings.items():
        other = published.get(name)
        if isinstance(value, Mapping) and isinstance(other, Mapping):
            changed.update({f"{name}.{inner}": part for inner, part in tuned_settings(value, other).items()})
        elif value != other:
            changed[name] = value
    return changed
