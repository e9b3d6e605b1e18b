"""The data and the network of a trial."""

from __future__ import annotations

from functools import lru_cache
from os import PathLike
from typing import Any, NamedTuple

import torch
from torch import nn

from apmax.reproduce.trial import Trial


class Parts(NamedTuple):
    """Training, validation and test part."""

    train: Any
    valid: Any
    test: Any


def parts_of(trial: Trial, data_dir: str | PathLike[str] | None = None) -> Parts:
    """Return the three parts of the trial's data.

    Raises:
        FileNotFoundError: The data are not there; the message says where they are looked for.
    """
    data, folder = trial.data_set, None if data_dir is None else str(data_dir)
    if data.domain == "molecules":
        return _molecules(data.source, data.task, trial.split, trial.model == "ml-mpnn", folder)
    return _images(data.source, data.task, trial.seed, folder)


@lru_cache(maxsize=4)
def _molecules(name: str, task: str | None, split: str | None, levels: bool, data_dir: str | None) -> Parts:
    from apmax.data.molecules import load_molecules

    loaded = load_molecules(name, task, split=split, levels=levels, data_dir=data_dir, progress=False)
    return Parts(loaded.train, loaded.valid, loaded.test)


@lru_cache(maxsize=2)
def _images(name: str, task: str | None, seed: int, data_dir: str | None) -> Parts:
    from apmax.data.images import IMAGE_SETS

    options = {} if task is None else {"targets": task}
    loaded = IMAGE_SETS[name](data_dir, seed=seed, **options)
    return Parts(loaded.train, loaded.valid, loaded.test)


def network_of(trial: Trial) -> nn.Module:
    """Return the trial's network with the weights its seed gives it; torch's own generator is left as it was."""
    from apmax.models.graphs import GRAPH_MODELS
    from apmax.models.images import MODELS

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(trial.seed)
        if trial.data_set.domain == "molecules":
            return GRAPH_MODELS[trial.network.network](**trial.size)
        return MODELS[trial.network.network](**trial.size)
