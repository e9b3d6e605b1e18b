"""What the samplers share: epochs, positions and processes."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator

import numpy as np
from torch.utils.data import Sampler

from apmax import validation
from apmax.samplers.draws import Rows


class EpochSampler(Sampler[list[int]], ABC):
    """Epochs of batches that can be entered at any position: what both samplers share."""

    def __init__(self, batch_size: int, num_pos: int, seed: int, rank: int, world_size: int) -> None:
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

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of batches in a whole epoch."""

    @abstractmethod
    def _draw(self, epoch: int) -> Callable[[int, int], list[list[int]]]:
        """Return the function that gives this process's share of the batches from one number to before another."""

    def set_epoch(self, epoch: int) -> None:
        """Let the next iteration be that of `epoch`, from its first batch."""
        self.set_position(epoch, 0)

    def set_position(self, epoch: int, batch: int) -> None:
        """Let the next iteration be that of `epoch` after `batch` batches of it, as if those had just been yielded.

        Count the batches that were trained on: a loader with workers has asked the sampler for more than that. `len`
        remains that of a whole epoch.

        Raises:
            ValueError: `batch` is more than the batches of an epoch.
        """
        epoch, batch = validation.whole("epoch", epoch), validation.whole("batch", batch)
        if batch > len(self):
            raise ValueError(f"batch must lie in 0 to {len(self)}, the batches of an epoch, got {batch}")
        self.epoch, self._first = epoch, batch

    def __iter__(self) -> Iterator[list[int]]:
        epoch, first = self.epoch, self._first
        # Now and not at the end: a loop that always breaks off early would else see the same batches every epoch.
        self.epoch, self._first = epoch + 1, 0
        batches = self._draw(epoch)
        # Enough batches at once that numpy does the work, few enough that their lists stay small.
        step = max(1, 2**16 // self.batch_size)
        for start in range(first, len(self), step):
            yield from batches(start, min(start + step, len(self)))

    def _share(self, positives: Rows, negatives: Rows) -> list[list[int]]:
        joined = np.concatenate([positives, negatives], axis=1)
        share: list[list[int]] = joined[:, self.rank :: self.world_size].tolist()
        return share
