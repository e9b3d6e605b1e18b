"""LibAUC's AP loss, optimiser and sampler against ours, in time and memory: ratios of one run, single thread.

    PYTHONPATH=src:. ENVIRONMENT/bin/python -m benchmarks.libauc.speed

The environment is that of results/libauc/README.md. The table is printed, and written to results/libauc/speed.md.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from libauc.losses import APLoss as PeerLoss
from libauc.losses import mAPLoss
from libauc.optimizers import SOAP
from libauc.sampler import DualSampler
from torch import Tensor, nn

from apmax import APLoss, PositiveBatchSampler
from apmax.models.tables import MLP
from benchmarks.markdown import markdown_table
from benchmarks.origin import benchmark_commit
from benchmarks.speed.loss import MEGABYTE, SIZES, Batch, LiveBytes
from benchmarks.timing import best_times

ROWS, POSITIVE_SHARE, FEATURES, TASKS = 10_000_000, 0.01, 30, 10
CPU = torch.device("cpu")

Result = tuple[str, float, float]
"""What was measured: seconds or megabytes of LibAUC, and ours."""


def steps() -> Iterator[Result]:
    """Yield the time of forward and backward, with the state, on the same batch."""
    for num_pos, size in SIZES:
        batch = Batch(num_pos, size)
        peer = PeerLoss(len(batch.train_labels), device=CPU)
        jobs = batch.step(peer, batch.rows, sigmoid=True), batch.step(APLoss(batch.train_labels), batch.rows)
        theirs, ours = best_times(*jobs, seconds=4)
        yield f"loss, {num_pos} positives in {size:,}: forward and backward", theirs, ours


def memory() -> Result:
    """Return the megabytes that a step of the largest size needs besides its inputs."""
    batch = Batch(*max(SIZES))
    peer = PeerLoss(len(batch.train_labels), device=CPU)
    used = []
    for job in (batch.step(peer, batch.rows, sigmoid=True), batch.step(APLoss(batch.train_labels), batch.rows)):
        job()
        with LiveBytes() as live:
            job()
        used.append(live.peak / MEGABYTE)
    num_pos, size = max(SIZES)
    return f"loss, {num_pos} positives in {size:,}: extra memory of a step", used[0], used[1]


def training_step() -> Result:
    """Return the time of a whole step of a small network: forward, loss, backward, optimiser."""
    batch = Batch(4, 64)
    features = torch.randn(64, FEATURES, generator=torch.Generator().manual_seed(0))

    def job(
        loss: Callable[..., Tensor], build: Callable[[nn.Module], torch.optim.Optimizer], peer: bool
    ) -> Callable[[], None]:
        model = MLP([0] * FEATURES)
        optimizer = build(model)

        def step() -> None:
            optimizer.zero_grad()
            scores = model(features)
            loss(scores.sigmoid() if peer else scores, batch.labels, batch.rows).backward()
            optimizer.step()

        return step

    theirs = job(
        PeerLoss(len(batch.train_labels), device=CPU),
        lambda model: SOAP(model.parameters(), lr=1e-3, verbose=False, device=CPU),
        True,
    )
    ours = job(APLoss(batch.train_labels), lambda model: torch.optim.Adam(model.parameters(), lr=1e-3), False)
    return "training step, perceptron of 64-64 units, batch of 64", *best_times(theirs, ours)


def several_tasks() -> Result:
    """Return the time of forward and backward for several targets at once."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(20 * 64, TASKS, generator=generator) < 0.1).float()
    rows = torch.arange(64)
    peer, own = mAPLoss(len(labels), TASKS, device=CPU), APLoss(labels)

    def job(loss: Callable[..., Tensor], sigmoid: bool) -> Callable[[], None]:
        scores = torch.randn(64, TASKS, generator=generator).requires_grad_()

        def step() -> None:
            scores.grad = None
            loss(scores.sigmoid() if sigmoid else scores, labels[rows], rows).backward()

        return step

    times = best_times(job(peer, True), job(own, False))
    return f"loss of {TASKS} targets, batch of 64: forward and backward", *times


def building() -> Result:
    """Return the time to build the loss of ten million rows."""
    labels = made_labels()
    times = best_times(lambda: PeerLoss(ROWS, device=CPU), lambda: APLoss(labels), seconds=1, least=3)
    return f"loss of {ROWS:,} rows: construction", *times


def made_labels() -> Tensor:
    """Return labels of ten million rows."""
    labels = torch.zeros(ROWS)
    labels[torch.randperm(ROWS, generator=torch.Generator().manual_seed(0))[: int(ROWS * POSITIVE_SHARE)]] = 1
    return labels


def sampling() -> Iterator[Result]:
    """Yield the time to build the sampler of ten million rows and to draw its first epoch."""
    labels = made_labels().long().numpy()

    def drain(build: Callable[[], Any]) -> None:
        for _ in build():
            pass

    for num_pos, size in ((4, 64), (64, 1024)):
        peer = partial(DualSampler, None, size, labels=labels, num_pos=num_pos, sampling_rate=None)
        own = partial(PositiveBatchSampler, labels, size, num_pos=num_pos)
        theirs, ours = best_times(partial(drain, peer), partial(drain, own), seconds=0, least=2)
        yield f"sampler of {ROWS:,} rows, {num_pos} positives in {size:,}: an epoch", theirs, ours


def measurements() -> Iterator[Result]:
    """Yield all results."""
    yield from steps()
    yield memory()
    yield training_step()
    yield several_tasks()
    yield building()
    yield from sampling()


def main() -> None:
    """Print the results, and write them."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    torch.set_num_threads(1)
    rows = [["", "LibAUC / apmax"]]
    for what, theirs, ours in measurements():
        print(f"{what}: LibAUC {theirs:.3g}, apmax {ours:.3g}, ratio {theirs / ours:.3g}", flush=True)
        rows.append([what, f"{theirs / ours:.3g}"])
    head = (
        "# Speed and memory\n\nRatios of one run, single thread: above 1 apmax needs less. "
        f"LibAUC {version('libauc')}, torch {torch.__version__}, commit {benchmark_commit()}."
    )
    Path("results", "libauc", "speed.md").write_text(f"{head}\n\n{markdown_table(rows)}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
