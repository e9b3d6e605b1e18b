"""One network on imbalanced tables by cross-entropy, by LibAUC's AP loss and by ours: same steps, same tuning.

    APMAX_DATA=... PYTHONPATH=src:. ENVIRONMENT/bin/python -m benchmarks.libauc.tables run
    PYTHONPATH=src:. python -m benchmarks.libauc.tables report

The environment is that of results/libauc/README.md. `run` continues where it was stopped.
"""

from __future__ import annotations

import argparse
import copy
import functools
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from apmax import APLoss, PositiveBatchSampler, average_precision
from apmax.data import split_stratified
from apmax.models.tables import MLP
from apmax.reproduce.results import read_lines
from benchmarks.committees.methods import Scored
from benchmarks.committees.report import RESPLITS, ap_table, difference_table, sources, table_means
from benchmarks.committees.runner import RunOptions, Suite, run
from benchmarks.committees.tables.problems import HELD_BACK, TableSplit, load_table_split

FOLDER = Path("results", "libauc")
BATCH_SIZE, STEPS, STEPS_BETWEEN_CHECKS = 64, 1500, 75
HIDDEN = (64, 64)
VALID_SHARE = 0.25
CONFIGURATIONS = 8
"""Configurations of each method: its defaults, then random ones."""

Settings = dict[str, Any]
Batches = Iterator[Tensor]


class Rows(NamedTuple):
    """Standardised features and labels."""

    features: Tensor
    labels: Tensor


class Training(NamedTuple):
    """What a loop needs besides the network: the rows of each batch, the loss of a batch, and the optimiser."""

    batches: Batches
    loss: Callable[[Tensor, Tensor, Tensor], Tensor]
    optimizer: torch.optim.Optimizer


def endless(epoch: Callable[[int], Iterator[Tensor]]) -> Batches:
    """Yield the batches of one epoch after the other."""
    number = 0
    while True:
        yield from epoch(number)
        number += 1


