"""From a job's files to what is trained on and what is chosen by."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from apmax.data import Labels, RowSource, Targets, any_known, any_positive
from apmax.data.images import ImageFolder
from apmax.train import Data
from apmax.workflows.data_types import KINDS, Encoder, Refused, encode
from apmax.workflows.holding import hold_out
from apmax.workflows.sources import open_source
from apmax.workflows.spec import DataSpec


@dataclass(frozen=True)
class Rows:
    """Rows of a file with their labels; those without a label are left out and counted.

    `dataset` holds what the rows were read to, where all of a file is read at once.
    """

    table: Any
    labels: Labels
    dataset: Any = None
    warnings: tuple[str, ...] = ()
    refused: tuple[Refused, ...] = ()

    @property
    def positives(self) -> int:
        """How many are positive, for any target."""
        return int(any_positive(self.labels).sum())

    def take(self, rows: Any) -> Rows:
        """Return some of them."""
        part = None if self.dataset is None else self.dataset.subset(rows)
        return Rows(self.table.take(rows), self.labels[rows], part)


@dataclass(frozen=True)
class Prepared:
    """Everything that a training needs of its data.

    `spec` is the job's [data] with what it left open, `facts` are lines that tell what was understood, `warnings` lines
    that ask for a look, `refused` the rows of each file that cannot be read.
    """

    spec: DataSpec
    data: Data
    encoder: Encoder
    target: Targets
    train_rows: int
    train_positives: int
    facts: list[str]
    warnings: list[str]
    valid: Rows
    test: Rows | None = None
    refused: Mapping[str, tuple[Refused, ...]] = field(default_factory=dict)


def read_rows(source: RowSource, targets: Targets, spec: DataSpec, table: Any = None) -> Rows:
    """Return the labelled rows of a file that can be read.

    Raises:
        ValueError: No such column, no labelled rows.
    """
    targets.check_columns(source)
    table = source.read() if table is None else table
    labels = targets.labels(table)
    gather = KINDS[spec.kind].gather
    if gather is not None:
        found = gather(table, labels, spec, source)
        warnings, refused = tuple(found.warnings), tuple(found.refused)
        return Rows(table.take(found.rows), labels[found.rows], found.dataset, warnings, refused)
    known = any_known(labels)
    if known.all():
        return Rows(table, labels)
    line = f"{int((~known).sum()):,} rows without a {targets.names[0]!r} are left out"
    return Rows(table.filter(known), labels[known], warnings=(line,))


def check_classes(rows: Rows, source: RowSource, targets: Targets) -> None:
    """Raise unless every target has positive and negative rows."""
    for target, column in zip(targets.each, rows.labels.reshape(len(rows.labels), -1).T, strict=True):
        for value, name in ((1, target.positive), (0, target.negative)):
            if not (column == value).any():
                raise ValueError(f"{source.path} has no row whose {target.name!r} is {name!r}")


def open_files(spec: DataSpec) -> dict[str, RowSource]:
    """Return a job's files, none of which lacks a column.

    Raises:
        ValueError: One does.
    """
    sources = {
        name: open_source(path, kind=spec.kind, smiles=spec.smiles, targets=spec.targets)
        for name in ("train", "valid", "test")
        if (path := getattr(spec, name)) is not None
    }
    for source in sources.values():
        for name in spec.targets:
            source.check_column(name, "target")
    for name in ("group", "time"):
        if getattr(spec, name) is not None:
            sources["train"].check_column(getattr(spec, name), name)
    return sources


def prepare(spec: DataSpec, *, seed: int) -> Prepared:
    """Read the files, hold rows out, fit the encoder to the training rows only and encode."""
    kind, sources = KINDS[spec.kind], open_files(spec)
    table = sources["train"].read()
    spec = kind.settle(spec, table, sources["train"])
    if isinstance(sources["train"], ImageFolder):
        for name in spec.targets:
            sources["train"].check_class(name)
    targets = Targets.fit(spec.targets, table, positive=spec.positive)
    files = {name: read_rows(each, targets, spec, table if name == "train" else None) for name, each in sources.items()}
    for name in ("train", "valid"):
        if name in files:
            check_classes(files[name], sources[name], targets)
    rows, test = files["train"], files.get("test")
    if test is not None and not test.positives:
        raise ValueError(f"test: {sources['test'].path} has no positive row: AP is undefined")
    warnings = [
        line if name == "train" else f"{sources[name].path.name}: {line}"
        for name, each in files.items()
        for line in each.warnings
    ]
    if "valid" in files:
        train, valid, how = rows, files["valid"], sources["valid"].path.name
    else:
        parts = hold_out(rows.table, rows.labels, spec, seed=seed)
        train, valid, how = rows.take(parts.train), rows.take(parts.valid), parts.how
        test = test if parts.test is None else rows.take(parts.test)
        warnings += unmeasurable(targets, {"to train on": train, "to choose by": valid, "for the test": test})
    without = [name for name in (*spec.targets, spec.group, spec.time) if name is not None]
    encoder = kind.fit(train.table, spec, without)
    first, second = (
        next(encode(encoder, part.table)).dataset if part.dataset is None else part.dataset for part in (train, valid)
    )
    facts = [
        f"{sources['train'].path.name}: {len(rows.labels):,} rows, {described(rows, targets)}",
        f"train on {counted(train)}, choose by {counted(valid)}"
        + (f", test on {counted(test)}" if test is not None else "")
        + f" ({how})",
        kind.describe(spec),
        "; ".join(f"{len(names)} {plural(name, len(names))}" for name, names in encoder.summary().items() if names),
        *(f"left out: {name!r} ({reason})" for name, reason in encoder.left_out.items()),
    ]
    warnings += kind.suspects(encoder, train.table, train.labels)
    first = kind.for_training(first, spec, seed)
    data = Data(first, second, labels=train.labels, valid_labels=valid.labels)
    facts = [fact for fact in facts if fact]
    refused = {sources[name].path.name: each.refused for name, each in files.items() if each.refused}
    return Prepared(
        spec, data, encoder, targets, len(train.labels), train.positives, facts, warnings, valid, test, refused
    )


def unmeasurable(targets: Targets, parts: Mapping[str, Rows | None]) -> list[str]:
    """Return a line for each of several targets that a part has no positive or no negative row of."""
    return [
        f"{target.name!r} has no {word} row {part}: hold out more (--share), or in another way"
        for part, rows in parts.items()
        if rows is not None and rows.labels.ndim > 1
        for target, column in zip(targets.each, rows.labels.T, strict=True)
        for value, word in ((1, "positive"), (0, "negative"))
        if not (column == value).any()
    ]


def described(rows: Rows, targets: Targets) -> str:
    """Return in words how many rows are positive, for each target."""
    if len(targets.each) == 1:
        only = targets.each[0]
        return f"{rows.positives:,} positive ({rows.positives / len(rows.labels):.2%}; {only.name} = {only.positive})"
    measured = zip(targets.each, rows.labels.T, strict=True)
    return "positive " + ", ".join(
        f"{target.name} {int((column == 1).sum()):,} of {int((~np.isnan(column)).sum()):,}"
        for target, column in measured
    )


def counted(rows: Rows) -> str:
    """Return the number of rows and positives in words."""
    return f"{len(rows.labels):,} rows ({rows.positives:,} positive)"


def plural(name: str, count: int) -> str:
    """Return a noun as it is after a number.

    >>> plural("category", 2), plural("date", 1)
    ('categories', 'date')
    """
    return name if count == 1 else f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"
