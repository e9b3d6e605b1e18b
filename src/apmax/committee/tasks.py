"""Fits of members to folds: run in threads and, where Python itself is the bottleneck, in processes."""

from __future__ import annotations

import atexit
import ctypes
import hashlib
import json
import queue
import sys
import threading
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from apmax import extras
from apmax.committee.features import Features, FittedFeatures, Matrix
from apmax.committee.fold_data import FittedMember, FoldData
from apmax.committee.members import Member

_Array = NDArray[np.float64]
_RowNumbers = NDArray[np.int64]
FINAL = -1
"""In place of a fold's number: the fit to all rows, with the numbers of rounds that the folds found."""
# With so few jobs other processes would cost more memory and start-up time than they save.
_MOST_JOBS_WITHOUT_PROCESSES = 2
# Time between two returns of free memory.
_TRIM_SECONDS = 0.2
# How long the end of the program waits for fits that were left; a step of a network mostly takes less.
_LAST_SECONDS = 3.0


@dataclass(frozen=True)
class FitTask:
    """One member on one fold, or on all rows (`FINAL`)."""

    fold: int
    name: str


@dataclass(frozen=True)
class FitResult:
    """A fitted member, its scores of the held-out rows, the seconds that it took, and what it was fitted to."""

    task: FitTask
    model: FittedMember
    scores: _Array
    seconds: float
    origin: str = ""


@dataclass(frozen=True)
class FitProgress:
    """State of a fit, for a display.

    Attributes:
        finished: Number of tasks that are done, those of an earlier, interrupted call included.
        total: Number of all tasks.
        task: The task that was finished last; None at the start.
        seconds: The time that it took.
        remaining: Estimated seconds to the end: the members' relative costs, scaled by the time so far.
    """

    finished: int
    total: int
    task: FitTask | None
    seconds: float
    remaining: float


@dataclass(frozen=True)
class FoldMatrices:
    """Matrices of the training and the held-out rows of a fold."""

    train: Matrix
    held_out: Matrix


@dataclass
class FoldRows:
    """Training and held-out rows of a fold, encoded when a member needs them, and freed when no fit has them."""

    features: Features
    encoding: FittedFeatures
    labels: _Array
    sample_weight: _Array
    train: _RowNumbers
    held_out: _RowNumbers
    stopping: tuple[_RowNumbers, _RowNumbers] | None
    seed: int
    shared: dict[Any, Any] = field(default_factory=dict, repr=False)
    _lock: threading.Lock = field(default_factory=threading.Lock, repr=False)
    _encoded: Callable[[], FoldMatrices | None] = field(default=lambda: None, repr=False)

    def encoded(self) -> FoldMatrices:
        """Return the encoded rows, the same ones as long as somebody has them."""
        with self._lock:
            rows = self._encoded()
            if rows is None:
                rows = FoldMatrices(
                    *(self.features.encode(part, self.encoding) for part in (self.train, self.held_out))
                )
                self._encoded = weakref.ref(rows)
                _return_free_memory()
            return rows

    def digest(self) -> str:
        """Return a digest of the rows and all else that fits to them depend on: encoding, labels, weights, seed."""
        found = hashlib.sha256(json.dumps([self.encoding.to_table(), self.seed]).encode())
        for values in (self.train, self.held_out, self.labels, self.sample_weight):
            found.update(np.ascontiguousarray(values).tobytes())
        return found.hexdigest()

    def seconds(self, member: Member) -> float:
        """Return about how long a fit of the member takes."""
        return member.cost.seconds(len(self.train), len(self.encoding.sizes))

    def release(self) -> None:
        """Free what the members shared."""
        with self._lock:
            self.shared.clear()

    def data(self, member: Member, rounds: tuple[int, ...] | None, threads: int) -> tuple[FoldData, Any]:
        """Return what the member is fitted to, and the held-out rows in the form that it scores."""
        rows = self.encoded()
        raw = self.features.take(self.train) if member.raw else None
        data = FoldData(
            rows.train,
            raw,
            self.labels[self.train],
            self.sample_weight[self.train],
            self.encoding.sizes,
            self.stopping,
            self.seed,
            rounds,
            threads,
            self.shared,
        )
        return data, self.features.take(self.held_out) if member.raw else rows.held_out


