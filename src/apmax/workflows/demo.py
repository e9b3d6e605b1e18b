"""Demonstration: a committee on rare tumours, and training methods compared on rare digits and rare tumours.

Every method is tuned on validation rows over `RATES` (logistic regression over as many penalties).
"""

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
from apmax.folders import write_atomic
from apmax.functional import ap_objective
from apmax.losses import APLoss, CrossEntropyLoss, Loss
from apmax.metrics import average_precision, precision_recall_curve
from apmax.samplers import PositiveBatchSampler
from apmax.train import RECIPES, Run, fit, predict

CUTS = ((0.0, 0.4), (0.4, 0.6), (0.6, 1.0))
"""Training, validation and test part of each class."""
BATCH_SIZE, NUM_POS, STEPS, VALIDATE_EVERY = 64, 4, 500, 20
RATES = (1e-3, 3e-3, 1e-2, 3e-2)
"""Learning rates among which validation AP chooses, for every network."""
PENALTIES = (1e-2, 1e-1, 1.0, 10.0)
"""Inverse strengths of the L2 penalty among which validation AP chooses, for logistic regression."""

FeaturesAndLabels = tuple[Tensor, Tensor]
Curve = tuple[Tensor, Tensor]
"""Precision and recall."""
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
    """Return the cells of each digit against the rest."""
    images, digits = extras.load("sklearn.datasets", "sklearn").load_digits(return_X_y=True)
    features = torch.tensor(images, dtype=torch.float32) / 16
    every = range(2 if quick else 10)
    return [partial(draw_cell, features, torch.tensor(digits == digit), 0.02, seed=digit) for digit in every]


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


@dataclass(frozen=True)
class DemoFit:
    """A fitted model: its validation AP and its test scores."""

    valid_ap: float
    test_scores: Tensor


DemoMethod = Callable[[DemoCell, int, float], DemoFit]
"""Trains on a cell by a seed and a learning rate (or penalty)."""


def _train_by_steps(method: Callable[[DemoCell, int], Iterator[StepLoss]]) -> DemoMethod:
    """Return a method that takes `STEPS` steps of Adam and keeps the network with the best validation AP."""

    def train(cell: DemoCell, seed: int, rate: float) -> DemoFit:
        model = demo_network(cell, seed)
        optimizer = torch.optim.Adam(model.parameters(), lr=rate)
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
            return DemoFit(best, chosen(cell.test[0])[:, 0])

    return train


def _train_default_recipe(cell: DemoCell, seed: int, rate: float) -> DemoFit:
    """Train by the default recipe: cross-entropy, then AP + CE for a quarter of the steps."""
    negatives = int((cell.train[1] == 0).sum())
    joint = max(1, STEPS // 4 // math.ceil(negatives / (BATCH_SIZE - NUM_POS)))
    epochs = max(1, STEPS * 3 // 4 // math.ceil(len(cell.train[1]) / BATCH_SIZE))
    stages = RECIPES["default"](
        lr=rate, epochs=epochs, joint_epochs=joint, batch_size=BATCH_SIZE, num_pos=NUM_POS, ema=0.99
    )
    data = TensorDataset(*cell.train), TensorDataset(*cell.valid)
    model = fit(demo_network(cell, seed), data, Run(stages=stages, seed=seed, accelerator="cpu")).model
    valid = average_precision(predict(model, TensorDataset(cell.valid[0])), cell.valid[1]).item()
    return DemoFit(valid, predict(model, TensorDataset(cell.test[0])))


def _fit_logistic_regression(cell: DemoCell, seed: int, penalty: float) -> DemoFit:  # noqa: ARG001 - deterministic
    regression = extras.load("sklearn.linear_model", "sklearn").LogisticRegression(C=penalty, max_iter=2000)
    regression.fit(*(part.numpy() for part in cell.train))
    valid, test = (torch.from_numpy(regression.decision_function(part[0].numpy())) for part in (cell.valid, cell.test))
    return DemoFit(average_precision(valid, cell.valid[1]).item(), test)


BASE_METHOD = "cross-entropy"
DEMO_METHODS: dict[str, tuple[DemoMethod, tuple[float, ...]]] = {
    BASE_METHOD: (_train_by_steps(_shuffled_steps), RATES),
    "… with the sampler": (_train_by_steps(_sampled_steps(CrossEntropyLoss)), RATES),
    "exact AP objective": (_train_by_steps(_exact_steps), RATES),
    "APLoss (SOAP)": (_train_by_steps(_sampled_steps(APLoss)), RATES),
    "default recipe": (_train_default_recipe, RATES),
    "logistic regression": (_fit_logistic_regression, PENALTIES),
}
"""Methods and the grid of each. Networks begin with the same weights and take the same number of steps."""


def tuned_scores(name: str, cell: DemoCell, seed: int) -> Tensor:
    """Return the test scores of a method with the learning rate (or penalty) of the best validation AP."""
    method, grid = DEMO_METHODS[name]
    return max((method(cell, seed, value) for value in grid), key=lambda each: each.valid_ap).test_scores


def run_demo_cell(place: tuple[str, int, bool]) -> dict[str, tuple[float, Curve]]:
    """Return test AP and (precision, recall) of every method on a cell.

    Args:
        place: The task, the number of the cell, and whether there are few of them.
    """
    task, number, quick = place
    # The network is so small that a second thread costs more than it brings.
    torch.set_num_threads(1)
    cell = DEMO_TASKS[task].cells(quick)[number]()
    scores = {name: tuned_scores(name, cell, number) for name in DEMO_METHODS}
    return {
        name: (average_precision(own, cell.test[1]).item(), precision_recall_curve(own, cell.test[1])[:2])
        for name, own in scores.items()
    }


def write_demo_table(folder: Path) -> tuple[Path, Path]:
    """Write tumours, 5 % of them malignant, as csv files for training and for the test, and return their paths."""
    source = extras.load("sklearn.datasets", "sklearn").load_breast_cancer()
    cell = draw_cell(
        torch.tensor(source.data, dtype=torch.float32),
        torch.tensor(source.target == 0),
        DEMO_TASKS["tumours"].prevalence,
        seed=0,
    )
    names = [name.replace(" ", "_") for name in source.feature_names]
    folder.mkdir(parents=True, exist_ok=True)
    files = folder / "tumours.csv", folder / "tumours_test.csv"
    for file, parts in zip(files, ((cell.train, cell.valid), (cell.test,)), strict=True):
        lines = [
            ",".join([*(f"{value:.6g}" for value in row), "yes" if label else "no"])
            for features, labels in parts
            for row, label in zip(features.tolist(), labels.tolist(), strict=True)
        ]
        write_atomic(file, "\n".join([",".join([*names, "malignant"]), *lines, ""]).encode())
    return files


def draw_demo_curves(path: Path, curves: Mapping[str, Mapping[str, Sequence[Curve]]]) -> None:
    """Draw a panel for each task: the mean curve of each method with its standard error, and the no-skill line.

    Args:
        path: The picture.
        curves: The (precision, recall) of every cell, by task and method.
    """
    make_figure = extras.load("matplotlib.figure", "report").Figure
    figure = make_figure(figsize=(5.2 * len(curves), 4.2), layout="constrained")
    panels = figure.subplots(1, len(curves), sharey=True, squeeze=False)
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
