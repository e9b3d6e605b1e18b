"""Data preparation: from a job's files to encoded training and validation rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data import (
    Labels,
    RowSource,
    Targets,
    UnreadableRow,
    any_positive,
    k_fold,
    one_column,
    parsing,
    split_by_group,
    split_by_time,
    split_random,
    split_stratified,
    timestamps,
)
from apmax.data.splits import RowNumbers
from apmax.train import Data
from apmax.validation import plural
from apmax.workflows.data_types import DataConfig, DataType, Encoder, LabelledRows, data_type_of, encode_rows


@dataclass(frozen=True)
class PreparedData:
    """Encoded data of a training.

    Args:
        config: The job's [data] with the fields that it left open.
        data: Training and validation rows for the trainer.
        encoder: Fitted to the training rows only.
        targets: The targets and the meaning of their values.
        train_rows: Number of training rows.
        train_positives: Number of positive ones.
        facts: Lines about how the data were understood.
        warnings: Lines that deserve a look.
        valid: Validation rows.
        test: Test rows, if there are any.
        unreadable: Rows of each file that could not be read.
        pool: The training and validation rows together, where `ensemble_folds` may divide them in another way.
        groups: The group of each row of the pool; None without groups.
    """

    config: DataConfig
    data: Data
    encoder: Encoder
    targets: Targets
    train_rows: int
    train_positives: int
    facts: list[str]
    warnings: list[str]
    valid: LabelledRows
    test: LabelledRows | None = None
    unreadable: Mapping[str, tuple[UnreadableRow, ...]] = field(default_factory=dict)
    pool: LabelledRows | None = None
    groups: npt.NDArray[Any] | None = None


@dataclass(frozen=True)
class Folds:
    """Training and validation rows of the networks of an ensemble, each of which holds out another part.

    Args:
        data: The rows of each network.
        held_out: The rows that it holds out, as positions in `rows`.
        rows: All rows that a network holds out.
    """

    data: Sequence[Data]
    held_out: Sequence[RowNumbers]
    rows: LabelledRows


def ensemble_folds(prepared: PreparedData, count: int, *, seed: int) -> Folds | None:
    """Return the rows of `count` networks, so that together they learn from the validation rows too.

    The rows are divided into as many parts as the validation part fits into them; network k holds out part k, and the
    parts begin anew where there are more networks. Groups stay whole.

    Args:
        prepared: The data.
        count: Number of networks.
        seed: Of the parts and the augmentation.

    Returns:
        The folds, or None where the rows cannot be divided in another way: validation rows of a file, the latest rows,
        an encoder that has learnt from the training rows, or too few positives or groups.
    """
    pool = prepared.pool
    if pool is None or count < 2:
        return None
    data_type = data_type_of(prepared.config)
    parts = max(2, round(len(pool.labels) / len(prepared.valid.labels)))
    try:
        split = k_fold(pool.labels, parts, groups=prepared.groups, seed=seed)
    except ValueError:  # fewer groups than parts
        return None
    positive = any_positive(pool.labels)
    if not all(positive[rows].any() and not positive[rows].all() for pair in split for rows in pair):
        return None
    chosen = [split[number % parts] for number in range(count)]
    used = np.unique(np.concatenate([held_out for _, held_out in chosen]))
    data = []
    for train, held_out in chosen:
        learnt, valid = pool.take(train), pool.take(held_out)
        data.append(
            Data(
                data_type.training_dataset(learnt.dataset, seed),
                valid.dataset,
                labels=learnt.labels,
                valid_labels=valid.labels,
                sample_weight=_relative_weight(learnt),
                valid_sample_weight=_relative_weight(valid),
            )
        )
    return Folds(data, [np.searchsorted(used, held_out) for _, held_out in chosen], pool.take(used))


def prepare_data(config: DataConfig, *, seed: int) -> PreparedData:
    """Read the files, split the rows, fit the encoder to the training rows and encode them.

    Raises:
        ValueError: A missing column, a target without two values, a part without positives or negatives.
    """
    files = _read_files(config)
    data_type, targets, rows, test = files.data_type, files.targets, files.train, files.parts.get("test")
    warnings = files.warnings()
    pool, groups = None, None
    if "valid" in files.parts:
        train, valid, method = rows, files.parts["valid"], files.sources["valid"].path.name
    else:
        parts = split_rows(rows.table, rows.labels, data_type, seed=seed, dataset=rows.dataset)
        train, valid, method = rows.take(parts.train), rows.take(parts.valid), parts.method
        test = test if parts.test is None else rows.take(parts.test)
        if not data_type.learns_from_rows and config.time is None:
            divided = np.sort(np.concatenate([parts.train, parts.valid]))
            pool, every = rows.take(divided), _row_groups(rows.table, data_type, rows.dataset)
            groups = None if every is None else every[divided]
        warnings += _one_sided_targets(targets, {"training": train, "validation": valid, "test": test})
    encoder = data_type.fit_encoder(train.table, data_type.config.not_features)
    train_set, valid_set = (
        next(encode_rows(encoder, part.table)).dataset if part.dataset is None else part.dataset
        for part in (train, valid)
    )
    warnings += data_type.suspicions(encoder, train.table, train.labels)
    return PreparedData(
        config=data_type.config,
        data=Data(
            data_type.training_dataset(train_set, seed),
            valid_set,
            labels=train.labels,
            valid_labels=valid.labels,
            sample_weight=_relative_weight(train),
            valid_sample_weight=_relative_weight(valid),
        ),
        encoder=encoder,
        targets=targets,
        train_rows=len(train.labels),
        train_positives=train.positives,
        facts=[
            files.train_text(),
            _parts_text({"train on": train, "choose by": valid, "test on": test}, method),
            *data_type.facts(),
            *_columns_text(encoder),
        ],
        warnings=warnings,
        valid=valid,
        test=test,
        unreadable=files.unreadable(),
        pool=pool,
        groups=groups,
    )


@dataclass(frozen=True)
class CommitteeRows:
    """Rows for a committee, which makes its own folds.

    Args:
        data_type: The data type with the completed configuration.
        targets: The targets and the meaning of their values.
        rows: The training rows.
        encoder: Fitted to all training rows: it says which columns are read. Each fold has an encoder of its own.
        groups: (rows,) the group of each row; None without groups.
        times: (rows,) the time of each row; None without times.
        facts: Lines about how the data were understood.
        warnings: Lines that deserve a look.
        test: Test rows, if there are any.
        unreadable: Rows of each file that could not be read.
    """

    data_type: DataType[Any]
    targets: Targets
    rows: LabelledRows
    encoder: Encoder
    groups: npt.NDArray[Any] | None
    times: npt.NDArray[np.float64] | None
    facts: list[str]
    warnings: list[str]
    test: LabelledRows | None
    unreadable: Mapping[str, tuple[UnreadableRow, ...]]

    @property
    def sample_weight(self) -> npt.NDArray[np.float64]:
        """The weight of each row, 1 without weights."""
        given = self.rows.sample_weight
        return np.ones(len(self.rows.labels)) if given is None else given

    def hold_out(self, share: float, *, seed: int) -> tuple[RowNumbers, RowNumbers]:
        """Return training and held-out rows of one split by the rule of the configuration.

        Raises:
            ValueError: A part would have no positives or no negatives.
        """
        rows = self.rows
        halve, method = _splitter(rows.table, rows.labels, self.data_type, seed=seed, dataset=rows.dataset)
        train, held_out = halve(np.arange(len(self.rows.labels)), share)
        _check_parts(one_column(self.rows.labels), {"training": train, "validation": held_out}, method)
        return train, held_out


def prepare_committee_rows(config: DataConfig, *, seed: int) -> CommitteeRows:
    """Read the files, and hold out test rows if a share of them is asked for.

    Raises:
        ValueError: A missing column, a target without two values, a part without positives or negatives.
    """
    files = _read_files(config)
    data_type, rows, test = files.data_type, files.train, files.parts.get("test")
    config = data_type.config
    halve, method = _splitter(rows.table, rows.labels, data_type, seed=seed, dataset=rows.dataset)
    if config.test_share:
        train, held_out = halve(np.arange(len(rows.labels)), config.test_share)
        _check_parts(one_column(rows.labels), {"training": train, "test": held_out}, method)
        rows, test = rows.take(train), rows.take(held_out)
    encoder = data_type.fit_encoder(rows.table, config.not_features)
    return CommitteeRows(
        data_type=data_type,
        targets=files.targets,
        rows=rows,
        encoder=encoder,
        groups=_row_groups(rows.table, data_type, rows.dataset),
        times=None if config.time is None else timestamps(rows.table.column(config.time)),
        facts=[
            files.train_text(),
            *([_parts_text({"train on": rows, "test on": test}, method)] if config.test_share else []),
            *data_type.facts(),
            *_columns_text(encoder),
        ],
        warnings=[*files.warnings(), *data_type.suspicions(encoder, rows.table, rows.labels)],
        test=test,
        unreadable=files.unreadable(),
    )


@dataclass(frozen=True)
class _JobFiles:
    """The labelled rows of a job's files, by "train", "valid" and "test"."""

    data_type: DataType[Any]
    targets: Targets
    sources: Mapping[str, RowSource]
    parts: Mapping[str, LabelledRows]

    @property
    def train(self) -> LabelledRows:
        return self.parts["train"]

    def warnings(self) -> list[str]:
        """Return the warnings of all files; those of other files than the training file begin with their name."""
        return [
            line if name == "train" else f"{self.sources[name].path.name}: {line}"
            for name, part in self.parts.items()
            for line in part.warnings
        ]

    def unreadable(self) -> dict[str, tuple[UnreadableRow, ...]]:
        return {self.sources[name].path.name: part.unreadable for name, part in self.parts.items() if part.unreadable}

    def train_text(self) -> str:
        rows = self.train
        return f"{self.sources['train'].path.name}: {len(rows.labels):,} rows, {_positives_text(rows, self.targets)}"


