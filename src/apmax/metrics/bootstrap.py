"""Average precision of many stratified resamples, without sorting any of them.

A resample draws n₊ positives and n₋ negatives with replacement. Its average precision depends only on the number
of positives at each of their L distinct scores and the number of negatives between two such scores: a
multinomial draw into L cells and another into L + 1, which is exact in distribution and far cheaper than drawing
the examples where the cells are few. Models that are compared on one resample share the draw: their cells are the
occupied combinations of the single models' cells.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt

from apmax.metrics.ranking import Sample

_Floats = npt.NDArray[np.float64]
_Integers = npt.NDArray[np.int64]

_CROWD = 20
"""Cells of more examples are drawn whole: one cell of a multinomial draw costs about as much as 20 examples."""

_CHUNK = 2**18
"""Cells of all resamples held at a time: a bound on memory, and small enough for the processor's cache."""


class Stratum:
    """The examples of one class, which are resampled together.

    Args:
        cells: For each model the cell of every example, (n,).
        sizes: For each model the number of its cells.
        weight: (n,) weights, drawn with their examples; None where each counts 1.
    """

    def __init__(self, cells: Sequence[_Integers], sizes: Sequence[int], weight: _Floats | None = None) -> None:
        self.sizes, self.total = sizes, cells[0].size
        every = np.ravel_multi_index(tuple(cells), tuple(sizes))
        joint, counts = np.unique(every, return_counts=True)
        # Weighted examples of one cell differ: all are drawn one by one, in an order that does not depend on the rows'.
        self.weight = None if weight is None else weight[np.lexsort((weight, every))]
        occupied = np.unravel_index(joint, tuple(sizes))
        crowded = counts > _CROWD if weight is None else np.zeros(counts.size, dtype=bool)
        small = np.min_scalar_type(max(sizes))
        self.crowds = [cell[crowded] for cell in occupied]
        self.singles = [np.repeat(cell[~crowded].astype(small), counts[~crowded]) for cell in occupied]
        # The singles come first: the last cell absorbs the rounding error, and there may be no singles.
        self.shares = np.append(self.singles[0].size, counts[crowded]) / max(1, self.total)
        self.width = max(self.shares.size, *sizes)

    def draw(self, generator: np.random.Generator, resamples: int) -> list[_Floats]:
        """Return for each model the number (weight) of every resample's examples in its cells, (resamples, size)."""
        counts = [np.empty((resamples, size)) for size in self.sizes]
        for row, drawn in enumerate(generator.multinomial(self.total, self.shares, size=resamples)):
            chosen = _choose(generator, self.singles[0].size, drawn[0])
            weight = None if self.weight is None else self.weight.take(chosen)
            for count, crowd, single, size in zip(counts, self.crowds, self.singles, self.sizes, strict=True):
                count[row] = np.bincount(crowd, weights=drawn[1:], minlength=size)
                count[row] += np.bincount(single.take(chosen), weights=weight, minlength=size)
        return counts


def resampled_average_precision(models: Sequence[Sample], resamples: int, seed: int) -> list[_Floats]:
    """Return for each model the average precision of every resample, (resamples,).

    Args:
        models: One task each, with the same labels, at least one of them positive, and the same weights.
        resamples: Number of resamples.
        seed: Seed of this function's own generator.
    """
    positive = (models[0].labels == 1).cpu().numpy()
    hits, misses, sizes = [], [], []
    for model in models:
        keys = model.keys.cpu().numpy()
        levels, level = np.unique(keys[positive], return_inverse=True)
        hits.append(level)
        misses.append(np.searchsorted(levels, keys[~positive]))
        sizes.append(levels.size)
    weight = None if models[0].weight is None else models[0].weight.cpu().numpy()
    # A power of two, which is exact: products of weights that are small beside the negatives' would be 0.
    unit = 1.0 if weight is None else float(np.ldexp(0.5, np.frexp(weight[positive].max())[1]))
    positives = Stratum(hits, sizes, None if weight is None else weight[positive] / unit)
    negatives = Stratum(misses, [size + 1 for size in sizes], None if weight is None else weight[~positive])
    generator = np.random.Generator(np.random.SFC64(seed))
    values: list[list[_Floats]] = [[] for _ in models]
    step = max(1, _CHUNK // max(positives.width, negatives.width))
    for start in range(0, resamples, step):
        size = min(step, resamples - start)
        drawn = zip(values, positives.draw(generator, size), negatives.draw(generator, size), strict=True)
        for chunks, hit, miss in drawn:
            chunks.append(_average_precision(hit, miss, unit))
    return [np.concatenate(chunks) for chunks in values]


def _average_precision(positives: _Floats, negatives: _Floats, unit: float = 1.0) -> _Floats:
    """Return the average precision from numbers by cell, the best first, (resamples, L) and (resamples, L + 1).

    Positives are counted in units of `unit`.
    """
    found = positives.cumsum(1)
    taken = found * unit + negatives[:, :-1].cumsum(1)
    result: _Floats = (positives * (found * unit) / np.where(taken > 0, taken, 1)).sum(1) / found[:, -1]
    return result


def _choose(generator: np.random.Generator, examples: int, size: int) -> _Integers:
    """Return `size` independent uniform numbers of 0 to examples - 1, faster than numpy's `integers`.

    The high half of a random 32-bit word times `examples`; where the low half is below 2³² mod `examples` the word
    would favour some numbers, and `integers` draws another (Lemire: Fast random integer generation, 2019).
    """
    words = generator.integers(2**64, size=(size + 1) // 2, dtype=np.uint64).view(np.uint32)
    product = words[:size].astype(np.uint64)
    product *= np.uint64(examples)
    unfair = np.flatnonzero(product.astype(np.uint32) < 2**32 % max(1, examples))
    product >>= np.uint64(32)
    chosen: _Integers = product.view(np.int64)
    if unfair.size:
        chosen[unfair] = generator.integers(examples, size=unfair.size)
    return chosen
