"""A stage under way: everything that changes while it trains, and nothing else."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from apmax.losses import Loss
from apmax.optim import Proximal
from apmax.train.averaging import Average
from apmax.train.building import Batches
from apmax.train.config import ExactHead, Stage
from apmax.train.selection import Selection


@dataclass
class Seen:
    """What the batches of the current epoch showed: their rows, scores and losses."""

    rows: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    order: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def add(self, batch: int, rows: Tensor, scores: Tensor, loss: Tensor) -> None:
        """Keep a batch; nothing is copied or computed here."""
        self.rows.append(rows)
        self.scores.append(scores)
        self.losses.append(loss)
        self.order.append(torch.tensor(batch).expand(len(rows)))

    def joined(self) -> dict[str, Tensor]:
        """Return each of the four as one tensor on the CPU; empty if there was no batch."""
        parts = {"rows": self.rows, "scores": self.scores, "order": self.order}
        result = {name: torch.cat(part).cpu() if part else torch.empty(0) for name, part in parts.items()}
        losses = torch.stack(self.losses).double().cpu() if self.losses else torch.empty(0, dtype=torch.float64)
        return {**result, "losses": losses}

    @staticmethod
    def restored(state: dict[str, Tensor], device: torch.device, *, rank: int, world_size: int) -> Seen:
        """Return this process's share of what all had before a checkpoint, whichever process met it then."""
        if not len(state["losses"]):
            return Seen()
        rows, scores, order = (state[name][rank::world_size] for name in ("rows", "scores", "order"))
        return Seen([rows.to(device)], [scores.to(device)], [order], list(state["losses"].to(device).unbind()))


@dataclass
class Gradient:
    """What only a stage of gradient steps has.

    `module` and `stepper` are the model and the optimiser as Fabric runs them, `criterion` the loss as all processes
    compute it together; `model`, `optimizer` and `loss` are the same without.
    """

    module: nn.Module
    criterion: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    stepper: Any
    base_lr: list[float]
    sampler: Batches
    average: Average | None
    proximal: Proximal | None
    frozen: list[nn.Module]

    def state_dict(self) -> dict[str, Any]:
        """Return what a checkpoint must hold of it, the live tensors themselves."""
        return {
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "proximal": None if self.proximal is None else self.proximal.state_dict(),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Take over what a checkpoint holds."""
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.proximal is not None:
            self.proximal.load_state_dict(state["proximal"])


@dataclass
class Work:
    """A stage's place in the run, how far it is, and its parts."""

    number: int
    stage: Stage | ExactHead
    selection: Selection
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    seen: Seen = field(default_factory=Seen)
    gradient: Gradient | None = None
