"""Second stage of the paper authors' released graph code, which differs from the paper's algorithm.

An epoch is one pass over the class that needs more batches (on HIV the positives, one in each batch of 64). The rows of
the whole batch are passed to the loss as the index of its memory, so that the values of the one positive are written
into the memory of all rows of the batch, and the weighted pair losses are summed over these memories. The learning rate
is halved every 50 epochs; training stops after 50 epochs without a higher validation AUPRC. It begins from the weights
of the authors' own first stage (`apmax.reproduce.authors`), with a new head.

The released file does not run as it is: its loss is called with one argument too many, and its memory keeps the graph.
This module is that file with these two repaired, written anew; how its authors ran it is not known.
"""

from __future__ import annotations

import io
import json
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from apmax import metrics, validation
from apmax.folders import write_atomic
from apmax.train import ConfigTable, predict

RELEASED_CHECKPOINT, RELEASED_RECORDS = "released.pt", "released.jsonl"
_RowNumbers = npt.NDArray[np.int64]


@dataclass(frozen=True)
class ReleasedStage(ConfigTable):
    """The second stage of the released code, with its settings for HIV.

    Args:
        lr: Learning rate of Adam.
        weight_decay: L2 penalty of Adam, beside a loss that is a sum over the batch.
        margin: Margin of the squared hinge on sigmoid scores.
        gamma: Weight of the new value in the moving averages, which begin at 0.
        batch_size: Rows in a batch, one of which is positive.
        epochs: The largest number of epochs.
        patience: Stop after this many epochs without a higher validation AUPRC.
        halve_every: Epochs after which the learning rate is halved.
    """

    lr: float = 5e-4
    weight_decay: float = 5e-5
    margin: float = 10.0
    gamma: float = 0.9
    batch_size: int = 64
    epochs: int = 150
    patience: int = 50
    halve_every: int = 50

    kind: ClassVar[str] = "released"
    _floats = ("lr", "weight_decay", "margin", "gamma")

    def check(self) -> None:
        """Raise for numbers out of range."""
        validation.interval("lr", self.lr, 0, closed="neither")
        validation.interval("weight_decay", self.weight_decay, 0, closed="left")
        validation.interval("margin", self.margin, 0, closed="neither")
        validation.interval("gamma", self.gamma, 0, 1, closed="right")
        validation.whole("batch_size", self.batch_size, 2)
        for name in ("epochs", "patience", "halve_every"):
            validation.whole(name, getattr(self, name), 1)


class BatchWideMemoryLoss:
    """SOAP's surrogate loss with the released code's use of the memory, for batches with one positive.

    With the positive first, s sigmoid scores, ℓ_j = max(0, margin − (s_0 − s_j))² and means over the batch of B rows,

        u⁺_i ← (1 − γ) u⁺_i + γ ℓ_0 / B        u_i ← (1 − γ) u_i + γ mean_j ℓ_j        for *every* row i of the batch,
        loss = Σ_i Σ_j ℓ_j (u⁺_i − u_i [j = 0]) / u_i²    without gradient through u.

    Args:
        rows: Rows of the training part.
        margin: Margin of the squared hinge.
        gamma: Weight of the new value.
    """

    def __init__(self, rows: int, margin: float, gamma: float) -> None:
        self.margin, self.gamma = margin, gamma
        self.positive = torch.zeros(rows)
        self.total = torch.zeros(rows)

    def __call__(self, scores: Tensor, index: Tensor) -> Tensor:
        """Return the loss of raw scores (B,) of the rows `index` (B,), the positive first."""
        shares = scores.sigmoid()
        pairs = (self.margin - (shares[0] - shares)).clamp(min=0).square()
        with torch.no_grad():
            self.positive[index] = (1 - self.gamma) * self.positive[index] + self.gamma * pairs[0] / len(pairs)
            self.total[index] = (1 - self.gamma) * self.total[index] + self.gamma * pairs.mean()
            is_positive = torch.zeros(len(pairs))
            is_positive[0] = 1
            positive, total = self.positive[index][:, None], self.total[index][:, None]
            weights = (positive - total * is_positive) / total.square()
        return (weights * pairs).sum()


