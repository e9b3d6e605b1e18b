"""Where a run happens: Fabric's processes, the data's tables, the checkpoints and the signal to stop."""

from __future__ import annotations

import dataclasses
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apmax import checkpoint, config, extras
from apmax.config import Run
from apmax.exact.stream import gather_ragged
from apmax.train.averaging import tensors
from apmax.train.display import display_for
from apmax.train.failures import DivergedError, Terminated
from apmax.train.files import RunDirectory, fingerprint_of
from apmax.train.loading import Data
from apmax.train.records import Record
from apmax.train.work import Work

NOTHING, SAVE, STOP = range(3)
# What processes agree on costs a host synchronisation, which a CPU does not feel.
AGREE_EVERY = {"cpu": 1}


class Session:
    """One run of one model, on this process."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        run: Run,
        *,
        directory: str | os.PathLike[str] | None,
        progress: bool,
        member: int,
        fabric: Any,
    ) -> None:
        self.model, self.data, self.run, self.member = model, data, run, member
        self.labels, self.valid_labels = data.tables()
        self.fabric = fabric or launch(run, directory)
        self.device: torch.device = self.fabric.device
        self.rank, self.world_size = self.fabric.global_rank, self.fabric.world_size
        self.label_table = self.labels.to(self.device)
        self.fingerprint = fingerprint_of(data, self.labels, self.valid_labels)
        self.path = None if directory is None else Path(directory)
        self.files = RunDirectory(directory) if directory is not None and self.rank == 0 else None
        self.display = display_for(progress and self.rank == 0)
        self.records: list[Record] = []
        self.step = 0
        self.saver = Pace(run.checkpoints)
        self.terminated = threading.Event()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Listen for SIGTERM, and let go of everything at the end."""
        listening = threading.current_thread() is threading.main_thread()
        if listening:
            before = signal.signal(signal.SIGTERM, lambda *_: self.terminated.set())
        try:
            yield
        finally:
            if listening:
                signal.signal(signal.SIGTERM, before)
            self.display.close()

    def begin(self) -> None:
        """Write the run's description and the records so far."""
        if self.files is not None:
            self.files.begin(self.run, self.fingerprint, self.records)

    def add(self, record: Record) -> None:
        """Take a finished epoch into the records, the files, the logger and the display."""
        self.records.append(record)
        if self.files is not None:
            self.files.add(record)
        if self.run.tensorboard:
            self.fabric.log_dict(flat(record), step=len(self.records))
        self.display.epoch(record)

    def after_step(self, work: Work) -> None:
        """Write a checkpoint if one is due, and end the run if it was told to stop.

        Raises:
            Terminated: After SIGTERM on any of the processes, with the checkpoint written.
        """
        wish = STOP if self.terminated.is_set() else NOTHING
        if wish == NOTHING and self.path is not None and self.rank == 0 and self.saver.due(self.step):
            wish = SAVE
        if self.world_size > 1:
            if self.step % AGREE_EVERY.get(self.device.type, 16) and work.batch:
                return
            wish = int(self.fabric.all_reduce(torch.tensor(wish, device=self.device), reduce_op="max"))
        if wish != NOTHING and self.path is not None:
            self.save(work)
        if wish == STOP:
            raise Terminated

    def save(self, work: Work) -> None:
        """Write the checkpoint of this moment.

        Raises:
            DivergedError: The weights are not finite; the last checkpoint stays.
        """
        started = time.monotonic()
        parts = tensors(self.model)
        if not all(bool(value.isfinite().all()) for value in parts.values() if value.is_floating_point()):
            rows = work.seen.rows[-1].tolist() if work.seen.rows else []
            raise DivergedError("the weights are not finite", step=self.step, rows=rows, lr=self.lr(work))
        seen = {name: self.gather(value) for name, value in work.seen.joined().items() if name != "losses"}
        state = {
            "config": config.dumps(self.run),
            "data": self.fingerprint,
            "stage": work.number,
            "epoch": work.epoch,
            "batch": work.batch,
            "seconds": work.seconds,
            "step": self.step,
            "model": {name: value.detach() for name, value in parts.items()},
            "selection": work.selection.state_dict(),
            "seen": {**seen, "losses": work.seen.joined()["losses"]},
            "records": [dataclasses.asdict(record) for record in self.records],
        }
        if work.gradient is not None:
            average = work.gradient.average
            state["loss"] = work.gradient.loss.state_dict()
            state["optimizer"] = work.gradient.optimizer.state_dict()
            state["average"] = None if average is None else average.state_dict()
            proximal = work.gradient.proximal
            state["proximal"] = None if proximal is None else proximal.state_dict()
        if self.files is not None:
            checkpoint.save(self.files.checkpoint, state)
        self.saver.saved(self.step, time.monotonic() - started)

    def lr(self, work: Work) -> float:
        """Return the learning rate in force."""
        return float(work.gradient.optimizer.param_groups[0]["lr"]) if work.gradient is not None else 0.0

    def gather(self, values: Tensor) -> Tensor:
        """Return the rows of `values` of all processes, one process after the other."""
        if self.world_size == 1:
            return values
        return gather_ragged(values.to(self.device).contiguous(), None)[0].to(values.device)


class Pace:
    """When the next checkpoint is due."""

    def __init__(self, wanted: config.Checkpoints) -> None:
        self.wanted = wanted
        self.step, self.time, self.started = 0, time.monotonic(), time.monotonic()
        self.spent = 0.0
        # Before the first is written its cost is unknown; this is a cautious guess for a small model.
        self.cost = 0.05

    def due(self, step: int) -> bool:
        """Tell whether it is time: by steps, by seconds, or because all of them together stay within their share."""
        now, every_steps, every_seconds = time.monotonic(), self.wanted.every_steps, self.wanted.every_seconds
        if every_steps is None and every_seconds is None:
            return self.spent + self.cost <= self.wanted.share * (now - self.started)
        by_steps = every_steps is not None and step - self.step >= every_steps
        return by_steps or (every_seconds is not None and now - self.time >= every_seconds)

    def saved(self, step: int, cost: float) -> None:
        """Take note of a checkpoint and what it cost; the next is expected to cost as much as the dearest."""
        self.step, self.time = step, time.monotonic()
        self.spent += cost
        self.cost = max(self.cost, cost)


def launch(run: Run, directory: str | os.PathLike[str] | None) -> Any:
    """Return Fabric, with all its processes running: those it started, or those that `torchrun` did."""
    fabric = extras.load("lightning_fabric", "train")
    loggers = None
    if run.tensorboard:
        logging = extras.load("lightning_fabric.loggers", "train")
        loggers = [logging.TensorBoardLogger(root_dir=directory or ".", name="tensorboard", version="")]
    runner = fabric.Fabric(
        accelerator=run.accelerator,
        devices=run.devices,
        num_nodes=run.num_nodes,
        strategy=run.strategy,
        precision=run.precision,
        loggers=loggers,
    )
    runner.launch()
    return runner


def flat(record: Record) -> dict[str, float]:
    """Return a record's numbers under the names a logger shows."""
    values = {"loss": record.loss, "lr": record.lr}
    for split, metrics in (("train", record.train), ("valid", record.valid)):
        if metrics is not None:
            values.update({f"{split}/{name}": value for name, value in dataclasses.asdict(metrics).items()})
    return values
