"""A proximal term towards a reference point, for training in stages."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from apmax import validation


def proximal(
    optimizer: torch.optim.Optimizer, weight: float, every: int | None = None, *, average: bool = False
) -> Proximal:
    """Add `weight·(w - w_ref)` to the gradients before each step, and renew w_ref every `every` steps.

    This is the gradient of `weight/2·‖w - w_ref‖²`, with which AUC-M is trained in stages (Yuan et al. 2020). w_ref is
    first the current weights; after `every` steps it becomes the weights at that time, or with `average` the mean of
    the points at which those steps began. Groups with `maximize=True` and parameters without a
    gradient are left alone. For renewal every k epochs give `k * len(sampler)`, or None and call `renew()`.

    Args:
        optimizer: Any torch optimiser. A closure is taken too, but its value does not show the added term.
        weight: Of the term.
        every: Steps between renewals; None for `renew()` alone.
        average: Renew to the mean of the iterates instead of the last.

    Returns:
        A handle with `renew()`, `remove()`, `state_dict()` and `load_state_dict(state)`. Save its state with the
        optimiser's: a run then resumes exactly.

    Raises:
        ValueError: `weight` below 0 or `every` below 1.

    >>> w = torch.nn.Parameter(torch.tensor([0.0]))
    >>> optimizer = torch.optim.SGD([w], lr=1.0)
    >>> handle = proximal(optimizer, 0.5)
    >>> for _ in range(2):
    ...     w.grad = torch.tensor([-1.0])
    ...     optimizer.step()
    >>> w.item()  # 0 + 1, then 1 + 1 - 0.5·(1 - 0)
    1.5
    """
    return Proximal(optimizer, weight, every, average)


class Proximal:
    """The handle of a proximal term: renews, saves and removes the reference point."""

    def __init__(self, optimizer: torch.optim.Optimizer, weight: float, every: int | None, average: bool) -> None:
        self.weight = validation.interval("weight", weight, 0, closed="left")
        self.every = None if every is None else validation.whole("every", every, 1)
        self.average = average
        self._optimizer = optimizer
        self._steps = 0
        self._reference: dict[Tensor, Tensor] = {}
        self._mean: dict[Tensor, Tensor] = {}
        self._params()
        self._hook = optimizer.register_step_pre_hook(self._before_step)

    def renew(self) -> None:
        """Take the current weights, or their mean since the last renewal, as the new reference point."""
        with torch.no_grad():
            for param in self._params():
                self._reference[param].copy_(self._mean[param] if self.average and self._steps else param)
        self._steps = 0

    def remove(self) -> None:
        """Remove the term from the optimiser's steps."""
        self._hook.remove()

    def state_dict(self) -> dict[str, Any]:
        """Return the state for an exact resumption: steps since the last renewal, reference and mean."""
        params = self._params()
        return {
            "steps": self._steps,
            "reference": [self._reference[param].clone() for param in params],
            "mean": [self._mean[param].clone() for param in params if self.average],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Resume from a saved state.

        Raises:
            ValueError: It belongs to other parameters, or to another choice of `average`; nothing is changed.
        """
        params = self._params()
        pairs: list[tuple[Tensor, Tensor]] = []
        for name, own in (("reference", self._reference), ("mean", self._mean)):
            mine = [own[param] for param in params if param in own]
            if [tensor.shape for tensor in state[name]] != [tensor.shape for tensor in mine]:
                raise ValueError(f"state[{name!r}] belongs to other parameters or to another choice of average")
            pairs += zip(mine, state[name], strict=True)
        for present, saved in pairs:
            present.copy_(saved)
        self._steps = state["steps"]

    def _params(self) -> list[Tensor]:
        groups = self._optimizer.param_groups
        params = [param for group in groups if not group.get("maximize", False) for param in group["params"]]
        for param in params:
            if param not in self._reference:
                self._reference[param] = param.detach().clone()
                if self.average:
                    self._mean[param] = param.detach().clone()
        return params

    def _before_step(
        self, _: torch.optim.Optimizer, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]] | None:
        if self._steps == self.every:
            self.renew()
        self._steps += 1
        with torch.no_grad():
            for param, mean in self._mean.items():
                mean.lerp_(param, 1 / self._steps)
        optimizer, *given = args
        closure = given[0] if given else kwargs.get("closure")
        if closure is None:
            self._add_term()
            return None

        def closure_with_term() -> Any:
            # A closure computes the gradients inside the step, so the term has to be added there.
            value = closure()
            self._add_term()
            return value

        return (optimizer,), {**kwargs, "closure": closure_with_term}

    def _add_term(self) -> None:
        moved = [(param, param.grad) for param in self._params() if param.grad is not None]
        if not moved:
            return
        with torch.no_grad():
            terms = list(torch._foreach_sub([w for w, _ in moved], [self._reference[w] for w, _ in moved]))
            # A fused optimiser under torch's GradScaler undoes the scaling of the gradients itself, later.
            scale = getattr(self._optimizer, "grad_scale", None)
            if scale is not None:
                torch._foreach_mul_(terms, scale)
            torch._foreach_add_([grad for _, grad in moved], terms, alpha=self.weight)
