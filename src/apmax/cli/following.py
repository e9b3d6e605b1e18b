"""How the runs of a plan go: a bar for all of them, one for each worker, and a line for each that is done."""

from __future__ import annotations

import signal
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rich.console import Console

    from apmax.reproduce import Results, Search, Workspace


def follow(
    console: Console, plan: list[Search], results: Results, workspace: Workspace, *, workers: int, threads: int
) -> None:
    """Run the plan and show how it goes; where there is no terminal, only the lines of what is done."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from apmax.reproduce import run_plan

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn(True))
    known = set(results.lines)
    wanted = {(search.data, search.model) for search in plan}  # another command may be filling other cells
    bars = Progress(*columns, console=console, refresh_per_second=2, disable=not console.is_terminal)
    with terminated_like_interrupted(), bars:
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
                    console.print(f"{state.done} of {state.total}: {finished(line)}", soft_wrap=True)


@contextmanager
def terminated_like_interrupted() -> Iterator[None]:
    """Let SIGTERM end what is within as Ctrl-C does: the workers then write their checkpoints."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before or signal.SIG_DFL)  # None: set by other than Python


def finished(line: Mapping[str, Any]) -> str:
    """Say in one line what became of a run.

    >>> place = {"data": "hiv", "model": "gine", "method": "ce", "split": None, "seed": 0, "candidate": 2}
    >>> finished({**place, "valid": {"ap": 0.3}, "test": {"ap": 0.25, "auprc": 0.24}, "epochs": 9, "seconds": 61})
    'hiv gine ce #2 seed 0: valid AP 0.300, test AP 0.250, AUPRC 0.240 (9 epochs, 61 s)'
    """
    words = [line["data"], line["split"], line["model"], line["method"]]
    words += [f"#{line['candidate']}" if line["candidate"] else None, f"seed {line['seed']}"]
    name = " ".join(str(word) for word in words if word)
    if line["test"] is None:
        return f"{name}: {line['diverged']}"
    spent = f" ({line['epochs']} epochs, {line['seconds']:.0f} s)" if "epochs" in line else ""
    values = f"valid AP {line['valid']['ap']:.3f}, test AP {line['test']['ap']:.3f}, AUPRC {line['test']['auprc']:.3f}"
    return f"{name}: {values}{spent}"
