"""Demonstration: five training methods on rare digits and rare tumours, compared on paired draws of the data."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from apmax import extras
from apmax.functional import ap_objective
from apmax.losses import APLoss, CrossEntropyLoss, Loss
from apmax.metrics import average_precision
from apmax.samplers import PositiveBatchSampler
from apmax.train import RECIPES, Run, fit, predict

CUTS = ((0.0, 0.4), (0.4, 0.6), (0.6, 1.0))
"""Training, validation and test part of each class."""
BATCH_SIZE, NUM_POS, STEPS, VALIDATE_EVERY, LR = 64, 4, 500, 20, 3e-3

FeaturesAndLabels = tuple[Tensor, Tensor]
StepLoss = Callable[[nn.Module], Tensor]


@dataclass(frozen=True)
class DemoCell:
    """One draw of a task, in three parts of (features, labels)."""

    train: FeaturesAndLabels
    valid: FeaturesAndLabels
    test: FeaturesAndLabels


@dataclass(frozen=True)
class DemoTask:
    """A classification task.

    Args:
        title: For people.
        prevalence: Share of positives, which is the AP of a random ranking.
        cells: Returns functions that make the cells; few of them if its argument `quick` is set.
    """

    title: str
    prevalence: float
    cells: Callable[[bool], list[Callable[[], DemoCell]]]


def draw_cell(features: Tensor, positive: Tensor, prevalence: float, *, seed: int) -> DemoCell:
    """Return a random cell: positives thinned to `prevalence`, each class cut 40/20/40.

    >>> cell = draw_cell(torch.rand(1000, 2), torch.arange(1000) < 500, 0.02, seed=0)
    >>> [(len(labels), int(labels.sum())) for _, labels in (cell.train, cell.valid, cell.test)]
    [(204, 4), (102, 2), (204, 4)]
    """
    generator = torch.Generator().manual_seed(seed)
    positives, negatives = (
        rows[torch.randperm(len(rows), generator=generator)]
        for rows in (positive.nonzero()[:, 0], (~positive).nonzero()[:, 0])
    )
    positives = positives[: round(len(negatives) * prevalence / (1 - prevalence))]
    parts = [
        torch.cat([rows[round(low * len(rows)) : round(high * len(rows))] for rows in (positives, negatives)])
        for low, high in CUTS
    ]
    return DemoCell(*((features[rows], positive[rows].float()) for rows in parts))


def _standardise(cell: DemoCell) -> DemoCell:
    mean, deviation = cell.train[0].mean(0), cell.train[0].std(0)
    parts = (cell.train, cell.valid, cell.test)
    return DemoCell(*(((features - mean) / deviation, labels) for features, labels in parts))


def _digit_cells(quick: bool) -> list[Callable[[], DemoCell]]:
    """Return the cells of each digit against the rest, two draws of each."""
    images, digits = extras.load("sklearn.datasets", "sklearn").load_digits(return_X_y=True)
    features = torch.tensor(images, dtype=torch.float32) / 16

    def cell(digit: int, seed: int) -> Callable[[], DemoCell]:
        return lambda: draw_cell(features, torch.tensor(digits == digit), 0.02, seed=1000 * seed + digit)

    return [cell(digit, seed) for seed in range(1 if quick else 2) for digit in range(2 if quick else 10)]


def _tumour_cells(quick: bool) -> list[Callable[[], DemoCell]]:
    """Return the cells of malignant against benign tumours, described by thirty measurements of a biopsy."""
    measurements, benign = extras.load("sklearn.datasets", "sklearn").load_breast_cancer(return_X_y=True)
    features = torch.tensor(measurements, dtype=torch.float32)

    def cell(seed: int) -> Callable[[], DemoCell]:
        return lambda: _standardise(draw_cell(features, torch.tensor(benign == 0), 0.05, seed=seed))

    return [cell(seed) for seed in range(2 if quick else 10)]


DEMO_TASKS = {
    "digits": DemoTask("rare digits", 0.02, _digit_cells),
    "tumours": DemoTask("rare tumours", 0.05, _tumour_cells),
}


def demo_network(cell: DemoCell, seed: int) -> nn.Module:
    """Return a small network, the same for the same seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        return nn.Sequential(nn.Linear(cell.train[0].shape[1], 32), nn.ReLU(), nn.Linear(32, 1))


def _torch_loss(model: nn.Module, *, features: Tensor, labels: Tensor) -> Tensor:
    return nn.functional.binary_cross_entropy_with_logits(model(features)[:, 0], labels)


