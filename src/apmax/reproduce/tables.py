"""How an item's numbers are laid out: per data set a table as the paper has it, and one for each network with all."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from apmax.metrics import Paired
from apmax.reproduce.notes import NONE, notes, tried
from apmax.reproduce.paper import Printed
from apmax.reproduce.summary import METRICS, Cell, Entry, Spread, Summary, name_of

MARKS = {"within": "≈", "above": "▲", "below": "▼"}


@dataclass(frozen=True)
class Field:
    """One cell of a table: its text, whether it is the best of its column, and what is said of it in a low voice."""

    text: str
    best: bool = False
    aside: str = ""


@dataclass(frozen=True)
class Row:
    """A row of a table; `ours` are those that the paper does not have."""

    fields: tuple[Field, ...]
    ours: bool = False


@dataclass(frozen=True)
class Block:
    """A table with its heading; the first column names the row."""

    title: str
    columns: tuple[str, ...]
    rows: tuple[Row, ...]


@dataclass(frozen=True)
class Section:
    """A data set: the networks side by side, then each one with all that is known."""

    title: str
    blocks: tuple[Block, ...]


@dataclass(frozen=True)
class Document:
    """An item, ready to be written in any format."""

    title: str
    lead: tuple[str, ...]
    sections: tuple[Section, ...]
    notes: tuple[str, ...]


def document(summary: Summary) -> Document:
    """Return an item's tables: of the data sets of which some run has ended; the others are named."""
    sections = []
    for data in dict.fromkeys(data for data, _ in summary.begun):
        cells = [cell for cell in summary.cells if cell[0] == data]
        shown = [cell for cell in cells if cell in summary.begun]
        beside = overview(summary, cells)
        blocks = [*([beside] if beside else []), *(detail(summary, cell) for cell in shown)]
        sections.append(Section(summary.grid.data[data].label, tuple(blocks)))
    return Document(summary.item.title, tuple(lead(summary)), tuple(sections), tuple(notes(summary)))


def lead(summary: Summary) -> list[str]:
    """Return what was run, and what was not."""
    done, total = summary.counts
    said = [f"{done} of {total} runs, budget {summary.budget}: {tried(summary)}."]
    missing = [name_of(summary, cell) for cell in summary.cells if cell not in summary.begun]
    if missing:
        said.append(f"Not run yet: {'; '.join(missing)}.")
    return said


def overview(summary: Summary, cells: Sequence[Cell]) -> Block | None:
    """Return the table that stands in the paper: a row for each method, and for each network ours and the paper's.

    None where that would be one column, which the network's own table has too.
    """
    with_paper = [cell for cell in cells if any(entry.printed for entry in summary.of(cell))]
    with_ours = [cell for cell in cells if cell in summary.begun]
    columns: list[str] = ["Method"]
    parts: list[list[Field]] = []
    for cell in cells:
        label, entries = summary.grid.models[cell[1]].label, summary.of(cell)
        if cell in with_ours:
            columns.append(label)
            bold = best([comparable(entry, entries) for entry in entries])
            parts.append([own_field(entry, entry.method in bold, mark=True) for entry in entries])
        if cell in with_paper:
            columns.append(f"{label}, paper")
            bold = best([(entry.method, entry.printed.mean if entry.printed else None) for entry in entries])
            parts.append([printed_field(entry.printed, entry.method in bold) for entry in entries])
    if len(parts) < 2:
        return None
    title = "Test AUPRC, networks side by side"
    return Block(title, tuple(columns), rows_of(summary, summary.rows, parts))


def detail(summary: Summary, cell: Cell) -> Block:
    """Return all that is known of one data set and network; a row of which nothing is known is left out."""
    entries = [entry for entry in summary.of(cell) if entry.done or entry.tuning or entry.printed]
    has_paper = any(entry.printed for entry in entries)
    columns, parts = ["Method", "Runs"], [[Field(runs(entry)) for entry in entries]]
    for metric, name in METRICS.items():
        bold = best([comparable(entry, entries, metric) for entry in entries])
        columns.append(name)
        parts.append([own_field(entry, entry.method in bold, metric) for entry in entries])
        if metric == "auprc" and has_paper:
            bold = best([(entry.method, entry.printed.mean if entry.printed else None) for entry in entries])
            columns += ["Paper", ""]
            parts.append([printed_field(entry.printed, entry.method in bold) for entry in entries])
            parts.append([Field(MARKS[entry.standing] if entry.standing else "") for entry in entries])
        if summary.base is not None:
            base = summary.grid.methods[summary.base].label
            columns.append(f"{name} − {base} (95 %)")
            parts.append([Field(difference(entry.paired.get(metric))) for entry in entries])
            if metric == "auprc":
                columns.append("Won")
                parts.append([Field(won(entry.paired.get(metric))) for entry in entries])
    methods = [entry.method for entry in entries]
    return Block(name_of(summary, cell), tuple(columns), rows_of(summary, methods, parts))


