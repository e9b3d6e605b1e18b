"""What `apmax reproduce` shows and writes when the runs are done."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from apmax.reproduce import ExperimentGrid, Item, Results
    from apmax.reproduce.pages import ResultTable

WIDE = 150
"""Columns of a terminal from which AP fits beside AUPRC."""


def show(console: Console, grid: ExperimentGrid, item: Item, results: Results, **asked: Any) -> None:
    """Print the tables of what was asked, and write the whole item's files.

    Args:
        console: Where to print.
        grid: All experiments.
        item: The table or figure.
        results: What is known.
        asked: The part that is printed: `cells`, `rows`, `budget`, `seeds`, `splits` as in `summarise_item`.
    """
    from apmax.reproduce.pages import cell_table, opening_lines, summarise_item, table_notes, write_item_files

    part = summarise_item(grid, item, results.lines, **asked)
    console.print(Text(item.title, "bold"))
    for line in opening_lines(part):
        console.print(Text(line))
    for cell in part.started_cells:
        console.print()
        console.print(table(cell_table(part, cell), wide=console.width >= WIDE))
    if part.started_cells:
        console.print()
        for line in table_notes(part):
            console.print(Text(f"· {line}", "dim"))
    # The files are of the whole item: a command about a part of it must not take the rest away.
    whole = summarise_item(grid, item, results.lines, budget=asked["budget"], seeds=asked["seeds"])
    console.print(Text(files(write_item_files(whole, results.folder, results.histories()))), soft_wrap=True)


def table(block: ResultTable, *, wide: bool) -> Table:
    """Return a table for the terminal, without AP where there is no room for it."""
    shown = [number for number, name in enumerate(block.columns) if wide or not name.startswith("AP")]
    result = Table(title=block.title, title_justify="left", title_style="bold", box=None, header_style="bold")
    for number in shown:
        name = folded(block.columns[number], wide=wide)
        result.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    for number, row in enumerate(block.rows):
        if block.starts_ours(number):
            result.add_row(Text("ours", "italic dim"))
        named, *fields = (row.fields[at] for at in shown)
        texts = [Text(folded(field.full_text, wide=wide), "bold green" if field.best else "") for field in fields]
        result.add_row(Text(named.text), *texts)
    return result


def folded(text: str, *, wide: bool) -> str:
    """Return text with deviations and intervals under the rest, where there is no room beside it."""
    return text if wide else text.replace(" (", "\n(").replace(" ±", "\n±").replace(", ", ",\n")


def files(paths: Sequence[Path]) -> str:
    """Return one line that says what was written where.

    >>> files([Path("results/table1/table1.md"), Path("results/table1/table1.png")])
    'Written: results/table1/table1.md, .png'
    """
    first, *others = paths
    ends = [path.suffix if path.with_suffix("") == first.with_suffix("") else path.name for path in others]
    return f"Written: {', '.join([first.as_posix(), *ends])}"
