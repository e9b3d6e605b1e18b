"""Training configuration: frozen dataclasses that are checked when built, and their conversion to plain tables."""

from __future__ import annotations

import dataclasses
import difflib
import inspect
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, TypeVar

import numpy as np

from apmax import validation
from apmax.losses import LOSSES
from apmax.surrogates import SURROGATES

OPTIMIZERS = ("sgd", "adam", "adamw", "paper_adam")
SCHEDULES = ("constant", "step", "cosine")
SAMPLERS = ("shuffle", "positive", "mined")
MINING_DEFAULTS: dict[str, Any] = {"hard": 0.25, "rounds": 4, "pool": 2**16}
"""Values of the fields of `Sampler` that only the sampler "mined" has; in others they are None."""
LARGEST_BATCH, LARGEST_OPTION, LARGEST_WINDOW = 10**7, 10**6, 10**6
"""Upper limits of numbers by which memory grows: those of a job file of unknown origin are refused before that."""
_NONE = "none"
"""None among the options of a loss, in tables and TOML, which has no such value."""
COUNTS = {
    "seed": (0, 2**63 - 1),
    "ensemble": (1, 1000),
    "workers": (0, 1000),
    "eval_batch_size": (1, LARGEST_BATCH),
    "num_nodes": (1, 100_000),
    "devices": (1, 10_000),
}
"""Least and largest value of the whole numbers of a run."""


class ConfigTable:
    """Base class of configuration dataclasses.

    Subclasses list in `_floats` and `_tuples` the fields converted to float and to tuple, and in `_nested` the fields
    that are configurations themselves and may be given as mappings. `check` runs after the conversion.
    """

    _floats: ClassVar[tuple[str, ...]] = ()
    _tuples: ClassVar[tuple[str, ...]] = ()
    _nested: ClassVar[dict[str, type[ConfigTable]]] = {}

    def __post_init__(self) -> None:
        for each in dataclasses.fields(self):  # type: ignore[arg-type]
            self._set(each.name, _python_number(getattr(self, each.name)))
            _check_type(each.name, getattr(self, each.name), str(each.type))
        for name in self._floats:
            value = getattr(self, name)
            if value is not None:
                self._set(name, validation.interval(name, value, -float("inf")))
        for name in self._tuples:
            value = getattr(self, name)
            self._set(name, (value,) if isinstance(value, (str, int, float)) else tuple(value))
        for name, nested in self._nested.items():
            value = getattr(self, name)
            if isinstance(value, Mapping):
                self._set(name, config_from_table(nested, value, name))
            elif not isinstance(value, nested):
                raise TypeError(f"{name} must be of type {nested.__name__} or a table of its fields, got {value!r}")
        self.check()

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def check(self) -> None:
        """Raise if a field is out of its range."""


AnyConfig = TypeVar("AnyConfig", bound=ConfigTable)


def _python_number(value: Any) -> Any:
    """Return a number of numpy as one of Python, which TOML and JSON can hold, and anything else as it is."""
    return value.item() if isinstance(value, np.number) else value


def _check_type(name: str, value: Any, annotation: str) -> None:
    """Raise `TypeError` for a text, switch, table or list of another type; numbers are checked with their range."""
    if value is None and annotation.endswith("| None"):
        return
    listed = value if isinstance(value, (list, tuple)) else [value]
    texts = all(isinstance(item, str) for item in listed)
    table = isinstance(value, Mapping)
    expected = {
        "str": (isinstance(value, str), "a text"),
        "bool": (isinstance(value, bool), "true or false"),
        "tuple[str, ...]": (texts, "a list of texts"),
        "str | tuple[str, ...]": (texts, "a text or a list of texts"),
        "tuple[float, ...]": (not any(isinstance(item, (str, Mapping)) for item in listed), "a list of numbers"),
        "str | Mapping[str, float]": (isinstance(value, str) or table, "a text or a table"),
        "Mapping[str, str]": (table and all(isinstance(item, str) for item in value.values()), "a table of texts"),
        "Mapping[str, Any]": (table, "a table"),
        "Mapping[str, Mapping[str, Any]]": (
            table and all(isinstance(item, Mapping) for item in value.values()),
            "a table of tables",
        ),
    }
    good, words = expected.get(annotation.removesuffix(" | None"), (True, ""))
    if not good:
        raise TypeError(f"{name} must be {words}, got {value!r}")


