"""Files of a job as labelled rows: opened, checked, read, and weighted."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data import RowSource, Targets, UnreadableRow, parsing
from apmax.data.reading import MissingColumnError
from apmax.validation import plural
from apmax.workflows.data_types import DataConfig, DataType, LabelledRows, data_type_of
from apmax.workflows.data_types.rows import target_columns


@dataclass(frozen=True)
class JobFiles:
    """The labelled rows of a job's files, by "train", "valid" and "test"."""

    data_type: DataType[Any]
    targets: Targets
    sources: Mapping[str, RowSource]
    parts: Mapping[str, LabelledRows]

    @property
    def train(self) -> LabelledRows:
        """The rows to train on."""
        return self.parts["train"]

    def warnings(self) -> list[str]:
        """Return the warnings of all files; those of other files than the training file begin with their name."""
        repeated = [
            f"{name}: {source.path.name} is the file of the training rows: its figures say nothing about new rows"
            for name, source in self.sources.items()
            if name != "train" and same_file(self.sources["train"].path, source.path)
        ]
        lines = {name: [*part.warnings, *self._shared_with_training(name)] for name, part in self.parts.items()}
        lines["train"] += self._without_group()
        return repeated + [
            line if name == "train" else f"{self.sources[name].path.name}: {line}"
            for name, each in lines.items()
            for line in each
        ]

    def _shared_with_training(self, name: str) -> list[str]:
        """Return warnings about rows of another file whose molecule or group is in the training file too."""
        if name == "train" or same_file(self.sources["train"].path, self.sources[name].path):
            return []
        train, part = self.train, self.parts[name]
        lines = []
        known, own = self.data_type.identities(train), self.data_type.identities(part)
        if known is not None and own is not None:
            lines += self._shared_line(np.isin(own, known), "have a molecule")
        group = self.data_type.config.group
        if group is not None and group in part.table.column_names:
            names = group_names(part.table, group)
            shared = np.isin(names, group_names(train.table, group)) & (names != "")
            lines += self._shared_line(shared, f"have a {group!r}")
        return lines

    def _shared_line(self, shared: npt.NDArray[np.bool_], what: str) -> list[str]:
        if not shared.any():
            return []
        return [
            f"{int(shared.sum()):,} of {len(shared):,} rows {what} that is in {self.sources['train'].path.name} too: "
            "figures on them are better than on new ones"
        ]

    def _without_group(self) -> list[str]:
        """Return a warning about training rows without a group, which are kept together."""
        group = self.data_type.config.group
        count = 0 if group is None else int((group_names(self.train.table, group) == "").sum())
        return [f"{count:,} rows without a {group!r} count as one group"] if count > 1 else []

    def unreadable(self) -> dict[str, tuple[UnreadableRow, ...]]:
        """Return the rows that could not be read, by the name of their file."""
        return {self.sources[name].path.name: part.unreadable for name, part in self.parts.items() if part.unreadable}

    def train_text(self) -> str:
        """Return the size of the training file in words."""
        rows = self.train
        return f"{self.sources['train'].path.name}: {len(rows.labels):,} rows, {_positives_text(rows, self.targets)}"


def same_file(one: str | Path, other: str | Path) -> bool:
    """Return whether two paths are of one existing file or folder."""
    try:
        return Path(one).samefile(other)
    except OSError:
        return False


def group_names(table: Any, column: str) -> npt.NDArray[Any]:
    """Return the group of each row, "" where it is missing."""
    return np.asarray(parsing.words(table.column(column)).fill_null("").to_pylist())


