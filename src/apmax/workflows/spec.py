"""A job as a value: which data, which model, which run; read from TOML and from a command line's wishes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from apmax import validation
from apmax.train import (
    ConfigTable,
    Run,
    config_from_table,
    config_to_table,
    format_toml,
    parse_toml,
    run_from_table,
    run_to_table,
)
from apmax.workflows.data_types import KINDS, Kind
from apmax.workflows.sources import find, is_smi
from apmax.workflows.wishes import Wishes, change_run, set_value

OPTIONS = frozenset({"columns", "smiles", "on_error", "path", "root", "ending", "size", "augment"})
"""The keys of [data] that only some kinds understand and that have options of their own."""
FILES = ("train", "valid", "test", "root")
"""Those that name files or folders."""


@dataclass(frozen=True)
class DataSpec(ConfigTable):
    """Where the rows are and what they mean.

    Args:
        train: File of the rows to learn from, or a folder with a folder per class of images.
        target: The column (or class) to be predicted, or several.
        kind: An entry of `KINDS`.
        valid: File of rows to choose by; without it `share` of the training rows are held out.
        test: File of rows that are scored once, at the very end.
        positive: The target's value that counts as positive, where that is not plain.
        group: A column whose groups are held out whole.
        time: A column by which the latest rows are held out.
        split: How else rows are held out: "stratified" if nothing is said, "random", or one of the kind's groupings.
        share: How much is held out to choose by.
        test_share: How much is held out for the test, in the same way.
        columns: What some columns are, by name.
        smiles: The column of molecules.
        on_error: "skip" molecules and images that cannot be read, or "raise".
        levels: Read what multi-level networks need.
        path: The column of image files.
        root: What their paths begin at; by default the folder of the table.
        ending: What is added to them, such as ".jpg".
        size: Height and width that images are resized to.
        fit: How they become square: "stretch" or "crop".
        augment: What is done to training images at random: "none", "small" or "large".
        upside_down: Mirror them top and bottom, too.
    """

    train: str
    target: str | tuple[str, ...]
    kind: str = "table"
    valid: str | None = None
    test: str | None = None
    positive: str | None = None
    group: str | None = None
    time: str | None = None
    split: str | None = None
    share: float = 0.2
    test_share: float = 0.0
    columns: Mapping[str, str] = field(default_factory=dict)
    smiles: str | None = None
    on_error: str | None = None
    levels: bool | None = None
    path: str | None = None
    root: str | None = None
    ending: str | None = None
    size: int | None = None
    fit: str | None = None
    augment: str | None = None
    upside_down: bool | None = None

    _floats = ("share", "test_share")

    def check(self) -> None:
        """Raise for an unknown kind, keys of another kind, and ways of holding out that exclude each other."""
        kind = KINDS[validation.choice("data.kind", self.kind, KINDS)]
        self._set("target", self.targets[0] if len(self.targets) == 1 else self.targets)
        for name in sorted(set().union(*(each.takes for each in KINDS.values())) - kind.takes):
            if getattr(self, name):
                others = [other for other, each in KINDS.items() if name in each.takes]
                option = (
                    f"--{'column' if name == 'columns' else name.replace('_', '-')}"
                    if name in OPTIONS
                    else f"data.{name}"
                )
                raise ValueError(f"{option} is for data of kind {' or '.join(others)}; these are of kind {self.kind}")
        kind.check(self)
        if len(set(self.targets)) < len(self.targets):
            raise ValueError(f"target must name every column once, got {', '.join(self.targets)}")
        if len(self.targets) > 1 and not kind.several_targets:
            raise ValueError(
                f"data of kind {self.kind} have one target, got {', '.join(self.targets)}; molecules (--smiles COLUMN) "
                "and images (--path COLUMN) may have several"
            )
        for name in ("train", "valid", "test"):
            if is_smi(getattr(self, name) or ""):
                raise ValueError(
                    f"{name}: a .smi file holds no labels; give a csv with the columns --smiles and --target"
                )
        if self.on_error is not None:
            validation.choice("data.on_error", self.on_error, ("skip", "raise"))
        if self.split is not None:
            validation.choice("data.split", self.split, ("stratified", "random", *kind.groupings))
        self._check_shares()
        for name in ("group", "time"):
            if getattr(self, name) in self.targets:
                raise ValueError(f"{name} must be another column than the target {getattr(self, name)!r}")

    def _check_shares(self) -> None:
        validation.interval("data.share", self.share, 0, 1, closed="neither")
        validation.interval("data.test_share", self.test_share, 0, 1, closed="left")
        if self.share + self.test_share >= 1:
            raise ValueError(f"share {self.share:g} and test_share {self.test_share:g} leave no rows to train on")
        ways = [name for name in ("valid", "group", "time", "split") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} exclude each other: each says which rows are held out to choose by")
        other = [name for name in ("valid", "test") if getattr(self, name) is not None]
        if self.test_share and other:
            raise ValueError(f"{other[0]} and test_share exclude each other: name files for both, or for neither")

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to be predicted."""
        return (self.target,) if isinstance(self.target, str) else tuple(self.target)


