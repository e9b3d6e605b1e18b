"""Agreement of the processes of a training, which may be on several machines with file systems of their own."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

import torch.distributed as dist

from apmax import distributed
from apmax.folders import started_processes
from apmax.train.config import Run

T = TypeVar("T")


class OtherProcessError(RuntimeError):
    """Another process of the training has failed, so that this one cannot continue."""


def join_processes() -> int:
    """Connect the processes that torchrun started, unless they are already, and return their number; 1 without it."""
    started = started_processes()
    if started > 1 and not dist.is_initialized():
        dist.init_process_group()
    return started


def check_processes(run: Run) -> None:
    """Raise `ValueError` unless torchrun started as many processes as the run has: each would train alone."""
    started = started_processes()
    # `fabric run` replaces the settings of a program by such variables.
    if started == 1 or run.devices * run.num_nodes == started or any(name.startswith("LT_") for name in os.environ):
        return
    nodes = int(os.environ.get("GROUP_WORLD_SIZE", "1"))
    raise ValueError(
        f"devices={run.devices} and num_nodes={run.num_nodes} make {run.devices * run.num_nodes} of the {started} "
        f"processes that torchrun started: set devices={started // nodes} and num_nodes={nodes}, or start the program "
        "without torchrun"
    )


@contextmanager
def shared_errors(world_size: int) -> Iterator[None]:
    """Raise in all processes if the block raises in one: the others would wait for it for half an hour.

    Args:
        world_size: Number of processes that enter the block; with 1 it does nothing.

    Raises:
        OtherProcessError: The block was left without an error here, but not in another process.
    """
    if world_size == 1:
        yield
        return
    error: Exception | None = None
    try:
        yield
    except Exception as raised:
        error = raised
    own = None if error is None else f"{type(error).__name__} on {socket.gethostname()}: {error}"
    found: list[str | None] = [None] * world_size
    dist.all_gather_object(found, own)
    if error is not None:
        raise error
    for rank, message in enumerate(found):
        if message is not None:
            raise OtherProcessError(f"process {rank} of {world_size} failed: {message}")


def from_first(compute: Callable[[], T], world_size: int) -> T:
    """Return in all processes what `compute` returns in the first, such as the content of a file that only it has.

    Args:
        compute: Called in the first process only; what it returns is pickled.
        world_size: Number of processes that call this.

    Raises:
        OtherProcessError: It raised, in another process than this.

    >>> from_first(lambda: 3, 1)
    3
    """
    if world_size == 1:
        return compute()
    value: list[T | None] = [None]
    with shared_errors(world_size):
        if dist.get_rank() == 0:
            value = [compute()]
    dist.broadcast_object_list(value, src=0)
    return value[0]  # type: ignore[return-value]


def check_same_training(fingerprint: str, settings: dict[str, object], world_size: int) -> None:
    """Raise `ValueError` unless all processes have the same data and settings: their copies may differ.

    Args:
        fingerprint: Of labels and weights.
        settings: By name.
        world_size: Number of processes that call this.
    """
    found: list[tuple[str, str, dict[str, object]]] = [("", "", {})] * world_size
    dist.all_gather_object(found, (socket.gethostname(), fingerprint, settings))
    _, first_data, first_settings = found[0]
    for rank, (host, data, others) in enumerate(found):
        where = f"process {rank} of {world_size} (on {host})"
        if data != first_data:
            raise ValueError(
                f"data: {where} has other rows, labels or weights than process 0: give all of them the same data"
            )
        for name, value in first_settings.items():
            if others.get(name) != value:
                raise ValueError(f"{name}: {where} has another value than process 0: start all with the same settings")


def process_count(run: Run) -> int:
    """Return the number of connected processes that train a run."""
    return distributed.world_size() if run.devices * run.num_nodes > 1 else 1
