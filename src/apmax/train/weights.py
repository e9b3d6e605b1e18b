"""Weights of a model: copies, moving average, and sub-modules to re-initialise or freeze."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from apmax.train.randomness import mix_seed, preserved_generators, seed_torch


def model_tensors(model: nn.Module) -> dict[str, Tensor]:
    """Return the model's parameters and persistent buffers themselves, by name."""
    return {name: value for name, value in model.state_dict(keep_vars=True).items() if isinstance(value, Tensor)}


def copy_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return a copy of the model's parameters and persistent buffers."""
    return {name: value.detach().clone() for name, value in model_tensors(model).items()}


def restore_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Copy `weights` into the model."""
    _copy_into(model_tensors(model), weights)


@torch.no_grad()
def _copy_into(target: dict[str, Tensor], source: dict[str, Tensor]) -> None:
    for name, value in target.items():
        value.copy_(source[name])


def all_finite(values: Iterable[Tensor]) -> bool:
    """Return whether no floating-point tensor holds NaN or infinity; one pass, one host synchronisation.

    >>> all_finite([torch.ones(2), torch.tensor([1, 2])]), all_finite([torch.tensor([1.0, float("nan")])])
    (True, False)
    >>> all_finite([torch.tensor([1, 2])])  # nothing that could be infinite
    True
    """
    parts = [value.detach() for value in values if value.is_floating_point() and value.numel()]
    # The largest absolute value is finite if all are, and unlike a sum it cannot overflow.
    return not parts or bool(torch.stack(torch._foreach_norm(parts, float("inf"))).isfinite().all())


class WeightAverage:
    """The exponential moving average `a ← d·a + (1 − d)·w` of floating-point weights and buffers of `model`.

    d = min(decay, (1 + t)/(10 + t)) at step t, so that a short stage is not dominated by its initial weights. Buffers
    are averaged too: averaged weights with the current batch-norm statistics fluctuate from epoch to epoch. Integer
    buffers (counters), and what is not finite at the beginning (masks), are not averaged.

    >>> model = nn.Linear(1, 1, bias=False)
    >>> _ = nn.init.zeros_(model.weight)
    >>> average = WeightAverage(model, decay=0.5)
    >>> _ = nn.init.ones_(model.weight)
    >>> average.update()
    >>> with average.applied():
    ...     round(model.weight.item(), 3)
    0.9
    """

    def __init__(self, model: nn.Module, *, decay: float) -> None:
        self.decay, self.step = decay, 0
        tensors = model_tensors(model).items()
        self.current = {name: value for name, value in tensors if value.is_floating_point() and all_finite([value])}
        self.mean = {name: value.detach().clone() for name, value in self.current.items()}

    @torch.no_grad()
    def update(self) -> None:
        """Update the average with the current weights."""
        decay = min(self.decay, (1 + self.step) / (10 + self.step))
        self.step += 1
        torch._foreach_lerp_(list(self.mean.values()), list(self.current.values()), 1 - decay)

    @contextmanager
    def applied(self) -> Iterator[None]:
        """Put the average into the model, and the weights back at the end."""
        weights = {name: value.detach().clone() for name, value in self.current.items()}
        _copy_into(self.current, self.mean)
        try:
            yield
        finally:
            _copy_into(self.current, weights)

    def state_dict(self) -> dict[str, Any]:
        """Return the average and its number of updates."""
        return {"step": self.step, "mean": dict(self.mean)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load a saved average."""
        self.step = state["step"]
        _copy_into(self.mean, state["mean"])


def find_head(model: nn.Module) -> nn.Module:
    """Return the model's attribute `head` if that is a module, else its last linear layer.

    Raises:
        ValueError: The model has neither.

    >>> find_head(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
    Linear(in_features=2, out_features=1, bias=True)
    """
    head = getattr(model, "head", None)
    return head if isinstance(head, nn.Module) else last_linear(model)


