"""Parts of a model by name: which to re-initialise, which to freeze, which is the head."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import nn

from apmax.train.randomness import mix, seed_torch


def head_of(model: nn.Module) -> nn.Module:
    """Return the model's attribute `head` if that is a module, else its last linear layer.

    Raises:
        ValueError: It has neither.

    >>> head_of(nn.Sequential(nn.Linear(3, 2), nn.ReLU(), nn.Linear(2, 1)))
    Linear(in_features=2, out_features=1, bias=True)
    """
    own = getattr(model, "head", None)
    return own if isinstance(own, nn.Module) else last_linear(model)


def last_linear(model: nn.Module) -> nn.Linear:
    """Return the last linear layer in the order of registration."""
    layers = [module for module in model.modules() if isinstance(module, nn.Linear)]
    if not layers:
        raise ValueError("the model has no linear layer and no attribute 'head': name the modules you mean")
    return layers[-1]


def named(model: nn.Module, names: Sequence[str], purpose: str) -> list[nn.Module]:
    """Return the modules of these names; "head" is the head, "body" every leaf module outside of it.

    Raises:
        ValueError: There is no such module.
    """
    modules = dict(model.named_modules())
    found: list[nn.Module] = []
    for name in names:
        if name in modules:
            found.append(modules[name])
        elif name == "head":
            found.append(head_of(model))
        elif name == "body":
            inside = set(head_of(model).modules())
            found += [m for m in model.modules() if m not in inside and not any(c in inside for c in m.modules())]
        else:
            known = ", ".join(["head", "body", *filter(None, modules)][:20])
            raise ValueError(f"{purpose} must name sub-modules of the model, got {name!r}; there are {known}")
    return found


def reset(model: nn.Module, names: Sequence[str], *, seed: int) -> None:
    """Re-initialise the modules of these names as their constructors do, by `reset_parameters`.

    Raises:
        ValueError: A module, or a part of it that has parameters of its own, has no `reset_parameters`.
    """
    parts = [part for module in named(model, names, "reset") for part in module.modules()]
    for part in parts:
        if next(part.parameters(recurse=False), None) is not None and not hasattr(part, "reset_parameters"):
            raise ValueError(f"reset: {type(part).__name__} has parameters and no method reset_parameters()")
    if parts:
        seed_torch(mix(seed), torch.device("cpu"))
    for part in parts:
        again: Any = getattr(part, "reset_parameters", None)
        if again is not None:
            # On the CPU, so that the new weights do not depend on the device.
            device = next((parameter.device for parameter in part.parameters()), torch.device("cpu"))
            part.to("cpu")
            again()
            part.to(device)


def freeze(model: nn.Module, names: Sequence[str]) -> list[nn.Module]:
    """Let only parameters outside the modules of these names be trained; return those modules.

    The caller keeps them in evaluation mode, so that batch-norm statistics stay as they are.

    Raises:
        ValueError: Nothing is left to train.
    """
    modules = named(model, names, "freeze")
    for module in modules:
        module.requires_grad_(False)
    if not any(parameter.requires_grad for parameter in model.parameters()):
        raise ValueError(f"freeze={list(names)!r} leaves nothing to train")
    return modules
