"""Data preparation: from a job's files to encoded training and validation rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data import Targets, UnreadableRow, any_positive, k_fold
from apmax.data.splits import RowNumbers
from apmax.train import Data
from apmax.validation import plural
from apmax.workflows.data_types import DataConfig, DataType, Encoder, LabelledRows, data_type_of
from apmax.workflows.labelled_files import read_job_files
from apmax.workflows.row_split import check_parts, read_times, row_groups, row_splitter, split_rows


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

    @property
    def prior(self) -> float:
        """The share of positive training rows."""
        return self.train_positives / self.train_rows


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
    data = [
        _encoded(data_type, prepared.encoder, pool.take(train), pool.take(held_out), seed=seed)
        for train, held_out in chosen
    ]
    return Folds(data, [np.searchsorted(used, held_out) for _, held_out in chosen], pool.take(used))


def prepare_data(config: DataConfig, *, seed: int) -> PreparedData:
    """Read the files, split the rows, fit the encoder to the training rows and encode them.

    Raises:
        ValueError: A missing column, a target without two values, a part without positives or negatives.
    """
    files = read_job_files(config)
    data_type, targets, rows, test = files.data_type, files.targets, files.train, files.parts.get("test")
    warnings = files.warnings()
    pool, groups = None, None
    if "valid" in files.parts:
        train, valid, method = rows, files.parts["valid"], files.sources["valid"].path.name
    else:
        parts = split_rows(rows, data_type, seed=seed)
        train, valid, method = rows.take(parts.train), rows.take(parts.valid), parts.method
        test = test if parts.test is None else rows.take(parts.test)
        if not data_type.learns_from_rows and config.time is None:
            divided = np.sort(np.concatenate([parts.train, parts.valid]))
            pool, every = rows.take(divided), row_groups(rows, data_type)
            groups = None if every is None else every[divided]
        warnings += _molecules_on_both_sides(data_type, rows)
        warnings += _one_sided_targets(targets, {"training": train, "validation": valid, "test": test})
    encoder = data_type.fit_encoder(train.table, data_type.config.not_features)
    warnings += data_type.suspicions(encoder, train.table, train.labels)
    return PreparedData(
        config=data_type.config,
        data=_encoded(data_type, encoder, train, valid, seed=seed),
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
        hold_out, method = row_splitter(self.rows, self.data_type, seed=seed)
        train, held_out = hold_out(np.arange(len(self.rows.labels)), share)
        check_parts(self.rows.labels, {"training": train, "validation": held_out}, method)
        return train, held_out


def prepare_committee_rows(config: DataConfig, *, seed: int) -> CommitteeRows:
    """Read the files, and hold out test rows if a share of them is asked for.

    Raises:
        ValueError: A missing column, a target without two values, a part without positives or negatives.
    """
    files = read_job_files(config)
    data_type, rows, test = files.data_type, files.train, files.parts.get("test")
    config = data_type.config
    hold_out, method = row_splitter(rows, data_type, seed=seed)
    if config.test_share:
        train, held_out = hold_out(np.arange(len(rows.labels)), config.test_share)
        check_parts(rows.labels, {"training": train, "test": held_out}, method)
        rows, test = rows.take(train), rows.take(held_out)
    if one_sided := _one_sided_targets(files.targets, {"training": rows}):
        raise ValueError(one_sided[0])
    encoder = data_type.fit_encoder(rows.table, config.not_features)
    return CommitteeRows(
        data_type=data_type,
        targets=files.targets,
        rows=rows,
        encoder=encoder,
        groups=row_groups(rows, data_type),
        times=None if config.time is None else read_times(rows.table, config.time),
        facts=[
            files.train_text(),
            *([_parts_text({"train on": rows, "test on": test}, method)] if config.test_share else []),
            *data_type.facts(),
            *_columns_text(encoder),
        ],
        warnings=[
            *files.warnings(),
            *_molecules_on_both_sides(data_type, files.train),
            *_one_sided_targets(files.targets, {"test": test}),
            *data_type.suspicions(encoder, rows.table, rows.labels),
        ],
        test=test,
        unreadable=files.unreadable(),
    )


def _encoded(
    data_type: DataType[Any], encoder: Encoder, train: LabelledRows, valid: LabelledRows, *, seed: int
) -> Data:
    """Return training and validation rows for the trainer."""
    return Data(
        data_type.training_dataset(train.model_inputs(encoder), seed),
        valid.model_inputs(encoder),
        labels=train.labels,
        valid_labels=valid.labels,
        sample_weight=_relative_weight(train),
        valid_sample_weight=_relative_weight(valid),
    )


def _relative_weight(rows: LabelledRows) -> npt.NDArray[np.float32] | None:
    """Return weights of mean 1, so that their unit does not change the size of the loss."""
    if rows.sample_weight is None:
        return None
    relative: npt.NDArray[np.float32] = (rows.sample_weight / rows.sample_weight.mean()).astype(np.float32)
    return relative


def _molecules_on_both_sides(data_type: DataType[Any], rows: LabelledRows) -> list[str]:
    """Return a warning where rows are divided one by one at random, and some have the molecule of another row."""
    config = data_type.config
    if config.time is not None or config.group is not None or config.split in config.groupings:
        return []
    found = data_type.identities(rows)
    if found is None:
        return []
    _, molecule, counts = np.unique(found, return_inverse=True, return_counts=True)
    repeated = int((counts[molecule] > 1).sum())
    if not repeated:
        return []
    return [
        f"{repeated:,} of {len(found):,} rows have the molecule of another row, and rows are held out one by one: of a "
        "molecule on both sides the figures are better than on new ones (duplicates='join' makes one row of each, "
        "split='scaffold' keeps them together)"
    ]


def _one_sided_targets(targets: Targets, parts: Mapping[str, LabelledRows | None]) -> list[str]:
    """Return a line for each of several targets without a positive or a negative row in a part."""
    return [
        f"{target.name!r} has no {word} row for {part}: hold out another share, or in another way"
        for part, rows in parts.items()
        if rows is not None and rows.labels.ndim > 1
        for target, column in zip(targets.each, rows.labels.T, strict=True)
        for value, word in ((1, "positive"), (0, "negative"))
        if not (column == value).any()
    ]


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
