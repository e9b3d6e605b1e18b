"""Randomness without state: every seed is a function of the run's seed and a position, so none has to be saved."""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import torch

_MASK = (1 << 64) - 1


def mix_seed(*parts: int) -> int:
    """Return a 63-bit seed that depends on all `parts` and their order (the finaliser of splitmix64, chained).

    >>> mix_seed(0, 1, 2) == mix_seed(0, 1, 2), mix_seed(0, 1, 2) == mix_seed(0, 2, 1)
    (True, False)
    """
    state = 0x9E3779B97F4A7C15
    for part in parts:
        state = (state ^ (part & _MASK)) * 0xBF58476D1CE4E5B9 & _MASK
        state = (state ^ (state >> 27)) * 0x94D049BB133111EB & _MASK
        state ^= state >> 31
    return state >> 1


def seed_torch(seed: int, device: torch.device) -> None:
    """Seed the generators that layers such as dropout use: the CPU's and that of `device`."""
    torch.default_generator.manual_seed(seed)
    if device.type == "cuda":
        torch.cuda.manual_seed(seed)


def seed_example(seed: int) -> None:
    """Seed the generators that a dataset may use while it reads one example: torch's, numpy's and Python's."""
    torch.default_generator.manual_seed(seed)
    np.random.seed(seed & 0xFFFFFFFF)  # noqa: NPY002 - the legacy generator is the one that transforms use
    random.seed(seed)


@contextmanager
def preserved_generators(device: torch.device) -> Iterator[None]:
    """Restore the states of the global generators at the end: the trainer seeds them only inside."""
    cuda = torch.cuda.get_rng_state(device) if device.type == "cuda" else None
    cpu, legacy, python = torch.get_rng_state(), np.random.get_state(), random.getstate()  # noqa: NPY002
    try:
        yield
    finally:
        torch.set_rng_state(cpu)
        np.random.set_state(legacy)  # noqa: NPY002
        random.setstate(python)
        if cuda is not None:
            torch.cuda.set_rng_state(cuda, device)
