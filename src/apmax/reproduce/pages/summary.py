"""Summaries of results: means and standard deviations, the paper's numbers, paired differences, epoch histories."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from statistics import correlation, mean, stdev
from typing import Any, NamedTuple

from apmax.metrics import Paired, compare
from apmax.reproduce.grid import ExperimentGrid, GridCell, Item
from apmax.reproduce.paper import PaperTable, PrintedValue, load_paper_tables
from apmax.reproduce.plan import ResultLines, Search, plan_searches

METRIC_LABELS = {"auprc": "AUPRC", "ap": "AP"}
_RANDOM_AUROC = 0.55
"""The mean test AUROC below which a method's ranking is called random."""
_BASES = ("ce", "ce_authors", "soap")
"""The rows that others are compared with: cross-entropy, or the published SOAP where an item varies SOAP."""

Replicate = tuple[str | None, int]
"""The split and seed of a run."""
Histories = Mapping[str, Mapping[str, Any]]
"""The values after each epoch of a run, by the key of the run."""


class MeanStd(NamedTuple):
    """A mean over `runs` runs with the sample standard deviation, which is None for one run."""

    mean: float
    std: float | None
    runs: int


@dataclass(frozen=True)
class MethodSummary:
    """The results of a method on a data set and network.

    Args:
        data: The data set's name.
        model: The network's name.
        method: The method's name.
        total: The number of runs that the table needs.
        lines: The results of the finished runs.
        tuning: The numbers of configurations tried and to be tried, until one is chosen.
        choices: The number of configurations among which validation chooses.
        printed: The paper's number.
        repeated: The paper's number is also that of another of our rows or data sets, where it is counted.
        paired: The differences to the base over the runs that both have, by metric.
    """

    data: str
    model: str
    method: str
    total: int
    lines: Mapping[Replicate, Mapping[str, Any]]
    tuning: tuple[int, int] | None = None
    choices: int = 1
    printed: PrintedValue | None = None
    repeated: bool = False
    paired: Mapping[str, Paired] = field(default_factory=dict)

    @cached_property
    def values(self) -> dict[Replicate, dict[str, float]]:
        """The test metrics of the runs that did not diverge."""
        return {
            replicate: {name: line["test"][name] for name in METRIC_LABELS}
            for replicate, line in self.lines.items()
            if line.get("test")
        }

    @property
    def done(self) -> int:
        """The number of finished runs, diverged ones included."""
        return len(self.lines)

    @property
    def is_finished(self) -> bool:
        """Whether all runs have ended, with a value or without."""
        return self.done >= self.total

    @property
    def diverged(self) -> int:
        """The number of runs that ended without a value."""
        return self.done - len(self.values)

    def mean_std(self, metric: str = "auprc") -> MeanStd | None:
        """Return mean and standard deviation over the finished runs, or None if there are none."""
        numbers = [each[metric] for each in self.values.values()]
        return MeanStd(mean(numbers), stdev(numbers) if len(numbers) > 1 else None, len(numbers)) if numbers else None

    @property
    def mean_auroc(self) -> float | None:
        """The mean test AUROC over the finished runs, None if there are none."""
        numbers = [line["test"]["auroc"] for line in self.lines.values() if line.get("test")]
        return mean(numbers) if numbers else None

    @property
    def test_positives(self) -> list[int]:
        """The numbers of positives in the test parts of the finished runs."""
        return [line["test"]["positives"] for line in self.lines.values() if line.get("test")]

    @property
    def against_paper(self) -> str | None:
        """Whether our mean AUPRC is "within" two of the paper's standard deviations, "above" or "below" that.

        None if the paper has no number, or if runs are missing: the finished ones could be the easy ones.
        """
        ours = self.mean_std()
        if ours is None or self.printed is None or not self.is_finished:
            return None
        return self.printed.position_of(ours.mean)


MethodSummaries = Mapping[tuple[str, str, str], MethodSummary]
"""Summaries by (data set, network, method)."""


def random_cells(entries: MethodSummaries) -> dict[GridCell, list[float]]:
    """Return the cells in which no method ranks test rows better than at random, with the methods' mean AUROCs."""
    found: dict[GridCell, list[float]] = {}
    for (data, model, _), entry in entries.items():
        if entry.mean_auroc is not None:
            found.setdefault((data, model), []).append(entry.mean_auroc)
    return {cell: values for cell, values in found.items() if max(values) < _RANDOM_AUROC}


