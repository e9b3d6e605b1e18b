"""`apmax demo`."""

from __future__ import annotations

from pathlib import Path
from statistics import mean, stdev
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from rich.table import Table

EXAMPLES = """[bold]Examples[/]

apmax demo

apmax demo --quick"""


def demo_command(
    quick: Annotated[bool, typer.Option("--quick", help="Two cells of each task: a few seconds.")] = False,
    out: Annotated[Path, typer.Option(metavar="DIR", help="Folder for the picture and the report.")] = Path("out"),
) -> None:
    """Compare training methods on rare digits and rare tumours, paired over draws of the data (cells).

    Prints test AP with the paired differences to cross-entropy and their intervals; draws the precision–recall curves
    and writes a report, an HTML page with the same numbers and a threshold explorer.
    """
    import torch
    from rich.progress import track

    from apmax import report
    from apmax.cli import _console
    from apmax.metrics import average_precision, precision_recall_curve
    from apmax.workflows.demo import DEMO_METHODS, DEMO_TASKS, draw_demo_curves

    # The network is so small that a second thread costs more than it brings.
    torch.set_num_threads(1)
    console = _console.output()
    results: dict[str, dict[str, list[float]]] = {}
    curves: dict[str, dict[str, list[Any]]] = {}
    first: dict[str, report.DemoScores] = {}
    for task_name, task in DEMO_TASKS.items():
        results[task_name] = {name: [] for name in DEMO_METHODS}
        curves[task_name] = {name: [] for name in DEMO_METHODS}
        cells = task.cells(quick)
        for seed, make in enumerate(
            track(cells, description=f"Training: {task.title}", console=console, transient=True)
        ):
            cell = make()
            cell_scores = {name: method(cell, seed) for name, method in DEMO_METHODS.items()}
            first.setdefault(task_name, report.DemoScores(cell.test[1], cell_scores))
            for name, scores in cell_scores.items():
                results[task_name][name].append(average_precision(scores, cell.test[1]).item())
                curves[task_name][name].append(precision_recall_curve(scores, cell.test[1])[:2])
        console.print(_comparison_table(task.title, task.prevalence, results[task_name]))
        console.print()
    picture = out / "demo_pr_curves.png"
    draw_demo_curves(picture, curves)
    report.write_report(report.report_demo(results, first), out / "demo_report.html")
    console.print(f"Precision–recall curves: {picture}", soft_wrap=True)
    console.print(f"Report: {out / 'demo_report.html'}", soft_wrap=True)


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
