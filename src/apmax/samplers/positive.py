"""A fixed number of positives in every batch, one pass over the negatives an epoch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from apmax.labels import labels_of
from apmax.samplers.base import EpochSampler
from apmax.samplers.draws import NEGATIVES, POSITIVES, BalancedDraws, class_rows


class PositiveBatchSampler(EpochSampler):
    """Batches of `num_pos` positives and then `batch_size - num_pos` negatives; an epoch is one pass over negatives.

    Every negative comes exactly once an epoch. What is left for the last batch makes it a short one: it has all
    `num_pos` positives and fewer negatives. Every positive comes equally often (±1) in each epoch, and equally often
    (±1) over any number of whole epochs from the first. No row comes twice in a batch.

    `batch_size` and `num_pos` are those of all processes together. The joined batches do not depend on `world_size`;
    process `rank` takes every `world_size`-th element of each, so that positives go round the processes. All
    processes get equally many batches, none of them empty; shares differ by one row where a batch does not divide.

    Iterating moves on to the next epoch by itself; `set_epoch` and `set_position` choose another.

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
        if table.ndim != 1:
            raise ValueError(
                f"labels must have shape (n,), got {tuple(table.shape)}; for several tasks use MultiTaskBatchSampler"
            )
        self._positives, self._negatives = class_rows(table)
        if len(self._positives) < self.num_pos:
            raise ValueError(
                f"labels hold {len(self._positives)} positive(s) among {len(table)} rows, too few for "
                f"num_pos={num_pos} different ones in a batch; lower num_pos"
            )
        if len(self._negatives) == 0:
            raise ValueError(f"labels hold no negatives among {len(table)} rows; an epoch is a pass over the negatives")
        full = self.batch_size - self.num_pos
        smallest = self.num_pos + min(full, (len(self._negatives) - 1) % full + 1)
        if smallest < self.world_size:
            raise ValueError(
                f"an epoch's last batch has {smallest} row(s), which leaves nothing for some of "
                f"world_size={world_size} processes; choose another batch_size than {batch_size}, or fewer processes"
            )

    def __len__(self) -> int:
        return -(-len(self._negatives) // (self.batch_size - self.num_pos))

    def _draw(self, epoch: int) -> Callable[[int, int], list[list[int]]]:
        full = self.batch_size - self.num_pos
        order = np.random.default_rng([self.seed, NEGATIVES, epoch]).permutation(self._negatives)
        draws = BalancedDraws(len(self._positives), self.num_pos, [self.seed, POSITIVES, epoch])
        draws.start_with_surplus(len(self), epoch, self.seed)

        def batches(start: int, stop: int) -> list[list[int]]:
            positives = self._positives[draws.rows(start, stop)]
            whole = min(stop, len(order) // full)
            block = self._share(positives[: whole - start], order[start * full : whole * full].reshape(-1, full))
            if whole < stop:
                block += self._share(positives[-1:], order[None, whole * full :])
            return block

        return batches
