"""The base class of all losses: `Loss(labels, **hyper)`, then `loss(scores, labels, index)`."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn

from apmax import validation

_WHOLE = frozenset({torch.int64, torch.int32, torch.int16, torch.int8, torch.uint8})


class Batch(NamedTuple):
    """A mini-batch with the last dimension running over examples; several tasks are in front: (tasks, B).

    `positive` and `negative` hold each example's weight if it is of that class and 0 otherwise; both are 0 where
    the label was not measured. `rows` are the training-set rows, where known. `weighted` is false where every example
    weighs 1.
    """

    scores: Tensor
    positive: Tensor
    negative: Tensor
    rows: Tensor | None
    weighted: bool


class Loss(nn.Module, ABC):
    """A loss built from the labels (and weights) of its training set.

    Args:
        labels: The training labels, (n,) or (n, tasks) of 0/1; NaN in a table of tasks means "not measured".
        prevalence: The share of positives at which the loss is taken. None: that of `labels`, whatever the sampler.
            A number: that of the population in which the model will be used. "batch": that of each batch.
        sample_weight: A weight for each training row, (n,). With it every call needs `index`.
        validate: Check scores, labels and index at every call; costs one host synchronisation.
    """

    ascend: ClassVar[tuple[str, ...]] = ()
    """Names of the loss's own parameters that are to be maximised."""

    row_weight: Tensor | None
    """The training rows' weights, and the totals below, in units of `weight_unit`."""
    prevalence: Tensor | None
    total_positive: Tensor
    total_weight: Tensor

    def __init__(
        self,
        labels: Any,
        *,
        prevalence: float | str | None = None,
        sample_weight: Any = None,
        validate: bool = True,
    ) -> None:
        super().__init__()
        labels = validation.label_array(labels)
        self.num_rows = labels.shape[0]
        self.tasks = labels.shape[1] if labels.ndim == 2 else None
        self.validate = validate
        weight, self.weight_unit = None, 1.0
        if sample_weight is not None:
            weight = validation.weights(sample_weight, (self.num_rows,)).to(labels.device)
            weight, self.weight_unit = validation.rescaled_weights(weight)
        self.register_buffer("row_weight", weight, persistent=False)
        positive, negative = class_weights(labels.mT if labels.ndim == 2 else labels, weight)
        total_positive = positive.sum(-1, dtype=torch.float64)
        total_weight = total_positive + negative.sum(-1, dtype=torch.float64)
        self.register_buffer("total_positive", total_positive, persistent=False)
        self.register_buffer("total_weight", total_weight, persistent=False)
        if isinstance(prevalence, str):
            validation.choice("prevalence", prevalence, ["batch"])
            share = None
        elif prevalence is None:
            share = total_positive / total_weight.clamp_min(torch.finfo(torch.float64).tiny)
        else:
            share = torch.full_like(
                total_positive, validation.interval("prevalence", prevalence, 0, 1, closed="neither")
            )
        self.register_buffer("prevalence", share, persistent=False)

    def forward(
        self,
        scores: Tensor,
        labels: Tensor,
        index: Tensor | None = None,
        *,
        sample_weight: Tensor | None = None,
    ) -> Tensor:
        """Return the loss of a batch as a scalar.

        Args:
            scores: Raw scores, (B,), (B, 1) or (B, tasks).
            labels: 0/1 labels of the same shape.
            index: The training-set row of every example, (B,).
            sample_weight: A weight for each example of this batch, (B,), if none were given for the training set;
                their scale does not matter.
        """
        scores, labels = validation.same_shape(scores, labels)
        self._check_shapes(scores, index, sample_weight)
        scores = validation.floating(scores)
        labels = labels.detach().to(scores.dtype)
        if index is not None:
            # Loops that move features and labels to a device often leave the rows on the host.
            index = index.to(scores.device, torch.int64)
        if self.validate:
            self.check(scores.detach(), labels, index)
            if sample_weight is not None:
                weight = validation.weights(sample_weight, scores.shape[:1])
                validation.rescaled_weights(weight)
        if torch.is_autocast_enabled(scores.device.type):
            with torch.autocast(scores.device.type, enabled=False):
                return self.compute(self._batch(scores, labels, index, sample_weight))
        return self.compute(self._batch(scores, labels, index, sample_weight))

    @abstractmethod
    def compute(self, batch: Batch) -> Tensor:
        """Return the loss of a checked batch as a scalar."""

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that begins; most losses ignore it."""

    def score_limit(self, dtype: torch.dtype) -> float:  # noqa: ARG002
        """Return the magnitude up to which scores of this type give a finite value and gradient."""
        return math.inf

    def check(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> None:
        """Raise `ValueError` for scores, labels or rows that are invalid.

        Scores must be finite and within `score_limit`, labels 0 or 1, rows in the training set if they are used.
        """
        self._check_and_measure(scores, labels, index, measure=False)

    def _check_and_measure(
        self, scores: Tensor, labels: Tensor, index: Tensor | None, *, measure: bool
    ) -> tuple[float, float] | None:
        """Raise for an invalid batch; return the smallest and the largest score if `measure`."""
        # One transfer, one host synchronisation: the fault is 0 for a valid batch, and only an invalid one is examined
        # further.
        fault = self.faults(scores, labels, index)
        if not measure or not scores.numel():
            if fault.item() != 0:
                self.explain(scores, labels, index)
            return None
        low, high = scores.aminmax()
        found, smallest, largest = torch.stack([fault.double(), low.double(), high.double()]).tolist()
        if found != 0:
            self.explain(scores, labels, index)
        return smallest, largest

    def explain(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> None:
        """Raise the `ValueError` that describes an invalid batch."""
        validation.finite(scores)
        validation.within(scores, self.score_limit(scores.dtype))
        validation.binary(labels)
        if index is not None and self._uses_rows():
            validation.rows(index, self.num_rows)

    def faults(self, scores: Tensor, labels: Tensor, index: Tensor | None) -> Tensor:
        """Return a scalar that is 0 if the batch is valid, without synchronisation."""
        between = labels * (1 - labels)
        if labels.ndim == 2:
            between = between.nan_to_num(0)
        fault = (scores * 0).sum() + between.count_nonzero()
        limit = self.score_limit(scores.dtype)
        if limit < math.inf:
            fault = fault + (scores.abs() > limit).count_nonzero()
        if index is not None and self._uses_rows():
            fault = fault + (index.clamp(0, self.num_rows - 1) != index).sum()
        return fault

    def balanced(self, batch: Batch) -> Tensor:
        """Return weights that sum to 1 per task: each class's mean is weighted by the prevalence.

        A class that is missing from the batch contributes nothing.
        """
        if self.prevalence is None:
            weight = batch.positive + batch.negative
            return weight / one_if_zero(weight.sum(-1, keepdim=True))
        share = self.prevalence.to(batch.scores.dtype).unsqueeze(-1)
        positive = batch.positive * (share / one_if_zero(batch.positive.sum(-1, keepdim=True)))
        negative = batch.negative * ((1 - share) / one_if_zero(batch.negative.sum(-1, keepdim=True)))
        return positive + negative

    def _uses_rows(self) -> bool:
        """Return whether anything is looked up by row: evaluation may be of other data."""
        return self.training or self.row_weight is not None

    def _check_shapes(self, scores: Tensor, index: Tensor | None, sample_weight: Tensor | None) -> None:
        tasks = scores.shape[1] if scores.ndim == 2 else None
        if tasks != self.tasks:
            raise ValueError(
                f"scores have {tasks or 'one'} task(s) where the loss was built from labels of {self.tasks or 'one'}"
            )
        size = (scores.shape[0],)
        if index is not None and not isinstance(index, Tensor):
            raise TypeError(f"index must be a tensor, got {type(index).__name__}; torch.as_tensor makes one")
        if index is not None and (index.shape != size or index.dtype not in _WHOLE):
            raise ValueError(f"index must hold whole numbers of shape {size}, got {index.dtype} {tuple(index.shape)}")
        if sample_weight is not None:
            if self.row_weight is not None:
                raise ValueError("sample_weight was given for the training set; a call must not give another")
            if sample_weight.shape != size:
                raise ValueError(f"sample_weight must have shape {size}, got {tuple(sample_weight.shape)}")
        if self.row_weight is not None and index is None and self.training:
            raise ValueError("index is needed: sample_weight was given for the training set and is looked up by row")

    def _batch(self, scores: Tensor, labels: Tensor, index: Tensor | None, sample_weight: Tensor | None) -> Batch:
        weight = None if sample_weight is None else _by_largest(sample_weight)
        if self.row_weight is not None and index is not None:
            weight = self.row_weight[index]
        if scores.ndim == 2:
            scores, labels = scores.mT, labels.mT
        positive, negative = class_weights(labels, None if weight is None else weight.to(scores.dtype))
        if sample_weight is not None:
            # The weight of the training set is not known: the positives of a call weigh 1 on average.
            count, total = (labels == 1).sum(-1, keepdim=True), positive.sum(-1, keepdim=True)
            scale = torch.where(total > 0, count / total, 1)
            positive, negative = positive * scale, negative * scale
        return Batch(scores, positive, negative, index, weight is not None)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Loss:
        # A model's `.half()` must not cost the loss its accuracy: its tensors move, but never below float32.
        def keep_precision(tensor: Tensor) -> Tensor:
            moved = fn(tensor)
            return tensor.to(moved.device) if moved.dtype in (torch.float16, torch.bfloat16) else moved

        super()._apply(keep_precision, recurse)
        return self


def class_weights(labels: Tensor, weight: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return each example's weight as a positive and as a negative, 0 where the label is NaN or the other class.

    >>> class_weights(torch.tensor([[1.0, 0.0, float("nan")]]), None)
    (tensor([[1., 0., 0.]]), tensor([[0., 1., 0.]]))
    """
    if labels.ndim == 2:
        positive, negative = (labels == 1).to(labels.dtype), (labels == 0).to(labels.dtype)
    else:
        positive, negative = labels, 1 - labels
    return (positive, negative) if weight is None else (positive * weight, negative * weight)


def one_if_zero(total: Tensor) -> Tensor:
    """Return totals to divide by, 1 instead of 0.

    A tiny number in the place of 0 would give the right value, but a gradient of infinity times 0.
    """
    return torch.where(total > 0, total, 1)


def _by_largest(weight: Tensor) -> Tensor:
    """Return weights divided by the largest, so that they fit into any type; their scale does not matter."""
    weight = validation.floating(weight)
    return weight / one_if_zero(weight.amax()) if weight.numel() else weight


def mean_over_tasks(values: Tensor, present: Tensor) -> Tensor:
    """Return the mean of `values` over the tasks that are `present` in the batch; one task is returned unchanged."""
    if values.ndim == 0:
        return values
    return torch.where(present, values, 0).sum() / present.sum().clamp_min(1)
