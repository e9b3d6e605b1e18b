"""Worker processes that run a plan: each claims a run, finishes it, and takes the next."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import time
import traceback
import warnings
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from apmax.folders import write_atomic
from apmax.reproduce.plan import ResultLines, Search, Trial, next_trials
from apmax.reproduce.results import Results, claimed
from apmax.reproduce.run import (
    Workspace,
    diverged_line,
    epoch_history,
    fold_scores,
    is_missing_files,
    is_traced,
    remove_unneeded_files,
    run_trial,
)

_WAIT_SECONDS = 1.0
_LISTEN_SECONDS = 0.5
_TRACEBACK_FILE = "traceback.txt"


class WorkerProgress(NamedTuple):
    """The progress of a worker.

    Args:
        label: The run's name; None when the worker has finished.
        epoch: Epochs done.
        most: Epochs at most; 0 before the first.
    """

    label: str | None
    epoch: int = 0
    most: int = 0


ReportProgress = Callable[[WorkerProgress], None]


class PlanState(NamedTuple):
    """The numbers of finished runs and of all runs of a plan, and the progress of each worker."""

    done: int
    total: int
    workers: dict[int, WorkerProgress]


class WorkerError(RuntimeError):
    """A run failed for a reason that affects the other runs too."""


def run_plan(
    plan: Sequence[Search],
    results: Results,
    workspace: Workspace,
    *,
    workers: int,
    threads: int = 1,
) -> Iterator[PlanState]:
    """Run a plan in several processes, and yield its state whenever that changes.

    Leaving the loop, or an interrupt, stops the workers after they have written their checkpoints.

    Args:
        plan: The searches to complete.
        results: The results so far; new ones are added.
        workspace: The folders of the runs.
        workers: The number of processes.
        threads: The number of threads of each process.

    Raises:
        WorkerError: A run failed, or a worker was stopped from outside.
    """
    context = multiprocessing.get_context("spawn")
    messages: Any = context.Queue()
    processes = [
        context.Process(target=_worker_process, args=(number, plan, results.folder, workspace, threads, messages))
        for number in range(workers)
    ]
    progress = {number: WorkerProgress(None) for number in range(workers)}
    try:
        for process in processes:
            process.start()
        yield _plan_state(plan, results, progress)
        running = set(range(workers))
        while running:
            try:
                number, message = messages.get(timeout=_LISTEN_SECONDS)
            except queue.Empty:
                ended = {n for n in running if not processes[n].is_alive()}
                if any(processes[n].exitcode for n in ended):
                    raise WorkerError("a worker process was killed; run the command again to continue") from None
                running -= ended
                continue
            if isinstance(message, str):
                raise WorkerError(message)
            progress[number] = message
            results.refresh()
            yield _plan_state(plan, results, progress)
            if message.label is None:
                running.discard(number)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            if process.pid is not None:
                process.join()


def _plan_state(plan: Sequence[Search], results: Results, progress: dict[int, WorkerProgress]) -> PlanState:
    """Return the state of a plan."""
    counts = [search.count(results.lines) for search in plan]
    return PlanState(sum(done for done, _ in counts), sum(total for _, total in counts), dict(progress))


def _worker_process(
    number: int, plan: Sequence[Search], folder: Path, workspace: Workspace, threads: int, messages: Any
) -> None:
    """Run a worker in its own process, and send its progress, or the reason of a failure, to the parent.

    SIGTERM ends it: between two runs at once, within a run after a checkpoint is saved. The exit code is the shell's
    for SIGTERM, so that the worker does not count as finished.
    """
    import torch

    torch.set_num_threads(threads)
    # Gradients of saturated scores are denormal numbers, on which processors are many times slower than on zeros.
    torch.set_flush_denormal(True)
    # The grid has such surrogates on purpose.
    warnings.filterwarnings("ignore", message="surrogate .* measures average precision", category=UserWarning)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the parent, which ends the workers by SIGTERM
    parent = multiprocessing.parent_process()
    label: str | None = None

    def report(progress: WorkerProgress) -> None:
        nonlocal label
        label = progress.label
        if parent is not None and not parent.is_alive():
            # A parent that was killed cannot end its workers.
            os.kill(os.getpid(), signal.SIGTERM)
        messages.put((number, progress))

    try:
        run_worker(plan, Results(folder), workspace, report=report)
    except Exception as error:
        messages.put((number, _failure_message(error, label, workspace.folder)))


def _failure_message(error: Exception, label: str | None, folder: Path) -> str:
    """Return the failed run and the reason in one line; the traceback of an unexpected error is kept in a file."""
    text = " ".join(f"{f'{label}: ' if label else ''}{type(error).__name__}: {error}".split())
    if isinstance(error, (FileNotFoundError, ImportError)):
        return text
    path = folder / _TRACEBACK_FILE
    write_atomic(path, "".join(traceback.format_exception(error)).encode())
    return f"{text} (the traceback is in {path})"


def run_worker(plan: Sequence[Search], results: Results, workspace: Workspace, *, report: ReportProgress) -> None:
    """Run the trials of a plan that have no result, until none is left; runs claimed by other processes are skipped.

    Args:
        plan: The searches to complete.
        results: The results so far; new ones are added.
        workspace: The folders of the runs.
        report: Called with the progress.
    """
    while True:
        results.refresh()
        ran, any_left = False, False
        for trial in _runnable_trials(plan, results, workspace):
            any_left = True
            if run_claimed(trial, results, workspace, report=report):
                ran = True
                break
        if not any_left:
            report(WorkerProgress(None))
            return
        if not ran:
            # All that is left is claimed by other processes, or depends on their runs.
            time.sleep(_WAIT_SECONDS)


def _runnable_trials(plan: Sequence[Search], results: Results, workspace: Workspace) -> Iterator[Trial]:
    """Yield the trials that can run now; in place of one that lacks prerequisites, these."""
    seen: set[str] = set()
    for trial in next_trials(plan, results.lines):
        if trial.key in seen:
            continue
        seen.add(trial.key)
        if _diverged_prerequisite(trial, results.lines):
            yield trial
        else:
            yield from missing_prerequisites(trial, workspace) or [trial]


def missing_prerequisites(trial: Trial, workspace: Workspace) -> list[Trial]:
    """Return the prerequisites whose weights or scores are not in their folders."""
    return [each for each in trial.prerequisites if is_missing_files(each, workspace, weights=each is trial.first)]


def _diverged_prerequisite(trial: Trial, lines: ResultLines) -> str | None:
    """Return a message if a prerequisite diverged, so that the trial can have no value; else None."""
    for each in trial.prerequisites:
        line = lines.get(each.key)
        if line is not None and line["test"] is None:
            return f"{each.label}, which it begins from, diverged: {line['diverged']}"
    return None


def run_claimed(trial: Trial, results: Results, workspace: Workspace, *, report: ReportProgress) -> bool:
    """Run a trial unless another process has claimed it; return whether this process had the claim."""
    with claimed(workspace.folder / "claims" / trial.key) as ours:
        if not ours:
            return False
        results.refresh()
        known = results.get(trial.key)
        # A run with a result is repeated where other runs need files of it that are missing, as in a fresh copy of
        # the results.
        weights = trial.method == "ce"
        if known is not None and (known["test"] is None or not is_missing_files(trial, workspace, weights=weights)):
            return True
        report(WorkerProgress(trial.label))
        reason = _diverged_prerequisite(trial, results.lines)
        if reason is not None:
            results.add(diverged_line(trial, workspace, reason))
            return True
        line = run_trial(
            trial,
            workspace,
            trace=is_traced(trial),
            report=lambda epoch, most: report(WorkerProgress(trial.label, epoch, most)),
        )
        results.refresh()
        # A command with another work folder does not see our claims, and may have finished the same run first.
        if results.get(trial.key) is None:
            scores = fold_scores(trial, workspace) if line["test"] is not None else None
            results.add(line, epoch_history(trial, workspace), scores)
        remove_unneeded_files(trial, workspace)
    return True
