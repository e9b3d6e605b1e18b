"""`AveragePrecision`: average precision accumulated over batches and processes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from apmax.exact.stream import gather_ragged
from apmax.metrics.curves import average_precision_of
from apmax.metrics.ranking import Sample, array, sample


class AveragePrecision(nn.Module):
    """Average precision over all batches seen since the last `reset`, in the manner of torchmetrics.

    Exact: every score is kept, and `compute` gives `average_precision` of all of them together. If `torch.distributed`
    is initialised, `compute` gathers the examples of all processes and gives each the same value; every process must
    call it, also one without examples. The state moves with `.to()`, and is not part of `state_dict`.

    Args:
        group: The process group; None for the default one.

    >>> metric = AveragePrecision()
    >>> metric.update(torch.tensor([0.9, 0.8]), torch.tensor([1, 0]))
    >>> metric.update(torch.tensor([0.7, 0.6]), torch.tensor([1, 0]))
    >>> metric.compute()
    tensor(0.8333, dtype=torch.float64)
    """

    def __init__(self, *, group: dist.ProcessGroup | None = None) -> None:
        super().__init__()
        self.group = group
        self._scores: list[Tensor] = []
        self._labels: list[Tensor] = []
        self._weights: list[Tensor] = []

    def update(self, scores: Any, labels: Any, *, sample_weight: Any = None) -> None:
        """Add a batch; an empty one adds nothing, and one in which all weights are 0 changes nothing.

        Args:
            scores: Finite scores on any scale, (n,), (n, 1) or (n, tasks); n may differ between batches.
            labels: 0/1 of the same shape; NaN in (n, tasks) means "not measured".
            sample_weight: Weights (n,), for all batches or for none.

        Raises:
            ValueError: As `average_precision`; another number of tasks than before, or weights for some batches only.
        """
        if _is_empty(scores, labels):
            return
        batch = _sample(scores, labels, sample_weight)
        own_scores, own_labels = -batch.keys.mT if batch.keys.ndim == 2 else -batch.keys, batch.labels
        own_labels = own_labels.mT if own_labels.ndim == 2 else own_labels
        if self._scores:
            if self._scores[0].shape[1:] != own_scores.shape[1:]:
                raise ValueError(
                    f"scores must have the shape of earlier batches but for the number of rows, "
                    f"{('n', *self._scores[0].shape[1:])}, got {tuple(own_scores.shape)}".replace("'n'", "n")
                )
            if bool(self._weights) != (batch.weight is not None):
                raise ValueError("sample_weight must be given for every batch or for none")
        self._scores.append(own_scores)
        self._labels.append(own_labels.clone())
        if batch.weight is not None:
            self._weights.append(batch.weight * batch.weight_unit)

    def compute(self) -> Tensor:
        """Return the average precision of all examples, a float64 scalar or (tasks,) values.

        NaN without positives, or if all weights are 0.

        Raises:
            ValueError: No process has seen an example, or processes differ in the number of tasks or in having weights.
        """
        parts = [self._scores, self._labels, self._weights]
        joined = [torch.cat(part) if part else None for part in parts]
        if dist.is_available() and dist.is_initialized() and dist.get_world_size(self.group) > 1:
            joined = _gathered(joined, self.group)
        scores, labels, weight = joined
        if scores is None:
            raise ValueError("AveragePrecision has seen no examples: call update(scores, labels) first")
        return average_precision_of(_sample(scores, labels, weight))

    def forward(self, scores: Any, labels: Any, *, sample_weight: Any = None) -> Tensor:
        """Add a batch and return the average precision of this batch alone, on this process.

        NaN without positives, if it is empty, or if all weights are 0.
        """
        self.update(scores, labels, sample_weight=sample_weight)
        if _is_empty(scores, labels):
            return torch.tensor(torch.nan, dtype=torch.float64)
        return average_precision_of(_sample(scores, labels, sample_weight))

    def reset(self) -> None:
        """Forget all examples."""
        self._scores, self._labels, self._weights = [], [], []

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> AveragePrecision:
        # The state moves with the module, but `.half()` must not make scores tie.
        super()._apply(fn, recurse)
        for part in (self._scores, self._labels, self._weights):
            part[:] = [tensor.to(fn(tensor).device) for tensor in part]
        return self


def _sample(scores: Any, labels: Any, sample_weight: Any) -> Sample:
    """Return the checked arguments of a batch, in which all weights may be 0: it is a part of all examples."""
    if sample_weight is not None:
        weight = array(sample_weight, "sample_weight").double()
        if weight.shape == np.shape(scores)[:1] and not bool(weight.any()):
            batch = sample(scores, labels)
            return batch._replace(weight=weight.to(batch.keys.device))
    return sample(scores, labels, sample_weight)


def _is_empty(scores: Any, labels: Any) -> bool:
    return bool(np.shape(scores)[:1] == np.shape(labels)[:1] == (0,))


def _gathered(parts: list[Tensor | None], group: dist.ProcessGroup | None) -> list[Tensor | None]:
    """Return scores, labels and weights of all processes; None where no process has any."""
    own = [None if part is None else (tuple(part.shape[1:]), part.dtype) for part in parts]
    layouts: list[Any] = [None] * dist.get_world_size(group)
    dist.all_gather_object(layouts, own, group=group)
    known = [layout for layout in layouts if layout[0] is not None]
    if not known:
        return [None] * len(parts)
    if len({(layout[0][0], layout[2] is None) for layout in known}) > 1:
        raise ValueError(f"processes must agree on the number of tasks and on sample_weight, got {known}")
    device = next((part.device for part in parts if part is not None), _device_of(group))
    joined: list[Tensor | None] = []
    for number, part in enumerate(parts):
        if known[0][number] is None:
            joined.append(None)
            continue
        shape = known[0][number][0]
        dtype = max((layout[number][1] for layout in known), key=lambda dtype: torch.finfo(dtype).bits)
        local = torch.empty(0, *shape, dtype=dtype, device=device) if part is None else part.to(dtype)
        joined.append(gather_ragged(local, group)[0])
    return joined


def _device_of(group: dist.ProcessGroup | None) -> torch.device:
    """Return a device that the group's backend can send from."""
    return (
        torch.device("cuda", torch.cuda.current_device()) if dist.get_backend(group) == "nccl" else torch.device("cpu")
    )