@dataclass(frozen=True)
class ItemSummary:
    """The results of an item.

    Args:
        grid: All experiments.
        item: The table or figure.
        budget: The name of the number of configurations tried.
        cells: The (data set, network) pairs.
        rows: The methods.
        entries: The summaries of every cell and row.
        base: The row that others are compared with, which need not be among the rows; None if there is none.
        seeds: The number of seeds per split, where it is not the grid's.
    """

    grid: ExperimentGrid
    item: Item
    budget: str
    cells: tuple[GridCell, ...]
    rows: tuple[str, ...]
    entries: MethodSummaries
    base: str | None
    seeds: int | None = None

    @property
    def paper_table(self) -> PaperTable | None:
        """The paper's table, if it has one."""
        return load_paper_tables()[self.item.paper] if self.item.paper else None

    @property
    def has_default_budget(self) -> bool:
        """Whether only the published configurations were tried."""
        return self.budget == self.grid.default_budget

    def of_cell(self, cell: GridCell) -> list[MethodSummary]:
        """Return the entries of a cell in the order of the rows."""
        return [self.entries[cell[0], cell[1], row] for row in self.rows]

    @cached_property
    def started_cells(self) -> tuple[GridCell, ...]:
        """The cells with at least one finished run."""
        return tuple(cell for cell in self.cells if any(entry.done or entry.tuning for entry in self.of_cell(cell)))

    @property
    def missing_cells(self) -> list[GridCell]:
        """The cells without a finished run."""
        return [cell for cell in self.cells if cell not in self.started_cells]

    @property
    def started_data(self) -> list[str]:
        """The data sets with at least one finished run."""
        return list(dict.fromkeys(data for data, _ in self.started_cells))

    @cached_property
    def lines(self) -> tuple[Mapping[str, Any], ...]:
        """The results behind the numbers."""
        return tuple(line for cell in self.cells for entry in self.of_cell(cell) for line in entry.lines.values())

    @property
    def counts(self) -> tuple[int, int]:
        """The numbers of finished runs and of all runs of the rows."""
        shown = [entry for cell in self.cells for entry in self.of_cell(cell)]
        return sum(entry.done for entry in shown), sum(entry.total for entry in shown)

    def cell_label(self, cell: GridCell) -> str:
        """Return a cell's name in tables."""
        return self.grid.cell_label(cell)

    def method_label(self, method: str) -> str:
        """Return a method's name in tables."""
        return self.grid.methods[method].label


def summarise_item(
    grid: ExperimentGrid,
    item: Item,
    lines: ResultLines,
    *,
    cells: Sequence[GridCell] | None = None,
    rows: Sequence[str] | None = None,
    budget: str = "published",
    seeds: int | None = None,
    splits: Sequence[str] | None = None,
) -> ItemSummary:
    """Return the summary of an item, or of a part of it.

    Args:
        grid: All experiments.
        item: The table or figure.
        lines: Results by key.
        cells: Only these (data set, network) pairs.
        rows: Only these methods.
        budget: The name of the number of configurations tried.
        seeds: The number of seeds per split; by default as in the grid.
        splits: Only these splits.

    Raises:
        ValueError: A data set has none of the splits.
    """
    cells = tuple(grid.cells(item) if cells is None else cells)
    rows = tuple(item.rows if rows is None else rows)
    base = next((name for name in _BASES if name in item.rows and item.rows != (name,)), None)
    methods = rows if base is None or base in rows else (base, *rows)
    plan = plan_searches(grid, cells, methods, budget=grid.budgets[budget], seeds=seeds, splits=splits)
    # Keys take a while to compute: they are skipped where no result has the data and network of a cell.
    with_results = {
        (grid.data[line["data"]].source, grid.models[line["model"]].network)
        for line in lines.values()
        if line["data"] in grid.data and line["model"] in grid.models
    }
    table = load_paper_tables()[item.paper] if item.paper else None
    entries: dict[tuple[str, str, str], MethodSummary] = {}
    for data, model in cells:
        searches = {row: [s for s in plan if (s.data, s.model, s.method) == (data, model, row)] for row in methods}
        known = lines if (grid.data[data].source, grid.models[model].network) in with_results else {}
        summaries = {row: _summarise_method(searches[row], known, table) for row in methods}
        for row in rows:
            entries[data, model, row] = (
                summaries[row] if base in (None, row) else compare_runs(summaries[row], summaries[base])
            )
    return ItemSummary(grid, item, budget, cells, rows, entries, base, seeds)


def _summarise_method(plan: Sequence[Search], lines: ResultLines, table: PaperTable | None) -> MethodSummary:
    """Return the summary of a method on a data set and network from its searches, one per split."""
    # Until all configurations of a split have run, none of its runs stands in the table.
    undecided = [search for search in plan if search.final(lines) is None] if lines else []
    tried = [trial.key in lines for search in undecided for trial in search.tuning]
    first = plan[0]
    key = (first.data, first.model, first.method)
    return MethodSummary(
        data=first.data,
        model=first.model,
        method=first.method,
        total=sum(len(search.seeds) for search in plan),
        lines=dict(_final_lines(plan, lines)),
        tuning=(sum(tried), len(tried)) if any(tried) else None,
        choices=len(first.tuning) if lines else 1,
        printed=table.values.get(key) if table else None,
        repeated=table is not None and key in table.repeated,
    )


