"""What decides a run's numbers: the settings of its field, data set, network and method, and the choices tuned."""

from __future__ import annotations

import itertools
import random
from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from apmax.reproduce.grid import Grid, Method

Settings = dict[str, Any]


def resolve(grid: Grid, data: str, model: str, method: str) -> Settings:
    """Return the published settings of a method on a data set and network, every one of them.

    >>> from apmax.reproduce.grid import grid
    >>> resolve(grid(), "aicures", "gine", "soap")["options"]["margin"]
    10.0
    """
    entry = grid.data[data]
    settings = {key: value for key, value in grid.domains[entry.domain].items() if key != "grid"}
    here = entry.at.get(model, {})
    settings = merged(settings, entry.settings, grid.models[model].settings, here, {"options": {}})
    return with_method(grid, settings, grid.methods[method], data, model)


def with_method(grid: Grid, settings: Settings, method: Method, data: str, model: str) -> Settings:
    """Return `settings` with a method's own, after those of the one it is like; what is said of a place wins."""
    if method.like is not None:
        settings = with_method(grid, settings, grid.methods[method.like], data, model)
    settings = merged(settings, method.settings, {"options": method.options})
    places = (method.at.get(place, {}) for place in (data, model, f"{data} {model}"))
    for table in (getattr(method, grid.data[data].domain), *places):
        settings = merged(settings, table.get("settings", {}), {"options": table.get("options", {})})
    for name in method.without:
        settings["options"].pop(name, None)
    return settings


def merged(settings: Settings, *more: Mapping[str, Any]) -> Settings:
    """Return a copy in which later tables win, inner tables key by key."""
    result = deepcopy(settings)
    for table in more:
        for key, value in table.items():
            inner = isinstance(value, Mapping) and isinstance(result.get(key), dict)
            result[key] = merged(result[key], value) if inner else deepcopy(value)
    return result


def candidates(grid: Grid, data: str, model: str, method: str, count: int) -> list[Settings]:
    """Return `count` settings: the published ones, then others of the method's grid by a fixed draw.

    Fewer where the whole grid has fewer. More are the same with others added, so that a larger budget keeps what a
    smaller one has run.
    """
    published = resolve(grid, data, model, method)
    entry, place = grid.methods[method], grid.data[data]
    own = {**grid.domains[place.domain]["grid"], **place.grid}
    axes = {**{name: own[name] for name in entry.tunes}, **entry.grid}
    if not axes or entry.scheme == "ensemble":
        return [published]
    points = [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
    random.Random(f"{data} {model} {method}").shuffle(points)
    result = [published]
    for point in points:
        if len(result) == count:
            break
        settings = with_choices(published, point)
        if settings not in result:
            result.append(settings)
    return result


def with_choices(settings: Settings, choices: Mapping[str, Any]) -> Settings:
    """Return `settings` with tuned values in their places; a point in a name leads into an inner table.

    >>> with_choices({"lr": 1, "options": {"margin": 2}}, {"options.margin": 5})
    {'lr': 1, 'options': {'margin': 5}}
    """
    result = deepcopy(settings)
    for path, value in choices.items():
        *outer, last = path.split(".")
        place = result
        for name in outer:
            place = place[name]
        place[last] = value
    return result