def last_linear(model: nn.Module) -> nn.Linear:
    """Return the last linear layer in the order of registration."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("the model has no linear layer and no attribute 'head': name the modules instead")
    return layers[-1]


def _find_modules(model: nn.Module, names: Sequence[str], argument: str) -> list[nn.Module]:
    """Return the sub-modules of these names; "head" is the head, "body" every module outside of it.

    Raises:
        ValueError: There is no such module.
    """
    modules = dict(model.named_modules())
    found: list[nn.Module] = []
    for name in names:
        if name in modules:
            found.append(modules[name])
        elif name == "head":
            found.append(find_head(model))
        elif name == "body":
            inside = set(find_head(model).modules())
            found += [m for m in model.modules() if m not in inside and not any(c in inside for c in m.modules())]
        else:
            known = ", ".join(["head", "body", *filter(None, modules)][:20])
            raise ValueError(f"{argument} must name sub-modules of the model, got {name!r}; there are {known}")
    return found


def find_reset(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Return the modules that `reset_modules` re-initialises, those without parameters included.

    Raises:
        ValueError: There is no such module, or a parameter that the `reset_parameters` of its module does not set.
    """
    parts = [part for module in _find_modules(model, names, "reset") for part in module.modules()]
    for part in parts:
        fixed = _fixed_parameters(part)
        if fixed and not hasattr(part, "reset_parameters"):
            raise ValueError(f"reset: {type(part).__name__} has parameters and no method reset_parameters()")
        if fixed:
            raise ValueError(f"reset: reset_parameters() of {type(part).__name__} does not set {', '.join(fixed)}")
    return parts


def parameters_without_reset(model: nn.Module) -> list[str]:
    """Return the names of parameters that no `reset_parameters` of their module sets; the model does not change.

    >>> model = nn.Sequential(nn.Linear(1, 1))
    >>> model.token = nn.Parameter(torch.zeros(1))
    >>> model[0].gate = nn.Parameter(torch.zeros(1))
    >>> parameters_without_reset(model)
    ['token', '0.gate']
    """
    return [
        f"{place}.{name}" if place else name
        for place, module in model.named_modules()
        for name in _fixed_parameters(module)
    ]


@torch.no_grad()
def _fixed_parameters(module: nn.Module) -> list[str]:
    """Return the names of a module's own parameters that its `reset_parameters` does not set.

    A subclass of a layer inherits the method, which does not know further parameters. Those that it sets are no longer
    NaN after it; then all tensors get their values back.
    """
    own = dict(module.named_parameters(recurse=False))
    reset_parameters: Any = getattr(module, "reset_parameters", None)
    if reset_parameters is None or not own:
        return list(own)
    values = [(value, value.detach().clone()) for value in (*module.parameters(), *module.buffers())]
    try:
        for value in own.values():
            if value.is_floating_point():
                value.fill_(math.nan)
        with preserved_generators(next(iter(own.values())).device):
            reset_parameters()
        set_values = dict(module.named_parameters(recurse=False))
        return [name for name, value in set_values.items() if value.is_floating_point() and bool(value.isnan().any())]
    finally:
        for name, value in own.items():
            setattr(module, name, value)  # the method may have made another parameter
        for tensor, before in values:
            tensor.copy_(before)


def reset_modules(model: nn.Module, names: Sequence[str], *, seed: int) -> None:
    """Re-initialise the sub-modules of these names by their `reset_parameters`.

    Raises:
        ValueError: As `find_reset`.
    """
    parts = find_reset(model, names)
    if parts:
        seed_torch(mix_seed(seed), torch.device("cpu"))
    for part in parts:
        reset_parameters: Any = getattr(part, "reset_parameters", None)
        if reset_parameters is not None:
            # On the CPU, so that the new weights do not depend on the device.
            device = next((parameter.device for parameter in part.parameters()), torch.device("cpu"))
            part.to("cpu")
            reset_parameters()
            part.to(device)


def find_frozen(model: nn.Module, names: Sequence[str]) -> tuple[list[nn.Module], set[nn.Parameter]]:
    """Return the modules and the parameters that `freeze_modules` excludes from training.

    With "body" the parameters that belong to a module around the head itself, such as the class token of a transformer,
    are among them.

    Raises:
        ValueError: There is no such module, or no trainable parameter is left.
    """
    modules = _find_modules(model, names, "freeze")
    frozen = {parameter for module in modules for parameter in module.parameters()}
    if "body" in names and "body" not in dict(model.named_modules()):
        head = set(find_head(model).parameters())
        frozen.update(parameter for parameter in model.parameters() if parameter not in head)
    if not any(parameter.requires_grad and parameter not in frozen for parameter in model.parameters()):
        raise ValueError(f"freeze={list(names)!r} leaves nothing to train")
    return modules, frozen


def freeze_modules(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Exclude the sub-modules of these names from training and return them.

    The caller keeps them in evaluation mode, so that batch-norm statistics do not change.

    Raises:
        ValueError: As `find_frozen`.
    """
    modules, parameters = find_frozen(model, names)
    for parameter in parameters:
        parameter.requires_grad_(False)
    return modules
