"""What the results say of an item: means and spreads, the paper's beside them, and paired differences."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import mean, stdev
from typing import Any, NamedTuple

from apmax.metrics import Paired, compare
from apmax.reproduce.grid import Grid, Item
from apmax.reproduce.paper import PaperTable, Printed, paper
from apmax.reproduce.plan import Lines, Search, searches

METRICS = {"auprc": "AUPRC", "ap": "AP"}
BASES = ("ce", "soap")
"""What rows are compared with: cross-entropy, or the published SOAP where an item varies that."""

Cell = tuple[str, str]
Replicate = tuple[str | None, int]


class Spread(NamedTuple):
    """A mean over `runs` runs with the sample's standard deviation, None of one run."""

    mean: float
    std: float | None
    runs: int


@dataclass(frozen=True)
class Entry:
    """A method on a data set and network.

    Args:
        total: How many runs the table wants.
        lines: The results of those that have ended, by split and seed.
        tuning: Configurations tried and wanted, while the choice among them is open.
        choices: Among how many configurations validation chooses.
        printed: What the paper has there.
        repeated: The printed number stands beside another of our rows or data sets as well, and is counted there.
        paired: The difference to the base over the runs that both have, by metric.
    """

    data: str
    model: str
    method: str
    total: int
    lines: Mapping[Replicate, Mapping[str, Any]]
    tuning: tuple[int, int] | None = None
    choices: int = 1
    printed: Printed | None = None
    repeated: bool = False
    paired: Mapping[str, Paired] = field(default_factory=dict)

    @cached_property
    def values(self) -> dict[Replicate, dict[str, float]]:
        """Test metrics of the runs that have them."""
        return {
            where: {name: line["test"][name] for name in METRICS}
            for where, line in self.lines.items()
            if line.get("test")
        }

    @property
    def done(self) -> int:
        """Runs that have ended, with a value or without."""
        return len(self.lines)

    @property
    def diverged(self) -> int:
        """Runs that ended without a value."""
        return self.done - len(self.values)

    def spread(self, metric: str = "auprc") -> Spread | None:
        """Return mean and deviation over the finished runs, or None if there are none."""
        found = [each[metric] for each in self.values.values()]
        return Spread(mean(found), stdev(found) if len(found) > 1 else None, len(found)) if found else None

    @property
    def standing(self) -> str | None:
        """Our mean AUPRC is "within" two of the paper's deviations, "above" or "below".

        None if the paper has none, or if runs are missing: those that there are could be the easy ones.
        """
        ours = self.spread()
        if ours is None or self.printed is None or self.done < self.total:
            return None
        # As printed, with four digits: a deviation of 0.0000 would otherwise refuse the very same number.
        difference = round(ours.mean, 4) - self.printed.mean
        if abs(difference) <= 2 * self.printed.std + 1e-9:
            return "within"
        return "above" if difference > 0 else "below"


@dataclass(frozen=True)
class Summary:
    """An item's cells and rows with what is known of them.

    Args:
        budget: Name of the number of configurations tried.
        entries: By (data set, network, method), for every cell and row.
        base: The row that differences are to, which need not be among the rows; None if there is nothing to compare.
        seeds: Seeds per split, where others were asked for than the grid has.
    """

    grid: Grid
    item: Item
    budget: str
    cells: tuple[Cell, ...]
    rows: tuple[str, ...]
    entries: Mapping[tuple[str, str, str], Entry]
    base: str | None
    seeds: int | None = None

    @property
    def printed(self) -> PaperTable | None:
        """The paper's table, if it has one."""
        return paper()[self.item.paper] if self.item.paper else None

    def of(self, cell: Cell) -> list[Entry]:
        """Return a cell's entries in the order of the rows."""
        return [self.entries[cell[0], cell[1], row] for row in self.rows]

    @cached_property
    def begun(self) -> tuple[Cell, ...]:
        """The cells of which some run has ended."""
        return tuple(cell for cell in self.cells if any(entry.done or entry.tuning for entry in self.of(cell)))

    @cached_property
    def lines(self) -> tuple[Mapping[str, Any], ...]:
        """The results that the numbers come from."""
        return tuple(line for cell in self.cells for entry in self.of(cell) for line in entry.lines.values())

    @property
    def counts(self) -> tuple[int, int]:
        """Runs ended and wanted, of the rows shown."""
        shown = [entry for cell in self.cells for entry in self.of(cell)]
        return sum(entry.done for entry in shown), sum(entry.total for entry in shown)


