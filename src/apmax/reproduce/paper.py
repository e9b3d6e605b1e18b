"""The numbers that the paper prints (`paper.json`), under the grid's names of data sets, networks and methods."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources
from itertools import product
from typing import Any, NamedTuple


class PrintedValue(NamedTuple):
    """A mean and a standard deviation that the paper prints: trapezoidal test AUPRC."""

    mean: float
    std: float

    def position_of(self, value: float) -> str:
        """Return whether a mean of ours is "within" two of the standard deviations, or "above" or "below" that.

        >>> PrintedValue(0.5, 0.01).position_of(0.52), PrintedValue(0.5, 0.0).position_of(0.49996)
        ('within', 'within')
        """
        # Compared with four digits, as printed: a deviation of 0.0000 would otherwise exclude the same number.
        difference = round(value, 4) - self.mean
        if abs(difference) <= 2 * self.std + 1e-9:
            return "within"
        return "above" if difference > 0 else "below"


@dataclass(frozen=True)
class PaperTable:
    """One table of the paper.

    Args:
        values: By (data set, network, method). A misprint is replaced by the number that was meant, and a note says so.
        repeated: The keys whose number also stands under another key, where it is counted.
        runs: The number of runs behind each mean, None where the paper does not say.
        over: "runs" of one split, or "splits".
        notes: What a reader must know about the numbers.
    """

    values: Mapping[tuple[str, str, str], PrintedValue]
    repeated: frozenset[tuple[str, str, str]]
    runs: int | None
    over: str
    notes: tuple[str, ...]


def parse_paper_table(entry: Mapping[str, Any]) -> PaperTable:
    """Return the table described by an entry of `paper.json`."""
    values: dict[tuple[str, str, str], PrintedValue] = {}
    repeated: set[tuple[str, str, str]] = set()
    covers = entry.get("covers", {})
    for data, models in entry["cells"].items():
        for model, rows in models.items():
            for row, value in rows.items():
                # One printed number may cover several of our rows or data sets: the paper tuned the setting in which
                # the rows differ, and did not publish its splits.
                keys = [
                    (own, model, method) for own, method in product(covers.get(data, [data]), covers.get(row, [row]))
                ]
                values |= dict.fromkeys(keys, PrintedValue(*value))
                repeated |= set(keys[1:])
    for misprint in entry.get("misprints", ()):
        values[misprint["data"], misprint["model"], misprint["method"]] = PrintedValue(*misprint["read"])
    return PaperTable(values, frozenset(repeated), entry["runs"], entry["over"], tuple(entry["notes"]))


@cache
def load_paper_tables() -> dict[str, PaperTable]:
    """Return the paper's tables by their names in `grid.toml`.

    >>> load_paper_tables()["image"].values["cifar10", "resnet18", "soap"]
    PrintedValue(mean=0.7629, std=0.0014)
    """
    return {name: parse_paper_table(entry) for name, entry in _paper_json()["tables"].items()}


def paper_experiment(item: str) -> str:
    """Return a sentence or two about the paper's own experiment behind an item.

    >>> paper_experiment("table2")
    'The paper: HIV and MUV, three graph networks, nine methods, 3 runs.'
    """
    text: str = _paper_json()["items"][item]
    return text


@cache
def _paper_json() -> dict[str, Any]:
    """Return all of `paper.json`."""
    text = resources.files("apmax.reproduce").joinpath("paper.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content