def run_tasks(
    tasks: Sequence[FitTask],
    members: Mapping[str, Member],
    folds: Mapping[int, FoldRows],
    *,
    n_jobs: int,
    rounds: Mapping[str, tuple[int, ...]] | None = None,
) -> Iterator[FitResult]:
    """Yield the results of tasks as they are finished.

    Members are fitted in threads of this process, which share the rows: LightGBM, forests and linear algebra compute
    outside of Python's lock. Members that do not (`Member.serial`: networks) are fitted one after the other beside
    them or, with more than two jobs, in processes of their own for half of the jobs; where there are no others, in as
    many processes as there are jobs. A process fits all of these members of a fold, which share their first stage.

    Args:
        tasks: What to fit.
        members: The members by name.
        folds: The rows by the tasks' fold.
        n_jobs: Number of simultaneous fits.
        rounds: Fixed numbers of rounds by member instead of stopping.
    """
    open_tasks = {fold: sum(task.fold == fold for task in tasks) for fold in folds}
    # Each thread keeps the rows of the fold that it fits. Threads may be folds apart, and rows that waited in between
    # would take more memory than encoding them again takes time.
    kept = threading.local()

    def fit(task: FitTask, threads: int = 1) -> FitResult:
        fixed = None if rounds is None else rounds.get(task.name)
        if getattr(kept, "fold", None) != task.fold:
            kept.fold, kept.rows = task.fold, None
            kept.rows = folds[task.fold].encoded()
        return fit_task(task, members[task.name], *folds[task.fold].data(members[task.name], fixed, threads))

    # By fold, so that the encoded rows of a fold can be freed early. The longest first: threads then end a fold at
    # nearly the same time, and seldom have the rows of two.
    ordered = sorted(tasks, key=lambda task: (task.fold, -folds[task.fold].seconds(members[task.name])))
    if n_jobs == 1 or len(tasks) < 2:
        results: Iterator[FitResult] = (fit(task, max(1, n_jobs)) for task in ordered)
    else:
        results = _run_in_threads(ordered, members, folds, fit, n_jobs, rounds)
    with one_thread_each():
        for result in results:
            open_tasks[result.task.fold] -= 1
            if not open_tasks[result.task.fold]:
                folds[result.task.fold].release()
            _return_free_memory()
            yield result
    _return_free_memory()


def _return_free_memory() -> None:
    """Return to the system what fits have freed; glibc would keep it for each of the threads."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None) if sys.platform == "linux" else None
    if trim is not None:
        trim(0)


def serial_lanes(n_jobs: int, *, alone: bool = False) -> int:
    """Return how many of the jobs can fit members at the same time that threads do not speed up.

    Args:
        n_jobs: Number of jobs.
        alone: Whether there are no other members; then all jobs are theirs, unless a GPU fits one after the other.

    >>> [serial_lanes(jobs) for jobs in (1, 2, 4)]
    [1, 1, 2]
    """
    if alone:
        return 1 if torch.cuda.is_available() else n_jobs
    return 1 if n_jobs <= _MOST_JOBS_WITHOUT_PROCESSES else n_jobs // 2


def fit_task(task: FitTask, member: Member, data: FoldData, held_out: Any) -> FitResult:
    """Fit a member to a fold and score the held-out rows."""
    started = time.monotonic()
    # For processes and threads of their own; in the calling thread it is set already.
    torch.set_num_threads(1)
    model = member.fit(data)
    # A sparse matrix has no length.
    count = held_out.shape[0] if hasattr(held_out, "shape") else len(held_out)
    scores = model.score(held_out) if count else np.zeros(0)
    if not np.isfinite(scores).all():
        raise ValueError(f"member {task.name!r} gave a score that is not finite in fold {task.fold + 1}")
    return FitResult(task, model, scores, time.monotonic() - started)


def _fit_in_turn(fits: Sequence[tuple[FitTask, Member, FoldData, Any]]) -> list[FitResult]:
    return [fit_task(*each) for each in fits]


@contextmanager
def one_thread_each() -> Iterator[None]:
    """Limit torch and linear algebra to one thread per fit: sums do not depend on the number of cores."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        with extras.load("threadpoolctl", "sklearn").threadpool_limits(1):
            yield
    finally:
        torch.set_num_threads(threads)


