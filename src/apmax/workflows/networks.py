"""A job's network: new, or with the weights of a finished training."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import nn

from apmax.workflows.data_types import KINDS, Encoder
from apmax.workflows.spec import Job


def new_network(job: Job, encoder: Encoder) -> tuple[nn.Module, list[str]]:
    """Return the network that the job's seed makes, and lines about the weights that it begins with.

    Raises:
        ValueError: Options that the network has not, or weights of another one.
        FileNotFoundError: There is no such file of weights.
    """
    kind = KINDS[job.data.kind]
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(job.run.seed)
        network = kind.build(encoder, job.model.name, job.model.options)
    if job.model.pretrained is None or kind.load_weights is None:
        return network, []
    return network, [f"begins with {kind.load_weights(network, job.model.pretrained)}"]


def trained_network(job: Job, encoder: Encoder, file: Path) -> nn.Module:
    """Return the network with the weights of a training's file.

    Raises:
        ValueError: They are of another network, or no weights at all.
    """
    network = KINDS[job.data.kind].build(encoder, job.model.name, job.model.options)
    try:
        network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # what torch raises for a file that is none of its own depends on the first bytes
        options = "".join(f", {key} = {value}" for key, value in job.model.options.items())
        said = [line.strip() for line in str(error).splitlines()]
        reason = said[min(1, len(said) - 1)] if said else type(error).__name__
        raise ValueError(
            f"{file} does not hold the weights of the network in run.toml ({job.model.name}{options}): {reason}"
        ) from None
    return network
