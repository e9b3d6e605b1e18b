"""Progress of `apmax reproduce`: a bar for all runs, one for each worker, and a line for each finished run."""

from __future__ import annotations

import signal
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from apmax.reproduce import Results, Search, Workspace


def show_progress(
    console: Console, plan: list[Search], results: Results, workspace: Workspace, *, workers: int, threads: int
) -> None:
    """Run the plan and show its progress; without a terminal, only the lines of finished runs."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from apmax.cli._console import sigterm_handled
    from apmax.reproduce import run_plan

    label = TextColumn("{task.description}", markup=False)
    columns = (label, BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(True))
    known = set(results.lines)
    wanted = {(search.data, search.model) for search in plan}  # another command may be filling other cells
    bars = Progress(*columns, console=console, refresh_per_second=2, disable=not console.is_terminal)
    # As Ctrl-C, so that the workers write their checkpoints.
    with sigterm_handled(signal.default_int_handler), bars:
        whole = bars.add_task("runs", total=None)
        each = [bars.add_task("", visible=False) for _ in range(workers)]
        for state in run_plan(plan, results, workspace, workers=workers, threads=threads):
            bars.update(whole, completed=state.done, total=state.total)
            for number, progress in state.workers.items():
                bars.update(
                    each[number],
                    description=progress.label or "",
                    completed=progress.epoch,
                    total=progress.most or None,
                    visible=progress.label is not None,
                )
            for key in [key for key in results.lines if key not in known]:
                known.add(key)
                line = results.lines[key]
                if (line["data"], line["model"]) in wanted:
                    console.print(f"{state.done} of {state.total}: {run_line(line)}", soft_wrap=True)


def run_line(line: Mapping[str, Any]) -> str:
    """Return the result of a run in one line.

    >>> place = {"data": "hiv", "model": "gine", "method": "ce", "split": None, "seed": 0, "candidate": 2}
    >>> run_line({**place, "valid": {"ap": 0.3}, "test": {"ap": 0.25, "auprc": 0.24}, "epochs": 9, "seconds": 61})
    'hiv gine ce #2 seed 0: valid AP 0.300, test AP 0.250, AUPRC 0.240 (9 epochs, 61 s)'
    """
    from apmax.reproduce.plan import run_label

    name = run_label(line)
    if line["test"] is None:
        return f"{name}: {line['diverged']}"
    spent = f" ({line['epochs']} epochs, {line['seconds']:.0f} s)" if "epochs" in line else ""
    values = f"valid AP {line['valid']['ap']:.3f}, test AP {line['test']['ap']:.3f}, AUPRC {line['test']['auprc']:.3f}"
    return f"{name}: {values}{spent}"