def _bounded(name: str, value: Any, low: int, high: int) -> int:
    """Return `value` as an int from `low` to `high`.

    >>> _bounded("ensemble", 30_000_000, 1, 1000)
    Traceback (most recent call last):
    ...
    ValueError: ensemble must be at most 1,000, got 30,000,000
    """
    number = validation.whole(name, value, low)
    if number > high:
        raise ValueError(f"{name} must be at most {high:,}, got {number:,}")
    return number


def check_known_key(key: str, known: Iterable[str], place: str) -> None:
    """Raise `ValueError` for a key that is not `known`, and suggest the nearest one."""
    options = list(known)
    if key in options:
        return
    near = difflib.get_close_matches(key, options, n=1, cutoff=0.5)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(options)}"
    raise ValueError(f"unknown key {key!r} in {place} ({hint})")


def config_from_table(kind: type[AnyConfig], table: Mapping[str, Any], place: str) -> AnyConfig:
    """Return a configuration of class `kind` from a mapping of its fields; `place` names it in error messages.

    >>> config_from_table(Sampler, {"batchsize": 8}, "the sampler")
    Traceback (most recent call last):
    ...
    ValueError: unknown key 'batchsize' in the sampler (did you mean 'batch_size'?)
    """
    names = [f.name for f in dataclasses.fields(kind)]  # type: ignore[arg-type]
    for key in table:
        check_known_key(key, names, place)
    return kind(**table)


def config_to_table(config: ConfigTable) -> dict[str, Any]:
    """Return a configuration as plain dicts, lists, strings and numbers; fields that are None are left out.

    An option of a loss that is None is "none" in the table, because leaving it out would mean the loss's default.

    >>> config_to_table(Schedule(name="step", milestones=(3, 5)))
    {'name': 'step', 'milestones': [3.0, 5.0], 'factor': 0.1, 'final': 0.0, 'warmup': 0.0}
    """
    values = {f.name: getattr(config, f.name) for f in dataclasses.fields(config)}  # type: ignore[arg-type]
    if isinstance(config, Stage):
        values["options"] = {
            name: {key: _NONE if value is None else value for key, value in options.items()}
            for name, options in config.options.items()
        }
    return {name: _plain_value(value) for name, value in values.items() if value is not None}


