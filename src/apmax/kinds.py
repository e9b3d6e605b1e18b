"""What can be learnt from: a kind of data is one entry in the table `KINDS`.

All commands read rows from csv and parquet files; a kind says what a row becomes (its encoder), which networks take
that, and which stages they are trained in if nothing else is asked for.
"""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from apmax import validation
from apmax.config import RECIPES, Stage
from apmax.config.table import known_key
from apmax.data.tables import Report, TableEncoder, leaks
from apmax.models.tables import MODELS as TABLE_MODELS


class Encoder(Protocol):
    """What every row becomes, fitted to training rows and saved as plain JSON."""

    @property
    def names(self) -> list[str]:
        """The columns that are read."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """The columns that are not, each with the reason."""

    def encode(self, table: Any, report: Report | None = None) -> Any:
        """Return a `pyarrow.Table`'s rows as a tensor, or as a dataset whose items the model takes."""

    def to_table(self) -> dict[str, Any]:
        """Return the encoder as plain lists, strings and numbers."""

    def summary(self) -> dict[str, list[str]]:
        """Return the columns by what they are taken for."""


@dataclass(frozen=True)
class Kind:
    """One kind of data.

    Args:
        title: A line for people.
        fit: Makes the encoder: `fit(table, roles=..., without=...)`.
        restore: Makes it from what `Encoder.to_table` returned.
        shape: What the networks are told of the encoder, their first argument.
        models: The networks by name; the first is the default.
        stages: The stages of training: `stages(rows, positives, model)`.
        suspects: Lines about columns that may have been written after the outcome.
        threads: How many its networks can use with profit; None for as many as there are.
    """

    title: str
    fit: Callable[..., Encoder]
    restore: Callable[[Mapping[str, Any]], Encoder]
    shape: Callable[[Any], Any]
    models: Mapping[str, Callable[..., nn.Module]]
    stages: Callable[[int, int, str], Sequence[Stage]]
    suspects: Callable[[Any, Any, npt.NDArray[np.float32]], list[str]]
    threads: int | None = None

    def build(self, encoder: Encoder, name: str, options: Mapping[str, Any]) -> nn.Module:
        """Return a new network of that name.

        Raises:
            ValueError: No such network, or it has no such option.
        """
        model = self.models[validation.choice("model", name, self.models)]
        known = list(inspect.signature(model).parameters)[1:]
        for key in options:
            known_key(key, known, f"the options of model {name!r}")
        return model(self.shape(encoder), **options)


def as_dataset(encoded: Any) -> Any:
    """Return what an encoder made as a dataset."""
    return TensorDataset(encoded) if isinstance(encoded, Tensor) else encoded


def table_stages(rows: int, positives: int, model: str) -> Sequence[Stage]:
    """Return the default recipe, as long as a table of that size needs: some thousand steps, then an AP stage.

    >>> [(stage.name, stage.epochs, stage.sampler.num_pos) for stage in table_stages(10_000, 200, "mlp")]
    [('ce', 51, 4), ('ap + ce', 13, 16)]
    """
    batch_size = 128 if rows >= 2048 else 64
    steps = math.ceil(rows / batch_size)
    epochs = min(max(math.ceil(4000 / steps), 5), 100)
    return RECIPES["default"](
        lr=1e-2 if model == "linear" else 1e-3,
        epochs=epochs,
        joint_epochs=min(max(math.ceil(1000 / steps), 3), 20),
        batch_size=batch_size,
        num_pos=max(1, min(batch_size // 8, positives)),
        ema=0.999 if steps * epochs >= 4000 else 0.99,
        patience=max(5, epochs // 3),
    )


def table_suspects(encoder: Any, table: Any, labels: npt.NDArray[np.float32]) -> list[str]:
    """Return a line for each column that alone separates the classes."""
    return [
        f"possible leakage: column {leak.name!r} alone separates the classes (AUROC {leak.auroc:.4f} by its {leak.by})"
        f"; if it is written after the outcome, leave it out: --column {leak.name}=drop"
        for leak in leaks(encoder, table, labels)
    ]


KINDS: dict[str, Kind] = {
    "table": Kind(
        title="rows of numbers, categories and dates",
        fit=TableEncoder.fit,
        restore=TableEncoder.from_table,
        shape=lambda encoder: encoder.sizes,
        models=TABLE_MODELS,
        stages=table_stages,
        suspects=table_suspects,
        threads=1,
    ),
}
