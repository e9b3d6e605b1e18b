"""Batch sampler with hard negatives: those of a pool that the model scores highest."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from apmax import validation
from apmax.samplers.batches import PositiveBatchSampler
from apmax.samplers.draws import MINED, POOL, BalancedDraws


class MinedBatchSampler(PositiveBatchSampler):
    """Batches of `num_pos` positives and then hard negatives, which the model in training scores highest.

    An epoch has as many batches as one of `PositiveBatchSampler`, in `rounds` equal parts (±1 batch). Before each round
    the caller scores the negatives of `pool_rows` and passes the scores to `mine`, which keeps the highest ones, the
    share `hard`. Iterating yields the batches of one round, from the position on; then the next round has to be mined.
    Within a round every mined negative is drawn equally often (±1), and no row is drawn twice in a batch.

    Positives, processes, seeds and positions are as in `PositiveBatchSampler`. `mined` is the only state: a run that
    resumes inside a round restores it.

    Args:
        labels: 0/1 labels, or the data set itself; one task.
        batch_size: Rows in a batch.
        num_pos: Positives in a batch.
        hard: Share of the scored negatives that is kept; at least one batch's.
        rounds: Rounds in an epoch; at most one for each batch.
        pool: Largest number of negatives to score in a round. Where there are more, they are drawn anew each round.
        seed: Batches are a function of seed, position and mined rows alone.
        rank: This process, from 0.
        world_size: Number of processes.

    Raises:
        ValueError: As `PositiveBatchSampler`; `hard` out of (0, 1].

    >>> sampler = MinedBatchSampler([1, 0, 0, 0, 0], batch_size=2, num_pos=1, hard=0.5, rounds=2)
    >>> scores = torch.tensor([0.0, 0.9, 0.1, 0.8, 0.2])
    >>> for batch in range(len(sampler)):
    ...     if sampler.starts_round(batch):
    ...         pool = sampler.pool_rows(0, batch)
    ...         sampler.mine(pool, scores[pool])
    >>> sampler.mined
    tensor([1, 3])
    """

    def __init__(
        self,
        labels: Any,
        batch_size: int = 64,
        *,
        num_pos: int = 4,
        hard: float = 0.25,
        rounds: int = 4,
        pool: int = 2**16,
        seed: int = 0,
        rank: int = 0,
        world_size: int = 1,
    ) -> None:
        super().__init__(labels, batch_size, num_pos=num_pos, seed=seed, rank=rank, world_size=world_size)
        self.hard = validation.interval("hard", hard, 0, 1, closed="right")
        self.pool = validation.whole("pool", pool, 1)
        self.rounds = min(validation.whole("rounds", rounds, 1), len(self))
        self.mined: Tensor | None = None
        self._starts = [number * len(self) // self.rounds for number in range(self.rounds)]

    def starts_round(self, batch: int) -> bool:
        """Return whether negatives have to be mined before this batch of an epoch."""
        return batch in self._starts

    def pool_rows(self, epoch: int, batch: int) -> Tensor:
        """Return the negatives to score before the round that begins with `batch`, in ascending order."""
        least = min(self.batch_size - self.num_pos, len(self._negatives))
        size = min(max(self.pool, least), len(self._negatives))
        if size == len(self._negatives):
            return torch.from_numpy(self._negatives.astype(np.int64))
        generator = np.random.default_rng([self.seed, POOL, epoch, batch])
        chosen = generator.choice(len(self._negatives), size, replace=False, shuffle=False)
        return torch.from_numpy(self._negatives[np.sort(chosen)].astype(np.int64))

    def mine(self, rows: Tensor, scores: Tensor) -> None:
        """Keep the rows with the highest scores, ascending; of equal scores the first ones.

        Args:
            rows: Rows of `pool_rows`.
            scores: Their scores, on any device.

        Raises:
            ValueError: Not one score per row.
        """
        if scores.shape != rows.shape:
            raise ValueError(f"scores must have shape {tuple(rows.shape)}, one per row, got {tuple(scores.shape)}")
        count = min(len(rows), max(math.ceil(self.hard * len(rows)), self.batch_size - self.num_pos))
        order = scores.detach().cpu().argsort(descending=True, stable=True)
        self.mined = rows[order[:count]].sort().values

    def __iter__(self) -> Iterator[list[int]]:
        if self.mined is None:
            raise ValueError("no negatives are mined yet: score those of pool_rows and call mine before each round")
        epoch, first = self.epoch, self._first
        stop = next((start for start in self._starts if start > first), len(self))
        self.epoch, self._first = (epoch, stop) if stop < len(self) else (epoch + 1, 0)
        yield from self._blocks(epoch, first, stop)

    def _draw(self, epoch: int) -> Callable[[int, int], list[list[int]]]:
        assert self.mined is not None
        mined, positive_draws = self.mined.numpy(), self._positive_draws(epoch)
        size = min(self.batch_size - self.num_pos, len(mined))

        def batches(start: int, stop: int) -> list[list[int]]:
            begin = max(each for each in self._starts if each <= start)
            draws = BalancedDraws(len(mined), size, [self.seed, MINED, epoch, begin])
            negatives = mined[draws.rows(start - begin, stop - begin)]
            return self._share(self._positives[positive_draws.rows(start, stop)], negatives)

        return batches
