"""Sorting and searching; on a CPU by numpy, whose sort uses vector instructions and is several times faster."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

_Integers = NDArray[np.int64]

_WORTH_NUMPY, _WORTH_SORTING = 256, 2048
"""From so many values on numpy's search is faster than torch's, and sorting them first than searching for each."""
_WORTH_MARKING = 64
"""Up to so many possible numbers for each value a list of all of them is faster than a sort."""


def on_host(tensor: Tensor) -> bool:
    """Return whether reading numbers costs nothing; elsewhere it would wait for a device or break a graph.

    Every look at a tensor's numbers that a device must not make asks this one function.
    """
    return tensor.device.type == "cpu" and not torch.compiler.is_compiling()


class Located(NamedTuple):
    """The positions of examples (..., m) in a table: the number of an entry, and a coordinate relative to it."""

    entry: Tensor
    part: Tensor


def sort(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return `values` (..., n) in ascending order and the positions they come from; ties in any order.

    >>> sort(torch.tensor([2.0, 1.0]))
    (tensor([1., 2.]), tensor([1, 0]))
    """
    if values.ndim == 1 and on_host(values):
        order = torch.from_numpy(np.argsort(values.numpy()))
        return values.take(order), order
    result = values.sort(-1)
    return result.values, result.indices


def edges_at_or_below(edges: Tensor, values: Tensor) -> Tensor:
    """Return, for each of `values` (..., n), the number of the sorted `edges` (..., K) that are not above it.

    >>> edges_at_or_below(torch.tensor([0.0, 1.0]), torch.tensor([1.0, -1.0, 0.5]))
    tensor([2, 0, 1])
    """
    return _count(edges, values, strictly=False)


def edges_below(edges: Tensor, values: Tensor) -> Tensor:
    """Return, for each of `values` (..., n), the number of the sorted `edges` (..., K) that are below it.

    >>> edges_below(torch.tensor([0.0, 1.0]), torch.tensor([1.0, -1.0, 0.5]))
    tensor([1, 0, 1])
    """
    return _count(edges, values, strictly=True)


def common_rows(table: _Integers, values: _Integers, limit: int) -> tuple[_Integers, _Integers] | None:
    """Return where among `values` (n,) stand those that `table` holds too, and where in the table.

    None if a value comes twice or is not in [0, limit), as all of the table is, which is sorted without repetition.

    >>> where, place = common_rows(np.array([1, 3, 4]), np.array([4, 2, 1]), 5)
    >>> where.tolist(), place.tolist()
    ([2, 0], [0, 2])
    """
    # Read as unsigned numbers the negative ones are the largest.
    if values.view(np.uint64).max(initial=0) >= limit:
        return None
    if limit <= _WORTH_MARKING * len(values):
        return _common_by_marking(table, values, limit)
    return _common_by_sorting(table, values)


def _common_by_marking(table: _Integers, values: _Integers, limit: int) -> tuple[_Integers, _Integers] | None:
    # Every value leaves its number, from 1 on, in a list of all that there could be; of two equal ones the last stays.
    numbers = np.arange(1, len(values) + 1, dtype=np.int32)
    marks = np.zeros(limit, dtype=np.int32)
    marks[values] = numbers
    if (marks.take(values) != numbers).any():
        return None
    met = marks.take(table)
    (place,) = (met > 0).nonzero()
    return met.take(place) - np.int64(1), place


def _common_by_sorting(table: _Integers, values: _Integers) -> tuple[_Integers, _Integers] | None:
    order = np.argsort(values)
    ordered = values.take(order)
    if (ordered[1:] == ordered[:-1]).any():
        return None
    # The shorter one is looked up in the longer one.
    if len(table) <= len(values):
        position = np.searchsorted(ordered, table)
        (place,) = (ordered.take(position, mode="clip") == table).nonzero()
        return order.take(position.take(place)), place
    place = np.searchsorted(table, ordered)
    met = table.take(place, mode="clip") == ordered
    return order[met], place[met]


def _count(edges: Tensor, values: Tensor, *, strictly: bool) -> Tensor:
    if edges.ndim == values.ndim == 1 and values.shape[0] >= _WORTH_NUMPY and on_host(values):
        if values.shape[0] >= _WORTH_SORTING:
            return _count_by_sorting(edges, values, strictly=strictly)
        return torch.from_numpy(np.searchsorted(edges.numpy(), values.numpy(), side="left" if strictly else "right"))
    return torch.searchsorted(edges, values.contiguous(), right=not strictly)


def _count_by_sorting(edges: Tensor, values: Tensor, *, strictly: bool) -> Tensor:
    # Sorting beats a binary search for every value: the search then goes the other way, for the few edges.
    unsorted = values.numpy()
    order = np.argsort(unsorted)
    starts = np.searchsorted(unsorted.take(order), edges.numpy(), side="right" if strictly else "left")
    place = np.empty(len(unsorted), dtype=np.int64)
    place[order] = np.bincount(starts, minlength=len(unsorted) + 1)[:-1].cumsum()
    return torch.from_numpy(place)
