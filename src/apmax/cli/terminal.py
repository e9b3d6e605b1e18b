"""What the commands show: notes, warnings and tables of figures."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from apmax.workflows import Evaluation, Evaluations


def output() -> Console:
    """Return the console for results."""
    return Console(highlight=False)


def notes(facts: Sequence[str], warnings: Sequence[str]) -> None:
    """Show what was understood, and on the other stream what asks for a look."""
    console = output()
    for fact in facts:
        console.print(Text(fact), soft_wrap=True)
    warn(warnings)


def warn(lines: Sequence[str]) -> None:
    """Show warnings."""
    console = Console(stderr=True, highlight=False)
    for line in lines:
        console.print(Text.assemble(("warning: ", "bold yellow"), line), soft_wrap=True)


def evaluations(parts: Mapping[str, Evaluations]) -> Table:
    """Return a table with a row for each set of rows: AP, AUPRC, AUROC with 95 % intervals, and the no-skill line.

    Of several targets each has a row of its own below the name of the set, and a last one has their mean AP.
    """
    table = Table(box=None, header_style="bold", pad_edge=False, padding=(0, 2, 0, 0))
    for name in ("", "rows", "positive", "AP", "AUPRC", "AUROC", "no skill"):
        # Folded and not cut: two targets may differ in their last letters only.
        table.add_column(name, justify="left" if not name else "right", no_wrap=bool(name), overflow="fold")
    for name, results in parts.items():
        if results.several and name:
            table.add_row(name)
        inset = "  " if name else ""
        for target, part in results.each.items():
            add_rows(table, f"{inset}{target}" if results.several else name, part)
        if results.several:
            table.add_row(f"{inset}mean", "", "", Text(f"{results.mean_ap:.4f}", "bold green"))
    return table


def add_rows(table: Table, name: str, part: Evaluation) -> None:
    """Add two lines: values, and the intervals under them, as 80 columns do not hold them side by side."""
    table.add_row(
        name,
        f"{part.rows:,}",
        f"{part.positives:,}",
        Text(f"{part.ap.estimate:.4f}", "bold green"),
        f"{part.auprc.estimate:.4f}",
        f"{part.auroc.estimate:.4f}",
        f"{part.no_skill:.4f}",
    )
    table.add_row("", "", "95 %", *(Text(interval(i), "dim") for i in (part.ap, part.auprc, part.auroc)), "")


def use_threads(kind: str | None) -> None:
    """Take the number of threads that suits the kind of data, unless OMP_NUM_THREADS says otherwise."""
    import torch

    from apmax.workflows.data_types import KINDS

    threads = KINDS[kind or next(iter(KINDS))].threads if kind in (None, *KINDS) else None
    if threads is not None and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(threads)


def interval(value: Any) -> str:
    """Return an interval's ends."""
    return f"{value.low:.3f}–{value.high:.3f}"
