"""Recipes: named sequences of stages with settings that need no tuning."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from typing import Any

from apmax.losses import PAPER_OPTIONS
from apmax.train.config import Optimizer, Sampler, Schedule, Stage

MINED_STAGE = "ce_mined"
"""Name of cross-entropy on mined negatives among losses, recipes and stages."""


def default_recipe(
    *,
    lr: float = 1e-3,
    epochs: int = 20,
    joint_epochs: int = 3,
    batch_size: int = 128,
    num_pos: int = 16,
    ema: float = 0.999,
    weight_decay: float = 0.0,
    optimizer: str = "adam",
    patience: int | None = None,
    anneal: bool = False,
) -> tuple[Stage, ...]:
    """Return cross-entropy with averaged weights, then a short joint stage AP + CE.

    The second stage begins from the best averaged weights, keeps the head and takes a third of the learning rate
    with cosine decay. Validation AP (mean of three neighbouring epochs) selects among its epochs *and* the
    cross-entropy model it began from.

    With `anneal` the rate of the first stage follows a cosine as well, after an epoch of warm-up, and the second stage
    takes a tenth of it: for short trainings whose validation part is too small to choose among unsteady epochs.

    >>> [(stage.name, stage.epochs) for stage in default_recipe(epochs=15)]
    [('ce', 15), ('ap + ce', 3)]
    """
    first = Stage(
        loss={"ce": 1.0},
        epochs=epochs,
        optimizer=Optimizer(name=optimizer, lr=lr, weight_decay=weight_decay),
        schedule=Schedule(name="cosine", warmup=1) if anneal else Schedule(),
        sampler=Sampler(name="shuffle", batch_size=batch_size),
        ema=ema,
        patience=patience,
    )
    second = Stage(
        loss={"ap": 1.0, "ce": 1.0},
        epochs=joint_epochs,
        optimizer=Optimizer(name=optimizer, lr=lr / (10 if anneal else 3), weight_decay=weight_decay),
        schedule=Schedule(name="cosine"),
        sampler=Sampler(name="positive", batch_size=batch_size, num_pos=num_pos),
        ema=ema,
    )
    return first, second


def paper_recipe(
    *,
    method: str = "ap",
    options: Mapping[str, Any] | None = None,
    lr: float = 1e-3,
    second_lr: float | None = None,
    epochs: int = 100,
    second_epochs: int = 150,
    batch_size: int = 64,
    num_pos: int = 1,
    weight_decay: float = 0.0,
    optimizer: str = "adam",
    patience: int | None = 50,
) -> tuple[Stage, ...]:
    """Return the paper's scheme: cross-entropy, then a new head and the loss `method` alone.

    Selection is among the second stage's epochs only, by the validation AP without smoothing. With `method="ap"` the
    loss has the `PAPER_OPTIONS`, which `options` may override.

    >>> [(stage.name, stage.reset) for stage in paper_recipe()]
    [('ce', ()), ('ap', ('head',))]
    """
    loss_options = {**(PAPER_OPTIONS if method == "ap" else {}), **(options or {})}
    first = Stage(
        loss={"ce": 1.0},
        epochs=epochs,
        optimizer=Optimizer(name=optimizer, lr=lr, weight_decay=weight_decay),
        schedule=Schedule(name="step", milestones=(epochs / 2,), factor=0.5),
        sampler=Sampler(name="shuffle", batch_size=batch_size),
        smooth=1,
    )
    second = Stage(
        loss={method: 1.0},
        options={method: loss_options} if loss_options else {},
        epochs=second_epochs,
        optimizer=Optimizer(name=optimizer, lr=lr if second_lr is None else second_lr, weight_decay=weight_decay),
        schedule=Schedule(name="step", milestones=(epochs / 2,), factor=0.5),
        sampler=Sampler(name="positive", batch_size=batch_size, num_pos=num_pos),
        keep=False,
        reset=("head",),
        patience=patience,
        smooth=1,
    )
    return first, second


def mined_stage(
    stage: Stage, *, hard: float | None = None, rounds: int | None = None, pool: int | None = None
) -> Stage:
    """Return the stage with cross-entropy on mined negatives in place of its loss and sampler.

    Epochs, optimiser, schedule and batch sizes stay. The loss takes the batch as it is: hard negatives are no sample of
    the negatives, whose share could be corrected.

    Args:
        stage: A stage of gradient steps.
        hard: As in `Sampler`; so are `rounds` and `pool`.
        rounds: See `hard`.
        pool: See `hard`.

    >>> stage = mined_stage(default_recipe()[1], hard=0.1)
    >>> stage.name, stage.loss, stage.sampler.name, stage.sampler.hard
    ('ce_mined', {'ce': 1.0}, 'mined', 0.1)
    """
    sampler = Sampler(
        name="mined",
        batch_size=stage.sampler.batch_size,
        num_pos=stage.sampler.num_pos,
        hard=hard,
        rounds=rounds,
        pool=pool,
    )
    return dataclasses.replace(stage, loss={"ce": 1.0}, options={}, sampler=sampler, name=MINED_STAGE)


def mined_recipe(
    *,
    lr: float = 1e-3,
    epochs: int = 20,
    joint_epochs: int = 3,
    batch_size: int = 128,
    num_pos: int = 16,
    hard: float | None = None,
    rounds: int | None = None,
    pool: int | None = None,
    ema: float = 0.999,
    weight_decay: float = 0.0,
    optimizer: str = "adam",
    patience: int | None = None,
) -> tuple[Stage, ...]:
    """Return the default recipe with `mined_stage` as second stage: only its loss and its negatives differ.

    >>> [(stage.name, stage.epochs, stage.sampler.name) for stage in mined_recipe(epochs=15)]
    [('ce', 15, 'shuffle'), ('ce_mined', 3, 'mined')]
    """
    first, second = default_recipe(
        lr=lr,
        epochs=epochs,
        joint_epochs=joint_epochs,
        batch_size=batch_size,
        num_pos=num_pos,
        ema=ema,
        weight_decay=weight_decay,
        optimizer=optimizer,
        patience=patience,
    )
    return first, mined_stage(second, hard=hard, rounds=rounds, pool=pool)


RECIPES: dict[str, Callable[..., tuple[Stage, ...]]] = {
    "default": default_recipe,
    "paper": paper_recipe,
    MINED_STAGE: mined_recipe,
}


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
    anneal: bool = False,
) -> tuple[Stage, ...]:
    """Return the default recipe with numbers of epochs that suit the number of training rows.

    Args:
        rows: Number of training rows.
        positives: Number of positives among them.
        steps: Approximate number of steps of the first stage, which has at most 100 epochs.
        joint_steps: Approximate number of steps of the second stage, which has 3 to 20 epochs.
        least_epochs: Minimum number of epochs of the first stage.
        batch_size: Rows per step; in the second stage an eighth of them are positive.
        lr: Learning rate of the first stage.
        patience: Patience of the first stage in epochs; at least a third of its epochs.
        anneal: As in `default_recipe`; the first stage then runs to its end.

    >>> [(stage.name, stage.epochs) for stage in sized_recipe(6400, 50, steps=1000, joint_steps=100, least_epochs=5)]
    [('ce', 10), ('ap + ce', 3)]
    """
    batches = math.ceil(rows / batch_size)
    epochs = min(max(math.ceil(steps / batches), least_epochs), 100)
    return default_recipe(
        lr=lr,
        epochs=epochs,
        joint_epochs=min(max(math.ceil(joint_steps / batches), 3), 20),
        batch_size=batch_size,
        num_pos=max(1, min(batch_size // 8, positives)),
        ema=0.999 if batches * epochs >= 4000 else 0.99,
        patience=None if anneal else max(patience, epochs // 3),
        anneal=anneal,
    )


def table_recipe(
    rows: int, positives: int, *, model: str = "mlp", batch_size: int | None = None, averaged: bool = False
) -> tuple[Stage, ...]:
    """Return the default recipe for a table: about 4,000 steps of cross-entropy, then about 1,000 of AP + CE.

    Args:
        rows: Number of training rows.
        positives: Number of positives among them.
        model: "linear" has a ten times larger learning rate than networks.
        batch_size: Rows per step; None for 128, or 64 below 2,048 rows.
        averaged: For networks whose scores are averaged, as those of the folds of a committee: about 1,000 and 300
            steps at three times the rate, which rank as well together (docs/results/committees.md).

    >>> [(stage.name, stage.epochs, stage.sampler.num_pos) for stage in table_recipe(10_000, 200)]
    [('ce', 51, 4), ('ap + ce', 13, 16)]
    """
    steps, joint_steps, factor = (1000, 300, 3) if averaged else (4000, 1000, 1)
    return sized_recipe(
        rows,
        positives,
        steps=steps,
        joint_steps=joint_steps,
        least_epochs=5,
        batch_size=batch_size or (128 if rows >= 2048 else 64),
        lr=factor * (1e-2 if model == "linear" else 1e-3),
        patience=5,
    )


def image_recipe(rows: int, positives: int, *, size: int, anneal: bool = False) -> tuple[Stage, ...]:
    """Return the default recipe for images: about 10,000 steps of cross-entropy, then 1,500 of AP + CE.

    Images of 17×17 to 64×64, whose networks are narrow, have 4,000 and 600 steps, which are minutes on two cores.

    Args:
        rows: Number of training rows.
        positives: Number of positives among them.
        size: Height and width of the images.
        anneal: About 480 annealed steps and 48 of AP + CE, for small images with few positives: with ten positives for
            validation an epoch of an unsteady training would be chosen by chance.

    >>> stages = image_recipe(8_032, 890, size=224)
    >>> [(stage.name, stage.epochs, stage.sampler.num_pos) for stage in stages]
    [('ce', 80, 4), ('ap + ce', 12, 8)]
    """
    if anneal:
        return sized_recipe(rows, positives, steps=480, joint_steps=48, least_epochs=10, lr=2e-3, anneal=True)
    if 16 < size <= 64:
        return sized_recipe(rows, positives, steps=4000, joint_steps=600, least_epochs=10)
    return sized_recipe(rows, positives, steps=10_000, joint_steps=1500, least_epochs=20)
