"""The parts of a stage and of a run."""

from __future__ import annotations

from dataclasses import dataclass

from apmax import validation
from apmax.surrogates import SURROGATES
from apmax.train.config.table import Table

OPTIMIZERS = ("sgd", "adam", "adamw", "paper_adam")
SCHEDULES = ("constant", "step", "cosine")
SAMPLERS = ("shuffle", "positive")


@dataclass(frozen=True)
class Optimizer(Table):
    """How weights are updated: torch's SGD, Adam and AdamW, or the paper's Algorithm 3 (`paper_adam`).

    `proximal` is the weight of the pull towards a reference point that is renewed every `proximal_every` epochs
    (AUC-M); 0 leaves it out.
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
        """Raise for an unknown rule or a negative rate."""
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
class Schedule(Table):
    """The learning rate over a stage, as a factor of `optimizer.lr`.

    constant: 1. step: `factor` to the power of the number of `milestones` (epochs) passed. cosine: half a cosine
    from 1 to `final`. The first `warmup` epochs climb linearly from 0. It is a function of the step alone, so
    that a resumed run, or one that is given more epochs, needs no state.
    """

    name: str = "constant"
    milestones: tuple[float, ...] = ()
    factor: float = 0.1
    final: float = 0.0
    warmup: float = 0.0

    _floats = ("factor", "final", "warmup")
    _tuples = ("milestones",)

    def check(self) -> None:
        """Raise for an unknown schedule, or one whose numbers cannot be meant."""
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
class Sampler(Table):
    """How batches are drawn: `shuffle`, or `positive` with `num_pos` positives in each. Sizes are global."""

    name: str = "shuffle"
    batch_size: int = 64
    num_pos: int = 4

    def check(self) -> None:
        """Raise for an unknown sampler or sizes that leave no room for negatives."""
        validation.choice("sampler.name", self.name, SAMPLERS)
        validation.whole("sampler.batch_size", self.batch_size, 1)
        validation.whole("sampler.num_pos", self.num_pos, 1)
        if self.name == "positive" and self.num_pos >= self.batch_size:
            raise ValueError(f"sampler.num_pos must be below batch_size {self.batch_size}, got {self.num_pos}")


@dataclass(frozen=True)
class Objective(Table):
    """The exact objective that every record reports: P(w) of these surrogate pairs, of sigmoids if asked."""

    surrogate: str = "smooth_step"
    margin: float = 1.0
    sigmoid: bool = False

    _floats = ("margin",)

    def check(self) -> None:
        """Raise for an unknown surrogate or a margin that is not positive."""
        validation.choice("objective.surrogate", self.surrogate, SURROGATES)
        validation.interval("objective.margin", self.margin, 0, closed="neither")


@dataclass(frozen=True)
class Checkpoints(Table):
    """When a checkpoint is written, besides the end of the run and SIGTERM.

    `every_epochs`, `every_steps` and `every_seconds` say so outright. With none of them, one is written as often as all
    of them together take no more than `share` of the run's time: every few seconds for a small model, less often where
    writing is dear.
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
