"""Average precision of many stratified resamples, without sorting any of them.

A resample draws n₊ positives and n₋ negatives with replacement. Its average precision depends only on how many of the
positives fall on each of their L distinct scores, and how many of the negatives fall between two such scores: a
multinomial draw into L cells and another into L + 1, which is exact in distribution and far cheaper than drawing
the examples where the cells are few. Models that are compared on one resample share the draw: their cells are the
occupied combinations of the single models' cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from apmax.metrics.ranking import Sample

Numbers = npt.NDArray[np.float64]
Whole = npt.NDArray[np.int64]

CROWD = 20
"""Cells of more examples are drawn whole: one cell of a multinomial draw costs about as much as 20 examples."""

CHUNK = 2**18
"""Cells of all resamples held at a time: a bound on memory, and small enough for the processor's cache."""


class Stratum:
    """The examples of one class, which are resampled together.

    Args:
        cells: For each model the cell of every example, (n,).
        sizes: For each model the number of its cells.
    """

    def __init__(self, cells: Sequence[Whole], sizes: Sequence[int]) -> None:
        self.sizes, self.total = sizes, cells[0].size
        joint, counts = np.unique(np.ravel_multi_index(tuple(cells), tuple(sizes)), return_counts=True)
        occupied, crowded = np.unravel_index(joint, tuple(sizes)), counts > CROWD
        small = np.min_scalar_type(max(sizes))
        self.crowds = [cell[crowded] for cell in occupied]
        self.singles = [np.repeat(cell[~crowded].astype(small), counts[~crowded]) for cell in occupied]
        # The singles stand first: the last cell takes what rounding leaves over, and there may be no singles.
        self.shares = np.append(self.singles[0].size, counts[crowded]) / max(1, self.total)
        self.width = max(self.shares.size, *sizes)

    def draw(self, generator: np.random.Generator, resamples: int) -> list[Whole]:
        """Return for each model how many examples of every resample fall into its cells, (resamples, size)."""
        counts = [np.empty((resamples, size), np.int64) for size in self.sizes]
        for row, drawn in enumerate(generator.multinomial(self.total, self.shares, size=resamples)):
            chosen = _choose(generator, self.singles[0].size, drawn[0])
            for count, crowd, single, size in zip(counts, self.crowds, self.singles, self.sizes, strict=True):
                count[row] = np.bincount(crowd, weights=drawn[1:], minlength=size)
                count[row] += np.bincount(single.take(chosen), minlength=size)
        return counts


def resampled_average_precision(models: Sequence[Sample], resamples: int, seed: int) -> list[Numbers]:
    """Return for each model the average precision of every resample, (resamples,).

    Args:
        models: One task each, with the same labels, at least one of them positive.
        resamples: How many.
        seed: Of this function's own generator.
    """
    positive = (models[0].labels == 1).cpu().numpy()
    hits, misses, sizes = [], [], []
    for model in models:
        keys = model.keys.cpu().numpy()
        levels, level = np.unique(keys[positive], return_inverse=True)
        hits.append(level)
        misses.append(np.searchsorted(levels, keys[~positive]))
        sizes.append(levels.size)
    positives, negatives = Stratum(hits, sizes), Stratum(misses, [size + 1 for size in sizes])
    generator = np.random.Generator(np.random.SFC64(seed))
    values: list[list[Numbers]] = [[] for _ in models]
    step = max(1, CHUNK // max(positives.width, negatives.width))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = zip(values, positives.draw(generator, size), negatives.draw(generator, size), strict=True)
        for chunks, hit, miss in drawn:
            chunks.append(_average_precision(hit, miss))
    return [np.concatenate(chunks) for chunks in values]


def _average_precision(positives: Whole, negatives: Whole) -> Numbers:
    """Return the average precision from counts by cell, the best first, (resamples, L) and (resamples, L + 1)."""
    found = positives.cumsum(1)
    taken = found + negatives[:, :-1].cumsum(1)
    result: Numbers = (positives * found / np.maximum(taken, 1)).sum(1) / found[:, -1]
    return result


def _choose(generator: np.random.Generator, examples: int, size: int) -> Whole:
    """Return `size` independent uniform numbers of 0 to examples - 1, faster than numpy's `integers`.

    The high half of a random 32-bit word times `examples`; where the low half is below 2³² mod `examples` the word
    would favour some numbers, and `integers` draws another (Lemire: Fast random integer generation, 2019).
    """
    words = generator.integers(2**64, size=(size + 1) // 2, dtype=np.uint64).view(np.uint32)
    product = words[:size].astype(np.uint64)
    product *= np.uint64(examples)
    unfair = np.flatnonzero(product.astype(np.uint32) < 2**32 % max(1, examples))
    product >>= np.uint64(32)
    chosen: Whole = product.view(np.int64)
    if unfair.size:
        chosen[unfair] = generator.integers(examples, size=unfair.size)
    return chosen
