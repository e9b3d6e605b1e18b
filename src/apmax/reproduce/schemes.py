"""Training schemes: how the settings of a run become the stages that are trained.

A new scheme is one function here, decorated with `@_scheme("name")`; a method uses it by `scheme = "name"` in its table
`[methods.…]` of `grid.toml`, and stands in a table of results once its name is in one of the lists of `[rows]`. A new
method with an existing scheme needs the entry in `grid.toml` only. Nothing else has to know either name.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, NamedTuple, TypeVar

from apmax.reproduce.released import ReleasedStage
from apmax.train import MINED_STAGE, RECIPES, ExactHead, Optimizer, Sampler, Schedule, Stage

Settings = dict[str, Any]
"""All settings of a run by name; `options` are the arguments of its loss."""
Stages = tuple[Stage | ExactHead | ReleasedStage, ...]
_Builder = Callable[[Settings, str | None], Stages]
_AnyBuilder = TypeVar("_AnyBuilder", bound=_Builder)


class Scheme(NamedTuple):
    """A training scheme.

    Args:
        build: Returns the stages of a run from its settings and the name of its loss.
        from_first: Training begins from the best weights of the first stage, which is a run of its own.
        from_authors: Training begins from the published first-stage weights of the paper's authors (HIV only).
    """

    build: _Builder
    from_first: bool = False
    from_authors: bool = False


SCHEMES: dict[str, Scheme] = {}


def _scheme(name: str, *, from_first: bool = False, from_authors: bool = False) -> Callable[[_AnyBuilder], _AnyBuilder]:
    """Return a decorator that adds a function to `SCHEMES`."""

    def register(build: _AnyBuilder) -> _AnyBuilder:
        SCHEMES[name] = Scheme(build, from_first, from_authors)
        return build

    return register


@_scheme("first")
def _first_stage(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001 - one signature for all schemes
    """Return the first stage of the paper: cross-entropy on shuffled batches."""
    stage = Stage(
        loss={"ce": 1.0},
        epochs=settings["first_epochs"],
        optimizer=_optimizer(settings, "first_"),
        schedule=_schedule(settings),
        sampler=Sampler(name="shuffle", batch_size=settings["batch_size"]),
        smooth=1,
    )
    return (stage,)


@_scheme("second", from_first=True)
def _second_stage(settings: Settings, loss: str | None) -> tuple[Stage]:
    """Return the second stage of the paper: a new head, and the method's loss alone on batches with positives."""
    assert loss is not None
    options: dict[str, Any] = settings["options"]
    stage = Stage(
        loss={loss: 1.0},
        options={loss: options} if options else {},
        epochs=settings["epochs"],
        optimizer=_optimizer(settings),
        schedule=_schedule(settings),
        sampler=Sampler(name="positive", batch_size=settings["batch_size"], num_pos=settings["num_pos"]),
        keep=False,
        reset=("head",),
        patience=settings.get("patience"),
        smooth=1,
    )
    return (stage,)


@_scheme("continued", from_first=True)
def _continued(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001
    """Return more cross-entropy: the same head, shuffled batches, as many epochs as the methods have."""
    stage = Stage(
        loss={"ce": 1.0},
        epochs=settings["epochs"],
        optimizer=_optimizer(settings),
        schedule=_schedule(settings),
        sampler=Sampler(name="shuffle", batch_size=settings["batch_size"]),
        keep=False,
        patience=settings.get("patience"),
        smooth=1,
    )
    return (stage,)


@_scheme("recipe")
def _recipe(settings: Settings, loss: str | None) -> tuple[Stage, Stage]:  # noqa: ARG001
    """Return the stages of the default recipe, its joint stage with the given options."""
    first, second = RECIPES["default"](batch_size=settings["batch_size"], **settings["recipe"])
    if settings["options"]:
        options = {name: dict(settings["options"]) for name in second.loss}
        second = replace(second, options=options)
    return first, second


@_scheme("joint_ce")
def _joint_ce(settings: Settings, loss: str | None) -> Stages:
    """Return the default recipe with cross-entropy alone in its joint stage, so that only the loss differs."""
    first, second = _recipe(settings, loss)
    return first, replace(second, loss={"ce": 1.0})


@_scheme("mined")
def _mined(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001
    """Return the default recipe with cross-entropy on mined negatives as its second stage."""
    options = {**settings["recipe"], **settings["mining"]}
    return RECIPES[MINED_STAGE](batch_size=settings["batch_size"], **options)


@_scheme("averaged")
def _averaged(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001
    """Return the recipe's cross-entropy stage with averaged weights, for all of the recipe's epochs."""
    options = dict(settings["recipe"])
    options["epochs"] += options.pop("joint_epochs")
    return RECIPES["default"](batch_size=settings["batch_size"], **options)[:1]


@_scheme("head", from_first=True)
def _head(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001
    """Return the training of the last layer alone by the exact objective."""
    return (ExactHead(keep=False),)


@_scheme("authors", from_authors=True)
def _authors(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001
    """Return no stage: the authors' weights are scored as they are."""
    return ()


@_scheme("authors_second", from_authors=True)
def _authors_second(settings: Settings, loss: str | None) -> Stages:
    """Return the second stage of the paper, to begin from the authors' weights; a new head where `new_head` is set."""
    (stage,) = _second_stage(settings, loss)
    return (replace(stage, reset=("head",) if settings["new_head"] else ()),)


@_scheme("released", from_authors=True)
def _released(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001
    """Return the second stage of the authors' released code."""
    return (ReleasedStage(**settings["released"]),)


@_scheme("ensemble")
def _ensemble(settings: Settings, loss: str | None) -> Stages:  # noqa: ARG001
    """Return no stage: the scores are the mean of those of other runs."""
    return ()


def _optimizer(settings: Settings, prefix: str = "") -> Optimizer:
    """Return the optimiser of the first stage (`prefix="first_"`) or of the method's stage."""
    numbers = {name: settings[prefix + name] for name in ("lr", "weight_decay", "momentum")}
    proximal = {} if prefix else {name: settings[name] for name in ("proximal", "proximal_every") if name in settings}
    return Optimizer(name=settings["optimizer"], **numbers, **proximal)


def _schedule(settings: Settings) -> Schedule:
    """Return the schedule: the learning rate drops once."""
    return Schedule(name="step", milestones=(settings["milestone"],), factor=settings["factor"])