def _read_files(config: DataConfig) -> _JobFiles:
    data_type = data_type_of(config)
    sources = _open_sources(data_type)
    table = sources["train"].read()
    data_type = data_type.complete(table, sources["train"])
    config = data_type.config
    targets = Targets.fit(config.targets, table, positive=config.positive)
    parts = {
        name: _with_weight(
            data_type.read_rows(source, targets, table if name == "train" else None), source, config.weight
        )
        for name, source in sources.items()
    }
    for name in ("train", "valid"):
        if name in parts:
            _check_classes(parts[name], sources[name], targets)
    if "test" in parts and not parts["test"].positives:
        raise ValueError(f"test: {sources['test'].path} has no positive row: AP is undefined")
    return _JobFiles(data_type, targets, sources, parts)


def _with_weight(rows: LabelledRows, source: RowSource, column: str | None) -> LabelledRows:
    """Return the rows of positive weight with their weights.

    Raises:
        ValueError: A weight is missing, not a number or negative.
    """
    if column is None:
        return rows
    weight = read_weights(rows.table, column, source, rows.row_numbers)
    kept = weight > 0
    with_weight = replace(rows, sample_weight=weight)
    if kept.all():
        return with_weight
    line = f"{int((~kept).sum()):,} rows of weight 0 are left out"
    part = with_weight.take(np.flatnonzero(kept))
    return replace(part, warnings=(*rows.warnings, line), unreadable=rows.unreadable)


