"""How many sorted edges lie at or below each score."""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor


def edges_at_or_below(edges: Tensor, scores: Tensor) -> Tensor:
    """Return, for each of `scores` (..., n), the number of the sorted `edges` (..., K) that are not above it.

    >>> edges_at_or_below(torch.tensor([0.0, 1.0]), torch.tensor([1.0, -1.0, 0.5]))
    tensor([2, 0, 1])
    """
    if scores.ndim == 1 and scores.device.type == "cpu" and not torch.compiler.is_compiling():
        return _by_sorting(edges, scores)
    return torch.searchsorted(edges, scores.contiguous(), right=True)


def _by_sorting(edges: Tensor, scores: Tensor) -> Tensor:
    # numpy sorts with vector instructions, several times faster than a binary search for every score: the search then
    # goes the other way, for the few edges among the many scores.
    values = scores.numpy()
    order = np.argsort(values)
    starts = np.searchsorted(values[order], edges.numpy(), side="left")
    counts = np.diff(starts, prepend=0, append=len(values))
    place = np.empty(len(values), dtype=np.int64)
    place[order] = np.repeat(np.arange(len(counts)), counts)
    return torch.from_numpy(place)
