"""The default recipe, as long as data of some size need it."""

from __future__ import annotations

import math
from collections.abc import Sequence

from apmax.train.config import RECIPES, Stage


def sized_recipe(
    rows: int,
    positives: int,
    *,
    steps: int,
    joint_steps: int,
    least_epochs: int,
    batch_size: int = 64,
    lr: float = 1e-3,
    patience: int = 10,
) -> Sequence[Stage]:
    """Return cross-entropy for about `steps` steps, at most 100 epochs, then AP + CE for about `joint_steps`.

    Args:
        rows: Training rows.
        positives: Those that are positive.
        steps: Of the first stage.
        joint_steps: Of the second, which has 3 to 20 epochs.
        least_epochs: Of the first stage, however many rows there are.
        batch_size: Rows per step, an eighth of them positive in the second stage.
        lr: Of the first stage.
        patience: Epochs without a better one that end the first stage; a third of its epochs if that is more.

    >>> [(stage.name, stage.epochs) for stage in sized_recipe(6400, 50, steps=1000, joint_steps=100, least_epochs=5)]
    [('ce', 10), ('ap + ce', 3)]
    """
    epoch = math.ceil(rows / batch_size)
    epochs = min(max(math.ceil(steps / epoch), least_epochs), 100)
    return RECIPES["default"](
        lr=lr,
        epochs=epochs,
        joint_epochs=min(max(math.ceil(joint_steps / epoch), 3), 20),
        batch_size=batch_size,
        num_pos=max(1, min(batch_size // 8, positives)),
        ema=0.999 if epoch * epochs >= 4000 else 0.99,
        patience=max(patience, epochs // 3),
    )
