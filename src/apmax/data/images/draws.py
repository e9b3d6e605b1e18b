"""Chance as a function of (seed, epoch, row): nothing to save, and the same in whichever process a row is read."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_FIRST, _SECOND = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)


def uniforms(seed: int, epoch: int, rows: npt.ArrayLike, count: int) -> npt.NDArray[np.float64]:
    """Return `count` numbers in [0, 1) for each row, (rows, count), by the finaliser of splitmix64, chained.

    Column k of a row depends on (seed, epoch, row, k) alone, not on the other rows and not on `count`.

    >>> uniforms(0, 1, [5, 6], 2).round(3).tolist() == uniforms(0, 1, [6, 5], 3)[::-1, :2].round(3).tolist()
    True
    """
    mask = (1 << 64) - 1
    state = _mixed(_GOLDEN ^ np.array([seed & mask], dtype=np.uint64))
    state = _mixed(state ^ np.array([epoch & mask], dtype=np.uint64))
    state = _mixed(state ^ np.asarray(rows, dtype=np.int64).astype(np.uint64))
    table = _mixed(state[:, None] ^ np.arange(count, dtype=np.uint64))
    # The upper 53 bits are as many as a double holds.
    numbers: npt.NDArray[np.float64] = (table >> np.uint64(11)).astype(np.float64) * 2.0**-53
    return numbers


def _mixed(values: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    values = values + _GOLDEN
    values = (values ^ (values >> np.uint64(30))) * _FIRST
    values = (values ^ (values >> np.uint64(27))) * _SECOND
    mixed: npt.NDArray[np.uint64] = values ^ (values >> np.uint64(31))
    return mixed
