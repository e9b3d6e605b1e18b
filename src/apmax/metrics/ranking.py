"""Checked and sorted samples, from which every metric is computed."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from apmax import validation
from apmax.exact import search

_MAX_WEIGHT_RATIO = 1e290
"""The largest weight may be this many times the smallest, which float64 then holds in the largest one's unit."""


class Ranked(NamedTuple):
    """A group of examples in the order of their scores, the best first.

    The last dimension runs over the m examples; several tasks are in front, and then the row of a task with fewer
    examples ends in infinite keys of weight 0.
    """

    keys: Tensor
    """Negated scores in ascending order, (m,) or (tasks, m)."""
    weight: Tensor | None
    """Every example's weight in that order; None where each counts 1."""
    cumulative: Tensor | None
    """Weight of the first 0, 1, …, m examples."""
    total: Tensor
    """Weight of all examples, a scalar or (tasks,)."""

    def above(self, keys: Tensor, *, ties: bool) -> Tensor:
        """Return the weight of the examples strictly above each of `keys`, or with `ties` at or above it."""
        count = _search(self.keys, keys, right=ties)
        return count.double() if self.cumulative is None else self.cumulative.gather(-1, count)

    def sum_at_or_below(self, values: Tensor, keys: Tensor) -> Tensor:
        """Return the sum of `values`, one per example, over the examples at or below each of `keys`."""
        from_the_end = torch.nn.functional.pad(values.flip(-1).cumsum(-1).flip(-1), (0, 1))
        return from_the_end.gather(-1, _search(self.keys, keys, right=False))

    def weighted_sum(self, values: Tensor) -> Tensor:
        """Return the sum of `values`, one per example, times the weights."""
        weight = self.keys.isfinite().double() if self.weight is None else self.weight
        return (weight * values).sum(-1)

    def effective_size(self) -> float:
        """Return Kish's effective number of examples of one task, (Σw)²/Σw²: the number itself for equal weights."""
        if self.weight is None:
            return float(len(self.keys))
        if not len(self.keys):
            return 0.0
        # Relative to the group's own largest: squares of weights that are small beside the other class's would vanish.
        weight = self.weight / self.weight.max()
        return float(weight.sum() ** 2 / (weight**2).sum())


class Sample(NamedTuple):
    """Negated scores (n,) or (tasks, n), labels of that shape, and weights (n,) in float64 if there are any.

    Weights are in units of `weight_unit`, a power of two, so that their sums and products are finite.
    """

    keys: Tensor
    labels: Tensor
    weight: Tensor | None
    weight_unit: float = 1.0

    def positives(self) -> Ranked:
        """Return the ranked positives."""
        return self.ranked(self.labels == 1)

    def negatives(self) -> Ranked:
        """Return the ranked negatives."""
        return self.ranked(self.labels == 0)

    def ranked(self, member: Tensor) -> Ranked:
        """Return the examples of the mask `member`, ranked."""
        if member.ndim == 1:
            keys = self.keys[member]
            weight = None if self.weight is None else self.weight[member]
        else:
            keys = self.keys.masked_fill(~member, torch.inf)
            weight = None if self.weight is None else self.weight * member
        count = member.sum(-1)
        longest = int(count.max())
        if weight is None:
            return Ranked(_sort(keys)[..., :longest].contiguous(), None, None, count.double())
        order = _argsort(keys)[..., :longest]
        keys, weight = keys.gather(-1, order), weight.gather(-1, order)
        cumulative = torch.nn.functional.pad(weight.cumsum(-1), (1, 0))
        return Ranked(keys, weight, cumulative, cumulative[..., -1])


def sample(scores: Any, labels: Any, sample_weight: Any = None, *, name: str = "scores") -> Sample:
    """Return the checked arguments of a metric.

    Args:
        scores: (n,), (n, 1) or (n, tasks): tensor, array or list of finite numbers.
        labels: 0/1 of that shape; NaN in (n, tasks) means "not measured".
        sample_weight: (n,), not negative.
        name: The name of the argument `scores`, for messages.

    Raises:
        ValueError: Shapes differ, scores are not finite, labels are not 0/1, weights are negative, all zero or more
            than a factor of 1e290 apart.
    """
    values = array(scores, name)
    # Single precision would merge large whole numbers; half precision is contained in it.
    values = validation.floating(values) if values.is_floating_point() else values.double()
    values = values[:, 0] if values.ndim == 2 and values.shape[1] == 1 else values
    truth = validation.label_array(array(labels, "labels")).to(values.device)
    if values.shape != truth.shape:
        raise ValueError(
            f"{name} and labels must both have shape (n,) or (n, tasks), "
            f"got {tuple(values.shape)} and {tuple(truth.shape)}"
        )
    validation.finite(values, name)
    weight, unit = None, 1.0
    if sample_weight is not None:
        weight = validation.weights(array(sample_weight, "sample_weight").double(), values.shape[:1])
        weight, unit = validation.rescaled_weights(weight.to(values.device), span=_MAX_WEIGHT_RATIO)
    keys, truth = (-values.T.contiguous(), truth.T) if values.ndim == 2 else (-values, truth)
    return Sample(keys, truth, weight, unit)


def one_task(given: Sample) -> Sample:
    """Return the sample if it has one task, and raise otherwise."""
    if given.keys.ndim == 2:
        raise ValueError(
            f"scores and labels must be of one task, got {given.keys.shape[0]} tasks; take them one by one: "
            "scores[measured, t], labels[measured, t] with measured = ~labels[:, t].isnan()"
        )
    return given


def one_weighted_task(scores: Any, labels: Any, sample_weight: Any, name: str = "scores") -> Sample:
    """Return the checked sample of one task without rows of weight 0, and without weights if these are all equal."""
    given = one_task(sample(scores, labels, sample_weight, name=name))
    if given.weight is None:
        return given
    counted = given.weight > 0
    weight = given.weight[counted]
    if bool((weight == weight[0]).all()):
        return Sample(given.keys[counted], given.labels[counted], None, given.weight_unit * weight[0].item())
    return Sample(given.keys[counted], given.labels[counted], weight, given.weight_unit)


def array(values: Any, name: str) -> Tensor:
    """Return a tensor without history; arrays and lists are copied, for torch takes no read-only or reversed array."""
    if isinstance(values, Tensor):
        return values.detach()
    try:
        return torch.from_numpy(np.array(values))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be a tensor, array or list of numbers; {error}") from None


# On one thread numpy's sorts are 2 times (with indices) to 20 times (without) as fast as torch's, its search 2 times.
def _sort(keys: Tensor) -> Tensor:
    return torch.from_numpy(np.sort(keys.numpy(), axis=-1)) if search.on_host(keys) else keys.sort(-1).values


def _argsort(keys: Tensor) -> Tensor:
    return torch.from_numpy(np.argsort(keys.numpy(), axis=-1)) if search.on_host(keys) else keys.argsort(-1)


def _search(ordered: Tensor, keys: Tensor, *, right: bool) -> Tensor:
    if keys.ndim == 2 or not search.on_host(keys):
        return torch.searchsorted(ordered, keys, right=right)
    return torch.from_numpy(np.searchsorted(ordered.numpy(), keys.numpy(), side="right" if right else "left"))
