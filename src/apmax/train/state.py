"""State of a run and of its current stage: processes, data, progress, checkpoints and the signal to stop."""

from __future__ import annotations

import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from apmax.exact.stream import gather_ragged
from apmax.folders import started_processes
from apmax.losses import Loss
from apmax.optim import Proximal
from apmax.samplers import MinedBatchSampler
from apmax.train.checkpoints import CheckpointSchedule, CheckpointWriter, encode_checkpoint
from apmax.train.config import ExactHead, Run, Stage
from apmax.train.data import BatchSampler, Data
from apmax.train.display import RunMonitor, make_monitor
from apmax.train.errors import DivergedError, Terminated, shown_rows
from apmax.train.processes import check_same_training, shared_errors
from apmax.train.records import Record
from apmax.train.run_directory import RunDirectory, data_fingerprint, labels_fingerprint
from apmax.train.runtime import launch_runtime
from apmax.train.scoring import nonfinite_rows
from apmax.train.selection import Selection
from apmax.train.toml import run_to_table
from apmax.train.weights import WeightAverage, all_finite, model_tensors

_CONTINUE, _SAVE, _STOP = range(3)
# Steps between two checks of the loss, and between two agreements of the processes on what to do next: both need a host
# synchronisation, which is free on a CPU.
_CHECK_EVERY = {"cpu": 1}
_COMMON_SETTINGS = ("stages", "seed", "train_metrics", "objective", "precision")
"""Settings that all processes of a run must have in common; the others may suit their machine."""


@dataclass
class SeenBatches:
    """Rows, scores and losses of the batches trained on in the current epoch."""

    rows: list[Tensor] = field(default_factory=list)
    scores: list[Tensor] = field(default_factory=list)
    order: list[Tensor] = field(default_factory=list)
    losses: list[Tensor] = field(default_factory=list)

    def add(self, batch: int, rows: Tensor, scores: Tensor, loss: Tensor) -> None:
        """Add a batch without copying or synchronising."""
        self.rows.append(rows)
        self.scores.append(scores)
        self.losses.append(loss)
        self.order.append(torch.tensor(batch).expand(len(rows)))

    def batch(self, number: int) -> tuple[Tensor, Tensor]:
        """Return rows and scores of a batch of the epoch; the batches before a resume are one entry of the lists."""
        chosen = torch.cat(self.order) == number
        rows, scores = torch.cat(self.rows), torch.cat(self.scores)
        chosen = chosen.to(rows.device)
        return rows[chosen], scores[chosen]

    def joined(self) -> dict[str, Tensor]:
        """Return each of the four lists as one tensor on the CPU; empty if there was no batch."""
        parts = {"rows": self.rows, "scores": self.scores, "order": self.order}
        result = {name: torch.cat(part).cpu() if part else torch.empty(0) for name, part in parts.items()}
        losses = torch.stack(self.losses).double().cpu() if self.losses else torch.empty(0, dtype=torch.float64)
        return {**result, "losses": losses}

    @staticmethod
    def restored(state: dict[str, Tensor], device: torch.device, *, rank: int, world_size: int) -> SeenBatches:
        """Return this process's share of the batches of all processes that a checkpoint holds."""
        if not len(state["losses"]):
            return SeenBatches()
        rows, scores, order = (state[name][rank::world_size] for name in ("rows", "scores", "order"))
        return SeenBatches([rows.to(device)], [scores.to(device)], [order], list(state["losses"].to(device).unbind()))


