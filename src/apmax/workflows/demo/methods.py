"""The ways to train. All start from the same weights, take the same number of steps and are chosen by validation AP."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from functools import partial

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from apmax.functional import ap_objective
from apmax.losses import APLoss, CrossEntropyLoss, Loss
from apmax.metrics import average_precision
from apmax.samplers import PositiveBatchSampler
from apmax.train import RECIPES, Run, fit, predict
from apmax.workflows.demo.cells import Cell

BATCH, NUM_POS, STEPS, CHECK_EVERY, LR = 64, 4, 500, 20, 3e-3
Step = Callable[[nn.Module], Tensor]
Method = Callable[[Cell, int], Tensor]


def network(cell: Cell, seed: int) -> nn.Module:
    """Return a small network, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Linear(cell.train[0].shape[1], 32), nn.ReLU(), nn.Linear(32, 1))


def shuffled(cell: Cell, seed: int) -> Iterator[Step]:
    """Cross-entropy over shuffled batches."""
    features, labels = cell.train
    generator = torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.randperm(len(labels), generator=generator).split(BATCH):
            yield partial(plain_loss, features=features[rows], labels=labels[rows])


def plain_loss(model: nn.Module, *, features: Tensor, labels: Tensor) -> Tensor:
    """Torch's own cross-entropy."""
    return nn.functional.binary_cross_entropy_with_logits(model(features)[:, 0], labels)


def own_loss(model: nn.Module, *, loss: Loss, features: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    """A loss of apmax."""
    value: Tensor = loss(model(features), labels.unsqueeze(1), rows)
    return value


def exact(cell: Cell, seed: int) -> Iterator[Step]:  # noqa: ARG001 - nothing is drawn
    """The exact objective over all training rows at every step."""
    features, labels = cell.train
    while True:
        yield lambda model: ap_objective(model(features), labels, "smooth_step")


def sampled(kind: type[Loss]) -> Callable[[Cell, int], Iterator[Step]]:
    """A loss on batches that each hold a few positives."""

    def steps(cell: Cell, seed: int) -> Iterator[Step]:
        features, labels = cell.train
        loss = kind(labels)
        sampler = PositiveBatchSampler(labels, batch_size=BATCH, num_pos=NUM_POS, seed=seed)
        while True:
            for batch in sampler:
                rows = torch.tensor(batch)
                yield partial(own_loss, loss=loss, features=features[rows], labels=labels[rows], rows=rows)

    return steps


def by_steps(method: Callable[[Cell, int], Iterator[Step]]) -> Method:
    """Return the test scores of the network that was best on the validation part."""

    def scores(cell: Cell, seed: int) -> Tensor:
        model = network(cell, seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        steps, best, chosen = method(cell, seed), -1.0, model
        for number in range(1, STEPS + 1):
            optimizer.zero_grad()
            next(steps)(model).backward()
            optimizer.step()
            if number % CHECK_EVERY == 0:
                with torch.no_grad():
                    reached = average_precision(model(cell.valid[0])[:, 0], cell.valid[1]).item()
                if reached > best:
                    best, chosen = reached, copy.deepcopy(model)
        with torch.no_grad():
            result: Tensor = chosen(cell.test[0])[:, 0]
        return result

    return scores


def default_recipe(cell: Cell, seed: int) -> Tensor:
    """Cross-entropy with averaged weights, then AP + CE for a quarter of the steps, by the trainer."""
    negatives = int((cell.train[1] == 0).sum())
    joint = max(1, STEPS // 4 // math.ceil(negatives / (BATCH - NUM_POS)))
    epochs = max(1, STEPS * 3 // 4 // math.ceil(len(cell.train[1]) / BATCH))
    stages = RECIPES["default"](lr=LR, epochs=epochs, joint_epochs=joint, batch_size=BATCH, num_pos=NUM_POS, ema=0.99)
    data = TensorDataset(*cell.train), TensorDataset(*cell.valid)
    result = fit(network(cell, seed), data, Run(stages=stages, seed=seed, accelerator="cpu"))
    return predict(result.model, TensorDataset(cell.test[0]))


BASE = "cross-entropy"
METHODS: dict[str, Method] = {
    BASE: by_steps(shuffled),
    "… with the sampler": by_steps(sampled(CrossEntropyLoss)),
    "exact AP objective": by_steps(exact),
    "APLoss (SOAP)": by_steps(sampled(APLoss)),
    "default recipe": default_recipe,
}