def read_job_files(config: DataConfig) -> JobFiles:
    """Read the files of a job.

    Raises:
        ValueError: A missing column, no rows, a target without two values, a file without positives or negatives, a bad
            weight.
    """
    data_type = data_type_of(config)
    sources = _open_sources(data_type)
    table = _read_table("train", sources["train"])
    if config.time is not None:
        place, times = table.column_names.index(config.time), table.column(config.time)
        table = table.set_column(place, config.time, _decimal_points(times, sources["train"]))
    data_type = data_type.complete(table, sources["train"])
    config = data_type.config
    targets = Targets.fit(config.targets, table, positive=config.positive)
    parts = {
        name: _with_weight(
            data_type.read_rows(source, targets, table if name == "train" else _read_table(name, source)),
            source,
            config.weight,
        )
        for name, source in sources.items()
    }
    for name in ("train", "valid"):
        if name in parts:
            _check_classes(parts[name], sources[name], targets)
    if "test" in parts and not parts["test"].positives:
        raise ValueError(f"test: {sources['test'].path} has no positive row: AP is undefined")
    return JobFiles(data_type, targets, sources, parts)


def _read_table(name: str, source: RowSource) -> Any:
    """Return the rows of one of the files as a `pyarrow.Table`.

    Raises:
        ValueError: There are none.
    """
    table = source.read()
    if not table.num_rows:
        raise ValueError(f"{'' if name == 'train' else f'{name}: '}{source.path} has no rows")
    return table


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
    count = int((~kept).sum())
    line = f"{plural(count, 'row')} of weight 0 {'is' if count == 1 else 'are'} left out"
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
    values = _decimal_points(table.column(column), source)
    weight, _ = parsing.numbers(values)
    bad = np.flatnonzero(~(weight >= 0))
    if len(bad):
        numbers = bad if rows is None else rows[bad]
        shown = ", ".join(
            f"{row} ({values[int(place)].as_py()!r})" for row, place in zip(numbers[:5], bad[:5], strict=True)
        )
        raise ValueError(
            f"weight: column {column!r} of {source.path.name} must hold numbers that are not negative; it does not in "
            f"{len(bad):,} rows (counted from 0): {shown}"
        )
    return weight


def _decimal_points(values: Any, source: RowSource) -> Any:
    """Return a column with points for decimal commas; between commas, "1,234" may have a separator of thousands."""
    return parsing.decimal_points(values) if source.delimiter != "," and parsing.has_decimal_commas(values) else values


def _open_sources(data_type: DataType[Any]) -> dict[str, RowSource]:
    config = data_type.config
    sources = {}
    for part in ("train", "valid", "test"):
        if (path := getattr(config, part)) is not None:
            with _named_part(part):
                sources[part] = data_type.open_source(path)
                for name in config.targets:
                    sources[part].check_column(name, "target")
                if config.weight is not None:
                    sources[part].check_column(config.weight, "weight")
    for name in getattr(config, "columns", {}):
        sources["train"].check_name(name, "columns")
    for argument in ("group", "time"):
        if getattr(config, argument) is not None:
            sources["train"].check_column(getattr(config, argument), argument)
    return sources


@contextmanager
def _named_part(part: str) -> Iterator[None]:
    """Let an error about a column that only the other files have name them and not the column's argument."""
    try:
        yield
    except MissingColumnError as error:
        if part == "train":
            raise
        raise ValueError(f"{part}: {error.text}; all files need the columns of the training") from None


def _check_classes(rows: LabelledRows, source: RowSource, targets: Targets) -> None:
    for target, column in zip(targets.each, target_columns(rows.labels).T, strict=True):
        for value, name in ((1, target.positive), (0, target.negative)):
            if not (column == value).any():
                raise ValueError(f"{source.path} has no row whose {target.name!r} is {name!r}")


def _positives_text(rows: LabelledRows, targets: Targets) -> str:
    if len(targets.each) == 1:
        only = targets.each[0]
        return f"{rows.positives:,} positive ({rows.positives / len(rows.labels):.2%}; {only.name} = {only.positive})"
    return "positive " + ", ".join(
        f"{target.name} {int((column == 1).sum()):,} of {int((~np.isnan(column)).sum()):,}"
        for target, column in zip(targets.each, rows.labels.T, strict=True)
    )
