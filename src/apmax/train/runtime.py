"""Runtimes of a run: one process on the CPU, or the devices, processes and precision of Lightning Fabric."""

from __future__ import annotations

import importlib.util
import os
from typing import Any

import torch
from torch import Tensor, nn

from apmax import extras
from apmax.train.config import Run
from apmax.train.processes import check_processes


class LocalRuntime:
    """One process on the CPU at full precision, with the methods of Fabric that the trainer calls.

    Fabric computes the same there, bit for bit. Its import takes longer than many a fit and 100 MB of memory, and its
    wrappers a tenth of a small network's step.
    """

    device = torch.device("cpu")
    global_rank = 0
    world_size = 1

    def setup(self, model: nn.Module) -> nn.Module:
        """Return the model on the CPU."""
        return model.to(self.device)

    def setup_optimizers(self, optimizer: torch.optim.Optimizer) -> torch.optim.Optimizer:
        """Return the optimiser as it is."""
        return optimizer

    def backward(self, value: Tensor) -> None:
        """Compute the gradients."""
        value.backward()

    def barrier(self) -> None:
        """Do nothing: there is no other process to wait for."""


def launch_runtime(run: Run, directory: str | os.PathLike[str] | None) -> Any:
    """Return the runtime with all processes running: those that Fabric started, or those that `torchrun` started.

    Raises:
        ValueError: torchrun started another number of processes; without a folder each may train on its own.
    """
    local = runs_locally(run)
    if not local or directory is not None:
        check_processes(run)
    if local:
        return LocalRuntime()
    fabric = extras.load("lightning_fabric", "train")
    loggers = None
    if run.tensorboard:
        logging = extras.load("lightning_fabric.loggers", "train")
        loggers = [logging.TensorBoardLogger(root_dir=directory or ".", name="tensorboard", version="")]
    launched = fabric.Fabric(
        accelerator=run.accelerator,
        devices=run.devices,
        num_nodes=run.num_nodes,
        strategy=run.strategy,
        precision=run.precision,
        loggers=loggers,
    )
    launched.launch()
    return launched


def runs_locally(run: Run) -> bool:
    """Return whether Fabric would train the run in this process on the CPU at full precision, without a logger.

    >>> runs_locally(Run(accelerator="cpu")), runs_locally(Run(accelerator="cpu", devices=2))
    (True, False)
    """
    default = (run.devices, run.num_nodes, run.strategy, run.precision) == (1, 1, "auto", "32-true")
    # `fabric run` replaces the settings of a program by such variables.
    from_outside = any(name.startswith("LT_") for name in os.environ)
    return default and not run.tensorboard and not from_outside and run.accelerator in _cpu_names()


def _cpu_names() -> tuple[str, ...]:
    """Return the accelerators that are the CPU on this machine."""
    other = torch.accelerator.is_available() or importlib.util.find_spec("torch_xla") is not None
    return ("cpu",) if other else ("cpu", "auto")
