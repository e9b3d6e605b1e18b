"""The trainer's cost, each as a ratio measured in one run, single thread."""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from apmax.config import Optimizer, Run, Sampler, Stage
from apmax.losses import LOSSES
from apmax.samplers import PositiveBatchSampler
from apmax.train import epochs, measure
from apmax.train.session import Session

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


def best_of(times: int, call: Callable[[], Any]) -> float:
    """Return the least time of several calls."""

    def timed() -> Iterator[float]:
        for _ in range(times):
            start = time.perf_counter()
            call()
            yield time.perf_counter() - start

    return min(timed())


def evaluation_ratio(rows: int = 1_000_000) -> float:
    """Return the time of all four metrics over that of one sort of the same scores."""
    generator = torch.Generator().manual_seed(0)
    scores: Tensor = torch.randn(rows, generator=generator)
    labels = (torch.rand(rows, generator=generator) < 0.01).float()
    return best_of(3, lambda: measure(scores, labels)) / best_of(3, scores.sort)


def checkpoint_share(seconds: float = 12.0) -> float:
    """Return the share of a run's time spent on checkpoints, on data of the demo's size at the default pace.

    A synced checkpoint of so small a model costs about as much as an epoch: it is their pace that keeps the share.
    """
    data = table(1000)
    spent = [0.0]
    save = Session.save

    def timed(self: Session, work: Any) -> None:
        start = time.perf_counter()
        save(self, work)
        spent.append(time.perf_counter() - start)

    Session.save = timed  # type: ignore[method-assign]
    try:
        with tempfile.TemporaryDirectory() as directory:
            start, share = time.perf_counter(), 0.0
            for _ in epochs(network(), (data, data), one_stage("ce", 100_000), directory=directory):
                passed = time.perf_counter() - start
                share = sum(spent) / passed
                if passed > seconds:
                    break
            return share
    finally:
        Session.save = save  # type: ignore[method-assign]


def run() -> list[tuple[str, float, float]]:
    """Return (what, ratio, target) of every claim."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        return [
            ("trainer step / bare loop, AP, 64-64 MLP, B = 256", step_ratio("ap"), 1.3),
            ("trainer step / bare loop, CE, 64-64 MLP, B = 256", step_ratio("ce"), 1.3),
            ("epoch with AP / epoch with CE", epoch_ratio(), 1.25),
            ("AP + AUPRC + AUROC + objective of 1e6 scores / sort", evaluation_ratio(), 10.0),
            ("checkpoints / time of the run, demo's size", checkpoint_share(), 0.01),
        ]
    finally:
        torch.set_num_threads(before)


if __name__ == "__main__":
    for what, ratio, target in run():
        print(f"{what:60} {ratio:8.3f}  target {target:g}")