@dataclass
class GradientState:
    """The loss, optimiser, sampler and averages of a stage of gradient steps.

    `module` and `stepper` are the model and the optimiser as the runtime returned them, `criterion` is the loss over
    the batches of all processes; `loss` and `optimizer` are the objects themselves.
    """

    module: nn.Module
    criterion: nn.Module
    loss: Loss
    optimizer: torch.optim.Optimizer
    stepper: Any
    base_lr: list[float]
    sampler: BatchSampler
    average: WeightAverage | None
    proximal: Proximal | None
    frozen: list[nn.Module]

    def state_dict(self) -> dict[str, Any]:
        """Return the state for a checkpoint, with the tensors themselves and not copies."""
        return {
            "loss": self.loss.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "proximal": None if self.proximal is None else self.proximal.state_dict(),
            "mined": self.sampler.mined if isinstance(self.sampler, MinedBatchSampler) else None,
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Load the state of a checkpoint."""
        self.loss.load_state_dict(state["loss"])
        self.optimizer.load_state_dict(state["optimizer"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        if self.proximal is not None:
            self.proximal.load_state_dict(state["proximal"])
        if isinstance(self.sampler, MinedBatchSampler):
            self.sampler.mined = state["mined"]


@dataclass
class StageState:
    """The current stage: its number in the run, its progress, and everything that changes while it is trained."""

    number: int
    stage: Stage | ExactHead
    selection: Selection
    epoch: int = 0
    batch: int = 0
    seconds: float = 0.0
    seen: SeenBatches = field(default_factory=SeenBatches)
    gradient: GradientState | None = None

    @property
    def lr(self) -> float:
        """The current learning rate; 0 in a stage without gradient steps."""
        return 0.0 if self.gradient is None else float(self.gradient.optimizer.param_groups[0]["lr"])

    def diverged_batch(self, loss: float, rows: Tensor, scores: Tensor, *, step: int) -> DivergedError:
        """Return the error of a batch: with the rows of infinite or NaN scores, or all rows if only the loss is bad."""
        bad = nonfinite_rows(scores)
        if bad:
            return DivergedError("the scores are not finite", step=step, rows=rows[bad].tolist(), lr=self.lr)
        return DivergedError(f"the loss is {loss}", step=step, rows=rows.tolist(), lr=self.lr)


class RunState:
    """One run of one model on this process."""

    def __init__(
        self,
        model: nn.Module,
        data: Data,
        run: Run,
        *,
        directory: str | os.PathLike[str] | None,
        progress: bool | str | RunMonitor,
        member: int,
        fabric: Any,
    ) -> None:
        self.model, self.data, self.run, self.member = model, data, run, member
        if fabric is None and started_processes() > 1:
            # The other processes are running already. Once they are connected, all end if the data of one are wrong.
            fabric = launch_runtime(run, directory)
        with shared_errors(1 if fabric is None else fabric.world_size):
            self.labels, self.valid_labels = data.label_tensors()
            self.weight, self.valid_weight = data.weight_tensors(self.labels, self.valid_labels)
        self.fabric = fabric or launch_runtime(run, directory)
        self.device: torch.device = self.fabric.device
        self.rank, self.world_size = self.fabric.global_rank, self.fabric.world_size
        self.check_every = _CHECK_EVERY.get(self.device.type, 16)
        self.device_labels = self.labels.to(self.device)
        labels, weights = (self.labels, self.valid_labels), (self.weight, self.valid_weight)
        self.fingerprint = data_fingerprint(data, labels, weights)
        self.config_table = run_to_table(run)
        if self.world_size > 1:
            common = {name: getattr(run, name) for name in _COMMON_SETTINGS}
            check_same_training(labels_fingerprint((*labels, *weights)), common, self.world_size)
        self.path = None if directory is None else Path(directory)
        self.files = RunDirectory(directory) if directory is not None and self.rank == 0 else None
        # One that was given is shared by the members of an ensemble, and closed by its owner.
        self.owns_monitor = not isinstance(progress, RunMonitor)
        self.monitor = progress if isinstance(progress, RunMonitor) else self._make_monitor(progress)
        self.writer = None if self.files is None else CheckpointWriter(self.files.checkpoint)
        self.schedule = CheckpointSchedule(run.checkpoints)
        self.records: list[Record] = []
        self.record_lines: list[str] = []
        self.step = 0
        self.terminated = threading.Event()

    @property
    def loading(self) -> dict[str, Any]:
        """How rows of the run are scored: the keyword arguments of `score_rows`."""
        return {
            "batch_size": self.run.eval_batch_size,
            "seed": self.run.seed,
            "device": self.device,
            "workers": self.run.workers,
            "collate": self.data.collate,
        }

    def _make_monitor(self, progress: bool | str) -> RunMonitor:
        log = None if self.files is None else self.files.log
        return make_monitor(self.run, progress, log=log) if self.rank == 0 else RunMonitor(self.run)

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Handle SIGTERM inside; at the end wait for the last checkpoint and release all resources.

        Raises:
            NotWrittenError: The last checkpoint could not be written.
        """
        handles_signals = threading.current_thread() is threading.main_thread()
        if handles_signals:
            former_handler = signal.signal(signal.SIGTERM, lambda *_: self.terminated.set())
        try:
            yield
            self.wait_for_writer()
        finally:
            try:
                if self.writer is not None:
                    self.writer.close()
            finally:
                if handles_signals:
                    signal.signal(signal.SIGTERM, former_handler)
                if self.owns_monitor:
                    self.monitor.close()

    def start_files(self) -> None:
        """Write the configuration and the records so far to the run directory."""
        if self.files is not None:
            self.files.start(self.run, self.fingerprint, self.record_lines)

    def add_record(self, record: Record) -> None:
        """Add a finished epoch to the records, the run directory, the logger and the monitor."""
        self.extend_records([record])
        if self.files is not None:
            self.files.add_record(self.record_lines[-1])
        if self.run.tensorboard:
            self.fabric.log_dict(_logged_values(record), step=len(self.records))
        self.monitor.epoch(record)

    def extend_records(self, records: list[Record]) -> None:
        """Append to the records and to their JSON lines; each record is encoded only once."""
        self.records += records
        self.record_lines += [record.to_json() for record in records]

    def after_step(self, state: StageState) -> None:
        """Start to write a checkpoint if one is due, and end the run after SIGTERM.

        Raises:
            NotWrittenError: The last checkpoint could not be written.
            Terminated: Any of the processes received SIGTERM; the checkpoint is written.
        """
        action = _STOP if self.terminated.is_set() else _CONTINUE
        if self.writer is not None:
            self.schedule.charge(self.writer.collect())
            if action == _CONTINUE and self.schedule.due(self.step, epoch=len(self.records), writing=self.writer.busy):
                action = _SAVE
        if self.world_size > 1:
            if self.step % self.check_every and state.batch:
                return
            action = int(self.fabric.all_reduce(torch.tensor(action, device=self.device), reduce_op="max"))
        if action != _CONTINUE and self.path is not None:
            self.save(state)
        if action == _STOP:
            self.wait_for_writer()
            raise Terminated

    def check_losses(self, state: StageState, *, step: int) -> None:
        """Raise for the first loss since the last check, up to that of `step`, that is not finite.

        Raises:
            DivergedError: There is one.
        """
        losses = state.seen.losses[-self.check_every :]
        if not losses or (len(losses) == 1 and math.isfinite(losses[0].item())):
            return
        for back, value in zip(range(len(losses), 0, -1), torch.stack(losses).tolist(), strict=True):
            if not math.isfinite(value):
                rows, scores = state.seen.batch(len(state.seen.losses) - back)
                raise state.diverged_batch(value, rows, scores, step=step + 1 - back)

    def check_weights(self, state: StageState) -> None:
        """Raise if a parameter that is trained is not finite; buffers and fixed ones may be, on purpose, as a mask.

        Raises:
            DivergedError: One is not.
        """
        if not all_finite(parameter for parameter in self.model.parameters() if parameter.requires_grad):
            rows = state.seen.rows[-1].tolist() if state.seen.rows else []
            raise DivergedError("the weights are not finite", step=self.step, rows=rows, lr=state.lr)

    def save(self, state: StageState) -> None:
        """Encode a checkpoint of the current state and pass it to the writer, after the previous one is written.

        Training waits for the encoding only; the writer's thread brings the bytes to the disk.

        Raises:
            DivergedError: A loss or trained weights are not finite; the last checkpoint is not replaced.
            NotWrittenError: The previous checkpoint could not be written.
            CheckpointError: The state of the model, the loss or the optimiser is not made of tensors and numbers.
        """
        self.wait_for_writer()
        started = time.monotonic()
        self.check_losses(state, step=self.step)
        self.check_weights(state)
        seen = {n: v if n == "losses" else self.gather(v) for n, v in state.seen.joined().items()}
        if self.writer is not None:
            content = {
                "config": self.config_table,
                "data": self.fingerprint,
                "stage": state.number,
                "epoch": state.epoch,
                "batch": state.batch,
                "seconds": state.seconds,
                "step": self.step,
                "selection": state.selection.state_dict(),
                "seen": seen,
                "records": "\n".join(self.record_lines),
                "model": model_tensors(self.model),
                **({} if state.gradient is None else state.gradient.state_dict()),
            }
            self.writer.submit(encode_checkpoint(content))
        self.schedule.saved(self.step, time.monotonic() - started, epoch=len(self.records))

    def diverged_split(self, state: StageState, split: str, rows: list[int]) -> DivergedError:
        """Return the error of a split, "train" or "valid", in which the scores of `rows` are not finite."""
        reason = "the scores are not finite"
        if split == "valid":
            reason, rows = f"the scores of validation rows {shown_rows(rows)} are not finite", []
        return DivergedError(reason, step=self.step, rows=rows, lr=state.lr)

    def wait_for_writer(self) -> None:
        """Wait until the last checkpoint is on the disk.

        Raises:
            NotWrittenError: It could not be written.
        """
        if self.writer is not None:
            self.schedule.charge(self.writer.collect(wait=True))

    def before_loading(self) -> None:
        """End the writer's thread before workers are forked: they would inherit the locks that it holds."""
        if self.run.workers and self.writer is not None:
            self.wait_for_writer()
            self.writer.close()

    def gather(self, values: Tensor) -> Tensor:
        """Return the rows of `values` of all processes, in the order of the processes."""
        if self.world_size == 1:
            return values
        return gather_ragged(values.to(self.device).contiguous(), None)[0].to(values.device)


def _logged_values(record: Record) -> dict[str, float]:
    """Return a record's numbers under the names that a logger shows."""
    values = {"loss": record.loss, "lr": record.lr}
    for split, metrics in (("train", record.train), ("valid", record.valid)):
        if metrics is not None:
            values.update({f"{split}/{name}": value for name, value in dataclasses.asdict(metrics).items()})
    return values