def _apmax_loss(model: nn.Module, *, loss: Loss, features: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
    value: Tensor = loss(model(features), labels.unsqueeze(1), rows)
    return value


def _shuffled_steps(cell: DemoCell, seed: int) -> Iterator[StepLoss]:
    """Yield torch's cross-entropy over shuffled batches."""
    features, labels = cell.train
    generator = torch.Generator().manual_seed(seed)
    while True:
        for rows in torch.randperm(len(labels), generator=generator).split(BATCH_SIZE):
            yield partial(_torch_loss, features=features[rows], labels=labels[rows])


def _exact_steps(cell: DemoCell, seed: int) -> Iterator[StepLoss]:  # noqa: ARG001 - deterministic
    """Yield the exact objective over all training rows."""
    features, labels = cell.train
    while True:
        yield lambda model: ap_objective(model(features), labels, "smooth_step")


def _sampled_steps(loss_class: type[Loss]) -> Callable[[DemoCell, int], Iterator[StepLoss]]:
    """Return steps of a loss on batches with a fixed number of positives."""

    def steps(cell: DemoCell, seed: int) -> Iterator[StepLoss]:
        features, labels = cell.train
        loss = loss_class(labels)
        sampler = PositiveBatchSampler(labels, batch_size=BATCH_SIZE, num_pos=NUM_POS, seed=seed)
        while True:
            for batch in sampler:
                rows = torch.tensor(batch)
                yield partial(_apmax_loss, loss=loss, features=features[rows], labels=labels[rows], rows=rows)

    return steps


DemoMethod = Callable[[DemoCell, int], Tensor]
"""Trains on a cell by a seed, and returns the test scores."""


def _train_by_steps(method: Callable[[DemoCell, int], Iterator[StepLoss]]) -> DemoMethod:
    """Return a method that takes `STEPS` steps of Adam and keeps the network with the best validation AP."""

    def scores(cell: DemoCell, seed: int) -> Tensor:
        model = demo_network(cell, seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=LR)
        steps, best, chosen = method(cell, seed), -1.0, model
        for number in range(1, STEPS + 1):
            optimizer.zero_grad()
            next(steps)(model).backward()
            optimizer.step()
            if number % VALIDATE_EVERY == 0:
                with torch.no_grad():
                    ap = average_precision(model(cell.valid[0])[:, 0], cell.valid[1]).item()
                if ap > best:
                    best, chosen = ap, copy.deepcopy(model)
        with torch.no_grad():
            result: Tensor = chosen(cell.test[0])[:, 0]
        return result

    return scores


def _train_default_recipe(cell: DemoCell, seed: int) -> Tensor:
    """Train by the default recipe: cross-entropy, then AP + CE for a quarter of the steps."""
    negatives = int((cell.train[1] == 0).sum())
    joint = max(1, STEPS // 4 // math.ceil(negatives / (BATCH_SIZE - NUM_POS)))
    epochs = max(1, STEPS * 3 // 4 // math.ceil(len(cell.train[1]) / BATCH_SIZE))
    stages = RECIPES["default"](
        lr=LR, epochs=epochs, joint_epochs=joint, batch_size=BATCH_SIZE, num_pos=NUM_POS, ema=0.99
    )
    data = TensorDataset(*cell.train), TensorDataset(*cell.valid)
    result = fit(demo_network(cell, seed), data, Run(stages=stages, seed=seed, accelerator="cpu"))
    return predict(result.model, TensorDataset(cell.test[0]))


BASE_METHOD, DEFAULT_METHOD = "cross-entropy", "default recipe"
DEMO_METHODS: dict[str, DemoMethod] = {
    BASE_METHOD: _train_by_steps(_shuffled_steps),
    "… with the sampler": _train_by_steps(_sampled_steps(CrossEntropyLoss)),
    "exact AP objective": _train_by_steps(_exact_steps),
    "APLoss (SOAP)": _train_by_steps(_sampled_steps(APLoss)),
    DEFAULT_METHOD: _train_default_recipe,
}
"""All methods begin with the same weights, take the same number of steps and are chosen by validation AP."""

Curve = tuple[Tensor, Tensor]


def draw_demo_curves(path: Path, curves: Mapping[str, Mapping[str, Sequence[Curve]]]) -> None:
    """Draw a panel for each task: the mean curve of each method with its standard error, and the no-skill line.

    Args:
        path: The picture.
        curves: The (precision, recall) of every cell, by task and method.
    """
    extras.load("matplotlib", "report").use("Agg")
    plt = extras.load("matplotlib.pyplot", "report")
    figure, panels = plt.subplots(
        1, len(curves), figsize=(5.2 * len(curves), 4.2), layout="constrained", sharey=True, squeeze=False
    )
    grid = torch.linspace(0, 1, 201)
    for axes, (name, methods) in zip(panels[0], curves.items(), strict=True):
        task = DEMO_TASKS[name]
        for method, cells in methods.items():
            # The best precision at this recall or more, which is what a user of the ranking can have.
            lines = torch.stack([torch.stack([p[r >= x].max() for x in grid]) for p, r in cells])
            (line,) = axes.plot(grid, lines.mean(0), label=method, linewidth=2)
            error = lines.std(0) / len(cells) ** 0.5
            axes.fill_between(grid, lines.mean(0) - error, lines.mean(0) + error, color=line.get_color(), alpha=0.15)
        axes.axhline(task.prevalence, color="grey", linestyle="--", linewidth=1, label="no skill")
        axes.set(xlabel="recall", xlim=(0, 1), ylim=(0, 1.02), title=f"{task.title}: mean test curve")
        axes.spines[["top", "right"]].set_visible(False)
    panels[0][0].set_ylabel("precision")
    panels[0][0].legend(frameon=False, loc="lower left")
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=150)
    plt.close(figure)
