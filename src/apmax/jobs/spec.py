"""A job as a value: which data, which model, which run; read from TOML and from a command line's wishes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from apmax import config, extras, validation
from apmax.config import Run
from apmax.config.table import Table, from_table, to_table
from apmax.jobs.toml import parse
from apmax.jobs.wishes import Wishes, change_run, set_value
from apmax.kinds import KINDS


@dataclass(frozen=True)
class DataSpec(Table):
    """Where the rows are and what they mean.

    Args:
        train: File of the rows to learn from.
        target: The column to be predicted.
        kind: An entry of `KINDS`.
        valid: File of rows to choose by; without it `share` of the training rows are held out.
        test: File of rows that are scored once, at the very end.
        positive: The target's value that counts as positive, where that is not plain.
        group: A column whose groups are held out whole.
        time: A column by which the latest rows are held out.
        share: How much is held out.
        columns: What some columns are, by name.
    """

    train: str
    target: str
    kind: str = "table"
    valid: str | None = None
    test: str | None = None
    positive: str | None = None
    group: str | None = None
    time: str | None = None
    share: float = 0.2
    columns: Mapping[str, str] = field(default_factory=dict)

    _floats = ("share",)

    def check(self) -> None:
        """Raise for an unknown kind, and for ways of holding out that exclude each other."""
        validation.choice("data.kind", self.kind, KINDS)
        validation.interval("data.share", self.share, 0, 1, closed="neither")
        ways = [name for name in ("valid", "group", "time") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} exclude each other: each says which rows are held out to choose by")
        for name in ("group", "time"):
            if getattr(self, name) == self.target:
                raise ValueError(f"{name} must be another column than the target {self.target!r}")


@dataclass(frozen=True)
class ModelSpec:
    """A network of the kind, by name, and its options."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Job:
    """All that a training needs."""

    data: DataSpec
    model: ModelSpec
    run: Run


def data_spec(table: Mapping[str, Any], wishes: Wishes) -> DataSpec:
    """Return the [data] of a job's table, with what was wished for.

    Raises:
        ValueError: A key that is not known, no data, no target.
    """
    fields = dict(table.get("data", {}))
    for path, value in wishes.settings("data"):
        set_value(fields, path, value)
    for name, option in (("train", "a data file"), ("target", "the column to be predicted")):
        if not fields.get(name):
            raise ValueError(
                f"{option} is needed: {'--target COLUMN' if name == 'target' else 'DATA'}, or [data] {name}"
            )
    return from_table(DataSpec, fields, "[data]")


def resolve(table: Mapping[str, Any], wishes: Wishes, data: DataSpec, *, rows: int, positives: int) -> Job:
    """Return the job that a table and wishes describe, every default filled in for training rows of that number.

    >>> wishes = Wishes(epochs=2, lr=0.003)
    >>> job = resolve({}, wishes, DataSpec(train="a.csv", target="y"), rows=10_000, positives=200)
    >>> [(stage.name, stage.epochs, stage.optimizer.lr) for stage in job.run.stages]
    [('ce', 51, 0.003), ('ap + ce', 2, 0.001)]
    """
    fields = {key: value for key, value in table.items() if key != "data"}
    kind = KINDS[data.kind]
    options = dict(fields.pop("model", {}))
    for path, value in wishes.settings("model"):
        set_value(options, path, value)
    name = validation.choice("model.name", options.pop("name", next(iter(kind.models))), kind.models)
    own_stages = "stage" in fields or "recipe" in fields
    run = config.read_run(fields) if own_stages else config.Run(stages=tuple(kind.stages(rows, positives, name)))
    if not own_stages:
        run = config.read_run({**plain(run), **fields})
    return Job(data, ModelSpec(name, options), config.read_run(change_run(plain(run), wishes)))


def plain(run: Run) -> dict[str, Any]:
    """Return a run as plain tables, as TOML has them."""
    return parse(config.dumps(run))


def dumps(job: Job) -> str:
    """Return a job as TOML, every default written out."""
    own = {"data": to_table(job.data), "model": {"name": job.model.name, **job.model.options}}
    return f"{config.dumps(job.run)}\n{extras.load('tomli_w', 'train').dumps(own)}"


def loads(text: str) -> Job:
    """Return the job that `dumps` wrote."""
    table = parse(text)
    data = data_spec(table, Wishes())
    return resolve(table, Wishes(), data, rows=1, positives=1)
