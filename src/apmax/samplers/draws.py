"""Balanced random draws that can be entered at any batch."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

RowArray = NDArray[Any]
"""Whole numbers: rows of a data set or items of a class, in the narrowest type that holds them."""

# The second words of a generator's key, so that no two uses of one seed share random numbers.
POSITIVES, NEGATIVES, SURPLUS, SURPLUS_ORDER, POOL, MINED = range(6)


class BalancedDraws:
    """Draws of `size` distinct items out of `items` for each batch, all items equally often; any batch at any time.

    Batches are consecutive pieces of a stream of shuffled cycles through all items. A batch across the end of one cycle
    and the start of the next could contain an item twice; within the first `size` positions of the next cycle such
    items are moved back. The last `size - 1` positions, which are all that the cycle after it depends on, stay as they
    were shuffled, so that a cycle depends on the one before it and on no other. This needs items >= 2 size - 1; with
    fewer items, those that a batch leaves out are drawn instead.
    """

    def __init__(self, items: int, size: int, key: list[int]) -> None:
        self.items = items
        self.leaves_out = items < 2 * size - 1
        self.size = items - size if self.leaves_out else size
        self.key = key
        self.surplus: RowArray = np.empty(0, dtype=_whole_type(items))
        # Short cycles are shuffled many at a time, for speed.
        self.cycles = max(1, 4096 // items)
        self._cached: tuple[int, RowArray] = (-1, self.surplus)

    def start_with_surplus(self, batches: int, epoch: int, seed: int) -> None:
        """Begin the stream with the items that are drawn once more than others in an epoch of `batches` batches.

        They rotate with the epochs in an order that is fixed for the run, so that counts stay even over the run.
        """
        count = batches * self.size % self.items
        order = np.random.default_rng([seed, SURPLUS_ORDER]).permutation(self.items)
        chosen = order[(epoch * count + np.arange(count)) % self.items].astype(self.surplus.dtype)
        self.surplus = np.random.default_rng([seed, SURPLUS, epoch]).permutation(chosen)

    def rows(self, first: int, last: int) -> RowArray:
        """Return the items of the batches from `first` to before `last`, one batch a row."""
        drawn = self._stream(first * self.size, last * self.size).reshape(last - first, self.size)
        if not self.leaves_out:
            return drawn
        kept = np.ones((last - first, self.items), dtype=bool)
        np.put_along_axis(kept, drawn, False, axis=1)
        size = self.items - self.size
        rows = np.nonzero(kept)[1].reshape(last - first, size)
        # In ascending order the lowest items would always go to the first process: rotate each batch one step further.
        rotated = (np.arange(size) + np.arange(first, last)[:, None]) % size
        return np.take_along_axis(rows, rotated, axis=1)

    def _stream(self, first: int, last: int) -> RowArray:
        pieces = [self.surplus[first:last]]
        length = self.cycles * self.items
        start, stop = max(0, first - len(self.surplus)), max(0, last - len(self.surplus))
        for chunk in range(start // length, -(-stop // length)):
            piece = self._chunk(chunk).reshape(-1)
            pieces.append(piece[max(0, start - chunk * length) : stop - chunk * length])
        return np.concatenate(pieces)

    def _chunk(self, chunk: int) -> RowArray:
        if self._cached[0] != chunk:
            cycles = self._shuffled(chunk)
            if self.size > 1:
                self._separate_from_cycle_before(cycles, chunk)
            self._cached = chunk, cycles
        return self._cached[1]

    def _shuffled(self, chunk: int) -> RowArray:
        cycles = np.tile(np.arange(self.items, dtype=self.surplus.dtype), (self.cycles, 1))
        return np.random.default_rng([*self.key, chunk]).permuted(cycles, axis=1, out=cycles)

    def _separate_from_cycle_before(self, cycles: RowArray, chunk: int) -> None:
        tail = self.size - 1
        before = np.zeros((self.cycles, tail), dtype=cycles.dtype)
        before[1:] = cycles[:-1, -tail:]
        if chunk > 0:
            before[0] = self._shuffled(chunk - 1)[-1, -tail:]
        elif len(self.surplus) > 0:
            before[0, max(0, tail - len(self.surplus)) :] = self.surplus[-tail:]
        starts = len(self.surplus) + (chunk * self.cycles + np.arange(self.cycles)) * self.items
        shared = starts % self.size  # positions of the cycle before in the batch in which this one starts
        cycle, position = np.nonzero(np.arange(tail) >= tail - shared[:, None])
        present = np.zeros(cycles.shape, dtype=bool)
        present[cycle, before[cycle, position]] = True
        head = cycles[:, : self.size]
        order = np.argsort(np.take_along_axis(present, head, axis=1), axis=1, kind="stable")
        cycles[:, : self.size] = np.take_along_axis(head, order, axis=1)


def _whole_type(size: int) -> type[np.signedinteger[Any]]:
    return np.int32 if size < 2**31 else np.int64


def class_rows(labels: Tensor) -> tuple[RowArray, RowArray]:
    """Return the rows of the positives and those of the negatives; rows with a missing label are in neither."""
    values, kind = labels.numpy(), _whole_type(len(labels))
    return np.flatnonzero(values == 1).astype(kind), np.flatnonzero(values == 0).astype(kind)
