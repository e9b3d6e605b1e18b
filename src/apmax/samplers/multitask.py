"""Tasks take turns in supplying the positives of a batch."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
from torch import Tensor

from apmax.labels import labels_of
from apmax.samplers.base import EpochSampler
from apmax.samplers.draws import NEGATIVES, POSITIVES, BalancedDraws, Rows, class_rows


class MultiTaskBatchSampler(EpochSampler):
    """Tasks take turns: a batch holds `num_pos` positives of one task, then negatives measured for that task.

    Batch number t of the run, counted on through the epochs, belongs to task t mod (number of tasks served). Rows
    whose label is missing (NaN) for the task are left out of its batches. Each task goes round its own positives and
    its own negatives: in its batches every one of them comes equally often (±1) from the start of the run. No row
    comes twice in a batch. A task with fewer than `num_pos` positives gives them all, and negatives in place of
    the rest; one with too few negatives makes smaller batches.

    An epoch has `ceil(rows / batch_size)` batches, where `rows` are those measured for at least one task served. With
    more tasks than that an epoch does not reach every task; the next epoch goes on where it ended.

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

    def __init__(
        self,
        labels: Any,
        batch_size: int = 64,
        num_pos: int = 4,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(batch_size, num_pos, seed, rank, world_size)
        table = labels_of(labels)
        table = table[:, None] if table.ndim == 1 else table
        served = ((table == 1).any(0) & (table == 0).any(0)).numpy()
        self.tasks: list[int] = np.flatnonzero(served).tolist()
        if not self.tasks:
            raise ValueError(f"labels: none of {table.shape[1]} task(s) has both a positive and a negative")
        self._turns = [_Turn(table[:, task], task, self.batch_size, self.num_pos, self.seed) for task in self.tasks]
        smallest = min(self._turns, key=lambda turn: turn.size)
        if smallest.size < self.world_size:
            raise ValueError(
                f"task {smallest.task} has batches of {smallest.size} row(s), which leaves nothing for some of "
                f"world_size={world_size} processes; drop the task or use fewer processes"
            )
        self._measured = int((~table[:, self.tasks].isnan()).any(1).sum())
        skipped = np.flatnonzero(~served).tolist()
        if skipped:
            warnings.warn(
                f"MultiTaskBatchSampler skips {len(skipped)} of {table.shape[1]} tasks, for lack of positives or of "
                f"negatives: column(s) {', '.join(map(str, skipped))}",
                stacklevel=2,
            )

    def __len__(self) -> int:
        return -(-self._measured // self.batch_size)

    def _draw(self, epoch: int) -> Callable[[int, int], list[list[int]]]:
        turns = len(self._turns)

        def batches(start: int, stop: int) -> list[list[int]]:
            block: list[list[int]] = [[]] * (stop - start)
            for offset in range(min(turns, len(block))):
                first, task = divmod(epoch * len(self) + start + offset, turns)
                last = first + len(range(offset, len(block), turns))
                block[offset::turns] = self._share(*self._turns[task].rows(first, last))
            return block

        return batches


class _Turn:
    """What one task draws when its turn comes."""

    def __init__(self, labels: Tensor, task: int, batch_size: int, num_pos: int, seed: int) -> None:
        self.task = task
        self._positives, self._negatives = class_rows(labels)
        num_pos = min(num_pos, len(self._positives))
        num_neg = min(batch_size - num_pos, len(self._negatives))
        self.size = num_pos + num_neg
        self._draw_positives = BalancedDraws(len(self._positives), num_pos, [seed, POSITIVES, task])
        self._draw_negatives = BalancedDraws(len(self._negatives), num_neg, [seed, NEGATIVES, task])

    def rows(self, first: int, last: int) -> tuple[Rows, Rows]:
        positives = self._positives[self._draw_positives.rows(first, last)]
        return positives, self._negatives[self._draw_negatives.rows(first, last)]