class ReleasedBatches:
    """Batches of one positive and negatives, an epoch being one pass over the class that needs more batches.

    Positives and negatives are each drawn without replacement until all have been drawn; the class that needs fewer
    batches begins anew within an epoch, and goes on where it stopped in the next.
    """

    def __init__(self, labels: Tensor, batch_size: int, seed: int) -> None:
        values = labels.numpy()
        self.positives, self.negatives = np.flatnonzero(values == 1), np.flatnonzero(values == 0)
        self.batch_size = batch_size
        self.generator = np.random.default_rng(seed)
        self.waiting: dict[str, _RowNumbers] = {
            name: np.empty(0, dtype=np.int64) for name in ("positives", "negatives")
        }

    def __len__(self) -> int:
        return max(len(self.positives), len(self.negatives) // (self.batch_size - 1))

    def epoch(self) -> Iterator[Tensor]:
        """Yield the rows of every batch of an epoch, the positive first."""
        for _ in range(len(self)):
            rows = np.concatenate([self._draw("positives", 1), self._draw("negatives", self.batch_size - 1)])
            yield torch.from_numpy(rows)

    def _draw(self, name: str, count: int) -> _RowNumbers:
        waiting = self.waiting[name]
        if len(waiting) < count:
            waiting = np.concatenate([waiting, self.generator.permutation(getattr(self, name))])
        self.waiting[name] = waiting[count:]
        return waiting[:count]

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the generator and the rows not yet drawn."""
        waiting = {name: torch.from_numpy(rows) for name, rows in self.waiting.items()}
        return {"generator": json.dumps(self.generator.bit_generator.state), "waiting": waiting}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.generator.bit_generator.state = json.loads(state["generator"])
        self.waiting = {name: rows.numpy() for name, rows in state["waiting"].items()}


@dataclass
class ReleasedResult:
    """The outcome of the released procedure.

    Attributes:
        records: Per epoch: its number from 1, seconds, the mean loss, and the AUPRC on validation and test.
        epoch: The epoch of the highest validation AUPRC.
        scores: The scores of the validation and the test part after that epoch.
    """

    records: list[dict[str, float]]
    epoch: int
    scores: dict[str, Tensor]

    @property
    def best_test(self) -> dict[str, float]:
        """The highest test AUPRC of all epochs, and its epoch: what the released code prints beside the other."""
        best = max(self.records, key=lambda record: record["test_auprc"])
        return {"epoch": best["epoch"], "auprc": best["test_auprc"]}


def train_released(
    model: nn.Module,
    data: Any,
    stage: ReleasedStage,
    *,
    seed: int,
    folder: Path,
    report: Callable[[int, int], None] | None = None,
) -> ReleasedResult:
    """Train a network that holds first-stage weights; a checkpoint in `folder` is continued.

    Args:
        model: The network.
        data: The parts `train`, `valid` and `test`.
        stage: The settings.
        seed: Seed of the new head and of the batches.
        folder: The folder of the checkpoint and of the records as JSON lines, both written after every epoch.
        report: Called with (epochs done, epochs at most) after every epoch.
    """
    reset_head(model, seed)
    training = _Training(model, data, stage, seed)
    path = folder / RELEASED_CHECKPOINT
    if path.exists():
        training.load_state_dict(torch.load(path, weights_only=True))
    result = training.result
    while len(result.records) < min(stage.epochs, result.epoch + stage.patience):
        training.train_epoch()
        folder.mkdir(parents=True, exist_ok=True)
        buffer = io.BytesIO()
        torch.save(training.state_dict(), buffer)
        write_atomic(path, buffer.getvalue())
        lines = "".join(json.dumps(record) + "\n" for record in result.records)
        write_atomic(folder / RELEASED_RECORDS, lines.encode())
        if report is not None:
            report(len(result.records), stage.epochs)
    return result


def reset_head(model: nn.Module, seed: int) -> None:
    """Initialise the layers of `model.head` anew; torch's global generator is left unchanged."""
    head: Any = model.head
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        for layer in head.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()


class _Training:
    """The state of the procedure between two epochs."""

    def __init__(self, model: nn.Module, data: Any, stage: ReleasedStage, seed: int) -> None:
        self.model, self.data = model, data
        self.optimizer = torch.optim.Adam(model.parameters(), lr=stage.lr, weight_decay=stage.weight_decay)
        self.schedule = torch.optim.lr_scheduler.StepLR(self.optimizer, stage.halve_every, 0.5)
        self.loss = BatchWideMemoryLoss(len(data.train), stage.margin, stage.gamma)
        self.batches = ReleasedBatches(data.train.labels, stage.batch_size, seed)
        self.result = ReleasedResult([], 0, {})

    def train_epoch(self) -> None:
        """Train one epoch, and measure it on validation and test."""
        begin = time.perf_counter()
        self.model.train()
        total, train = 0.0, self.data.train
        for rows in self.batches.epoch():
            batch = train.collate(train.__getitems__(rows.tolist()))
            loss = self.loss(self.model(batch), rows)
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
            total += loss.item()
        self.schedule.step()
        scores = {part: predict(self.model, getattr(self.data, part)) for part in ("valid", "test")}
        values = {
            f"{part}_auprc": float(metrics.auprc(scores[part], getattr(self.data, part).labels)) for part in scores
        }
        result = self.result
        best = max((record["valid_auprc"] for record in result.records), default=-1.0)
        values |= {"loss": total / len(self.batches), "seconds": time.perf_counter() - begin}
        result.records.append({"epoch": len(result.records) + 1, **values})
        if values["valid_auprc"] > best:
            result.epoch, result.scores = len(result.records), scores

    def state_dict(self) -> dict[str, Any]:
        """Return everything that decides the next epochs."""
        return {
            "model": self.model.state_dict(),
            "optimizer": self.optimizer.state_dict(),
            "schedule": self.schedule.state_dict(),
            "memory": [self.loss.positive, self.loss.total],
            "batches": self.batches.state_dict(),
            "result": vars(self.result),
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state."""
        self.model.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])
        self.schedule.load_state_dict(state["schedule"])
        self.loss.positive, self.loss.total = state["memory"]
        self.batches.load_state_dict(state["batches"])
        self.result = ReleasedResult(**state["result"])
