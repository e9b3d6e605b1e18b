"""Tables of an item: for each data set the networks side by side as in the paper, then one table for each network."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from apmax.reproduce.grid import ExperimentGrid, GridCell
from apmax.reproduce.pages.summary import METRIC_LABELS, BaseComparison, ItemSummary, MethodSummaries, MethodSummary
from apmax.reproduce.pages.text import (
    NO_VALUE,
    budget_text,
    difference_text,
    mean_std_text,
    runs_text,
    table_notes,
    won_text,
)

_MARKS = {"within": "≈", "above": "▲", "below": "▼"}


@dataclass(frozen=True)
class TableField:
    """One field of a table: its text, whether it is the best of its column, and a remark in small print."""

    text: str
    best: bool = False
    remark: str = ""

    @property
    def full_text(self) -> str:
        """The text followed by the remark."""
        return f"{self.text} {self.remark}".rstrip()


@dataclass(frozen=True)
class TableRow:
    """A row of a table; `ours` are the rows that the paper does not have."""

    fields: tuple[TableField, ...]
    ours: bool = False


@dataclass(frozen=True)
class ResultTable:
    """A table with a title; the first column has the names of the rows."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[TableRow, ...]

    def starts_ours(self, number: int) -> bool:
        """Return whether this row is the first of ours after rows of the paper."""
        return number > 0 and self.rows[number].ours and not self.rows[number - 1].ours


@dataclass(frozen=True)
class DataSection:
    """The tables of one data set."""

    title: str
    tables: tuple[ResultTable, ...]


@dataclass(frozen=True)
class ItemDocument:
    """The title, opening lines, tables and notes of an item, independent of the format."""

    title: str
    opening: tuple[str, ...]
    sections: tuple[DataSection, ...]
    notes: tuple[str, ...]


def item_document(summary: ItemSummary) -> ItemDocument:
    """Return the document of an item, with tables of the data sets that have a finished run."""
    sections = []
    for data in summary.started_data:
        cells = [cell for cell in summary.cells if cell[0] == data]
        overview = overview_table(summary, cells)
        tables = [cell_table(summary, cell) for cell in cells if cell in summary.started_cells]
        sections.append(DataSection(summary.grid.data[data].label, (*([overview] if overview else []), *tables)))
    notes = tuple(table_notes(summary))
    return ItemDocument(summary.item.title, tuple(opening_lines(summary)), tuple(sections), notes)


def opening_lines(summary: ItemSummary) -> list[str]:
    """Return the number of runs, the budget, and the cells without a run."""
    done, total = summary.counts
    lines = [f"{done} of {total} runs, budget {summary.budget}: {budget_text(summary)}."]
    if summary.missing_cells:
        lines.append(f"Not run yet: {'; '.join(map(summary.cell_label, summary.missing_cells))}.")
    return lines


def overview_table(summary: ItemSummary, cells: Sequence[GridCell]) -> ResultTable | None:
    """Return the table as the paper has it: a row for each method, and for each network our number and the paper's.

    None where it would have one column, which the network's own table has too.
    """
    names, columns = ["Method"], []
    for cell in cells:
        label, entries = summary.grid.models[cell[1]].label, summary.of_cell(cell)
        if cell in summary.started_cells:
            best = _best_methods([_comparable_mean(entry, entries) for entry in entries])
            names.append(label)
            columns.append([_mean_field(entry, entry.method in best, remark=True) for entry in entries])
        if any(entry.printed for entry in entries):
            names.append(f"{label}, paper")
            columns.append(_printed_column(entries))
    if len(columns) < 2:
        return None
    return ResultTable("Test AUPRC, networks side by side", tuple(names), _table_rows(summary, summary.rows, columns))


def cell_table(summary: ItemSummary, cell: GridCell) -> ResultTable:
    """Return the full table of a cell, without the rows that have neither runs nor a printed number."""
    entries = [entry for entry in summary.of_cell(cell) if entry.done or entry.tuning or entry.printed]
    names, columns = ["Method", "Runs"], [[TableField(runs_text(entry)) for entry in entries]]
    for metric, name in METRIC_LABELS.items():
        best = _best_methods([_comparable_mean(entry, entries, metric) for entry in entries])
        names.append(name)
        columns.append([_mean_field(entry, entry.method in best, metric) for entry in entries])
        if metric == "auprc" and any(entry.printed for entry in entries):
            marks = [_MARKS[entry.against_paper] if entry.against_paper else "" for entry in entries]
            names += ["Paper", ""]
            columns += [_printed_column(entries), [TableField(mark) for mark in marks]]
        if summary.base is not None:
            names.append(f"{name} − {summary.method_label(summary.base)} (95 %)")
            columns.append([TableField(difference_text(entry.paired.get(metric))) for entry in entries])
            if metric == "auprc":
                names.append("Won")
                columns.append([TableField(won_text(entry.paired.get(metric))) for entry in entries])
    methods = [entry.method for entry in entries]
    return ResultTable(summary.cell_label(cell), tuple(names), _table_rows(summary, methods, columns))