def name_of(summary: Summary, cell: Cell) -> str:
    """Return a cell's name for people."""
    return f"{summary.grid.data[cell[0]].label}, {summary.grid.models[cell[1]].label}"


def plural(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "cell"), plural(3, "cell")
    ('1 cell', '3 cells')
    """
    return f"{count} {noun}{'s' * (count != 1)}"


def summarise(
    grid: Grid,
    item: Item,
    lines: Lines,
    *,
    cells: Sequence[Cell] | None = None,
    rows: Sequence[str] | None = None,
    budget: str = "published",
    seeds: int | None = None,
    splits: Sequence[str] | None = None,
) -> Summary:
    """Return what the results say of an item, or of the part of it that is asked for.

    Args:
        grid: All experiments.
        item: The table or figure.
        lines: Results by key.
        cells: Only these (data set, network) pairs.
        rows: Only these methods.
        budget: Name of the number of configurations tried.
        seeds: Seeds per split; by default as in the grid.
        splits: Only these splits.

    Raises:
        ValueError: A split that a data set does not have.
    """
    cells = tuple(grid.cells(item) if cells is None else cells)
    rows = tuple(item.rows if rows is None else rows)
    base = next((name for name in BASES if name in item.rows and item.rows != (name,)), None)
    wanted = rows if base is None or base in rows else (base, *rows)
    count = grid.budgets[budget]
    plan = searches(grid, cells, wanted, budget=count, seeds=seeds, splits=splits)
    # Looking for a run needs its key, which takes a while to make: not where no run of this network can be.
    places = {
        (grid.data[line["data"]].source, grid.models[line["model"]].network)
        for line in lines.values()
        if line["data"] in grid.data and line["model"] in grid.models
    }
    table = paper()[item.paper] if item.paper else None
    entries: dict[tuple[str, str, str], Entry] = {}
    for data, model in cells:
        own = {row: [s for s in plan if (s.data, s.model, s.method) == (data, model, row)] for row in wanted}
        there = lines if (grid.data[data].source, grid.models[model].network) in places else {}
        found = {row: entry_of(own[row], there, table) for row in wanted}
        for row in rows:
            entries[data, model, row] = found[row] if base in (None, row) else with_paired(found[row], found[base])
    return Summary(grid, item, budget, cells, rows, entries, base, seeds)


def finished(plan: Sequence[Search], lines: Lines) -> Iterator[tuple[Replicate, Mapping[str, Any]]]:
    """Yield the results that stand in the table, by split and seed."""
    for search in plan if lines else ():
        for trial in search.final(lines) or ():
            line = lines.get(trial.key)
            if line is not None:
                yield (search.split, trial.seed), line


def entry_of(plan: Sequence[Search], lines: Lines, table: PaperTable | None) -> Entry:
    """Return what is known of a method on a data set and network, all splits together."""
    # Until the configurations of a split are all tried, none of its runs stands in the table.
    opened = [search for search in plan if search.final(lines) is None] if lines else []
    tried = [trial.key in lines for search in opened for trial in search.tuning]
    first = plan[0]
    key = (first.data, first.model, first.method)
    return Entry(
        data=first.data,
        model=first.model,
        method=first.method,
        total=sum(len(search.seeds) for search in plan),
        lines=dict(finished(plan, lines)),
        tuning=(sum(tried), len(tried)) if any(tried) else None,
        choices=len(first.tuning) if lines else 1,
        printed=table.values.get(key) if table else None,
        repeated=table is not None and key in table.repeated,
    )


def with_paired(entry: Entry, base: Entry) -> Entry:
    """Return the entry with its differences to the base over the runs that both have."""
    both = [where for where in entry.values if where in base.values]
    paired = {}
    for name in METRICS if both else ():
        own, other = ([each.values[where][name] for where in both] for each in (entry, base))
        paired[name] = compare(own, other)
    return replace(entry, paired=paired)
