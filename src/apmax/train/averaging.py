"""An exponential moving average of a model's weights and buffers."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn


class Average:
    """The moving average `a ← d·a + (1 − d)·w` of all floating-point weights and buffers of `model`.

    d = min(decay, (1 + t)/(10 + t)) at step t, so that a short stage is not held at its start. Buffers are averaged
    too: averaged weights under the raw model's batch-norm statistics swing from epoch to epoch. Whole numbers
    (counters) are the model's own.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> average = Average(model, decay=0.5)
    >>> _ = nn.init.ones_(model.weight)
    >>> average.update()
    >>> with average.applied():
    ...     round(model.weight.item(), 3)
    0.9
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay, self.step = decay, 0
        self.current = {name: value for name, value in tensors(model).items() if value.is_floating_point()}
        self.mean = {name: value.detach().clone() for name, value in self.current.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Move the average towards the weights as they are now."""
        decay = min(self.decay, (1 + self.step) / (10 + self.step))
        self.step += 1
        torch._foreach_lerp_(list(self.mean.values()), list(self.current.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average into the model, and the weights back afterwards."""
        kept = {name: value.detach().clone() for name, value in self.current.items()}
        copy_into(self.current, self.mean)
        try:
            yield
        finally:
            copy_into(self.current, kept)

    def state_dict(self) -> dict[str, Any]:
        """Return the average and its number of steps."""
        return {"step": self.step, "mean": dict(self.mean)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over a saved average."""
        self.step = state["step"]
        copy_into(self.mean, state["mean"])


@torch.no_grad()
def copy_into(target: dict[str, Tensor], source: dict[str, Tensor]) -> None:
    """Copy every tensor of `source` into the one of the same name in `target`."""
    for name, value in target.items():
        value.copy_(source[name])


def tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters and persistent buffers themselves, by name."""
    return {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}


def snapshot(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the model's parameters and persistent buffers."""
    return {name: value.detach().clone() for name, value in tensors(model).items()}


def restore(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy a snapshot back into the model."""
    copy_into(tensors(model), weights)


def all_finite(values: Iterable[Tensor]) -> bool:
    """Tell whether no floating-point tensor holds NaN or infinity; one pass, one host synchronisation.

    >>> all_finite([torch.ones(2), torch.tensor([1, 2])]), all_finite([torch.tensor([1.0, float("nan")])])
    (True, False)
    """
    parts = [value.detach() for value in values if value.is_floating_point() and value.numel()]
    # The largest absolute value is finite if all are; no sum can overflow.
    return not parts or bool(torch.stack(torch._foreach_norm(parts, float("inf"))).isfinite().all())
