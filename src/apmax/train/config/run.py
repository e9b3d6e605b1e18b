"""A whole run."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar

from apmax import validation
from apmax.train.config.parts import Checkpoints, Objective
from apmax.train.config.stages import ExactHead, Stage, read_stage
from apmax.train.config.table import Table


@dataclass(frozen=True)
class Run(Table):
    """A whole run: its stages, its seed, and where it runs.

    Args:
        stages: What is trained, one after the other.
        seed: Everything random follows from it.
        ensemble: How many models of different seeds have their scores averaged.
        train_metrics: "seen" scores of the epoch, as they were when their batch was met, or "full": recomputed.
        objective: The exact objective in the records.
        checkpoints: How often they are written.
        workers: Processes that load data.
        eval_batch_size: Rows per batch where no gradient is needed.
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

    _parts: ClassVar[dict[str, type[Table]]] = {"objective": Objective, "checkpoints": Checkpoints}

    def check(self) -> None:
        """Raise for a run without stages and for counts below their least value."""
        stages = tuple(read_stage(s) if isinstance(s, Mapping) else s for s in self.stages)
        if not stages or not all(isinstance(stage, (Stage, ExactHead)) for stage in stages):
            raise ValueError(f"stages must hold at least one Stage or ExactHead, got {self.stages!r}")
        self._set("stages", stages)
        for name, low in (("seed", 0), ("ensemble", 1), ("workers", 0), ("eval_batch_size", 1), ("num_nodes", 1)):
            validation.whole(name, getattr(self, name), low)
        validation.whole("devices", self.devices, 1)
        validation.choice("train_metrics", self.train_metrics, ("seen", "full"))
