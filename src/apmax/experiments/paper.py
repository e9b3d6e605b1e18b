"""The numbers that the paper prints, under the grid's names of data sets, networks and methods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import product
from typing import Any, NamedTuple


class Printed(NamedTuple):
    """A mean and a standard deviation of the paper: test AUPRC, trapezoidal."""

    mean: float
    std: float


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Args:
        values: By (data set, network, method); misprints are replaced by what was meant, which a note says.
        runs: Over how many runs, or None where the paper does not say.
        over: Whether those are "runs" of one split or "splits".
        notes: What a reader must know beside the numbers.
    """

    values: Mapping[tuple[str, str, str], Printed]
    runs: int | None
    over: str
    notes: tuple[str, ...]


def read(entry: Mapping[str, Any]) -> PaperTable:
    """Return the table that a plain entry of `paper.json` describes."""
    values = {}
    covers = entry.get("covers", {})
    for data, models in entry["cells"].items():
        for model, rows in models.items():
            for row, value in rows.items():
                # One printed number may stand for several of our rows or data sets: the paper tuned what tells the rows
                # apart, and did not publish its splits.
                for own, method in product(covers.get(data, [data]), covers.get(row, [row])):
                    values[own, model, method] = Printed(*value)
    for slip in entry.get("misprints", ()):
        values[slip["data"], slip["model"], slip["method"]] = Printed(*slip["read"])
    return PaperTable(values, entry["runs"], entry["over"], tuple(entry["notes"]))


@cache
def paper() -> dict[str, PaperTable]:
    """Return the paper's tables by the names that `grid.toml` gives them.

    >>> paper()["image"].values["cifar10", "resnet18", "soap"]
    Printed(mean=0.7629, std=0.0014)
    """
    return {name: read(entry) for name, entry in facts()["tables"].items()}


def did(item: str) -> str:
    """Return what the paper did for an item, in a sentence or two.

    >>> did("table2")
    'The paper: HIV and MUV, three graph networks, nine methods, 3 runs.'
    """
    said: str = facts()["items"][item]
    return said


@cache
def facts() -> dict[str, Any]:
    """Return all of `paper.json`."""
    text = resources.files("apmax.experiments").joinpath("paper.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