def read_weights(
    table: Any, column: str, source: RowSource, rows: npt.NDArray[np.int64] | None = None
) -> npt.NDArray[np.float64]:
    """Return the sample weights of rows.

    Args:
        table: The rows.
        column: The column of weights.
        source: Their file, for the error message.
        rows: The place of each row in the file.

    Raises:
        ValueError: A weight is missing, not a finite number or negative; the message names the rows.
    """
    weight, _ = parsing.numbers(table.column(column))
    bad = np.flatnonzero(~(weight >= 0))
    if len(bad):
        shown = ", ".join(str(row) for row in (bad if rows is None else rows[bad])[:5])
        raise ValueError(
            f"weight: column {column!r} of {source.path.name} must hold numbers that are not negative; it does not in "
            f"{len(bad):,} rows (counted from 0): {shown}"
        )
    return weight


def _relative_weight(rows: LabelledRows) -> npt.NDArray[np.float32] | None:
    """Return weights of mean 1, so that their unit does not change the size of the loss."""
    if rows.sample_weight is None:
        return None
    relative: npt.NDArray[np.float32] = (rows.sample_weight / rows.sample_weight.mean()).astype(np.float32)
    return relative


@dataclass(frozen=True)
class RowSplit:
    """Row numbers of the training, validation and test parts (None without a test part), and the method in words."""

    train: RowNumbers
    valid: RowNumbers
    test: RowNumbers | None
    method: str


def split_rows(table: Any, labels: Labels, data_type: DataType[Any], *, seed: int, dataset: Any = None) -> RowSplit:
    """Return the parts of a file's rows.

    Groups stay whole, and each class has about its share in every part. Of several targets each has its share where
    rows are held out at random.

    Raises:
        ValueError: A part would have no positives or no negatives.
    """
    config, positive = data_type.config, one_column(labels)
    halve, method = _splitter(table, labels, data_type, seed=seed, dataset=dataset)
    rest, test = np.arange(len(labels)), None
    if config.test_share:
        rest, test = halve(rest, config.test_share)
    train, valid = halve(rest, config.share / (1 - config.test_share))
    _check_parts(positive, {"training": train, "validation": valid, "test": test}, method)
    return RowSplit(train, valid, test, method)