@dataclass(frozen=True)
class ModelSpec:
    """A network of the kind, by name, its options, and the file of weights that it begins with."""

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    pretrained: str | None = None


@dataclass(frozen=True)
class Job:
    """All that a training needs."""

    data: DataSpec
    model: ModelSpec
    run: Run


def data_spec(table: Mapping[str, Any], wishes: Wishes, places: Sequence[Path] = ()) -> DataSpec:
    """Return the [data] of a job's table, with what was wished for.

    Args:
        table: The job as plain tables.
        wishes: What differs.
        places: Folders in which what is not in the current one is looked for.

    Raises:
        ValueError: A key that is not known, no data, no target.
    """
    fields = dict(table.get("data", {}))
    for path, value in wishes.settings("data"):
        set_value(fields, path, value)
    if not fields.get("train"):
        raise ValueError("a data file is needed: DATA, or [data] train")
    if not fields.get("target"):
        raise ValueError(
            "the column to be predicted is needed: --target COLUMN (of a folder of images: CLASS), or [data] target"
        )
    if "kind" not in fields:
        fields["kind"] = guessed_kind(fields, places)
    spec = config_from_table(DataSpec, fields, "[data]")
    # A model that needs more of the data says so here, where all who read them look.
    needed: dict[str, Any] = dict(KINDS[spec.kind].needs.get(model_table(table, wishes).get("name", ""), {}))
    return replace(spec, **needed)


def guessed_kind(fields: Mapping[str, Any], places: Sequence[Path]) -> str:
    """Return what kind of data is meant: a column of molecules or of files, or a folder, tells it."""
    if fields.get("smiles") or is_smi(fields["train"]):
        return "molecules"
    folder = any((place / fields["train"]).is_dir() for place in (Path(), *places))
    return "images" if folder or fields.get("path") else DataSpec.kind


def located(data: DataSpec, places: Sequence[Path]) -> DataSpec:
    """Return the [data] with its files found.

    Raises:
        FileNotFoundError: A file is not there.
    """
    found: dict[str, Any] = {n: str(find(path, places)) for n in FILES if (path := getattr(data, n)) is not None}
    return replace(data, **found)


def model_table(table: Mapping[str, Any], wishes: Wishes) -> dict[str, Any]:
    """Return the [model] of a job's table, with what was wished for."""
    options = dict(table.get("model", {}))
    for path, value in wishes.settings("model"):
        set_value(options, path, value)
    return options


def resolve(table: Mapping[str, Any], wishes: Wishes, data: DataSpec, *, rows: int, positives: int) -> Job:
    """Return the job that a table and wishes describe, every default filled in for training rows of that number.

    >>> wishes = Wishes(epochs=2, lr=0.003)
    >>> job = resolve({}, wishes, DataSpec(train="a.csv", target="y"), rows=10_000, positives=200)
    >>> [(stage.name, stage.epochs, stage.optimizer.lr) for stage in job.run.stages]
    [('ce', 51, 0.003), ('ap + ce', 2, 0.001)]
    """
    fields = {key: value for key, value in table.items() if key not in ("data", "model")}
    kind = KINDS[data.kind]
    options = model_table(table, wishes)
    pretrained = options.pop("pretrained", None)
    name = validation.choice("model.name", options.pop("name", next(iter(kind.models))), kind.models)
    own_stages = "stage" in fields or "recipe" in fields
    run = run_from_table(fields) if own_stages else Run(stages=tuple(kind.stages(rows, positives, name)))
    if not own_stages:
        run = run_from_table({**run_to_table(run), **fields})
    if "eval_batch_size" not in fields:
        run = replace(run, eval_batch_size=min(run.eval_batch_size, kind.batch_rows(data)))
    run = run_from_table(change_run(run_to_table(run), wishes))
    return Job(data, ModelSpec(name, options, weights_for(kind, data, pretrained, run)), run)


def weights_for(kind: Kind, data: DataSpec, pretrained: str | None, run: Run) -> str | None:
    """Return the file of weights to begin with.

    Raises:
        ValueError: The kind's networks have no such, or there are several models.
    """
    if pretrained is None:
        return None
    if kind.load_weights is None:
        raise ValueError(f"--pretrained is for networks of images; these data are of kind {data.kind}")
    if run.ensemble > 1:
        raise ValueError(
            "--pretrained and --ensemble exclude each other: all models but the first begin with weights of their own"
        )
    return pretrained


def dumps(job: Job) -> str:
    """Return a job as TOML, every default written out."""
    weights = {} if job.model.pretrained is None else {"pretrained": job.model.pretrained}
    own = {"data": config_to_table(job.data), "model": {"name": job.model.name, **job.model.options, **weights}}
    return format_toml({**run_to_table(job.run), **own})


def loads(text: str) -> Job:
    """Return the job that `dumps` wrote."""
    table = parse_toml(text)
    data = data_spec(table, Wishes())
    return resolve(table, Wishes(), data, rows=1, positives=1)
