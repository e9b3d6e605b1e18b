"""Sorting and searching; on a CPU by numpy, whose sort uses vector instructions and is several times faster."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

_WORTH_NUMPY, _WORTH_SORTING = 256, 2048
"""From so many values on numpy's search is faster than torch's, and sorting them first than searching for each."""


class Place(NamedTuple):
    """Where examples (..., m) stand in a table: the number of an entry, and how they stand to it."""

    entry: Tensor
    part: Tensor


def sort(values: Tensor) -> tuple[Tensor, Tensor]:
    """Return `values` (..., n) in ascending order and the positions they come from; ties in any order.

    >>> sort(torch.tensor([2.0, 1.0]))
    (tensor([1., 2.]), tensor([1, 0]))
    """
    if values.ndim == 1 and _on_host(values):
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


def members(table: Tensor, values: Tensor) -> tuple[Tensor, bool]:
    """Return which of `values` (n,) stand in the sorted `table`, and whether it is known that no value comes twice.

    The last entry of the table must not be below any value.

    >>> members(torch.tensor([1, 3]), torch.tensor([3, 2]))
    (tensor([ True, False]), False)
    """
    if values.ndim == 1 and values.shape[0] >= _WORTH_SORTING and _on_host(values):
        return _members_by_sorting(table.numpy(), values.numpy())
    return table.take(torch.searchsorted(table, values.contiguous())) == values, False


def _members_by_sorting(table: np.ndarray, values: np.ndarray) -> tuple[Tensor, bool]:
    order = np.argsort(values)
    ordered = values[order]
    distinct = not (ordered[1:] == ordered[:-1]).any()
    found = np.zeros(len(values), dtype=bool)
    if distinct and len(table) <= len(values):
        place = np.searchsorted(ordered, table)
        found[order[place[ordered.take(place, mode="clip") == table]]] = True
    else:
        found[order] = table.take(np.searchsorted(table, ordered), mode="clip") == ordered
    return torch.from_numpy(found), distinct


def _count(edges: Tensor, values: Tensor, *, strictly: bool) -> Tensor:
    if edges.ndim == values.ndim == 1 and values.shape[0] >= _WORTH_NUMPY and _on_host(values):
        if values.shape[0] >= _WORTH_SORTING:
            return _count_by_sorting(edges, values, strictly=strictly)
        return torch.from_numpy(np.searchsorted(edges.numpy(), values.numpy(), side="left" if strictly else "right"))
    return torch.searchsorted(edges, values.contiguous(), right=not strictly)


def _count_by_sorting(edges: Tensor, values: Tensor, *, strictly: bool) -> Tensor:
    # Sorting beats a binary search for every value: the search then goes the other way, for the few edges.
    unsorted = values.numpy()
    order = np.argsort(unsorted)
    starts = np.searchsorted(unsorted[order], edges.numpy(), side="right" if strictly else "left")
    counts = np.diff(starts, prepend=0, append=len(unsorted))
    place = np.empty(len(unsorted), dtype=np.int64)
    place[order] = np.repeat(np.arange(len(counts)), counts)
    return torch.from_numpy(place)


def _on_host(values: Tensor) -> bool:
    return values.device.type == "cpu" and not torch.compiler.is_compiling()
