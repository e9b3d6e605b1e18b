"""Runs a plan in several processes, each with a share of the cores, and tells the caller how it goes."""

from __future__ import annotations

import multiprocessing
import os
import queue
import signal
import subprocess
import traceback
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from apmax import __version__
from apmax.reproduce.plan import Search
from apmax.reproduce.results import Results
from apmax.reproduce.running import Place
from apmax.reproduce.working import Progress, work
from apmax.train import write_atomic

LISTEN_SECONDS = 0.5
TRACEBACK = "traceback.txt"


class State(NamedTuple):
    """How far a plan is: runs done and in all, and what each worker is at."""

    done: int
    total: int
    workers: dict[int, Progress]


class WorkerError(RuntimeError):
    """A run failed for a reason that the others would meet as well."""


def run_plan(
    plan: Sequence[Search],
    results: Results,
    place: Place,
    *,
    workers: int,
    threads: int = 1,
) -> Iterator[State]:
    """Yield the state whenever it changes, until the plan is done.

    Leaving the loop, or a signal to stop, ends the workers with their checkpoints written.

    Raises:
        WorkerError: A worker failed; the message is its own.
    """
    context = multiprocessing.get_context("spawn")
    said: Any = context.Queue()
    processes = [
        context.Process(target=begin, args=(number, plan, results.folder, place, threads, said))
        for number in range(workers)
    ]
    at: dict[int, Progress] = {number: Progress(None) for number in range(workers)}
    try:
        for process in processes:
            process.start()
        yield state(plan, results, at)
        running = set(range(workers))
        while running:
            try:
                number, news = said.get(timeout=LISTEN_SECONDS)
            except queue.Empty:
                ended = {n for n in running if not processes[n].is_alive()}
                if any(processes[n].exitcode for n in ended):
                    raise WorkerError("a worker was ended from outside; run the command again to go on") from None
                running -= ended
                continue
            if isinstance(news, str):
                raise WorkerError(news)
            at[number] = news
            results.refresh()
            yield state(plan, results, at)
            if news.label is None:
                running.discard(number)
    finally:
        for process in processes:
            if process.is_alive():
                process.terminate()
        for process in processes:
            if process.pid is not None:
                process.join()


def state(plan: Sequence[Search], results: Results, at: dict[int, Progress]) -> State:
    """Count what is done."""
    counts = [search.count(results.lines) for search in plan]
    return State(sum(done for done, _ in counts), sum(total for _, total in counts), dict(at))


def begin(number: int, plan: Sequence[Search], folder: Path, place: Place, threads: int, said: Any) -> None:
    """Work in a process of its own; SIGTERM between two runs ends it, within one it saves the run first.

    Either way with the shell's code for it, so that it is not taken for one that is done.
    """
    import torch

    torch.set_num_threads(threads)
    # Saturated scores have gradients so small that processors take many times as long for them; zeros are as good.
    torch.set_flush_denormal(True)
    # What the grid asks for on purpose, and its tables say.
    warnings.filterwarnings("ignore", message="surrogate .* measures average precision", category=UserWarning)
    signal.signal(signal.SIGTERM, lambda *_: os._exit(128 + signal.SIGTERM))
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the terminal's Ctrl-C is the parent's, which ends us by SIGTERM
    parent = multiprocessing.parent_process()
    at: str | None = None

    def say(news: Progress) -> None:
        nonlocal at
        at = news.label
        if parent is not None and not parent.is_alive():
            # Killed outright, it could not tell us to stop.
            os.kill(os.getpid(), signal.SIGTERM)
        said.put((number, news))

    try:
        work(plan, Results(folder), place, say=say)
    except Exception as error:
        said.put((number, failure(error, at, place.work)))


def failure(error: Exception, run: str | None, folder: Path) -> str:
    """Say in one line which run failed and why; where only the traceback would tell, it is kept in a file."""
    text = " ".join(f"{f'{run}: ' if run else ''}{type(error).__name__}: {error}".split())
    if isinstance(error, (FileNotFoundError, ImportError)):
        return text
    path = folder / TRACEBACK
    write_atomic(path, "".join(traceback.format_exception(error)).encode())
    return f"{text} (the traceback is in {path})"


def origin() -> dict[str, str]:
    """Return what a result says of the code it comes from: the version and, in a checkout, the commit."""
    facts, folder = {"version": __version__}, str(Path(__file__).parent)
    command = ["git", "-C", folder, "describe", "--always", "--dirty", "--exclude", "*"]
    try:
        said = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:  # there is no git
        return facts
    return {**facts, "commit": said.stdout.strip()} if said.returncode == 0 else facts