def base_table(grid: ExperimentGrid, comparisons: Sequence[BaseComparison], base: str) -> ResultTable:
    """Return the table of comparisons with the base, a row for each method."""
    label = grid.methods[base].label
    columns = (
        "Method",
        "Cells",
        f"above {label}",
        "interval above 0",
        "interval below 0",
        f"in the paper above {label}",
    )
    rows = []
    for counts in comparisons:
        cells = f"{counts.cells}" + (f" ({counts.unfinished} unfinished)" if counts.unfinished else "")
        printed = f"{counts.printed_above} of {counts.printed}" if counts.printed else ""
        texts = (cells, str(counts.above), str(counts.surely_above), str(counts.surely_below), printed)
        method = grid.methods[counts.method]
        rows.append(TableRow(tuple(map(TableField, (method.label, *texts))), method.ours))
    return ResultTable(f"Test AUPRC against {label}", columns, tuple(rows))


def tuning_table(
    grid: ExperimentGrid, published: MethodSummaries, tuned: MethodSummaries, base: str
) -> ResultTable | None:
    """Return the table of differences to the base before and after tuning, a row for each method; the base's is a mean.

    Args:
        grid: All experiments.
        published: Summaries with published settings.
        tuned: Summaries in which each method was tuned, with the same number of configurations.
        base: The method that others are compared with.
    """
    compared = [key for key, entry in tuned.items() if "auprc" in entry.paired]
    if not compared:
        return None
    cells = list(dict.fromkeys(key[:2] for key in compared))
    columns = ["Method"]
    for cell in cells:
        columns += [f"{grid.cell_label(cell)}, published settings", "tuned alike"]
    rows = []
    for name in dict.fromkeys([base, *(key[2] for key in compared)]):
        method = grid.methods[name]
        found = [entries.get((*cell, name)) for cell in cells for entries in (published, tuned)]
        fields = [_mean_or_difference(entry, is_base=name == base) for entry in found]
        rows.append(TableRow(tuple(map(TableField, (method.label, *fields))), method.ours))
    return ResultTable(f"Test AUPRC − {grid.methods[base].label} (95 %)", tuple(columns), tuple(rows))


def _mean_or_difference(entry: MethodSummary | None, *, is_base: bool) -> str:
    """Return the mean of the base, or the difference of another method to it; nothing without runs."""
    if entry is None or not is_base:
        return difference_text(None if entry is None else entry.paired.get("auprc"))
    value = entry.mean_std()
    return "" if value is None else mean_std_text(value)


def _table_rows(
    summary: ItemSummary, methods: Sequence[str], columns: Sequence[Sequence[TableField]]
) -> tuple[TableRow, ...]:
    """Return rows from columns, with the labels of the methods as first column."""
    return tuple(
        TableRow((TableField(method.label), *(column[number] for column in columns)), method.ours)
        for number, method in enumerate(summary.grid.methods[name] for name in methods)
    )


def _comparable_mean(
    entry: MethodSummary, entries: Sequence[MethodSummary], metric: str = "auprc"
) -> tuple[str, float | None]:
    """Return a method with its mean, or with None if another entry has more runs: its own could be the easy ones."""
    most = max(len(each.values) for each in entries)
    value = entry.mean_std(metric)
    return entry.method, value.mean if value is not None and value.runs == most else None


def _best_methods(values: Sequence[tuple[str, float | None]]) -> set[str]:
    """Return the methods with the highest value as printed; none where fewer than two have a value.

    >>> sorted(_best_methods([("a", 0.50004), ("b", 0.5), ("c", 0.4), ("d", None)]))
    ['a', 'b']
    """
    known = {name: round(value, 4) for name, value in values if value is not None}
    return {name for name, value in known.items() if value == max(known.values())} if len(known) > 1 else set()


def _mean_field(entry: MethodSummary, best: bool, metric: str = "auprc", *, remark: bool = False) -> TableField:
    """Return our mean ± standard deviation; with `remark` the number of runs and the mark beside it."""
    value = entry.mean_std(metric)
    if value is None:
        return TableField(runs_text(entry) if remark else NO_VALUE)
    text = ""
    if remark:
        text = f"({runs_text(entry)})" + (f" {_MARKS[entry.against_paper]}" if entry.against_paper else "")
    return TableField(mean_std_text(value), best, text)


def _printed_column(entries: Sequence[MethodSummary]) -> list[TableField]:
    """Return the paper's numbers."""
    best = _best_methods([(entry.method, entry.printed.mean if entry.printed else None) for entry in entries])
    texts = [mean_std_text(entry.printed) if entry.printed else "" for entry in entries]
    return [TableField(text, entry.method in best) for text, entry in zip(texts, entries, strict=True)]
