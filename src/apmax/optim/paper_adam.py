"""The Adam-style update of the SOAP paper, and the step sizes of its theorems."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

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
    average continues from the maximum v̂. `weight_decay` adds `weight_decay·w` to G. A group with `maximize=True`
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
            "betas": _checked_betas(betas),
            "eps": validation.interval("eps", eps, 0, closed="neither"),
            "amsgrad": bool(amsgrad),
            "weight_decay": validation.interval("weight_decay", weight_decay, 0, closed="left"),
            "maximize": bool(maximize),
        }
        super().__init__(params, defaults)

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Make one update and return the value of `closure`, which evaluates the loss again."""
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


class StepSizes(NamedTuple):
    """α and γ of Theorems 1 and 2."""

    lr: float
    gamma: float


def theorem_steps(num_pos: int, steps: int, *, betas: tuple[float, float] | None = None) -> StepSizes:
    """Return the step sizes for which the paper proves convergence: α = n₊^(-2/5)·T^(-3/5), γ = n₊^(2/5)·T^(-2/5).

    With them the mean of ‖∇P(w_t)‖² over T steps is O((n₊/T)^(2/5)): Theorem 1 for `torch.optim.SGD`, Theorem 2 for
    `PaperAdam(amsgrad=True)`, one anchor a step.

    Args:
        num_pos: n₊, the positives of the training set.
        steps: T.
        betas: (η₁, η₂) of `PaperAdam`, checked if given.

    Raises:
        ValueError: Not T > n₊, or not η₁ ≤ √η₂ ≤ 1.

    >>> round(theorem_steps(32, 32 * 100_000).gamma, 6)
    0.01
    """
    num_pos, steps = validation.whole("num_pos", num_pos, 1), validation.whole("steps", steps, 1)
    if steps <= num_pos:
        raise ValueError(f"steps must be more than num_pos={num_pos} (Theorems 1 and 2), got {steps}")
    if betas is not None:
        eta1, eta2 = _checked_betas(betas)
        if eta1 > math.sqrt(eta2):
            raise ValueError(f"betas must satisfy η₁ ≤ √η₂ (Theorem 2), got {eta1:g} > {math.sqrt(eta2):g}")
    return StepSizes(lr=num_pos**-0.4 * steps**-0.6, gamma=(num_pos / steps) ** 0.4)


def _dense(param: Tensor) -> Tensor:
    grad = param.grad
    if grad is None or grad.is_sparse or grad.is_complex():
        raise RuntimeError("PaperAdam takes dense real gradients; build the embedding with sparse=False")
    return grad


def _checked_betas(betas: Any) -> tuple[float, float]:
    """Return (η₁, η₂) as floats in [0, 1)."""
    try:
        eta1, eta2 = betas
    except (TypeError, ValueError):
        raise ValueError(f"betas must be two numbers (η₁, η₂), got {betas!r}") from None
    return (
        validation.interval("betas[0]", eta1, 0, 1, closed="left"),
        validation.interval("betas[1]", eta2, 0, 1, closed="left"),
    )
