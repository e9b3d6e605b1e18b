"""`apmax reproduce`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from apmax.reproduce import ExperimentGrid, Item

EXAMPLES = """[bold]Examples[/]

apmax reproduce --list

apmax reproduce table6 --model gine --methods ce,soap,apmax --data-dir data

apmax reproduce table2 --dataset hiv --model gine --methods ce,soap --seeds 3 --budget quick

apmax reproduce table2 --only-tables"""


def reproduce(
    item: Annotated[str | None, typer.Argument(help="A table, figure or ablation; --list names them.")] = None,
    show_list: Annotated[bool, typer.Option("--list", help="List what can be reproduced, and how far it is.")] = False,
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
    only_tables: Annotated[bool, typer.Option("--only-tables", help="Run nothing: write what is there.")] = False,
) -> None:
    """Run a table, figure or ablation of the paper, and set it beside the paper's numbers.

    Runs that are done are not run again; runs that were interrupted go on. Several of these commands may run at once.
    """
    from apmax import validation
    from apmax.cli import following, reproduced, terminal
    from apmax.reproduce import Results, Workspace, code_origin, load_grid, plan_searches

    console = terminal.output()
    if show_list or item is None:
        console.print(listing(load_grid(), Results(out)))
        return
    entry = load_grid().items[validation.choice("item", item, load_grid().items)]
    rows = names(methods) or list(entry.rows)
    for row in rows:
        validation.choice("methods", row, entry.rows)
    count = load_grid().budgets[validation.choice("budget", budget, load_grid().budgets)]
    cells = load_grid().cells(entry, data=names(dataset), models=names(model), splits=names(splits))
    plan = plan_searches(load_grid(), cells, rows, budget=count, seeds=seeds, splits=names(splits))
    results = Results(out)
    if not only_tables:
        workspace = Workspace(work, data_dir, code_origin())
        cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
        following.follow(
            console, plan, results, workspace, workers=workers or max(1, cores // threads), threads=threads
        )
        results.refresh()
    asked = {"cells": cells, "rows": rows, "budget": budget, "seeds": seeds, "splits": names(splits)}
    reproduced.show(console, load_grid(), entry, results, **asked)


def names(text: str | None) -> list[str] | None:
    """Return the words of a list joined by commas, each once, or None where there are none.

    >>> names("ce, soap,ce"), names("")
    (['ce', 'soap'], None)
    """
    words = dict.fromkeys(word.strip() for word in (text or "").split(","))
    return [word for word in words if word] or None


def listing(grid: ExperimentGrid, results: Any) -> Any:
    """Return a table of all items with how many of their runs are done at the smallest budget."""
    from rich.table import Table

    table = Table(box=None, header_style="bold", pad_edge=False)
    for column in ("item", "what", "runs done"):
        table.add_column(column, justify="right" if column == "runs done" else "left")
    for item in grid.items.values():
        done, total = progress_of(grid, item, results)
        table.add_row(item.name, item.title, f"{done} of {total}")
    return table


def progress_of(grid: ExperimentGrid, item: Item, results: Any) -> tuple[int, int]:
    """Return how many runs of an item are done, and how many it has."""
    from apmax.reproduce import plan_searches

    counts = [search.count(results.lines) for search in plan_searches(grid, grid.cells(item), item.rows)]
    return sum(done for done, _ in counts), sum(total for _, total in counts)
