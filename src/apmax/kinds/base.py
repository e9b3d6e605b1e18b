"""What a kind of data consists of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from apmax import validation
from apmax.config import Stage
from apmax.config.table import known_key
from apmax.kinds.encoded import Encoded, RowReport

Labels = npt.NDArray[np.float32]


class Encoder(Protocol):
    """What every row becomes, saved as plain JSON."""

    @property
    def names(self) -> list[str]:
        """The columns that are read."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """The columns that are not, each with the reason."""

    def encode(self, table: Any, report: RowReport | None = None) -> Tensor | Encoded:
        """Return a `pyarrow.Table`'s rows as a tensor, or as a dataset of those that can be read."""

    def to_table(self) -> dict[str, Any]:
        """Return the encoder as plain lists, strings and numbers."""

    def summary(self) -> dict[str, list[str]]:
        """Return the columns by what they are taken for."""


@dataclass(frozen=True)
class Gathered:
    """The labelled rows of a file that can be read.

    Args:
        dataset: Their items; `dataset.subset(rows)` is that of some of them.
        rows: Their numbers in the file.
        warnings: Lines about those that are left out, and those that ask for a look.
    """

    dataset: Any
    rows: npt.NDArray[np.int64]
    warnings: list[str]


@dataclass(frozen=True)
class Kind:
    """One kind of data.

    Args:
        title: A line for people.
        fit: Makes the encoder: `fit(table, data, without)`, where `data` is the job's [data].
        restore: Makes it from what `Encoder.to_table` returned.
        shape: What the networks are told of the encoder, their first argument.
        models: The networks by name; the first is the default.
        stages: The stages of training: `stages(rows, positives, model)`.
        takes: The keys of [data] that only some kinds understand and this one does.
        suspects: Lines about columns that may have been written after the outcome.
        gather: Reads all rows of a file at once: `gather(table, labels, data)`. Only where the encoder learns nothing
            from rows; without it, rows are held out first, and the encoder is fitted to the others.
        groupings: Ways to hold out whole groups of rows: `grouping(table, data)` names each row's group.
        needs: What some models, by name, need in [data].
        several_targets: Whether its networks predict several columns at once.
        batch_rows: How many are scored at a time.
        threads: How many its networks can use with profit; None for as many as there are.
    """

    title: str
    fit: Callable[[Any, Any, Sequence[str]], Encoder]
    restore: Callable[[Mapping[str, Any]], Encoder]
    shape: Callable[[Any], Any]
    models: Mapping[str, Callable[..., nn.Module]]
    stages: Callable[[int, int, str], Sequence[Stage]]
    takes: frozenset[str]
    suspects: Callable[[Any, Any, Labels], list[str]] = lambda _encoder, _table, _labels: []
    gather: Callable[[Any, Labels, Any], Gathered] | None = None
    groupings: Mapping[str, Callable[[Any, Any], Sequence[str]]] = field(default_factory=dict)
    needs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    several_targets: bool = False
    batch_rows: int = 8192
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
