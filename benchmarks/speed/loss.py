"""`APLoss` against cross-entropy on the same batch, in time and memory, single thread, one run."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from apmax.losses import APLoss
from benchmarks.timing import Row, best_times

SIZES = {(4, 64): 10.0, (64, 1024): 16.0, (512, 8192): 40.0, (2048, 32768): 80.0}
"""Positives and examples of a batch, and how many times as long as cross-entropy a step may take."""
ROWS = 10_000_000
MEGABYTE = 2**20


class Batch:
    """A batch from a training set twenty times as large."""

    def __init__(self, num_pos: int, size: int) -> None:
        generator = torch.Generator().manual_seed(0)
        # Positives first, then negatives, spread over the rows of the training set as in any real one.
        spread = torch.randperm(20 * size, generator=generator)
        self.train_labels = torch.zeros(20 * size)
        self.train_labels[spread[: 20 * num_pos]] = 1
        positives, negatives = spread[:num_pos], spread[20 * num_pos :][: size - num_pos]
        self.rows = torch.cat([positives, negatives])[torch.randperm(size, generator=generator)]
        self.labels = self.train_labels[self.rows]
        self.scores = torch.randn(size, generator=generator).requires_grad_()

    def step(self, loss: Callable[..., Tensor], *more: Any, sigmoid: bool = False) -> Callable[[], None]:
        """Return a job: forward and backward."""

        def job() -> None:
            self.scores.grad = None
            loss(self.scores.sigmoid() if sigmoid else self.scores, self.labels, *more).backward()

        return job


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of live tensors made by operations, and keeps their peak."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._made: dict[StorageWeakRef, int] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        known = {tensor.untyped_storage()._cdata for tensor in tree_leaves((args, kwargs)) if torch.is_tensor(tensor)}
        result = func(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if torch.is_tensor(tensor) and tensor.untyped_storage()._cdata not in known:
                self._made[StorageWeakRef(tensor.untyped_storage())] = tensor.untyped_storage().nbytes()
        self._made = {storage: size for storage, size in self._made.items() if not storage.expired()}
        self.peak = max(self.peak, sum(self._made.values()))
        return result


def steps() -> Iterator[Row]:
    """Yield a step of the loss, with its state, over one of cross-entropy."""
    for (num_pos, size), target in SIZES.items():
        batch = Batch(num_pos, size)
        jobs = [batch.step(torch.nn.BCEWithLogitsLoss())]
        jobs.append(batch.step(APLoss(batch.train_labels), batch.rows))
        jobs.append(batch.step(APLoss(batch.train_labels, validate=False), batch.rows))
        base, ours, unchecked = best_times(*jobs, seconds=4)
        what = f"APLoss / BCEWithLogitsLoss, forward and backward, {num_pos} positives in {size}"
        yield what, ours / base, target
        if size == 64:
            yield f"{what}, without checks", unchecked / base, 7.0


def memory() -> Row:
    """Return the megabytes that a step of the largest size needs besides its inputs."""
    num_pos, size = max(SIZES)
    batch = Batch(num_pos, size)
    job = batch.step(APLoss(batch.train_labels), batch.rows)
    job()
    with LiveBytes() as live:
        job()
    return f"APLoss, extra megabytes, {num_pos} positives in {size}", live.peak / MEGABYTE, 8.0


def building() -> Row:
    """Return the time to build the loss over that of two arrays of its length."""
    labels = torch.zeros(ROWS)
    labels[torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))[: ROWS // 100]] = 1
    ours, base = best_times(lambda: APLoss(labels), lambda: (torch.zeros(ROWS), torch.zeros(ROWS)))
    return "building APLoss, n = 1e7 / two torch.zeros(1e7)", ours / base, 15.0


def tasks(count: int = 617, size: int = 64) -> Row:
    """Return a step with as many tasks as ToxCast has over a step with one."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(20 * size, count, generator=generator) < 0.1).float()
    labels[torch.rand(20 * size, count, generator=generator) < 0.2] = float("nan")
    one = labels[:, 0].nan_to_num(0)
    scores = torch.randn(size, count, generator=generator)
    rows = torch.arange(size)

    def job(table: Tensor, scores: Tensor) -> Callable[[], None]:
        loss, scores = APLoss(table), scores.clone().requires_grad_()

        def step() -> None:
            scores.grad = None
            loss(scores, table[rows], rows).backward()

        return step

    many, single = best_times(job(labels, scores), job(one, scores[:, 0]))
    return f"APLoss of {count} tasks / of one, batches of {size}", many / single, 20.0


def run() -> list[Row]:
    """Return (what, measured, target) of every claim."""
    return [*steps(), memory(), building(), tasks()]
