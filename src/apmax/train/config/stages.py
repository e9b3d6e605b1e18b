"""The kinds of stages a run is made of."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar

from apmax import validation
from apmax.losses import LOSSES
from apmax.surrogates import SURROGATES
from apmax.train.config.parts import Optimizer, Sampler, Schedule
from apmax.train.config.table import Table, from_table, known_key, to_table


@dataclass(frozen=True)
class Stage(Table):
    """One stage of training by gradient steps.

    Args:
        loss: A name of `LOSSES`, or names with weights: {"ap": 1.0, "ce": 1.0}.
        options: Arguments of the losses by name: {"ap": {"margin": 0.5}}.
        epochs: Passes of the sampler.
        optimizer: The update rule.
        schedule: The learning rate's course.
        sampler: How batches are drawn.
        start: Begin from the "best" weights of the stage before (by validation) or from its "last".
        keep: The model the stage begins from stays a candidate when validation chooses.
        reset: Sub-modules to re-initialise first: "head" (the last linear layer) or names.
        freeze: Sub-modules to leave as they are: "head", "body" (all but the head) or names.
        ema: Decay of the weights' moving average (buffers too); evaluation then uses the average.
        patience: Stop after so many epochs without a better validation AP.
        smooth: Neighbouring epochs whose mean validation AP selects; odd.
        name: Shown in the records.
    """

    loss: str | Mapping[str, float] = field(default_factory=lambda: {"ce": 1.0})
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    epochs: int = 10
    optimizer: Optimizer = field(default_factory=Optimizer)
    schedule: Schedule = field(default_factory=Schedule)
    sampler: Sampler = field(default_factory=Sampler)
    start: str = "best"
    keep: bool = True
    reset: tuple[str, ...] = ()
    freeze: tuple[str, ...] = ()
    ema: float | None = None
    patience: int | None = None
    smooth: int = 3
    name: str = ""

    kind: ClassVar[str] = "gradient"
    _floats = ("ema",)
    _tuples = ("reset", "freeze")
    _parts: ClassVar[dict[str, type[Table]]] = {"optimizer": Optimizer, "schedule": Schedule, "sampler": Sampler}

    def check(self) -> None:
        """Raise for unknown losses and options, and for numbers out of range."""
        loss = self.weights
        if not loss:
            raise ValueError("loss must name at least one of " + ", ".join(LOSSES))
        for name in loss:
            validation.choice("loss", name, LOSSES)
            loss[name] = validation.interval(f"loss.{name}", loss[name], 0, closed="neither")
        self._set("loss", loss)
        options = {name: dict(values) for name, values in self.options.items()}
        for name, values in options.items():
            known_key(name, loss, "the stage's options: they go by the names of its loss")
            accepted = [p for p in inspect.signature(LOSSES[name]).parameters if p not in ("labels", "sample_weight")]
            for key in values:
                known_key(key, accepted, f"the options of {name}")
        self._set("options", options)
        validation.whole("epochs", self.epochs, 1)
        validation.choice("start", self.start, ("best", "last"))
        if self.ema is not None:
            validation.interval("ema", self.ema, 0, 1, closed="left")
        if self.patience is not None:
            validation.whole("patience", self.patience, 1)
        if validation.whole("smooth", self.smooth, 1) % 2 == 0:
            raise ValueError(f"smooth must be odd: an epoch and as many neighbours on either side, got {self.smooth}")
        self._set("name", self.name or " + ".join(loss))

    @property
    def weights(self) -> dict[str, float]:
        """The loss as names with weights."""
        return {self.loss: 1.0} if isinstance(self.loss, str) else dict(self.loss)


@dataclass(frozen=True)
class ExactHead(Table):
    """A stage that re-trains only the last linear layer by the exact objective.

    Embeddings are computed once, then L-BFGS minimises `P(w) + l2·|w|²` for each strength in `l2`; validation AP
    chooses, and where `keep` is set the head it began with remains a candidate. Deterministic.
    """

    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    surrogate: str = "smooth_step"
    margin: float = 1.0
    max_iter: int = 100
    start: str = "best"
    keep: bool = True
    name: str = "exact head"

    kind: ClassVar[str] = "exact_head"
    epochs: ClassVar[int] = 1
    _floats = ("margin",)
    _tuples = ("l2",)

    def check(self) -> None:
        """Raise for strengths below zero and an empty grid."""
        if not self.l2:
            raise ValueError("l2 must hold at least one strength")
        self._set("l2", tuple(validation.interval("l2", value, 0) for value in self.l2))
        validation.choice("surrogate", self.surrogate, SURROGATES)
        validation.interval("margin", self.margin, 0, closed="neither")
        validation.whole("max_iter", self.max_iter, 1)
        validation.choice("start", self.start, ("best", "last"))


STAGES: dict[str, type[Stage] | type[ExactHead]] = {kind.kind: kind for kind in (Stage, ExactHead)}


def read_stage(table: Mapping[str, Any]) -> Stage | ExactHead:
    """Return the stage that a table describes; `kind` tells which sort, gradient steps if absent."""
    fields = dict(table)
    kind = STAGES[validation.choice("kind", fields.pop("kind", Stage.kind), STAGES)]
    return from_table(kind, fields, f"stage {fields.get('name', '')!r}" if "name" in fields else "a stage")


def write_stage(stage: Stage | ExactHead) -> dict[str, Any]:
    """Return the stage as a plain table from which `read_stage` makes an equal one."""
    return {"kind": stage.kind, **to_table(stage)}
