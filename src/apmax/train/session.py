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

from apmax import extras
from apmax.exact.stream import gather_ragged
from apmax.train import checkpoints as checkpoint
from apmax.train import config
from apmax.train.averaging import all_finite, tensors
from apmax.train.config import Run
from apmax.train.display import display_for
from apmax.train.failures import DivergedError, Terminated
from apmax.train.files import RunDirectory, fingerprint_of
from apmax.train.loading import Data
from apmax.train.pace import Pace
from apmax.train.records import Record
from apmax.train.work import Work
from apmax.train.writer import Writer

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
        self.weight, self.valid_weight = data.weights(self.labels, self.valid_labels)
        self.fabric = fabric or launch(run, directory)
        self.device: torch.device = self.fabric.device
        self.rank, self.world_size = self.fabric.global_rank, self.fabric.world_size
        self.label_table = self.labels.to(self.device)
        labels, weights = (self.labels, self.valid_labels), (self.weight, self.valid_weight)
        self.fingerprint = fingerprint_of(data, labels, weights)
        self.path = None if directory is None else Path(directory)
        self.files = RunDirectory(directory) if directory is not None and self.rank == 0 else None
        self.display = display_for(progress and self.rank == 0)
        self.writer = None if self.files is None else Writer(self.files.checkpoint)
        self.description = config.dumps(run)
        self.records: list[Record] = []
        self.lines: list[str] = []
        self.step = 0
        self.saver = Pace(run.checkpoints)
        self.terminated = threading.Event()

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Listen for SIGTERM; at the end wait for the last checkpoint and let go of everything.

        Raises:
            NotWrittenError: The last checkpoint could not be written.
        """
        listening = threading.current_thread() is threading.main_thread()
        if listening:
            before = signal.signal(signal.SIGTERM, lambda *_: self.terminated.set())
        try:
            yield
            self.settle()
        finally:
            try:
                if self.writer is not None:
                    self.writer.close()
            finally:
                if listening:
                    signal.signal(signal.SIGTERM, before)
                self.display.close()

    def begin(self) -> None:
        """Write the run's description and the records so far."""
        if self.files is not None:
            self.files.begin(self.run, self.fingerprint, self.lines)

    def add(self, record: Record) -> None:
        """Take a finished epoch into the records, the files, the logger and the display."""
        self.remember([record])
        if self.files is not None:
            self.files.add(self.lines[-1])
        if self.run.tensorboard:
            self.fabric.log_dict(flat(record), step=len(self.records))
        self.display.epoch(record)

    def remember(self, records: list[Record]) -> None:
        """Append to the records, and to their lines: each is put into words once."""
        self.records += records
        self.lines += [record.to_json() for record in records]

    def after_step(self, work: Work) -> None:
        """Begin to write a checkpoint if one is due, and end the run if it was told to stop.

        Raises:
            NotWrittenError: The last checkpoint could not be written.
            Terminated: After SIGTERM on any of the processes, with the checkpoint written.
        """
        wish = STOP if self.terminated.is_set() else NOTHING
        if self.writer is not None:
            self.saver.charge(self.writer.collect())
            if wish == NOTHING and self.saver.due(self.step, epoch=len(self.records), writing=self.writer.busy):
                wish = SAVE
        if self.world_size > 1:
            if self.step % AGREE_EVERY.get(self.device.type, 16) and work.batch:
                return
            wish = int(self.fabric.all_reduce(torch.tensor(wish, device=self.device), reduce_op="max"))
        if wish != NOTHING and self.path is not None:
            self.save(work)
        if wish == STOP:
            self.settle()
            raise Terminated

    def save(self, work: Work) -> None:
        """Hand the checkpoint of this moment to the writer, when it has finished the one before.

        The training waits until the state is one piece of memory; bringing that to the disk is the writer's.

        Raises:
            DivergedError: The weights are not finite; the last checkpoint stays.
            NotWrittenError: The one before could not be written.
            CheckpointError: The state of the model, the loss or the optimiser is not made of tensors and numbers.
        """
        self.settle()
        started = time.monotonic()
        parts = tensors(self.model)
        if not all_finite(parts.values()):
            rows = work.seen.rows[-1].tolist() if work.seen.rows else []
            raise DivergedError("the weights are not finite", step=self.step, rows=rows, lr=self.lr(work))
        seen = {n: v if n == "losses" else self.gather(v) for n, v in work.seen.joined().items()}
        if self.writer is not None:
            state = {
                "config": self.description,
                "data": self.fingerprint,
                "stage": work.number,
                "epoch": work.epoch,
                "batch": work.batch,
                "seconds": work.seconds,
                "step": self.step,
                "selection": work.selection.state_dict(),
                "seen": seen,
                "records": "\n".join(self.lines),
                "model": parts,
                **({} if work.gradient is None else work.gradient.state_dict()),
            }
            self.writer.write(checkpoint.encoded(state))
        self.saver.saved(self.step, time.monotonic() - started, epoch=len(self.records))

    def settle(self) -> None:
        """Wait until what was saved is on the disk.

        Raises:
            NotWrittenError: It could not be written.
        """
        if self.writer is not None:
            self.saver.charge(self.writer.collect(wait=True))

    def before_loading(self) -> None:
        """Let no process be forked beside the writer's thread: it would inherit the locks that are held there."""
        if self.run.workers and self.writer is not None:
            self.settle()
            self.writer.close()

    def lr(self, work: Work) -> float:
        """Return the learning rate in force."""
        return float(work.gradient.optimizer.param_groups[0]["lr"]) if work.gradient is not None else 0.0

    def gather(self, values: Tensor) -> Tensor:
        """Return the rows of `values` of all processes, one process after the other."""
        if self.world_size == 1:
            return values
        return gather_ragged(values.to(self.device).contiguous(), None)[0].to(values.device)


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
