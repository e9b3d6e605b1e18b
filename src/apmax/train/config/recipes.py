"""Named runs: what to train, in which order, with settings that needed no tuning."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apmax.train.config.parts import Optimizer, Sampler, Schedule
from apmax.train.config.stages import Stage


def default(
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
) -> tuple[Stage, ...]:
    """Return cross-entropy with averaged weights, then a short joint stage AP + CE (algorithms.md §7).

    The second stage begins from the best averaged weights, keeps the head, takes a third of the learning rate with
    cosine decay, and validation AP (mean of three neighbouring epochs) chooses among its epochs *and* the
    cross-entropy model it came from. It is not universal: it helps most where the model cannot fit.

    >>> [(stage.name, stage.epochs) for stage in default(epochs=15)]
    [('ce', 15), ('ap + ce', 3)]
    """
    first = Stage(
        loss={"ce": 1.0},
        epochs=epochs,
        optimizer=Optimizer(name=optimizer, lr=lr, weight_decay=weight_decay),
        sampler=Sampler(name="shuffle", batch_size=batch_size),
        ema=ema,
        patience=patience,
    )
    second = Stage(
        loss={"ap": 1.0, "ce": 1.0},
        epochs=joint_epochs,
        optimizer=Optimizer(name=optimizer, lr=lr / 3, weight_decay=weight_decay),
        schedule=Schedule(name="cosine"),
        sampler=Sampler(name="positive", batch_size=batch_size, num_pos=num_pos),
        ema=ema,
    )
    return first, second


def paper(
    *,
    method: str = "ap",
    options: dict[str, Any] | None = None,
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
    """Return the paper's scheme: cross-entropy, then a new head and the method alone.

    Selection is among the second stage's epochs only, by the plain validation value. With `method="ap"` the loss is
    `APLoss.as_in_paper`'s: sigmoid scores, squared hinge, the batch as it is, no floor.

    >>> [(stage.name, stage.reset) for stage in paper()]
    [('ce', ()), ('ap', ('head',))]
    """
    as_in_paper = {
        "surrogate": "squared_hinge",
        "margin": 1.0,
        "gamma": 0.9,
        "sigmoid": True,
        "prevalence": "batch",
        "floor": 0.0,
    }
    chosen = {**(as_in_paper if method == "ap" else {}), **(options or {})}
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
        options={method: chosen} if chosen else {},
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


RECIPES: dict[str, Callable[..., tuple[Stage, ...]]] = {"default": default, "paper": paper}
