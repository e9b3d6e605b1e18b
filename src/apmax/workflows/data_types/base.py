"""What a kind of data consists of."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from torch import Tensor, nn

from apmax import validation
from apmax.train import Stage, check_known_key
from apmax.workflows.data_types.encoded import Encoded, Refused, RowReport

Labels = npt.NDArray[np.float32]


class Encoder(Protocol):
    """What every row becomes, saved as plain JSON."""

    @property
    def names(self) -> list[str]:
        """The columns that are read."""

    @property
    def left_out(self) -> Mapping[str, str]:
        """The columns that are not, each with the reason."""

    def encode(self, table: Any, report: RowReport | None = None) -> Tensor | Encoded | Iterator[Encoded]:
        """Return a `pyarrow.Table`'s rows as a tensor, or as a dataset of those that can be read, or as several."""

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
        refused: Those that cannot be read.
    """

    dataset: Any
    rows: npt.NDArray[np.int64]
    warnings: list[str]
    refused: list[Refused] = field(default_factory=list)


@dataclass(frozen=True)
class Pictures:
    """How rows can be looked at.

    Args:
        files: The image files of a table's rows: `files(encoder, table)`.
        draw: Writes a picture of the best of them: `draw(path, files, scores, labels, title, data)`, where labels are
            NaN if unknown and `title` is a line to stand above, or None.
    """

    files: Callable[[Any, Any], Sequence[str]]
    draw: Callable[[Path, Sequence[str], Any, Any, str | None, Any], None]


@dataclass(frozen=True)
class Kind:
    """One kind of data. `data` is always a job's [data], `source` a file's or a folder's rows.

    Args:
        title: A line for people.
        fit: Makes the encoder: `fit(table, data, without)`.
        restore: Makes it from what `Encoder.to_table` returned.
        shape: What the networks are told of the encoder, their first argument.
        models: The networks by name; the first is the default.
        stages: The stages of training: `stages(rows, positives, model)`.
        takes: The keys of [data] that only some kinds understand and this one does.
        check: Raises for values of those that cannot be meant.
        settle: Fills in what [data] leaves open: `settle(data, table, source)`.
        describe: A line for people about [data], once it is settled.
        suspects: Lines about columns that may have been written after the outcome.
        gather: Reads all rows of a file at once: `gather(table, labels, data, source)`. Only where the encoder learns
            nothing from rows; without it, rows are held out first, and the encoder is fitted to the others.
        for_training: Makes of a dataset that of the training rows: `for_training(dataset, data, seed)`.
        reading: Makes of an encoder that of another file: `reading(encoder, source, given)`, where `given` are those
            keys of [data] that differ from training.
        groupings: Ways to hold out whole groups of rows: `grouping(table, data)` names each row's group.
        needs: What some models, by name, need in [data].
        load_weights: Loads a file of weights into a new network and says what was taken; None where there are no such.
        pictures: How rows can be looked at; None where there is nothing to see.
        batch_rows: How many are scored at a time, by [data].
        several_targets: Whether its networks predict several columns at once.
        folders: Whether it reads folders.
        threads: How many its networks can use with profit; None for as many as there are.
    """

    title: str
    fit: Callable[[Any, Any, Sequence[str]], Encoder]
    restore: Callable[[Mapping[str, Any]], Encoder]
    shape: Callable[[Any], Any]
    models: Mapping[str, Callable[..., nn.Module]]
    stages: Callable[[int, int, str], Sequence[Stage]]
    takes: frozenset[str]
    check: Callable[[Any], None] = lambda _data: None
    settle: Callable[[Any, Any, Any], Any] = lambda data, _table, _source: data
    describe: Callable[[Any], str] = lambda _data: ""
    suspects: Callable[[Any, Any, Labels], list[str]] = lambda _encoder, _table, _labels: []
    gather: Callable[[Any, Labels, Any, Any], Gathered] | None = None
    for_training: Callable[[Any, Any, int], Any] = lambda dataset, _data, _seed: dataset
    reading: Callable[[Any, Any, Mapping[str, Any]], Any] = lambda encoder, _source, _given: encoder
    groupings: Mapping[str, Callable[[Any, Any], Sequence[str]]] = field(default_factory=dict)
    needs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    load_weights: Callable[[Any, str], str] | None = None
    pictures: Pictures | None = None
    batch_rows: Callable[[Any], int] = lambda _data: 8192
    several_targets: bool = False
    folders: bool = False
    threads: int | None = None

    def build(self, encoder: Encoder, name: str, options: Mapping[str, Any]) -> nn.Module:
        """Return a new network of that name.

        Raises:
            ValueError: No such network, or it has no such option.
        """
        model = self.models[validation.choice("model", name, self.models)]
        known = list(inspect.signature(model).parameters)[1:]
        for key in options:
            check_known_key(key, known, f"the options of model {name!r}")
        return model(self.shape(encoder), **options)
