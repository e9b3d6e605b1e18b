"""From a job's files to what is trained on and what is chosen by."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data.tables import Source, Target, by_group, by_time, parsing, stratified
from apmax.data.tables.encoder import shown
from apmax.jobs.spec import DataSpec
from apmax.kinds import KINDS, Encoder, as_dataset
from apmax.train import Data

Labels = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Rows:
    """Rows of a file with their labels; those without a label are left out and counted."""

    table: Any
    labels: Labels
    unlabelled: int

    @property
    def positives(self) -> int:
        """How many are positive."""
        return int(self.labels.sum())


@dataclass(frozen=True)
class Prepared:
    """Everything that a training needs of its data.

    `facts` are lines that tell what was understood, `warnings` lines that ask for a look.
    """

    data: Data
    encoder: Encoder
    target: Target
    train_rows: int
    train_positives: int
    facts: list[str]
    warnings: list[str]


def read_rows(source: Source, target: Target, table: Any = None) -> Rows:
    """Return the labelled rows of a file.

    Raises:
        ValueError: No such column, no labelled rows, a class that is missing.
    """
    table = source.read() if table is None else table
    labels = target.labels(table.column(has_column(source, target.name, "target")))
    known = ~np.isnan(labels)
    if not known.all():
        table, labels = table.filter(known), labels[known]
    for value, name in ((1, target.positive), (0, target.negative)):
        if not (labels == value).any():
            raise ValueError(f"{source.path} has no row whose {target.name!r} is {name!r}")
    return Rows(table, labels, int((~known).sum()))


def has_column(source: Source, name: str, what: str) -> str:
    """Return `name` if the file has such a column.

    Raises:
        ValueError: It has not.
    """
    if name not in source.columns:
        raise ValueError(f"{what}: {source.path} has no column {name!r}; its columns are {shown(source.columns)}")
    return name


def prepare(spec: DataSpec, *, seed: int) -> Prepared:
    """Read the files, hold rows out, fit the encoder to the training rows only and encode."""
    kind = KINDS[spec.kind]
    sources = {name: Source(path) for name in ("train", "valid", "test") if (path := getattr(spec, name)) is not None}
    for source in sources.values():
        has_column(source, spec.target, "target")
    for name in ("group", "time"):
        if getattr(spec, name) is not None:
            has_column(sources["train"], getattr(spec, name), name)
    table = sources["train"].read()
    target = Target.fit(spec.target, table.column(spec.target), positive=spec.positive)
    rows = read_rows(sources["train"], target, table)
    if "valid" in sources:
        train, valid, how = rows, read_rows(sources["valid"], target), sources["valid"].path.name
    else:
        first, second, how = hold_out(rows, spec, seed=seed)
        train, valid = (Rows(rows.table.take(part), rows.labels[part], 0) for part in (first, second))
    without = [name for name in (spec.target, spec.group, spec.time) if name is not None]
    encoder = kind.fit(train.table, roles=spec.columns, without=without)
    data = Data(
        as_dataset(encoder.encode(train.table)),
        as_dataset(encoder.encode(valid.table)),
        labels=train.labels,
        valid_labels=valid.labels,
    )
    facts = [
        f"{sources['train'].path.name}: {len(rows.labels):,} rows, {rows.positives:,} positive "
        f"({rows.positives / len(rows.labels):.2%}; {target.name} = {target.positive})",
        f"train on {counted(train)}, choose by {counted(valid)} ({how})",
        "; ".join(f"{len(names)} {plural(name, len(names))}" for name, names in encoder.summary().items() if names),
        *(f"left out: {name!r} ({reason})" for name, reason in encoder.left_out.items()),
    ]
    warnings = [f"{rows.unlabelled:,} rows without a {target.name!r} are left out"] if rows.unlabelled else []
    warnings += kind.suspects(encoder, train.table, train.labels)
    return Prepared(data, encoder, target, len(train.labels), train.positives, facts, warnings)


def hold_out(rows: Rows, spec: DataSpec, *, seed: int) -> tuple[Any, Any, str]:
    """Return the rows to train on, those to choose by, and how they were told apart."""
    if spec.group is not None:
        groups = np.asarray(parsing.words(rows.table.column(spec.group)).fill_null("").to_pylist())
        return *by_group(rows.labels, groups, spec.share, seed=seed), f"whole groups of {spec.group!r}"
    if spec.time is not None:
        return *by_time(rows.labels, moments(rows.table.column(spec.time)), spec.share), f"the latest by {spec.time!r}"
    return *stratified(rows.labels, spec.share, seed=seed), f"a random {spec.share:.0%} of each class"


def moments(column: Any) -> npt.NDArray[np.float64]:
    """Return a column of dates, or of numbers that count time, as numbers."""
    if not parsing.is_date(column):
        values, unreadable = parsing.numbers(column)
        if unreadable == 0:
            return values
    form = "iso" if parsing.is_date(column) else parsing.date_format(parsing.words(column)) or "iso"
    return parsing.seconds(column, form)[0]


def counted(rows: Rows) -> str:
    """Return the number of rows and positives in words."""
    return f"{len(rows.labels):,} rows ({rows.positives:,} positive)"


def plural(name: str, count: int) -> str:
    """Return a noun as it is after a number.

    >>> plural("category", 2), plural("date", 1)
    ('categories', 'date')
    """
    return name if count == 1 else f"{name[:-1]}ies" if name.endswith("y") else f"{name}s"