def _run_in_threads(
    tasks: Sequence[FitTask],
    members: Mapping[str, Member],
    folds: Mapping[int, FoldRows],
    fit: Callable[[FitTask], FitResult],
    n_jobs: int,
    rounds: Mapping[str, tuple[int, ...]] | None,
) -> Iterator[FitResult]:
    """Yield results in the order in which they are finished; the first error ends the others after their task."""
    serial = [task for task in tasks if members[task.name].serial]
    free = deque(task for task in tasks if not members[task.name].serial)
    lock = threading.Lock()
    results = queue.SimpleQueue[FitResult | BaseException]()
    stopped = threading.Event()
    # One chain for a fold: its members share their first stage.
    chains = [[task for task in serial if task.fold == fold] for fold in dict.fromkeys(task.fold for task in serial)]
    processes = min(serial_lanes(n_jobs, alone=not free), len(chains))

    def take_free() -> Iterator[FitResult]:
        while True:
            with lock:
                task = free.popleft() if free else None
            if task is None:
                return
            yield fit(task)

    def take_serial() -> Iterator[FitResult]:
        if processes < 2:
            yield from map(fit, serial)
        else:
            yield from _fit_in_processes(chains, members, folds, processes, rounds or {})
        yield from take_free()

    def work(source: Callable[[], Iterator[FitResult]]) -> None:
        try:
            for result in source():
                results.put(result)
                if stopped.is_set():
                    return
        except BaseException as error:  # raised again in the calling thread
            results.put(error)

    lanes = [take_serial] * bool(serial)
    lanes += [take_free] * max(len(lanes) == 0, n_jobs - max(processes, len(lanes)))
    # Daemons: an interrupted program does not wait for a fit that nobody will use.
    threads = [threading.Thread(target=work, args=(lane,), daemon=True) for lane in lanes]
    end_at_exit = partial(_end_threads, threads)
    atexit.register(end_at_exit)
    for thread in threads:
        thread.start()
    try:
        for _ in tasks:
            result = _next_result(results)
            if isinstance(result, BaseException):
                raise result
            yield result
        # Their rows are freed with them.
        for thread in threads:
            thread.join()
        atexit.unregister(end_at_exit)
    finally:
        stopped.set()


def _fit_in_processes(
    chains: Sequence[Sequence[FitTask]],
    members: Mapping[str, Member],
    folds: Mapping[int, FoldRows],
    processes: int,
    rounds: Mapping[str, tuple[int, ...]],
) -> Iterator[FitResult]:
    """Yield the results of chains of tasks; a process fits a chain, whose members share their first stage."""
    joblib = extras.load("joblib", "sklearn")
    fits = (
        [
            (task, members[task.name], *folds[task.fold].data(members[task.name], rounds.get(task.name), 1))
            for task in chain
        ]
        for chain in chains
    )
    parallel = joblib.Parallel(n_jobs=processes, return_as="generator_unordered")
    for results in parallel(joblib.delayed(_fit_in_turn)(each) for each in fits):
        yield from results


def _end_threads(threads: Sequence[threading.Thread]) -> None:
    """End fits that still run when the program exits: torch aborts the process if Python ends under them."""
    raise_in = ctypes.pythonapi.PyThreadState_SetAsyncExc
    deadline = time.monotonic() + _LAST_SECONDS
    for thread in threads:
        if thread.is_alive():
            raise_in(ctypes.c_ulong(thread.ident or 0), ctypes.py_object(SystemExit))
    for thread in threads:
        thread.join(max(0.0, deadline - time.monotonic()))


def _next_result(results: queue.SimpleQueue[FitResult | BaseException]) -> FitResult | BaseException:
    """Return the next result; meanwhile the system gets back what the fits have freed.

    A fit takes much more memory for moments than most of the time. Kept until its end, as by glibc, that of all
    threads would add up.
    """
    while True:
        with suppress(queue.Empty):
            return results.get(timeout=_TRIM_SECONDS)
        _return_free_memory()


def remaining_seconds(
    finished: Sequence[FitTask],
    left: Sequence[FitTask],
    members: Mapping[str, Member],
    *,
    size: tuple[int, int],
    elapsed: float,
    n_jobs: int,
) -> float:
    """Return an estimate of the time that the tasks `left` will take.

    Args:
        finished: Tasks that were finished in the time `elapsed`.
        left: The others.
        members: The members by name.
        size: Rows and columns of the table.
        elapsed: Seconds since the start.
        n_jobs: Number of simultaneous fits.
    """

    def cost(tasks: Sequence[FitTask]) -> float:
        return sum(members[task.name].cost.seconds(*size) for task in tasks)

    done = cost(finished)
    return cost(left) * (elapsed / done if done else 1 / n_jobs)


def common_rounds(models: Sequence[FittedMember]) -> tuple[int, ...] | None:
    """Return the median numbers of rounds that the folds' models found; None if the member has none."""
    found = [model.rounds for model in models if model.rounds]
    if not found:
        return None
    return tuple(round(float(np.median(values))) for values in zip(*found, strict=True))
