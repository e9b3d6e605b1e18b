"""Ensembles of models trained with different seeds, and `fit`, which trains one model or an ensemble."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from apmax import validation
from apmax.train.config import Run
from apmax.train.data import Data
from apmax.train.display import RunMonitor, make_monitor
from apmax.train.loop import epochs
from apmax.train.randomness import mix_seed, preserved_generators
from apmax.train.records import Record
from apmax.train.run_directory import LOG_NAME, read_records
from apmax.train.runtime import launch_runtime
from apmax.train.weights import reset_modules

_MEMBER_SEED = 2


class Ensemble(nn.Module):
    """The mean of its members' scores.

    >>> members = [nn.Linear(1, 1, bias=False) for _ in range(2)]
    >>> for value, member in enumerate(members):
    ...     _ = nn.init.constant_(member.weight, value)
    >>> Ensemble(members)(torch.ones(1, 1)).item()
    0.5
    """

    def __init__(self, members: list[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, inputs: Any) -> Tensor:
        """Return the mean score."""
        return torch.stack([member(inputs) for member in self.members]).mean(0)


class Result(NamedTuple):
    """The result of `fit`: the model (an `Ensemble` if `run.ensemble > 1`) and the records of all epochs."""

    model: nn.Module
    records: list[Record]


def fit(
    model: nn.Module,
    data: Data | tuple[Any, ...],
    run: Run,
    *,
    directory: str | os.PathLike[str] | None = None,
    resume: bool | str = False,
    progress: bool | str = False,
    member_data: Sequence[Data] | None = None,
) -> Result:
    """Train all epochs and return the model with its records, those before a resume included.

    With `run.ensemble = k` the given model is the first of k members; the others are copies of it, re-initialised by
    their own seeds. Each member has its own sub-directory `member-0`, `member-1`, …; log.txt is about all of them.
    `progress` is as in `epochs`. `member_data` gives every member its own data, such as other validation rows, in
    place of `data`.

    >>> from torch.utils.data import TensorDataset
    >>> from apmax.train.config import Stage
    >>> x = torch.linspace(-1, 1, 64)[:, None]
    >>> split = TensorDataset(x, (x[:, 0] > 0.5).float())
    >>> run = Run(stages=(Stage(epochs=2),), ensemble=3, accelerator="cpu")
    >>> result = fit(nn.Linear(1, 1), (split, split), run)
    >>> len(result.model.members), len(result.records)
    (3, 6)
    """
    if member_data is not None and len(member_data) != run.ensemble:
        raise ValueError(f"member_data must be one per model, got {len(member_data)} for ensemble={run.ensemble}")
    fabric = launch_runtime(run, directory)
    models = _make_members(model, run.ensemble, seed=run.seed)
    records: list[Record] = []
    first = fabric.global_rank == 0
    log = None if directory is None else Path(directory) / LOG_NAME
    monitor = make_monitor(run, progress, log=log) if first else RunMonitor(run)
    try:
        for number, member in enumerate(models):
            # The first member has bit for bit the weights of the run without an ensemble.
            seed = mix_seed(run.seed, _MEMBER_SEED, number) >> 1 if number else run.seed
            member_run = dataclasses.replace(run, seed=seed, ensemble=1)
            folder = None if directory is None else Path(directory) / (f"member-{number}" if run.ensemble > 1 else "")
            new = list(
                epochs(
                    member,
                    data if member_data is None else member_data[number],
                    member_run,
                    directory=folder,
                    resume=resume,
                    progress=monitor,
                    fabric=fabric,
                    member=number,
                )
            )
            fabric.barrier()
            records += new if folder is None else read_records(folder)
    finally:
        monitor.close()
    return Result(models[0] if run.ensemble == 1 else Ensemble(models).eval(), records)


def _make_members(model: nn.Module, count: int, *, seed: int) -> list[nn.Module]:
    """Return the model and `count - 1` re-initialised copies of it, the same for the same seed.

    Parameters that belong to the model itself, outside of its sub-modules, are copied unless it has a method
    `reset_parameters`: how they were initialised is not known.
    """
    validation.whole("ensemble", count, 1)
    models = [model]
    own = next(model.parameters(recurse=False), None) is not None and hasattr(model, "reset_parameters")
    parts = [] if own else [name for name, _ in model.named_children()]
    for number in range(1, count):
        with preserved_generators(torch.device("cpu")):
            copied = copy.deepcopy(model)
            reset_modules(copied, parts or [""], seed=mix_seed(seed, _MEMBER_SEED, number))
        models.append(copied)
    return models
