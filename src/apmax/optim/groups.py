"""Parameter groups: the model's, the loss's own, and those the loss maximises."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch import nn

from apmax import validation


def param_groups(
    model: nn.Module, loss: nn.Module, *, lr: float | None = None, loss_lr: float | None = None
) -> list[dict[str, Any]]:
    """Return groups for any torch optimiser: the model, the loss's own parameters, and those the loss maximises.

    The last are named in `ascend` of the loss or of any loss inside it, and their group has `maximize=True`.
    The loss's groups have `weight_decay=0`: shrinking dual variables would change the problem. Empty groups are left
    out, and no parameter is in two: where model and loss share one, as when the model holds the loss, it counts as
    the loss's. The optimiser must know the option `maximize`; all first-order ones of torch do.

    Args:
        model: The model.
        loss: The loss.
        lr: Learning rate of every group; None for the optimiser's own.
        loss_lr: Learning rate of the loss's own parameters if it differs from `lr`.

    Raises:
        ValueError: A name in `ascend` that is not a parameter, or a learning rate below 0.

    >>> groups = param_groups(nn.Linear(2, 1), nn.Identity(), lr=0.1)
    >>> [(len(group["params"]), group["lr"]) for group in groups]
    [(2, 0.1)]
    """
    for name, rate in (("lr", lr), ("loss_lr", loss_lr)):
        if rate is not None:
            validation.interval(name, rate, 0, closed="left")
    own = _rate(lr if loss_lr is None else loss_lr) | {"weight_decay": 0.0}
    ascended = dict.fromkeys(_ascended(loss))
    descended = dict.fromkeys(param for param in loss.parameters() if param not in ascended)
    rest = [param for param in model.parameters() if param not in ascended and param not in descended]
    groups = [
        {"params": rest, **_rate(lr)},
        {"params": list(descended), **own},
        {"params": list(ascended), **own, "maximize": True},
    ]
    return [group for group in groups if group["params"]]


def _rate(lr: float | None) -> dict[str, Any]:
    return {} if lr is None else {"lr": lr}


def _ascended(loss: nn.Module) -> Iterator[nn.Parameter]:
    for module in loss.modules():
        names = getattr(module, "ascend", ())
        if isinstance(names, str):
            raise ValueError(f"ascend of {type(module).__name__} must be a tuple of names, got {names!r}")
        own = dict(module.named_parameters(remove_duplicate=False)) if names else {}
        for name in names:
            if name not in own:
                raise ValueError(
                    f"ascend of {type(module).__name__} names {name!r}, which is not one of its parameters "
                    f"({', '.join(own) or 'it has none'})"
                )
            yield own[name]
