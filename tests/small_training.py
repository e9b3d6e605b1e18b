"""A small training problem for the tests of training."""

import torch
from torch import nn
from torch.utils.data import TensorDataset

from apmax.train import Run, Sampler, Stage, epochs

FEATURES = 4


def split(rows, seed):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.randn(rows, FEATURES, generator=generator)
    noise = 0.5 * torch.randn(rows, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] + noise > 1.2).float())


TRAIN, VALID = split(200, 1), split(120, 2)
POSITIVE = Sampler(name="positive", batch_size=32, num_pos=4)


def network(seed=0, *, width=8, dropout=0.0, norm=False):
    torch.manual_seed(seed)
    layers = [nn.Linear(FEATURES, width), nn.BatchNorm1d(width) if norm else nn.Identity(), nn.ReLU()]
    return nn.Sequential(*layers, nn.Dropout(dropout), nn.Linear(width, 1))


def run_of(*stages, **fields):
    return Run(stages=stages or (Stage(epochs=2),), accelerator="cpu", **fields)


def train(model, run, data=(TRAIN, VALID), **options):
    return list(epochs(model, data, run, **options))


def weights(model):
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(one, other):
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


class StoppingNetwork(nn.Module):
    """A network that calls `action` at training step `at`."""

    def __init__(self, at=None, action=None):
        super().__init__()
        self.inner, self.at, self.action, self.steps = network(), at, action, 0

    def forward(self, inputs):
        if self.training:
            self.steps += 1
            if self.steps == self.at:
                self.action()
        return self.inner(inputs)


def interrupt():
    raise KeyboardInterrupt
