"""A training run for tests that kill it; settings are a JSON argument, and a run in its directory is resumed."""

import json
import os
import signal
import sys
import time
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import Dataset

from apmax.train import Checkpoints, Data, Optimizer, Run, Sampler, Schedule, Stage, epochs


class Augmented(Dataset):
    def __init__(self, rows, seed, noise):
        generator = torch.Generator().manual_seed(seed)
        self.inputs = torch.randn(rows, 4, generator=generator)
        self.labels = (self.inputs[:, 0] + torch.randn(rows, generator=generator) > 1.2).float()
        self.noise = noise

    def __len__(self):
        return len(self.labels)

    def __getitem__(self, row):
        return self.inputs[row] + self.noise * torch.randn(4), self.labels[row]


class Network(nn.Module):
    """Batch norm and dropout, unless plain; marks that training has begun, is slow, and may kill its own process."""

    def __init__(self, directory, *, plain, kill_at, fast):
        super().__init__()
        torch.manual_seed(0)
        layers = (
            [nn.Linear(4, 8), nn.ReLU()] if plain else [nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout()]
        )
        self.body, self.head = nn.Sequential(*layers), nn.Linear(8, 1)
        self.directory, self.kill_at, self.fast, self.steps = Path(directory), kill_at, fast, 0

    def forward(self, inputs):
        if self.training:
            self.steps += 1
            if self.steps == 2:
                (self.directory / "training").touch()
            if self.steps == self.kill_at:
                os.kill(os.getpid(), signal.SIGKILL)
            if self.kill_at is None and not self.fast:
                time.sleep(0.02)
        return self.head(self.body(inputs))


def main(
    directory,
    *,
    devices=1,
    workers=0,
    kill_at=None,
    plain=False,
    optimizer="adam",
    precision="32-true",
    loss="ap",
    every_seconds=None,
    weighted=False,
    num_nodes=1,
    fast=False,
    own_inputs=False,
):
    rate = 0.05 if optimizer == "sgd" else 0.01
    shared = {"optimizer": Optimizer(name=optimizer, lr=rate)}
    first = Stage(epochs=3, sampler=Sampler(batch_size=48), ema=0.9, schedule=Schedule(name="cosine"), **shared)
    terms = {"ce": 1.0} if loss in ("ce", "ce_mined") else {loss: 1.0, "ce": 1.0}
    sampler = Sampler(name="mined" if loss == "ce_mined" else "positive", batch_size=32, num_pos=4)
    second = Stage(loss=terms, epochs=3, sampler=sampler, name="joint", **shared)
    if plain:
        first, second = (
            Stage(loss=stage.loss, epochs=1, smooth=1, sampler=stage.sampler, **shared) for stage in (first, second)
        )
    checkpoints = Checkpoints(every_steps=None if every_seconds else 3, every_seconds=every_seconds)
    run = Run(
        stages=(first, second),
        accelerator="cpu",
        devices=devices,
        num_nodes=num_nodes,
        workers=workers,
        precision=precision,
        checkpoints=checkpoints,
    )
    noise = 0.0 if plain else 0.1
    data = Augmented(301, 1, noise), Augmented(101, 2, 0.0)
    if own_inputs:  # as where machines encode to other last bits
        data[0].fingerprint = f"inputs of process {os.environ['RANK']}"
    model = Network(directory, plain=plain, kill_at=kill_at, fast=fast)
    weights = [1.0 + 2 * torch.arange(len(part)) / len(part) for part in data] if weighted else (None, None)
    data = Data(*data, sample_weight=weights[0], valid_sample_weight=weights[1])
    for _ in epochs(model, data, run, directory=directory, resume=True):
        pass


if __name__ == "__main__":
    torch.set_num_threads(1)
    main(**json.loads(sys.argv[1]))