def rows_of(summary: Summary, methods: Sequence[str], columns: Sequence[Sequence[Field]]) -> tuple[Row, ...]:
    """Return rows from columns, with the methods' names before them."""
    return tuple(
        Row((Field(method.label), *(column[number] for column in columns)), method.ours)
        for number, method in enumerate(summary.grid.methods[name] for name in methods)
    )


def comparable(entry: Entry, entries: Sequence[Entry], metric: str = "auprc") -> tuple[str, float | None]:
    """Return a method and its mean if it has as many values as any beside it: fewer could be the easy ones."""
    most = max(len(each.values) for each in entries)
    spread = entry.spread(metric)
    return entry.method, spread.mean if spread is not None and spread.runs == most else None


def best(values: Sequence[tuple[str, float | None]]) -> set[str]:
    """Return the methods with the highest value as it is printed; none where there is nothing to compare.

    >>> sorted(best([("a", 0.50004), ("b", 0.5), ("c", 0.4), ("d", None)]))
    ['a', 'b']
    """
    known = {name: round(value, 4) for name, value in values if value is not None}
    return {name for name, value in known.items() if value == max(known.values())} if len(known) > 1 else set()


def own_field(entry: Entry, is_best: bool, metric: str = "auprc", *, mark: bool = False) -> Field:
    """Return our mean ± deviation; in a table without a column for them, marks and runs stand beside it."""
    spread = entry.spread(metric)
    if spread is None:
        return Field(runs(entry) if mark else NONE)
    aside = ""
    if mark:
        aside = f"({runs(entry)})" + (f" {MARKS[entry.standing]}" if entry.standing else "")
    return Field(value(spread), is_best, aside)


def printed_field(printed: Printed | None, is_best: bool) -> Field:
    """Return the paper's mean ± deviation."""
    return Field(f"{printed.mean:.4f} ± {printed.std:.4f}", is_best) if printed else Field("")


def value(spread: Spread) -> str:
    """Return mean ± deviation as text.

    >>> value(Spread(0.5, 0.01234, 3)), value(Spread(0.5, None, 1))
    ('0.5000 ± 0.0123', '0.5000')
    """
    return f"{spread.mean:.4f}" + ("" if spread.std is None else f" ± {spread.std:.4f}")


def runs(entry: Entry) -> str:
    """Return how many runs have ended, of how many where some are missing, and how many of them diverged."""
    if not entry.done:
        return f"{NONE} (tuning: {entry.tuning[0]} of {entry.tuning[1]})" if entry.tuning else NONE
    counted = f"{entry.done}" if entry.done == entry.total else f"{entry.done} of {entry.total}"
    return counted + (f", {entry.diverged} diverged" if entry.diverged else "")


def difference(paired: Paired | None) -> str:
    """Return a paired difference with its interval as text.

    >>> difference(Paired(0.1, -0.05, 0.25, 2, 3)), difference(Paired(0.1, math.nan, math.nan, 1, 1))
    ('+0.1000 (−0.0500 to +0.2500)', '+0.1000 (one pair)')
    """
    if paired is None:
        return ""
    ends = "one pair" if math.isnan(paired.low) else f"{signed(paired.low)} to {signed(paired.high)}"
    return f"{signed(paired.difference)} ({ends})"


def signed(number: float) -> str:
    """Return a number with its sign, a true minus for the negative ones."""
    return f"{number:+.4f}".replace("-", "−")


def won(paired: Paired | None) -> str:
    """Return in how many pairs the difference is above zero, and in how many there is none.

    >>> won(Paired(0.1, -0.05, 0.25, 2, 3)), won(Paired(0.1, -0.05, 0.25, 2, 5, equal=1))
    ('2 of 3', '2 of 5, equal in 1')
    """
    if paired is None:
        return ""
    return f"{paired.won} of {paired.cells}" + (f", equal in {paired.equal}" if paired.equal else "")


def text_of(field: Field) -> str:
    """Return a field's text with what stands beside it."""
    return f"{field.text} {field.aside}".rstrip()


def is_separated(block: Block, number: int) -> bool:
    """Tell whether a line stands before this row: between the paper's rows and ours."""
    return number > 0 and block.rows[number].ours and not block.rows[number - 1].ours
