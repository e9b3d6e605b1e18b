"""The Adam-style update rule of the paper."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from apmax import validation


class PaperAdam(torch.optim.Optimizer):
    """The Adam-style update of the paper's Algorithm 3 to the letter.

    With G the gradient and h₀ = v̂₀ = 0:

        h ← η₁·h + (1 - η₁)·G
        v ← η₂·v̂ + (1 - η₂)·G²
        v̂ ← v  (Adam)   or   max(v̂, v)  (AMSGrad)
        w ← w - α·h / √(ε + v̂)

    It differs from torch's Adam in three places: no bias correction, ε inside the root, and with `amsgrad` the running
    average goes on from the maximum v̂. `weight_decay` adds `weight_decay·w` to G. A group with `maximize=True`
    ascends. Theorem 2 is about `amsgrad=True`; its step sizes are `theorem_steps`.

    Args:
        params: Parameters, or groups of them as from `param_groups`.
        lr: α.
        betas: (η₁, η₂).
        eps: ε.
        amsgrad: Keep the maximum.
        weight_decay: L2 penalty.
        maximize: Ascend instead of descend.

    Raises:
        ValueError: A number outside its interval.
        RuntimeError: A sparse or complex gradient, at `step`.

    >>> w = torch.nn.Parameter(torch.tensor([1.0]))
    >>> optimizer = PaperAdam([w], lr=0.1, betas=(0.5, 0.75), eps=1.0)
    >>> (2 * w).sum().backward()
    >>> optimizer.step()
    >>> round(w.item(), 4)  # h = 1, v = 1: 1 - 0.1 / √2
    0.9293
    """

    def __init__(
        self,
        params: Any,
        lr: float = 1e-3,
        *,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        amsgrad: bool = False,
        weight_decay: float = 0.0,
        maximize: bool = False,
    ) -> None:
        defaults = {
            "lr": validation.interval("lr", lr, 0, closed="left"),
            "betas": check_betas(betas),
            "eps": validation.interval("eps", eps, 0, closed="neither"),
            "amsgrad": bool(amsgrad),
            "weight_decay": validation.interval("weight_decay", weight_decay, 0, closed="left"),
            "maximize": bool(maximize),
        }
        super().__init__(params, defaults)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update and return what `closure`, which evaluates the loss again, returned."""
        value = None
        if closure is not None:
            with torch.enable_grad():
                value = closure()
        with torch.no_grad():
            for group in self.param_groups:
                params = [param for param in group["params"] if param.grad is not None]
                if params:
                    self._update(group, params)
        return value

    def _update(self, group: dict[str, Any], params: list[Tensor]) -> None:
        grads = [_dense(param) for param in params]
        for param in params:
            if not self.state[param]:
                self.state[param]["h"] = torch.zeros_like(param, memory_format=torch.preserve_format)
                self.state[param]["v_hat"] = torch.zeros_like(param, memory_format=torch.preserve_format)
        h = [self.state[param]["h"] for param in params]
        v_hat = [self.state[param]["v_hat"] for param in params]
        eta1, eta2 = group["betas"]
        if group["maximize"]:
            grads = list(torch._foreach_neg(grads))
        if group["weight_decay"] != 0:
            grads = list(torch._foreach_add(grads, params, alpha=group["weight_decay"]))
        torch._foreach_mul_(h, eta1)
        torch._foreach_add_(h, grads, alpha=1 - eta1)
        v = list(torch._foreach_mul(v_hat, eta2))
        torch._foreach_addcmul_(v, grads, grads, 1 - eta2)
        if group["amsgrad"]:
            torch._foreach_maximum_(v, v_hat)
        torch._foreach_copy_(v_hat, v)
        torch._foreach_add_(v, group["eps"])
        torch._foreach_sqrt_(v)
        torch._foreach_addcdiv_(params, h, v, -group["lr"])


def _dense(param: Tensor) -> Tensor:
    grad = param.grad
    if grad is None or grad.is_sparse or grad.is_complex():
        raise RuntimeError("PaperAdam takes dense real gradients; build the embedding with sparse=False")
    return grad


def check_betas(betas: Any) -> tuple[float, float]:
    """Return (η₁, η₂) as floats in [0, 1)."""
    try:
        eta1, eta2 = betas
    except (TypeError, ValueError):
        raise ValueError(f"betas must be two numbers (η₁, η₂), got {betas!r}") from None
    return (
        validation.interval("betas[0]", eta1, 0, 1, closed="left"),
        validation.interval("betas[1]", eta2, 0, 1, closed="left"),
    )
