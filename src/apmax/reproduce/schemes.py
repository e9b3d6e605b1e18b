"""From settings to stages: the ways in which the rows of the tables are trained."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from apmax.reproduce.settings import Settings
from apmax.train import RECIPES, ExactHead, Optimizer, Sampler, Schedule, Stage

Stages = tuple[Stage | ExactHead, ...]
FROM_FIRST = ("second", "continued", "head")
"""The schemes that begin from the first stage's best weights."""


def first_stage(settings: Settings) -> Stages:
    """Cross-entropy as in the paper's first stage."""
    stage = Stage(
        loss={"ce": 1.0},
        epochs=settings["first_epochs"],
        optimizer=optimizer(settings, "first_"),
        schedule=schedule(settings),
        sampler=Sampler(name="shuffle", batch_size=settings["batch_size"]),
        smooth=1,
    )
    return (stage,)


def second_stage(settings: Settings, loss: str | None) -> Stages:
    """A new head, and the method alone on batches that hold positives."""
    assert loss is not None
    options: dict[str, Any] = settings["options"]
    stage = Stage(
        loss={loss: 1.0},
        options={loss: options} if options else {},
        epochs=settings["epochs"],
        optimizer=optimizer(settings),
        schedule=schedule(settings),
        sampler=Sampler(name="positive", batch_size=settings["batch_size"], num_pos=settings["num_pos"]),
        keep=False,
        reset=("head",),
        patience=settings.get("patience"),
        smooth=1,
    )
    return (stage,)


def continued(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001 - one signature for all
    """Cross-entropy goes on: no new head, plain shuffling, as many epochs as the methods have."""
    stage = Stage(
        loss={"ce": 1.0},
        epochs=settings["epochs"],
        optimizer=optimizer(settings),
        schedule=schedule(settings),
        sampler=Sampler(name="shuffle", batch_size=settings["batch_size"]),
        keep=False,
        patience=settings.get("patience"),
        smooth=1,
    )
    return (stage,)


def recipe(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001
    """Our default recipe, its AP loss with the options given."""
    first, second = RECIPES["default"](batch_size=settings["batch_size"], **settings["recipe"])
    if settings["options"]:
        both = {name: dict(settings["options"]) for name in second.loss}
        second = Stage(**{**vars(second), "options": both})
    return first, second


def joint_ce(settings: Settings, loss: str | None) -> Stages:
    """The recipe with cross-entropy alone in its second stage: what differs from the recipe is the loss."""
    first, second = recipe(settings, loss)
    return first, Stage(**{**vars(second), "loss": {"ce": 1.0}})


def averaged(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001
    """The recipe's cross-entropy with averaged weights, for all of the recipe's epochs."""
    own = dict(settings["recipe"])
    own["epochs"] += own.pop("joint_epochs")
    return RECIPES["default"](batch_size=settings["batch_size"], **own)[:1]


def head(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001
    """Only the last layer, by the exact objective."""
    return (ExactHead(keep=False),)


def optimizer(settings: Settings, stage: str = "") -> Optimizer:
    """The update rule with the first stage's numbers (`stage="first_"`) or the method's."""
    numbers = {name: settings[stage + name] for name in ("lr", "weight_decay", "momentum")}
    pull = {} if stage else {name: settings[name] for name in ("proximal", "proximal_every") if name in settings}
    return Optimizer(name=settings["optimizer"], **numbers, **pull)


def schedule(settings: Settings) -> Schedule:
    """The rate drops once."""
    return Schedule(name="step", milestones=(settings["milestone"],), factor=settings["factor"])


SCHEMES: dict[str, Callable[[Settings, str | None], Stages]] = {
    "first": lambda settings, loss: first_stage(settings),  # noqa: ARG005
    "second": second_stage,
    "continued": continued,
    "recipe": recipe,
    "joint_ce": joint_ce,
    "averaged": averaged,
    "head": head,
}