def _check_parts(positive: Labels, parts: Mapping[str, RowNumbers | None], method: str) -> None:
    for part, rows in parts.items():
        for value, word in ((1, "positive"), (0, "negative")):
            if rows is not None and not (positive[rows] == value).any():
                raise ValueError(
                    f"holding out {method} leaves no {word} row for {part}: hold out more, or in another way"
                )


Halve = Callable[[RowNumbers, float], tuple[RowNumbers, RowNumbers]]


def _splitter(
    table: Any, labels: Labels, data_type: DataType[Any], *, seed: int, dataset: Any = None
) -> tuple[Halve, str]:
    """Return a function that splits some rows, by their numbers and the share to hold out; and its method in words."""
    config = data_type.config

    def numbered(split: Halve) -> Halve:
        def halve(rows: RowNumbers, share: float) -> tuple[RowNumbers, RowNumbers]:
            train, held_out = split(rows, share)
            return rows[train], rows[held_out]

        return halve

    groups = _row_groups(table, data_type, dataset)
    if groups is not None:
        if config.group is not None:
            method = f"whole groups of {config.group!r}"
        else:
            method = f"whole {config.split}s, {len(set(groups)):,} in all"
        return numbered(lambda rows, share: split_by_group(labels[rows], groups[rows], share, seed=seed)), method
    if config.time is not None:
        times, method = timestamps(table.column(config.time)), f"the latest by {config.time!r}"
        return numbered(lambda rows, share: split_by_time(labels[rows], times[rows], share)), method
    if config.split == "random":
        method = "at random"
        return numbered(lambda rows, share: split_random(len(rows), share, seed=seed)), method
    method = "at random within each class"
    return numbered(lambda rows, share: split_stratified(labels[rows], share, seed=seed)), method


def _row_groups(table: Any, data_type: DataType[Any], dataset: Any = None) -> npt.NDArray[Any] | None:
    """Return the group of each row, None where rows are split one by one."""
    config = data_type.config
    if config.group is not None:
        return np.asarray(parsing.words(table.column(config.group)).fill_null("").to_pylist())
    if config.split in config.groupings:
        return np.asarray(data_type.groups(table, dataset))
    return None


def _open_sources(data_type: DataType[Any]) -> dict[str, RowSource]:
    config = data_type.config
    sources = {
        name: data_type.open_source(path)
        for name in ("train", "valid", "test")
        if (path := getattr(config, name)) is not None
    }
    for source in sources.values():
        for name in config.targets:
            source.check_column(name, "target")
    for argument in ("group", "time"):
        if getattr(config, argument) is not None:
            sources["train"].check_column(getattr(config, argument), argument)
    if config.weight is not None:
        for source in sources.values():
            source.check_column(config.weight, "weight")
    return sources


def _check_classes(rows: LabelledRows, source: RowSource, targets: Targets) -> None:
    for target, column in zip(targets.each, rows.labels.reshape(len(rows.labels), -1).T, strict=True):
        for value, name in ((1, target.positive), (0, target.negative)):
            if not (column == value).any():
                raise ValueError(f"{source.path} has no row whose {target.name!r} is {name!r}")


def _one_sided_targets(targets: Targets, parts: Mapping[str, LabelledRows | None]) -> list[str]:
    """Return a line for each of several targets without a positive or a negative row in a part."""
    return [
        f"{target.name!r} has no {word} row for {part}: hold out a larger share, or in another way"
        for part, rows in parts.items()
        if rows is not None and rows.labels.ndim > 1
        for target, column in zip(targets.each, rows.labels.T, strict=True)
        for value, word in ((1, "positive"), (0, "negative"))
        if not (column == value).any()
    ]


def _positives_text(rows: LabelledRows, targets: Targets) -> str:
    if len(targets.each) == 1:
        only = targets.each[0]
        return f"{rows.positives:,} positive ({rows.positives / len(rows.labels):.2%}; {only.name} = {only.positive})"
    return "positive " + ", ".join(
        f"{target.name} {int((column == 1).sum()):,} of {int((~np.isnan(column)).sum()):,}"
        for target, column in zip(targets.each, rows.labels.T, strict=True)
    )


def _parts_text(parts: Mapping[str, LabelledRows | None], method: str) -> str:
    counts = (
        f"{verb} {len(rows.labels):,} rows ({rows.positives:,} positive)"
        for verb, rows in parts.items()
        if rows is not None
    )
    return f"{', '.join(counts)} ({method})"


def _columns_text(encoder: Encoder) -> list[str]:
    types = [plural(len(names), kind) for kind, names in encoder.summary().items() if names]
    left_out = [f"left out: {name!r} ({reason})" for name, reason in encoder.left_out.items()]
    return [*(["; ".join(types)] if types else []), *left_out]