def _plain_value(value: Any) -> Any:
    if isinstance(value, (Stage, ExactHead)):
        return stage_to_table(value)
    if isinstance(value, ConfigTable):
        return config_to_table(value)
    if isinstance(value, Mapping):
        return {key: _plain_value(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_value(item) for item in value]
    return value


@dataclass(frozen=True)
class Optimizer(ConfigTable):
    """The update rule: torch's SGD, Adam and AdamW, or the paper's Algorithm 3 (`paper_adam`).

    `proximal` is the weight of a proximal term towards a reference point, which is renewed every `proximal_every`
    epochs (AUC-M); 0 means no such term.
    """

    name: str = "adam"
    lr: float = 1e-3
    weight_decay: float = 0.0
    momentum: float = 0.0
    betas: tuple[float, ...] = (0.9, 0.999)
    eps: float = 1e-8
    amsgrad: bool = False
    proximal: float = 0.0
    proximal_every: int = 10

    _floats = ("lr", "weight_decay", "momentum", "eps", "proximal")
    _tuples = ("betas",)

    def check(self) -> None:
        """Raise for an unknown rule and for numbers out of range."""
        validation.choice("optimizer.name", self.name, OPTIMIZERS)
        validation.interval("optimizer.lr", self.lr, 0, closed="neither")
        validation.interval("optimizer.weight_decay", self.weight_decay, 0, closed="left")
        validation.interval("optimizer.momentum", self.momentum, 0, 1, closed="left")
        validation.interval("optimizer.eps", self.eps, 0, closed="left")
        validation.interval("optimizer.proximal", self.proximal, 0, closed="left")
        validation.whole("optimizer.proximal_every", self.proximal_every, 1)
        if len(self.betas) != 2:
            raise ValueError(f"optimizer.betas must be two numbers, got {self.betas!r}")
        self._set("betas", tuple(validation.interval("optimizer.betas", b, 0, 1, closed="left") for b in self.betas))


@dataclass(frozen=True)
class Schedule(ConfigTable):
    """The learning rate over a stage, as a factor of `optimizer.lr`.

    constant: 1. step: `factor` to the power of the number of `milestones` (epochs) passed. cosine: half a cosine
    from 1 to `final`. During the first `warmup` epochs the factor rises linearly from 0. The schedule is a function
    of the step alone: a resumed run, or one with more epochs, needs no schedule state.
    """

    name: str = "constant"
    milestones: tuple[float, ...] = ()
    factor: float = 0.1
    final: float = 0.0
    warmup: float = 0.0

    _floats = ("factor", "final", "warmup")
    _tuples = ("milestones",)

    def check(self) -> None:
        """Raise for an unknown schedule, numbers out of range, and milestones without the step schedule."""
        validation.choice("schedule.name", self.name, SCHEDULES)
        self._set("milestones", tuple(validation.interval("schedule.milestones", m, 0) for m in self.milestones))
        validation.interval("schedule.factor", self.factor, 0)
        validation.interval("schedule.final", self.final, 0, 1)
        validation.interval("schedule.warmup", self.warmup, 0)
        if self.milestones and self.name != "step":
            raise ValueError(f"schedule.milestones belong to the schedule 'step', got {self.name!r}")
        if self.name == "step" and not self.milestones:
            raise ValueError("schedule 'step' needs milestones: the epochs at which the rate is multiplied by factor")


@dataclass(frozen=True)
class Sampler(ConfigTable):
    """The batch sampler. Sizes are global.

    Args:
        name: "shuffle", "positive" with `num_pos` positives in each batch, or "mined": the same with hard negatives,
            those that the model scores highest.
        batch_size: Rows in a batch.
        num_pos: Positives among them, unless the sampler is "shuffle".
        hard: "mined": share of the scored negatives that batches draw from, the highest scores; by default 0.25.
        rounds: "mined": times an epoch at which negatives are scored; by default 4.
        pool: "mined": largest number of negatives that are scored in a round; by default 65,536.
    """

    name: str = "shuffle"
    batch_size: int = 64
    num_pos: int = 4
    hard: float | None = None
    rounds: int | None = None
    pool: int | None = None

    _floats = ("hard",)

    def check(self) -> None:
        """Raise for an unknown sampler, batches without room for negatives, and options of another sampler."""
        validation.choice("sampler.name", self.name, SAMPLERS)
        _bounded("sampler.batch_size", self.batch_size, 1, LARGEST_BATCH)
        _bounded("sampler.num_pos", self.num_pos, 1, LARGEST_BATCH)
        if self.has_positives and self.num_pos >= self.batch_size:
            raise ValueError(f"sampler.num_pos must be below batch_size {self.batch_size}, got {self.num_pos}")
        for name, default in MINING_DEFAULTS.items():
            value = getattr(self, name)
            if self.name == "mined":
                self._set(name, default if value is None else value)
            elif value is not None:
                raise ValueError(f"sampler.{name} belongs to the sampler 'mined', got {self.name!r}")
        if self.name == "mined":
            validation.interval("sampler.hard", self.hard, 0, 1, closed="right")
            _bounded("sampler.rounds", self.rounds, 1, LARGEST_OPTION)
            _bounded("sampler.pool", self.pool, 1, LARGEST_BATCH)

    @property
    def has_positives(self) -> bool:
        """Whether every batch has `num_pos` positives."""
        return self.name != "shuffle"


@dataclass(frozen=True)
class Objective(ConfigTable):
    """The exact objective P(w) that every record reports: its surrogate, margin, and whether scores pass a sigmoid."""

    surrogate: str = "smooth_step"
    margin: float = 1.0
    sigmoid: bool = False

    _floats = ("margin",)

    def check(self) -> None:
        """Raise for an unknown surrogate and for a margin that is not positive."""
        validation.choice("objective.surrogate", self.surrogate, SURROGATES)
        validation.interval("objective.margin", self.margin, 0, closed="neither")


@dataclass(frozen=True)
class Checkpoints(ConfigTable):
    """When checkpoints are written, besides at the end of the run and on SIGTERM.

    `every_epochs`, `every_steps` and `every_seconds` are fixed intervals. With none of them, checkpoints are written
    as often as their total cost stays within `share` of the run's time: every few seconds for a small model, less
    often where writing takes long.
    """

    every_epochs: int | None = None
    every_steps: int | None = None
    every_seconds: float | None = None
    share: float = 0.01

    _floats = ("every_seconds", "share")

    def check(self) -> None:
        """Raise for intervals that are not positive."""
        for name in ("every_epochs", "every_steps"):
            if getattr(self, name) is not None:
                validation.whole(f"checkpoints.{name}", getattr(self, name), 1)
        if self.every_seconds is not None:
            validation.interval("checkpoints.every_seconds", self.every_seconds, 0)
        validation.interval("checkpoints.share", self.share, 0, 1, closed="right")


@dataclass(frozen=True)
class Stage(ConfigTable):
    """One stage of training by gradient steps.

    Args:
        loss: A name of `LOSSES`, or names with weights: {"ap": 1.0, "ce": 1.0}.
        options: Arguments of the losses by name: {"ap": {"margin": 0.5}}. "none" is None where the loss takes that.
        epochs: Passes of the sampler.
        optimizer: The update rule.
        schedule: The learning-rate schedule.
        sampler: The batch sampler.
        start: Begin from the "best" weights of the previous stage (by validation) or from its "last" weights.
        keep: Whether the model the stage begins from stays a candidate of the selection.
        reset: Sub-modules to re-initialise first: "head" (the last linear layer) or names.
        freeze: Sub-modules that are not trained: "head", "body" (all but the head) or names.
        ema: Decay of the exponential moving average of weights and buffers; if set, the average is evaluated.
        patience: Stop after this many epochs without a better validation AP.
        smooth: Number of neighbouring epochs whose mean validation AP selects; odd.
        name: The stage's name in the records.
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
    _nested: ClassVar[dict[str, type[ConfigTable]]] = {"optimizer": Optimizer, "schedule": Schedule, "sampler": Sampler}

    def check(self) -> None:
        """Raise for unknown losses and options, and for numbers out of range."""
        loss = self.weights
        if not loss:
            raise ValueError("loss must name at least one of " + ", ".join(LOSSES))
        for name in loss:
            validation.choice("loss", name, LOSSES)
            loss[name] = validation.interval(f"loss.{name}", loss[name], 0, closed="neither")
        self._set("loss", loss)
        options = {
            name: {key: _python_number(value) for key, value in values.items()} for name, values in self.options.items()
        }
        for name, values in options.items():
            check_known_key(name, loss, "the stage's options, whose keys are the names of its losses")
            parameters = inspect.signature(LOSSES[name]).parameters
            accepted = [p for p in parameters if p not in ("labels", "sample_weight")]
            for key, value in values.items():
                check_known_key(key, accepted, f"the options of {name}")
                if isinstance(value, str) and value == _NONE and str(parameters[key].annotation).endswith("| None"):
                    values[key] = None
                if isinstance(value, int) and value > LARGEST_OPTION:
                    raise ValueError(f"options.{name}.{key} must be at most {LARGEST_OPTION:,}, got {value:,}")
        self._set("options", options)
        validation.whole("epochs", self.epochs, 1)
        validation.choice("start", self.start, ("best", "last"))
        if self.ema is not None:
            validation.interval("ema", self.ema, 0, 1, closed="left")
        if self.patience is not None:
            validation.whole("patience", self.patience, 1)
        if _bounded("smooth", self.smooth, 1, LARGEST_WINDOW) % 2 == 0:
            raise ValueError(f"smooth must be odd: an epoch and as many neighbours on either side, got {self.smooth}")
        self._set("name", self.name or " + ".join(loss))

    @property
    def weights(self) -> dict[str, float]:
        """The weight of each loss by name."""
        return {self.loss: 1.0} if isinstance(self.loss, str) else dict(self.loss)


@dataclass(frozen=True)
class ExactHead(ConfigTable):
    """A stage that re-trains only the last linear layer by the exact objective.

    Embeddings are computed once, then L-BFGS minimises `P(w) + l2·|w|²` for each strength in `l2`. Validation AP
    selects; with `keep` the initial head remains a candidate. Deterministic. With `cache` the embeddings of images
    (any dataset with a method `content_hash`) are kept in the cache folder, and further runs with the same images and
    the same weights below the head take seconds; that pays where no stage has trained the network before.
    """

    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    surrogate: str = "smooth_step"
    margin: float = 1.0
    max_iter: int = 100
    start: str = "best"
    keep: bool = True
    cache: bool = False
    name: str = "exact head"

    kind: ClassVar[str] = "exact_head"
    epochs: ClassVar[int] = 1
    _floats = ("margin",)
    _tuples = ("l2",)

    def check(self) -> None:
        """Raise for negative strengths, an empty grid, and other values out of range."""
        if not self.l2:
            raise ValueError("l2 must hold at least one strength")
        self._set("l2", tuple(validation.interval("l2", value, 0) for value in self.l2))
        validation.choice("surrogate", self.surrogate, SURROGATES)
        validation.interval("margin", self.margin, 0, closed="neither")
        validation.whole("max_iter", self.max_iter, 1)
        validation.choice("start", self.start, ("best", "last"))


STAGES: dict[str, type[Stage] | type[ExactHead]] = {stage.kind: stage for stage in (Stage, ExactHead)}


def stage_from_table(table: Mapping[str, Any]) -> Stage | ExactHead:
    """Return the stage of a plain table; its key `kind` is "gradient" (the default) or "exact_head"."""
    fields = dict(table)
    kind = STAGES[validation.choice("kind", fields.pop("kind", Stage.kind), STAGES)]
    return config_from_table(kind, fields, f"stage {fields.get('name', '')!r}" if "name" in fields else "a stage")


def stage_to_table(stage: Stage | ExactHead) -> dict[str, Any]:
    """Return the stage as a plain table; `stage_from_table` gives back an equal stage."""
    return {"kind": stage.kind, **config_to_table(stage)}


@dataclass(frozen=True)
class Run(ConfigTable):
    """A whole run: its stages, its seed, and the hardware it uses.

    Args:
        stages: The stages, in the order in which they are trained.
        seed: The seed of all randomness.
        ensemble: Number of models of different seeds whose scores are averaged.
        train_metrics: Scores that the training metrics are computed from: "seen" takes the score each row had in its
            last training batch of the epoch, "full" scores all rows again after the epoch; "none" computes none.
        objective: The exact objective in the records.
        checkpoints: When checkpoints are written.
        workers: Processes that load data.
        eval_batch_size: Rows per batch in evaluation.
        accelerator, devices, num_nodes, strategy, precision: As in Lightning Fabric.
        tensorboard: Write the records for TensorBoard too.
    """

    stages: tuple[Stage | ExactHead, ...] = (Stage(),)
    seed: int = 0
    ensemble: int = 1
    train_metrics: str = "seen"
    objective: Objective = field(default_factory=Objective)
    checkpoints: Checkpoints = field(default_factory=Checkpoints)
    workers: int = 0
    eval_batch_size: int = 1024
    accelerator: str = "auto"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    precision: str = "32-true"
    tensorboard: bool = False

    _nested: ClassVar[dict[str, type[ConfigTable]]] = {"objective": Objective, "checkpoints": Checkpoints}

    def check(self) -> None:
        """Raise for a run without stages and for counts below their minimum."""
        if isinstance(self.stages, (Stage, ExactHead)):
            raise TypeError("stages must be a tuple of stages, got one: write (stage,)")
        if not isinstance(self.stages, Iterable):
            raise TypeError(f"stages must be a tuple of stages, got {type(self.stages).__name__}")
        stages = tuple(stage_from_table(s) if isinstance(s, Mapping) else s for s in self.stages)
        if not stages or not all(isinstance(stage, (Stage, ExactHead)) for stage in stages):
            raise ValueError(f"stages must hold at least one Stage or ExactHead, got {self.stages!r}")
        self._set("stages", stages)
        for name, (least, largest) in COUNTS.items():
            _bounded(name, getattr(self, name), least, largest)
        validation.choice("train_metrics", self.train_metrics, ("seen", "full", "none"))
