"""`apmax reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from apmax.reproduce import ExperimentGrid, Item, Results
    from apmax.reproduce.pages import ResultTable

EXAMPLES = """[bold]Examples[/]

apmax reproduce --list

apmax reproduce table6 --model gine --methods ce,soap,apmax --data-dir data

apmax reproduce table2 --dataset hiv --model gine --methods ce,soap --seeds 3 --budget quick

apmax reproduce table2 --only-tables"""

WIDE = 150
"""Columns of a terminal from which AP fits beside AUPRC."""


def reproduce_command(
    item: Annotated[str | None, typer.Argument(help="A table, figure or ablation; --list names them.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List what can be reproduced, and its progress.")] = False,
    dataset: Annotated[str | None, typer.Option(help="Only these data sets, joined by commas.")] = None,
    model: Annotated[str | None, typer.Option(help="Only these networks, joined by commas.")] = None,
    methods: Annotated[str | None, typer.Option(help="Only these rows, joined by commas.")] = None,
    splits: Annotated[str | None, typer.Option(help="Only these splits, joined by commas.")] = None,
    seeds: Annotated[int | None, typer.Option(min=1, help="Seeds per split; by default as in the grid.")] = None,
    budget: Annotated[
        str, typer.Option(help="Configurations per method: published (1), quick (4), paper (36).")
    ] = "published",
    workers: Annotated[int | None, typer.Option(min=1, help="Processes; by default one per core.")] = None,
    threads: Annotated[int, typer.Option(min=1, help="Threads of each process.")] = 1,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Where results and tables go.")] = Path("results"),
    work: Annotated[Path, typer.Option(metavar="DIR", help="Where runs keep checkpoints.")] = Path("out", "reproduce"),
    data_dir: Annotated[Path | None, typer.Option(metavar="DIR", help="The data sets; else APMAX_DATA.")] = None,
    only_tables: Annotated[bool, typer.Option("--only-tables", help="Run nothing: write tables only.")] = False,
) -> None:
    """Run a table, figure or ablation of the paper, and compare it with the paper's numbers.

    Finished runs are not repeated, and interrupted ones are resumed. Several of these commands may run at once.
    """
    from apmax import validation
    from apmax.cli import _console, progress
    from apmax.data.parallel import available_cores
    from apmax.reproduce import Results, Workspace, code_origin, load_grid, plan_searches

    console, grid = _console.output(), load_grid()
    if show_list or item is None:
        console.print(_item_list(grid, Results(out)))
        return
    entry = grid.items[validation.choice("item", item, grid.items)]
    rows = split_names(methods) or list(entry.rows)
    for row in rows:
        validation.choice("methods", row, entry.rows)
    count = grid.budgets[validation.choice("budget", budget, grid.budgets)]
    cells = grid.cells(entry, data=split_names(dataset), models=split_names(model), splits=split_names(splits))
    plan = plan_searches(grid, cells, rows, budget=count, seeds=seeds, splits=split_names(splits))
    results = Results(out)
    if not only_tables:
        workspace = Workspace(work, data_dir, code_origin())
        workers = workers or max(1, available_cores() // threads)
        progress.show_progress(console, plan, results, workspace, workers=workers, threads=threads)
        results.refresh()
    selection = {"cells": cells, "rows": rows, "budget": budget, "seeds": seeds, "splits": split_names(splits)}
    _show_results(console, grid, entry, results, selection)


def split_names(text: str | None) -> list[str] | None:
    """Return the words of a list joined by commas, each once, or None where there are none.

    >>> split_names("ce, soap,ce"), split_names("")
    (['ce', 'soap'], None)
    """
    words = dict.fromkeys(word.strip() for word in (text or "").split(","))
    return [word for word in words if word] or None


def _item_list(grid: ExperimentGrid, results: Results) -> Table:
    """Return a table of all items with the number of their finished runs at the smallest budget."""
    from rich.table import Table

    from apmax.reproduce import plan_searches

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("item", "what", "runs done"):
        table.add_column(column, justify="right" if column == "runs done" else "left")
    for item in grid.items.values():
        counts = [search.count(results.lines) for search in plan_searches(grid, grid.cells(item), item.rows)]
        table.add_row(item.name, item.title, f"{sum(done for done, _ in counts)} of {sum(n for _, n in counts)}")
    return table


def _show_results(
    console: Console, grid: ExperimentGrid, item: Item, results: Results, selection: dict[str, Any]
) -> None:
    """Print the tables of the selected part of an item, and write the files of the whole item.

    Args:
        console: Where to print.
        grid: All experiments.
        item: The table or figure.
        results: Finished runs.
        selection: `cells`, `rows`, `budget`, `seeds`, `splits` as in `summarise_item`.
    """
    from rich.text import Text

    from apmax.reproduce.pages import cell_table, opening_lines, summarise_item, table_notes, write_item_files

    part = summarise_item(grid, item, results.lines, **selection)
    console.print(Text(item.title, "bold"))
    for line in opening_lines(part):
        console.print(Text(line))
    for cell in part.started_cells:
        console.print()
        console.print(_terminal_table(cell_table(part, cell), wide=console.width >= WIDE))
    if part.started_cells:
        console.print()
        for line in table_notes(part):
            console.print(Text(f"· {line}", "dim"))
    # The files are of the whole item: a command about a part of it must not remove the rest.
    whole = summarise_item(grid, item, results.lines, budget=selection["budget"], seeds=selection["seeds"])
    files = write_item_files(whole, results.folder, results.histories())
    console.print(Text(_files_text(files)), soft_wrap=True)


def _terminal_table(table: ResultTable, *, wide: bool) -> Table:
    """Return a table for the terminal, without AP where there is no room for it."""
    from rich.table import Table
    from rich.text import Text

    shown = [number for number, name in enumerate(table.columns) if wide or not name.startswith("AP")]
    result = Table(title=table.title, title_justify="left", title_style="bold", box=None, header_style="bold")
    for number in shown:
        name = _fold(table.columns[number], wide=wide)
        result.add_column(name, justify="right" if number else "left", no_wrap=number > 0)
    for number, row in enumerate(table.rows):
        if table.starts_ours(number):
            result.add_row(Text("ours", "italic dim"))
        name_field, *fields = (row.fields[column] for column in shown)
        texts = [Text(_fold(field.full_text, wide=wide), "bold green" if field.best else "") for field in fields]
        result.add_row(Text(name_field.text), *texts)
    return result


def _fold(text: str, *, wide: bool) -> str:
    """Return text with deviations and intervals in lines of their own, where there is no room beside the value."""
    return text if wide else text.replace(" (", "\n(").replace(" ±", "\n±").replace(", ", ",\n")


def _files_text(paths: Sequence[Path]) -> str:
    """Return one line that names the written files.

    >>> _files_text([Path("results/table1/table1.md"), Path("results/table1/table1.png")])
    'Written: results/table1/table1.md, .png'
    """
    first, *others = paths
    ends = [path.suffix if path.with_suffix("") == first.with_suffix("") else path.name for path in others]
    return f"Written: {', '.join([first.as_posix(), *ends])}"