def cross_entropy_training(model: nn.Module, train: Rows, settings: Settings, seed: int) -> Training:
    """Return shuffled batches, cross-entropy and Adam."""
    generator = torch.Generator().manual_seed(seed)

    def epoch(_: int) -> Iterator[Tensor]:
        yield from torch.randperm(len(train.labels), generator=generator).split(BATCH_SIZE)

    def loss(scores: Tensor, labels: Tensor, _: Tensor) -> Tensor:
        return nn.functional.binary_cross_entropy_with_logits(scores, labels)

    adam = torch.optim.Adam(model.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"])
    return Training(endless(epoch), loss, adam)


def libauc_training(model: nn.Module, train: Rows, settings: Settings, seed: int) -> Training:
    """Return LibAUC's sampler, its AP loss on sigmoids and its optimiser, as its documentation joins them."""
    from libauc.losses import APLoss as PeerLoss
    from libauc.optimizers import SOAP
    from libauc.sampler import DualSampler

    rate = settings["sampling_rate"]
    sampler = DualSampler(None, BATCH_SIZE, labels=train.labels.numpy(), sampling_rate=rate, random_seed=seed)
    loss = PeerLoss(len(train.labels), margin=settings["margin"], gamma=settings["gamma"], device="cpu")
    optimizer = SOAP(
        model.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"], verbose=False, device="cpu"
    )

    def epoch(_: int) -> Iterator[Tensor]:
        yield from torch.tensor([int(row) for row in sampler]).split(BATCH_SIZE)

    def batch_loss(scores: Tensor, labels: Tensor, rows: Tensor) -> Tensor:
        found: Tensor = loss(scores.sigmoid(), labels, rows)
        return found

    return Training(endless(epoch), batch_loss, optimizer)


def apmax_training(model: nn.Module, train: Rows, settings: Settings, seed: int) -> Training:
    """Return our sampler, `APLoss` and Adam."""
    num_pos = max(1, round(settings["sampling_rate"] * BATCH_SIZE))
    sampler = PositiveBatchSampler(train.labels, BATCH_SIZE, num_pos=min(num_pos, int(train.labels.sum())), seed=seed)
    loss = APLoss(train.labels, margin=settings["margin"], gamma=settings["gamma"])
    adam = torch.optim.Adam(model.parameters(), lr=settings["lr"], weight_decay=settings["weight_decay"])

    def epoch(number: int) -> Iterator[Tensor]:
        sampler.set_epoch(number)
        yield from (torch.as_tensor(rows) for rows in sampler)

    return Training(endless(epoch), loss, adam)


@dataclass(frozen=True)
class Method:
    """How a network is trained: by each function for an equal share of the steps.

    `defaults` are the settings of the first configuration, `grid` the values that the others are drawn from beside
    rate and weight decay.
    """

    trainings: tuple[Callable[[nn.Module, Rows, Settings, int], Training], ...]
    defaults: Settings
    grid: Mapping[str, tuple[float, ...]]


_ADAM = {"lr": 1e-3, "weight_decay": 1e-5}
_LIBAUC = {"gamma": 0.9, "margin": 1.0, "sampling_rate": 0.5}
_LIBAUC_GRID = {
    "gamma": (0.1, 0.3, 0.5, 0.7, 0.9),
    "margin": (0.6, 0.8, 1.0),
    "sampling_rate": (0.05, 0.1, 0.2, 0.5),
}
_APMAX = {"gamma": 0.5, "margin": 1.0, "sampling_rate": 1 / 16}
_APMAX_GRID = {
    "gamma": (0.1, 0.3, 0.5, 0.7, 0.9),
    "margin": (0.5, 1.0, 2.0),
    "sampling_rate": (0.05, 0.1, 0.2, 0.5),
}

METHODS: dict[str, Method] = {
    "ce": Method((cross_entropy_training,), _ADAM, {}),
    "libauc": Method((libauc_training,), _ADAM | _LIBAUC, _LIBAUC_GRID),
    "apmax": Method((apmax_training,), _ADAM | _APMAX, _APMAX_GRID),
    "ce_libauc": Method((cross_entropy_training, libauc_training), _ADAM | _LIBAUC, _LIBAUC_GRID),
    "ce_apmax": Method((cross_entropy_training, apmax_training), _ADAM | _APMAX, _APMAX_GRID),
}
"""Cross-entropy, each AP loss alone, and each after cross-entropy. LibAUC's grid is that of its own documentation."""


def draw_configurations(method: Method, seed: int) -> list[Settings]:
    """Return the defaults and random settings; rates and weight decays are the same for every method.

    >>> first, second, *_ = draw_configurations(METHODS["ce"], seed=0)
    >>> first["lr"], len(draw_configurations(METHODS["apmax"], seed=0))
    (0.001, 8)
    >>> second["lr"] == draw_configurations(METHODS["libauc"], seed=0)[1]["lr"]
    True
    """
    shared, own = np.random.default_rng([seed, 0]), np.random.default_rng([seed, 1])
    found = [dict(method.defaults)]
    for _ in range(CONFIGURATIONS - 1):
        adam = {"lr": float(10 ** shared.uniform(-4, -1)), "weight_decay": float(shared.uniform(0, 2e-4))}
        found.append(adam | {name: float(own.choice(values)) for name, values in method.grid.items()})
    return found


class Fitted(NamedTuple):
    """The check with the highest validation AP of a run: that AP and the test scores there."""

    valid_ap: float
    step: int
    scores: np.ndarray[Any, Any]


def fit_network(method: Method, settings: Settings, parts: tuple[Rows, Rows, Rows], seed: int) -> Fitted:
    """Train the network by a method, and score the test rows where validation AP is highest."""
    train, valid, test = parts
    torch.manual_seed(seed)
    model = MLP([0] * train.features.shape[1], hidden=HIDDEN)
    best, state = (-1.0, 0), copy.deepcopy(model.state_dict())
    stages = len(method.trainings)
    for step in range(STEPS):
        if step % (STEPS // stages) == 0:
            training = method.trainings[step * stages // STEPS](model, train, settings, seed)
        rows = next(training.batches)
        training.optimizer.zero_grad()
        training.loss(model(train.features[rows]), train.labels[rows], rows).backward()
        training.optimizer.step()
        if (step + 1) % STEPS_BETWEEN_CHECKS == 0:
            scores = predict(model, valid.features)
            if scores.isfinite().all() and (found := float(average_precision(scores, valid.labels))) > best[0]:
                best, state = (found, step + 1), copy.deepcopy(model.state_dict())
    model.load_state_dict(state)
    return Fitted(*best, predict(model, test.features).double().numpy())


def predict(model: nn.Module, features: Tensor) -> Tensor:
    """Return scores."""
    with torch.no_grad():
        scores: Tensor = model(features)
    return scores


def standardised_parts(split: TableSplit, seed: int) -> tuple[Rows, Rows, Rows]:
    """Return training, validation and test rows, scaled by mean and deviation of the training rows."""
    train, valid = split_stratified(split.train_labels, VALID_SHARE, seed=seed)
    mean, deviation = split.train[train].mean(0), split.train[train].std(0)
    deviation[deviation == 0] = 1

    def rows(features: Any, labels: Any) -> Rows:
        scaled = torch.from_numpy((features - mean) / deviation).float()
        return Rows(scaled.clamp(-10, 10), torch.from_numpy(labels).float())

    return (
        rows(split.train[train], split.train_labels[train]),
        rows(split.train[valid], split.train_labels[valid]),
        rows(split.test, split.test_labels),
    )


def fit_method(split: TableSplit, name: str, seed: int) -> Scored:
    """Fit all configurations of a method; return the test scores of the one with the highest validation AP."""
    parts = standardised_parts(split, seed)
    configurations = draw_configurations(METHODS[name], seed)
    fits = [fit_network(METHODS[name], settings, parts, seed) for settings in configurations]
    test_aps = [float(average_precision(fit.scores, split.test_labels)) for fit in fits]
    chosen = max(range(len(fits)), key=lambda number: fits[number].valid_ap)
    facts = {
        "valid_ap": fits[chosen].valid_ap,
        "chosen": chosen,
        "settings": configurations[chosen],
        "step": fits[chosen].step,
        "defaults_ap": test_aps[0],
        "valid_aps": [round(fit.valid_ap, 6) for fit in fits],
        "test_aps": [round(value, 6) for value in test_aps],
    }
    return Scored(fits[chosen].scores, facts)


SUITE = Suite(
    tuple(METHODS),
    load_table_split,
    lambda split, method, seed, _, __: fit_method(split, method, seed),
    ("torch", "numpy", "libauc"),
)


def write_report(folder: Path) -> None:
    """Write the means by table and the differences between methods."""
    lines = read_lines(folder / "tables.jsonl")
    tuned = table_means(lines)
    defaults = table_means(lines, "defaults_ap")
    differences = functools.partial(difference_table, others=list(METHODS))
    parts = [
        "# One network on tables: cross-entropy, LibAUC's AP loss, ours",
        sources(lines),
        f"## Tuned: {CONFIGURATIONS} configurations of each method, chosen by validation AP",
        ap_table(tuned, list(METHODS), HELD_BACK),
        *(differences(tuned, own) for own in ("apmax", "ce_apmax", "libauc", "ce_libauc")),
        "## The first configuration: each library's defaults",
        ap_table(defaults, list(METHODS), HELD_BACK),
        *(differences(defaults, own) for own in ("apmax", "ce_apmax")),
    ]
    (folder / "tables.md").write_text("\n\n".join(parts) + "\n", encoding="utf-8")


def main() -> None:
    """Run what has no line yet, or write the report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=["run", "report"])
    parser.add_argument("--out", type=Path, default=FOLDER, help="folder of the lines and the report")
    parser.add_argument("--tables", nargs="+", choices=HELD_BACK, default=list(HELD_BACK))
    parser.add_argument("--resplits", nargs="+", type=int, default=list(RESPLITS), choices=RESPLITS)
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    options = parser.parse_args()
    if options.command == "run":
        torch.set_num_threads(1)
        options.out.mkdir(parents=True, exist_ok=True)
        run(RunOptions(options.tables, options.resplits, options.methods, options.out / "tables.jsonl"), SUITE)
    write_report(options.out)


if __name__ == "__main__":
    main()
