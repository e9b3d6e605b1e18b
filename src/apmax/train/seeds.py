"""Ensembles of models trained with different seeds, and `fit`, which trains one model or an ensemble."""

from __future__ import annotations

import copy
import dataclasses
import os
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from apmax.train.config import Run
from apmax.train.data import Data
from apmax.train.display import RunMonitor, make_monitor
from apmax.train.loop import check_run, epochs
from apmax.train.processes import from_first, shared_errors
from apmax.train.randomness import mix_seed, preserved_generators, seed_example, seed_torch
from apmax.train.records import Record
from apmax.train.run_directory import LOG_NAME, read_records
from apmax.train.runtime import launch_runtime
from apmax.train.weights import parameters_without_reset, reset_modules

_MEMBER_SEED = 2
_SHOWN_PARAMETERS = 5


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
    model: nn.Module | Callable[[], nn.Module],
    data: Data | tuple[Any, ...],
    run: Run,
    *,
    directory: str | os.PathLike[str] | None = None,
    resume: bool | str = False,
    progress: bool | str = False,
    member_data: Sequence[Data] | None = None,
) -> Result:
    """Train all epochs and return the model with its records, those before a resume included.

    `model` is a module, or a function without arguments that builds one, such as a class; it is called by the seed of
    the run. With `run.ensemble = k` it is called once for each member, by the member's seed. A module is the first of
    the members itself, and the others are copies, re-initialised by the `reset_parameters` of their modules; without
    these methods an ensemble needs a function. Each member has its own sub-directory `member-0`, `member-1`, …; log.txt
    is about all of them. `progress` is as in `epochs`. `member_data` gives every member its own data, such as other
    validation rows, in place of `data`.

    Raises:
        ValueError: As `epochs`; an ensemble of a module with parameters that cannot be re-initialised, or of a function
            whose models share parameters.

    >>> from torch.utils.data import TensorDataset
    >>> from apmax.train.config import Stage
    >>> x = torch.linspace(-1, 1, 64)[:, None]
    >>> split = TensorDataset(x, (x[:, 0] > 0.5).float())
    >>> run = Run(stages=(Stage(epochs=2),), ensemble=3, accelerator="cpu")
    >>> result = fit(lambda: nn.Linear(1, 1), (split, split), run)
    >>> len(result.model.members), len(result.records)
    (3, 6)
    """
    check_run(run)
    if member_data is not None and len(member_data) != run.ensemble:
        raise ValueError(f"member_data must be one per model, got {len(member_data)} for ensemble={run.ensemble}")
    fabric = launch_runtime(run, directory)
    with shared_errors(fabric.world_size):
        models = _make_members(model, run, fabric.device)
    records: list[Record] = []
    first = fabric.global_rank == 0
    log = None if directory is None else Path(directory) / LOG_NAME
    monitor = make_monitor(run, progress, log=log) if first else RunMonitor(run)
    try:
        for number, member in enumerate(models):
            member_run = dataclasses.replace(run, seed=_member_seed(run, number), ensemble=1)
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
            # A resumed run has earlier records in its folder, which only the first process may have.
            records += new if folder is None else from_first(partial(read_records, folder), fabric.world_size)
    finally:
        monitor.close()
    return Result(models[0] if run.ensemble == 1 else Ensemble(models).eval(), records)


def _member_seed(run: Run, number: int) -> int:
    """Return the seed of a member; the first has bit for bit the weights of the run without an ensemble."""
    return mix_seed(run.seed, _MEMBER_SEED, number) >> 1 if number else run.seed


def _make_members(model: nn.Module | Callable[[], nn.Module], run: Run, device: torch.device) -> list[nn.Module]:
    """Return the models of a run, the same for the same seed.

    Raises:
        ValueError: They would have parameters in common, or begin with common values.
        TypeError: `model` is neither a module nor a function that returns one.
    """
    if isinstance(model, nn.Module):
        return _copied_members(model, run.ensemble, seed=run.seed)
    expected = "model must be a torch.nn.Module or a function that returns one, got "
    if not callable(model):
        raise TypeError(f"{expected}{type(model).__name__}")
    models: list[nn.Module] = []
    for number in range(run.ensemble):
        with preserved_generators(device):
            # A function may draw from any of the generators.
            seed_example(_member_seed(run, number))
            seed_torch(_member_seed(run, number), device)
            built = model()
        if not isinstance(built, nn.Module):
            raise TypeError(f"{expected}a function that returns {type(built).__name__}")
        before = {parameter for other in models for parameter in other.parameters()}
        shared = [name for name, parameter in built.named_parameters() if parameter in before]
        if shared:
            raise ValueError(f"model: {shared[0]} belongs to two members of the ensemble; build a new one in each call")
        models.append(built)
    return models


def _copied_members(model: nn.Module, count: int, *, seed: int) -> list[nn.Module]:
    """Return the model and `count - 1` re-initialised copies of it.

    Raises:
        ValueError: Parameters that no `reset_parameters` of their module sets: how they were initialised is not known.
    """
    fixed = parameters_without_reset(model) if count > 1 else []
    if fixed:
        names = ", ".join(fixed[:_SHOWN_PARAMETERS]) + (", …" if len(fixed) > _SHOWN_PARAMETERS else "")
        raise ValueError(
            f"ensemble: {names} are set by no reset_parameters() of their modules and would be the same in all "
            f"members; pass a function that builds the model: fit(lambda: {type(model).__name__}(...), ...)"
        )
    models = [model]
    own = next(model.parameters(recurse=False), None) is not None
    parts = [] if own else [name for name, _ in model.named_children()]
    for number in range(1, count):
        with preserved_generators(torch.device("cpu")):
            copied = copy.deepcopy(model)
            reset_modules(copied, parts or [""], seed=mix_seed(seed, _MEMBER_SEED, number))
        models.append(copied)
    return models
