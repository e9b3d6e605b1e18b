"""Cost of the trainer: ratios measured in one run, single thread."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from apmax.losses import LOSSES
from apmax.samplers import PositiveBatchSampler
from apmax.train import RECIPES, Optimizer, Record, Run, Sampler, Stage, compute_metrics, epochs
from apmax.train.checkpoints import CheckpointSchedule, CheckpointWriter
from apmax.workflows import demo
from benchmarks.timing import Row, ratio

BATCH, POSITIVES, STEPS = 256, 16, 150


def network() -> nn.Module:
    """Return the 64-64 MLP."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def table(rows: int = STEPS * (BATCH - POSITIVES)) -> TensorDataset:
    """Return a split with 5 % positives."""
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(rows, 64, generator=generator)
    return TensorDataset(inputs, (inputs[:, 0] > 1.65).float())


def between_steps(model: nn.Module, train: Callable[[], object]) -> float:
    """Return the median time from one training step's forward pass to the next."""
    moments: list[float] = []
    hook = model.register_forward_pre_hook(lambda *_: moments.append(time.perf_counter()))
    train()
    hook.remove()
    return statistics.median(after - before for before, after in itertools.pairwise(moments))


def bare_loop(model: nn.Module, data: TensorDataset, name: str) -> None:
    """Train an epoch as one would by hand."""
    inputs, labels = data.tensors
    loss = LOSSES[name](labels)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-3)
    model.train()
    for rows in PositiveBatchSampler(labels, BATCH, num_pos=POSITIVES):
        index = torch.tensor(rows)
        optimizer.zero_grad()
        loss(model(inputs[index])[:, 0], labels[index], index).backward()
        optimizer.step()


def one_stage(name: str, count: int = 1) -> Run:
    """Return the same epoch for the trainer."""
    sampler = Sampler(name="positive", batch_size=BATCH, num_pos=POSITIVES)
    stage = Stage(loss=name, epochs=count, sampler=sampler, optimizer=Optimizer(lr=1e-3))
    return Run(stages=(stage,), accelerator="cpu")


def step_ratio(name: str = "ap", rounds: int = 5) -> float:
    """Return the trainer's time per step over the bare loop's, the median of paired rounds."""
    data = table()
    ratios = []
    for _ in range(rounds):
        model = network()
        bare = between_steps(model, lambda: bare_loop(model, data, name))  # noqa: B023
        model = network()
        ours = between_steps(model, lambda: list(epochs(model, (data, None), one_stage(name))))  # noqa: B023
        ratios.append(ours / bare)
    return statistics.median(ratios)


def epoch_ratio(rounds: int = 5) -> float:
    """Return the time of an epoch with AP over that with cross-entropy, metrics included, paired rounds."""
    data = table()

    def seconds(name: str) -> float:
        return min(record.seconds for record in epochs(network(), (data, None), one_stage(name, 2)))

    return statistics.median(seconds("ap") / seconds("ce") for _ in range(rounds))


def evaluation_ratio(rows: int = 1_000_000) -> float:
    """Return the time of all four metrics over that of one sort of the same scores."""
    generator = torch.Generator().manual_seed(0)
    scores: Tensor = torch.randn(rows, generator=generator)
    labels = (torch.rand(rows, generator=generator) < 0.01).float()
    return ratio(lambda: compute_metrics(scores, labels), scores.sort, seconds=0)


