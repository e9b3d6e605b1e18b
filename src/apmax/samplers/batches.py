"""Batch samplers with a fixed number of positives in every batch."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import Sampler

from apmax import validation
from apmax.samplers.draws import NEGATIVES, POSITIVES, BalancedDraws, RowArray, class_rows
from apmax.samplers.labels import labels_of


class EpochSampler(Sampler[list[int]], ABC):
    """The base class of the samplers: epochs of batches that can be entered at any position."""

    def __init__(
        self,
        labels: Any,
        batch_size: int = 64,
        *,
        num_pos: int = 4,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        self.batch_size = validation.whole("batch_size", batch_size, 1)
        self.num_pos = validation.whole("num_pos", num_pos, 1)
        self.seed = validation.whole("seed", seed)
        self.world_size = validation.whole("world_size", world_size, 1)
        self.rank = validation.whole("rank", rank)
        if self.batch_size <= self.num_pos:
            raise ValueError(
                f"batch_size must be larger than num_pos, to leave room for negatives, got {batch_size} and {num_pos}"
            )
        if self.rank >= self.world_size:
            raise ValueError(f"rank must lie in 0 to {world_size - 1} with world_size={world_size}, got {rank}")
        self.epoch = 0
        self._first = 0
        self._set_labels(labels_of(labels))

    @abstractmethod
    def _set_labels(self, table: Tensor) -> None:
        """Learn the rows of each class; raise where they do not suffice for the batches."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in a whole epoch."""

    @abstractmethod
    def _draw(self, epoch: int) -> Callable[[int, int], list[list[int]]]:
        """Return the function that gives this process's share of the batches from one number to before another."""

    def set_epoch(self, epoch: int) -> None:
        """Start the next iteration at the first batch of `epoch`."""
        self.set_position(epoch, 0)

    def set_position(self, epoch: int, batch: int) -> None:
        """Start the next iteration in `epoch` after its first `batch` batches, as if those had just been yielded.

        Count the batches that were trained on: a loader with workers draws ahead of them. `len` remains that of a whole
        epoch.

        Raises:
            ValueError: `batch` is more than the batches of an epoch.
        """
        epoch, batch = validation.whole("epoch", epoch), validation.whole("batch", batch)
        if batch > len(self):
            raise ValueError(f"batch must lie in 0 to {len(self)}, the batches of an epoch, got {batch}")
        self.epoch, self._first = epoch, batch

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = self.epoch, self._first
        # Now and not at the end: otherwise a loop that always breaks early would get the same batches every epoch.
        self.epoch, self._first = epoch + 1, 0
        yield from self._blocks(epoch, first, len(self))

    def _blocks(self, epoch: int, first: int, last: int) -> Iterator[list[int]]:
        """Yield this process's share of the batches from `first` to before `last`."""
        batches = self._draw(epoch)
        # Enough batches at a time for vectorised work, few enough for small lists.
        step = max(1, 2**16 // self.batch_size)
        for start in range(first, last, step):
            yield from batches(start, min(start + step, last))

    def _share(self, positives: RowArray, negatives: RowArray) -> list[list[int]]:
        joined = np.concatenate([positives, negatives], axis=1)
        share: list[list[int]] = joined[:, self.rank :: self.world_size].tolist()
        return share


class PositiveBatchSampler(EpochSampler):
    """Batches of `num_pos` positives and then `batch_size - num_pos` negatives; an epoch is one pass over negatives.

    Every negative is drawn exactly once an epoch. The last batch may be short: it has all `num_pos` positives and the
    negatives that remain. Every positive is drawn equally often (±1) in each epoch, and equally often (±1) over any
    number of whole epochs from the first. No row is drawn twice in a batch.

    `batch_size` and `num_pos` are those of all processes together. The joined batches do not depend on `world_size`;
    process `rank` takes every `world_size`-th element of each, so that positives are spread over the processes. All
    processes get equally many batches, none of them empty; their sizes differ by at most one row.

    Iterating proceeds to the next epoch; `set_epoch` and `set_position` choose another.

    Args:
        labels: 0/1 labels as array, tensor or list, or the data set itself (see `labels_of`). The sampler yields
            positions in it: for a `Subset`, positions in that subset.
        batch_size: Rows in a batch.
        num_pos: Positives in a batch.
        seed: Batches are a function of seed and position alone; no global generator is read or written.
        rank: This process, from 0.
        world_size: Number of processes.

    Raises:
        ValueError: Labels other than 0/1 or missing, no negatives, fewer than `num_pos` positives,
            `batch_size <= num_pos`, or a batch with fewer rows than processes.

    >>> sampler = PositiveBatchSampler([0, 1, 0, 0, 1, 0, 0, 0], batch_size=5, num_pos=1)
    >>> len(sampler), [len(batch) for batch in sampler]
    (2, [5, 3])
    """

    def _set_labels(self, table: Tensor) -> None:
        if table.ndim != 1:
            raise ValueError(
                f"labels must have shape (n,), got {tuple(table.shape)}; for several tasks use MultiTaskBatchSampler"
            )
        self._positives, self._negatives = class_rows(table)
        if len(self._positives) < self.num_pos:
            raise ValueError(
                f"labels hold {len(self._positives)} positive(s) among {len(table)} rows, too few for "
                f"num_pos={self.num_pos} different ones in a batch; lower num_pos"
            )
        if len(self._negatives) == 0:
            raise ValueError(f"labels hold no negatives among {len(table)} rows; an epoch is a pass over the negatives")
        full = self.batch_size - self.num_pos
        smallest = self.num_pos + min(full, (len(self._negatives) - 1) % full + 1)
        if smallest < self.world_size:
            raise ValueError(
                f"an epoch's last batch has {smallest} row(s), which leaves nothing for some of "
                f"world_size={self.world_size} processes; choose another batch_size than {self.batch_size}, or fewer "
                "processes"
            )

    def __len__(self) -> int:
        return -(-len(self._negatives) // (self.batch_size - self.num_pos))

    def _draw(self, epoch: int) -> Callable[[int, int], list[list[int]]]:
        full = self.batch_size - self.num_pos
        order = np.random.default_rng([self.seed, NEGATIVES, epoch]).permutation(self._negatives)
        draws = self._positive_draws(epoch)

        def batches(start: int, stop: int) -> list[list[int]]:
            positives = self._positives[draws.rows(start, stop)]
            whole = min(stop, len(order) // full)
            block = self._share(positives[: whole - start], order[start * full : whole * full].reshape(-1, full))
            if whole < stop:
                block += self._share(positives[-1:], order[None, whole * full :])
            return block

        return batches

    def _positive_draws(self, epoch: int) -> BalancedDraws:
        draws = BalancedDraws(len(self._positives), self.num_pos, [self.seed, POSITIVES, epoch])
        draws.start_with_surplus(len(self), epoch, self.seed)
        return draws


class MultiTaskBatchSampler(EpochSampler):
    """Batches of one task each, in rotation: `num_pos` of its positives, then negatives measured for it.

    Batch number t of the run, counted across epochs, belongs to task t mod (number of tasks served). Rows whose label
    is missing (NaN) for the task are left out of its batches. Each task cycles through its own positives and its own
    negatives: in its batches every one of them is drawn equally often (±1) from the start of the run. No row is drawn
    twice in a batch. A task with fewer than `num_pos` positives has them all in its batches, and negatives in place of
    the rest; one with too few negatives has smaller batches.

    An epoch has `ceil(rows / batch_size)` batches, where `rows` are those measured for at least one task served. With
    more tasks than that, an epoch does not reach every task; the next epoch continues the rotation.

    A task without positives or without negatives cannot be ranked: it is skipped, with a warning that names it.
    `tasks` lists the columns served. Processes, seeds and positions are as in `PositiveBatchSampler`.

    Args:
        labels: Labels of shape (n, tasks), NaN where not measured, or a data set that has them (see `labels_of`).
        batch_size: Rows in a batch.
        num_pos: Positives of the task in a batch.
        seed: Batches are a function of seed and position alone; no global generator is read or written.
        rank: This process, from 0.
        world_size: Number of processes.

    Raises:
        ValueError: Labels other than 0, 1 and NaN, no task with both classes, `batch_size <= num_pos`, or a
            batch with fewer rows than processes.

    >>> labels = [[1, 0], [0, 1], [0, float("nan")], [1, 0]]
    >>> sampler = MultiTaskBatchSampler(labels, batch_size=2, num_pos=1)
    >>> len(sampler), [len(batch) for batch in sampler]
    (2, [2, 2])
    """

    def _set_labels(self, table: Tensor) -> None:
        table = table[:, None] if table.ndim == 1 else table
        served = ((table == 1).any(0) & (table == 0).any(0)).numpy()
        self.tasks: list[int] = np.flatnonzero(served).tolist()
        if not self.tasks:
            raise ValueError(f"labels: none of {table.shape[1]} task(s) has both a positive and a negative")
        self._task_draws = [
            _TaskDraws(table[:, task], task, self.batch_size, self.num_pos, self.seed) for task in self.tasks
        ]
        smallest = min(self._task_draws, key=lambda draws: draws.size)
        if smallest.size < self.world_size:
            raise ValueError(
                f"task {smallest.task} has batches of {smallest.size} row(s), which leaves nothing for some of "
                f"world_size={self.world_size} processes; drop the task or use fewer processes"
            )
        self._measured = int((~table[:, self.tasks].isnan()).any(1).sum())
        skipped = np.flatnonzero(~served).tolist()
        if skipped:
            warnings.warn(
                f"MultiTaskBatchSampler skips {len(skipped)} of {table.shape[1]} tasks, for lack of positives or of "
                f"negatives: column(s) {', '.join(map(str, skipped))}",
                stacklevel=3,  # where the sampler was made
            )

    def __len__(self) -> int:
        return -(-self._measured // self.batch_size)

    def _draw(self, epoch: int) -> Callable[[int, int], list[list[int]]]:
        tasks = len(self._task_draws)

        def batches(start: int, stop: int) -> list[list[int]]:
            block: list[list[int]] = [[]] * (stop - start)
            for offset in range(min(tasks, len(block))):
                first, task = divmod(epoch * len(self) + start + offset, tasks)
                last = first + len(range(offset, len(block), tasks))
                block[offset::tasks] = self._share(*self._task_draws[task].rows(first, last))
            return block

        return batches


class _TaskDraws:
    """The draws of one task."""

    def __init__(self, labels: Tensor, task: int, batch_size: int, num_pos: int, seed: int) -> None:
        self.task = task
        self._positives, self._negatives = class_rows(labels)
        num_pos = min(num_pos, len(self._positives))
        num_neg = min(batch_size - num_pos, len(self._negatives))
        self.size = num_pos + num_neg
        self._draw_positives = BalancedDraws(len(self._positives), num_pos, [seed, POSITIVES, task])
        self._draw_negatives = BalancedDraws(len(self._negatives), num_neg, [seed, NEGATIVES, task])

    def rows(self, first: int, last: int) -> tuple[RowArray, RowArray]:
        positives = self._positives[self._draw_positives.rows(first, last)]
        return positives, self._negatives[self._draw_negatives.rows(first, last)]
