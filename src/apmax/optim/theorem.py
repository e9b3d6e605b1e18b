"""The step sizes for which the paper proves convergence."""

from __future__ import annotations

import math
from typing import NamedTuple

from apmax import validation
from apmax.optim.paper_adam import check_betas


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
        eta1, eta2 = check_betas(betas)
        if eta1 > math.sqrt(eta2):
            raise ValueError(f"betas must satisfy η₁ ≤ √η₂ (Theorem 2), got {eta1:g} > {math.sqrt(eta2):g}")
    return StepSizes(lr=num_pos**-0.4 * steps**-0.6, gamma=(num_pos / steps) ** 0.4)