def _final_lines(plan: Sequence[Search], lines: ResultLines) -> Iterator[tuple[Replicate, Mapping[str, Any]]]:
    """Yield the results that stand in the table, by split and seed."""
    for search in plan if lines else ():
        for trial in search.final(lines) or ():
            line = lines.get(trial.key)
            if line is not None:
                yield (search.split, trial.seed), line


def compare_runs(entry: MethodSummary, other: MethodSummary) -> MethodSummary:
    """Return an entry with its paired differences to another over the runs that both have."""
    both = [replicate for replicate in entry.values if replicate in other.values]
    paired = {}
    for name in METRIC_LABELS if both else ():
        first, second = ([each.values[replicate][name] for replicate in both] for each in (entry, other))
        paired[name] = compare(first, second)
    return replace(entry, paired=paired)


@dataclass(frozen=True)
class BaseComparison:
    """The comparison of a method with the base over cells, in counts.

    Args:
        method: The method's name.
        cells: Cells with at least one run of both.
        unfinished: Of these, cells with missing runs.
        above: Cells whose mean difference is above zero.
        surely_above: Cells whose 95 % interval is above zero.
        surely_below: Cells whose 95 % interval is below zero.
        without_interval: Cells with one pair.
        printed: Of the cells, those for which the paper prints both.
        printed_above: Of the printed ones, those in which the paper's mean is above the base's.
    """

    method: str
    cells: int
    unfinished: int
    above: int
    surely_above: int
    surely_below: int
    without_interval: int
    printed: int
    printed_above: int


def compare_with_base(entries: MethodSummaries, base: str) -> list[BaseComparison]:
    """Return the comparison of each method with the base, by the AUPRC of the runs that both have."""
    comparisons = []
    for method in dict.fromkeys(name for _, _, name in entries):
        own = {key[:2]: entry for key, entry in entries.items() if key[2] == method and "auprc" in entry.paired}
        if not own:
            continue
        paired = [entry.paired["auprc"] for entry in own.values()]
        bases = {cell: entries[cell[0], cell[1], base] for cell in own if (cell[0], cell[1], base) in entries}
        printed = [
            entry.printed.mean > other.mean
            for cell, entry in own.items()
            if entry.printed is not None
            and not entry.repeated
            and cell in bases
            and (other := bases[cell].printed) is not None
        ]
        comparisons.append(
            BaseComparison(
                method=method,
                cells=len(own),
                unfinished=sum(
                    not (entry.is_finished and (cell not in bases or bases[cell].is_finished))
                    for cell, entry in own.items()
                ),
                above=sum(each.difference > 0 for each in paired),
                surely_above=sum(each.low > 0 for each in paired),
                surely_below=sum(each.high < 0 for each in paired),
                without_interval=sum(each.cells == 1 for each in paired),
                printed=len(printed),
                printed_above=sum(printed),
            )
        )
    return comparisons


def complete_histories(histories: Histories, entry: MethodSummary, name: str) -> list[Sequence[float]]:
    """Return one quantity over the epochs, for the runs of an entry that recorded it after every epoch."""
    runs = [histories[line["key"]][name] for line in entry.lines.values() if line["key"] in histories]
    return [run for run in runs if run and None not in run]


def mean_curve(runs: Sequence[Sequence[float]]) -> tuple[list[float], list[float]]:
    """Return the mean at each epoch that all runs have, and its standard error.

    >>> mean_curve([[1.0, 2.0, 9.0], [3.0, 2.0]])
    ([2.0, 2.0], [1.0, 0.0])
    """
    epochs = list(zip(*runs, strict=False))
    errors = [stdev(values) / len(values) ** 0.5 if len(values) > 1 else 0.0 for values in epochs]
    return [mean(values) for values in epochs], errors


def objective_correlations(histories: Histories, entry: MethodSummary) -> list[float]:
    """Return Spearman's correlation of training AP and −P(w) over the epochs of each run."""
    ap, objective = (complete_histories(histories, entry, name) for name in ("train_ap", "train_objective"))
    return [rank_correlation(a, [-value for value in b]) for a, b in zip(ap, objective, strict=True)]


def rank_correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Return Spearman's rank correlation; NaN where one of the two is constant.

    >>> rank_correlation([1, 2, 3, 4], [1, 3, 2, 4])
    0.8
    """
    is_constant = min(len(set(a)), len(set(b))) < 2
    return float("nan") if is_constant else correlation(_ranks(a), _ranks(b))


def _ranks(values: Sequence[float]) -> list[float]:
    """Return the ranks of values, equal values at their mean rank.

    >>> _ranks([0.2, 0.1, 0.2])
    [2.5, 1.0, 2.5]
    """
    return [
        sum(other < value for other in values) + (sum(other == value for other in values) + 1) / 2 for value in values
    ]
