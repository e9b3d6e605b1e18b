"""`apmax demo`."""

from __future__ import annotations

import shlex
from itertools import chain, count
from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import typer

from apmax.cli.report import write_training_report

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = """[bold]Examples[/]

apmax demo

apmax demo --quick"""


def demo_command(
    quick: Annotated[bool, typer.Option("--quick", help="A small committee and two cells of each task.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for files and pictures.")] = Path("out"),
) -> None:
    """Train a committee on rare tumours, then compare training methods on rare digits and rare tumours.

    The comparison is paired over draws of the data (cells): test AP, the differences to cross-entropy with intervals,
    and the precision–recall curves.
    """
    from rich.progress import track

    from apmax import workflows
    from apmax.cli import _console
    from apmax.data.parallel import ordered, worker_processes
    from apmax.workflows.demo import DEMO_METHODS, DEMO_TASKS, draw_demo_curves, run_demo_cell, write_demo_table

    console = _console.output()
    train, test = write_demo_table(out)
    folder = _new_folder(out / "model")
    members = ["gbdt", "linear", "linear_ce"] if quick else []
    command = ["apmax", "train", train, "--target", "malignant", "--test", test, "--out", folder]
    command += [word for member in members for word in ("--member", member)]
    console.print(f"$ {shlex.join(map(str, command))}", soft_wrap=True)
    job = {
        "data": {"train": str(train), "target": "malignant", "test": str(test)},
        "committee": {"members": members},
    }
    notes = _console.Notes()
    result = workflows.train_job(job, out=folder, progress=True, notify=notes.show)
    _console.show_training(result, console)
    page = write_training_report(result, notes)
    curves: dict[str, dict[str, list[Any]]] = {}
    for task_name, task in DEMO_TASKS.items():
        cells = [(task_name, number, quick) for number in range(len(task.cells(quick)))]
        found = list(
            track(
                ordered(run_demo_cell, cells, workers=worker_processes()),
                description=f"Training: {task.title}",
                total=len(cells),
                console=console,
                transient=True,
            )
        )
        results = {name: [cell[name][0] for cell in found] for name in DEMO_METHODS}
        curves[task_name] = {name: [cell[name][1] for cell in found] for name in DEMO_METHODS}
        _console.show_table(_comparison_table(task.title, task.prevalence, results), console)
        console.print()
    picture = out / "demo_pr_curves.png"
    draw_demo_curves(picture, curves)
    console.print(f"Precision–recall curves: {picture}", soft_wrap=True)
    if page is not None:
        console.print(f"Report of the committee: {page}", soft_wrap=True)


def _new_folder(path: Path) -> Path:
    """Return the path, or with a number the first one that does not exist."""
    numbered = (path.with_name(f"{path.name}-{number}") for number in count(2))
    return next(each for each in chain([path], numbered) if not each.exists())


def _comparison_table(title: str, prevalence: float, results: dict[str, list[float]]) -> Table:
    """Return a table of test AP by method, with the paired difference to cross-entropy."""
    from rich.table import Table

    from apmax.metrics import compare
    from apmax.workflows.demo import BASE_METHOD

    base = results[BASE_METHOD]
    table = Table(title=f"Test average precision: {title}, {len(base)} cells (no skill: {prevalence:.2f})")
    for column in ("method", "mean ± std", "difference (95 %)", "cells won"):
        table.add_column(column, justify="left" if column == "method" else "right", no_wrap=True)
    for name, values in results.items():
        row = [name, f"{mean(values):.3f} ± {stdev(values):.3f}", "", ""]
        if name != BASE_METHOD:
            paired = compare(values, base)
            row[2] = f"{paired.difference:+.3f} ({paired.low:+.3f} to {paired.high:+.3f})"
            row[3] = f"{paired.won} of {paired.cells}"
        table.add_row(*row)
    return table
