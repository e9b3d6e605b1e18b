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
        repeated: Those of the keys whose number stands under another key as well, which is the one to count.
        runs: Over how many runs, or None where the paper does not say.
        over: Whether those are "runs" of one split or "splits".
        notes: What a reader must know beside the numbers.
    """

    values: Mapping[tuple[str, str, str], Printed]
    repeated: frozenset[tuple[str, str, str]]
    runs: int | None
    over: str
    notes: tuple[str, ...]


def read(entry: Mapping[str, Any]) -> PaperTable:
    """Return the table that a plain entry of `paper.json` describes."""
    values: dict[tuple[str, str, str], Printed] = {}
    repeated: set[tuple[str, str, str]] = set()
    covers = entry.get("covers", {})
    for data, models in entry["cells"].items():
        for model, rows in models.items():
            for row, value in rows.items():
                # One printed number may stand for several of our rows or data sets: the paper tuned what tells the rows
                # apart, and did not publish its splits.
                keys = [
                    (own, model, method) for own, method in product(covers.get(data, [data]), covers.get(row, [row]))
                ]
                values |= dict.fromkeys(keys, Printed(*value))
                repeated |= set(keys[1:])
    for slip in entry.get("misprints", ()):
        values[slip["data"], slip["model"], slip["method"]] = Printed(*slip["read"])
    return PaperTable(values, frozenset(repeated), entry["runs"], entry["over"], tuple(entry["notes"]))


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
    text = resources.files("apmax.reproduce").joinpath("paper.json").read_text(encoding="utf-8")
    found: dict[str, Any] = json.loads(text)
    return found