class Demo(NamedTuple):
    """The demo's first cell of rare digits and its default recipe, as `apmax demo` trains it."""

    cell: demo.DemoCell
    stages: tuple[Stage, ...]

    @staticmethod
    def made() -> Demo:
        """Return it; the numbers of epochs are those that make the demo's number of steps."""
        cell = demo.DEMO_TASKS["digits"].cells(True)[0]()
        batches = [math.ceil(len(cell.train[1]) / demo.BATCH_SIZE)]
        batches.append(math.ceil(int((cell.train[1] == 0).sum()) / (demo.BATCH_SIZE - demo.NUM_POS)))
        counts = demo.STEPS * 3 // 4 // batches[0], demo.STEPS // 4 // batches[1]
        sizes = {"batch_size": demo.BATCH_SIZE, "num_pos": demo.NUM_POS}
        stages = RECIPES["default"](lr=demo.LR, epochs=counts[0], joint_epochs=counts[1], ema=0.99, **sizes)
        return Demo(cell, stages)

    def epochs(self, directory: str | None, stages: tuple[Stage, ...] | None = None) -> Iterator[Record]:
        """Train as the demo does, but into a directory."""
        data = TensorDataset(*self.cell.train), TensorDataset(*self.cell.valid)
        run = Run(stages=stages or self.stages, accelerator="cpu")
        return epochs(demo.demo_network(self.cell, 0), data, run, directory=directory)

    def durations(self, due: Callable[[int], bool]) -> tuple[list[float], list[int]]:
        """Return the seconds and the last step of every epoch of a run with checkpoints at the steps that are `due`."""
        moments, steps = [time.perf_counter()], []
        with (
            tempfile.TemporaryDirectory() as directory,
            patch.object(CheckpointSchedule, "due", lambda _, step, *, epoch=0, writing=False: due(step)),  # noqa: ARG005
        ):
            for record in self.epochs(directory):
                moments.append(time.perf_counter())
                steps.append(record.step)
        return [after - before for before, after in itertools.pairwise(moments)], steps


BLOCK = 3
"""Epochs over which a checkpoint's cost is counted: the thread that writes it may need longer than one."""


def checkpoint_cost(rounds: int = 10) -> float:
    """Return what one checkpoint adds to the time of training, in epochs of the demo.

    Of two runs, blocks of epochs take turns to have a checkpoint, begun in the middle of their first epoch; the same
    block without is the other half of the pair. So what the writing thread takes from the training counts, too.
    """
    setting = Demo.made()
    _, ends = setting.durations(lambda _: False)
    middle = [(before + after) // 2 for before, after in itertools.pairwise([0, *ends])]
    # Without the first block, in which torch warms up, and the last epoch, which the end of the run adds to.
    blocks = range(BLOCK, len(ends) - BLOCK, BLOCK)
    added, single = [], []
    for _ in range(rounds):
        even, odd = (
            setting.durations({middle[k] for k in blocks if k // BLOCK % 2 == turn}.__contains__)[0] for turn in (0, 1)
        )
        for k in blocks:
            pair = [sum(part[k : k + BLOCK]) for part in (even, odd)]
            with_one, without = pair if k // BLOCK % 2 == 0 else reversed(pair)
            added.append(with_one - without)
            single.append(without / BLOCK)
    return statistics.median(added) / statistics.median(single)


def checkpoints_per_epoch(seconds: float = 10.0) -> float:
    """Return how many checkpoints the default schedule writes in an epoch of the demo, trained for so long."""
    setting = Demo.made()
    longer = tuple(dataclasses.replace(stage, epochs=100_000) for stage in setting.stages[:1])
    start, count = time.perf_counter(), 0
    counted = patch.object(CheckpointWriter, "submit", autospec=True, side_effect=CheckpointWriter.submit)
    with tempfile.TemporaryDirectory() as directory, counted as submit:
        for _ in setting.epochs(directory, longer):
            count += 1
            if time.perf_counter() - start > seconds:
                break
    return submit.call_count / count


def run() -> list[Row]:
    """Return (what, ratio, target) of every claim."""
    cost = checkpoint_cost()
    return [
        ("trainer step / bare loop, AP, 64-64 MLP, B = 256", step_ratio("ap"), 1.3),
        ("trainer step / bare loop, CE, 64-64 MLP, B = 256", step_ratio("ce"), 1.3),
        ("epoch with AP / epoch with CE", epoch_ratio(), 1.25),
        ("AP + AUPRC + AUROC + objective of 1e6 scores / sort", evaluation_ratio(), 10.0),
        ("one checkpoint / epoch of the demo", cost, 0.01),
        ("checkpoints by the default schedule / time of the demo's epochs", cost * checkpoints_per_epoch(), 0.01),
    ]
