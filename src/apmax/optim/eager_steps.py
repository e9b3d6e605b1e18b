"""Optimisers without the hooks of torch.compile."""

from __future__ import annotations

import inspect
from collections.abc import Callable

import torch

_HOOKED_METHODS = ("add_param_group", "load_state_dict", "state_dict", "zero_grad")


def eager(kind: type[torch.optim.Optimizer]) -> Callable[..., torch.optim.Optimizer]:
    """Return a sub-class of a torch optimiser that computes the same without importing `torch._dynamo`.

    torch wraps the methods of its optimisers so that `torch.compile` does not trace them. The first call imports the
    compiler, which takes a second and 75 MB of memory, also where nothing is compiled.

    >>> weight = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = eager(torch.optim.SGD)([weight], lr=0.5)
    >>> weight.grad = torch.tensor([1.0])
    >>> optimizer.step()
    >>> weight.item(), isinstance(optimizer, torch.optim.SGD)
    (0.5, True)
    """
    methods = {name: inspect.unwrap(getattr(kind, name)) for name in _HOOKED_METHODS}
    step = torch.no_grad()(inspect.unwrap(kind.step))
    return type(kind.__name__, (kind,), {**methods, "step": step, "__doc__": kind.__doc__})
