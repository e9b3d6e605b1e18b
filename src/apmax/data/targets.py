"""Target columns: values of two classes as labels 1 and 0, NaN where missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np

from apmax import extras
from apmax.data import parsing
from apmax.data.reading import RowSource
from apmax.data.splits import Labels

pa = extras.load("pyarrow", "tables")
pc = extras.load("pyarrow.compute", "tables")

KNOWN_PAIRS = (
    ("0", "1"),
    ("-1", "1"),
    ("false", "true"),
    ("no", "yes"),
    ("n", "y"),
    ("f", "t"),
    ("neg", "pos"),
    ("negative", "positive"),
    ("inactive", "active"),
)
"""Pairs of values (negative, positive), in any case, for which the positive need not be named."""
_SHOWN = 6
"""Values that a message lists."""


@dataclass(frozen=True)
class Target:
    """A target column and its two values.

    >>> target = Target.fit("churn", pa.array(["no", "yes", None, "no"]))
    >>> target.positive, target.labels(pa.array(["Yes", "no"])).tolist()
    ('yes', [1.0, 0.0])
    """

    name: str
    positive: str
    negative: str

    @staticmethod
    def fit(name: str, column: Any, *, positive: str | None = None) -> Target:
        """Find the two values of a column.

        Args:
            name: The column's name.
            column: A pyarrow array.
            positive: The value of the positives; may be None for `KNOWN_PAIRS`.

        Raises:
            ValueError: Not two different values, or `positive` is needed or is neither of them.
        """
        counts = {each["values"]: each["counts"] for each in pc.value_counts(_class_names(column)).to_pylist()}
        counts.pop(None, None)
        found = _list_counts(counts)
        if len(counts) != 2:
            raise ValueError(
                f"target {name!r} must have two different values, got {found or 'none'}: {_remedy(counts)}"
            )
        if positive is not None:
            chosen = _class_names(pa.array([positive]))[0].as_py()
            if chosen not in counts:
                raise ValueError(f"positive must be a value of target {name!r}, got {positive!r}; there are {found}")
            (other,) = set(counts) - {chosen}
            return Target(name, chosen, other)
        for negative, known in KNOWN_PAIRS:
            if set(counts) == {negative, known}:
                return Target(name, known, negative)
        raise ValueError(f"target {name!r} has {found}: name the positive value (positive=...)")

    def labels(self, column: Any) -> Labels:
        """Return 1 for the positive value, 0 for the negative, NaN where missing.

        Raises:
            ValueError: A third value.
        """
        text = _class_names(column)
        code = pc.index_in(text, pa.array([self.negative, self.positive]))
        unknown = pc.and_(pc.is_null(code), pc.is_valid(text))
        if pc.any(unknown).as_py():
            counts = {each["values"]: each["counts"] for each in pc.value_counts(text.filter(unknown)).to_pylist()}
            raise ValueError(
                f"target {self.name!r} must be {self.negative!r} or {self.positive!r} (the positive), "
                f"got {_list_counts(counts)}"
            )
        # Copied: Arrow's arrays are read-only, which torch does not take.
        return np.array(pc.cast(code, pa.float32()).to_numpy(zero_copy_only=False), dtype=np.float32)


@dataclass(frozen=True)
class Targets:
    """One or several target columns."""

    each: tuple[Target, ...]

    @staticmethod
    def fit(names: Sequence[str], table: Any, *, positive: str | None = None) -> Targets:
        """Find the two values of each column of a `pyarrow.Table`.

        Raises:
            ValueError: A column has not two different values, or `positive` is needed or is neither of them.
        """
        return Targets(tuple(Target.fit(name, table.column(name), positive=positive) for name in names))

    @staticmethod
    def from_table(tables: Sequence[Mapping[str, str]]) -> Targets:
        """Return the targets that `to_table` wrote."""
        return Targets(tuple(Target(**table) for table in tables))

    def to_table(self) -> list[dict[str, str]]:
        """Return plain dicts."""
        return [asdict(target) for target in self.each]

    @property
    def names(self) -> tuple[str, ...]:
        """The names of the columns."""
        return tuple(target.name for target in self.each)

    def labels(self, table: Any) -> Labels:
        """Return the labels of a `pyarrow.Table`, (n,) for one target, (n, targets) for several."""
        columns = [target.labels(table.column(target.name)) for target in self.each]
        return columns[0] if len(columns) == 1 else np.stack(columns, 1)

    def check_columns(self, source: RowSource) -> None:
        """Raise unless `source` has all the columns."""
        for name in self.names:
            source.check_column(name, "target")


class LabelledTable(NamedTuple):
    """Rows of a source with their labels.

    Attributes:
        table: A `pyarrow.Table`.
        labels: (n, targets) float32, NaN where missing.
        targets: The meaning of the labels.
    """

    table: Any
    labels: Labels
    targets: Targets


def read_labelled(
    source: RowSource, targets: Sequence[str] | Targets, columns: Sequence[str], *, positive: str | None = None
) -> LabelledTable:
    """Read some columns of a source and the labels of its rows.

    Args:
        source: The rows.
        targets: The target columns; or the fitted targets of another file.
        columns: The other columns to read, which `source` must have.
        positive: The value of the positives, as in `Target.fit`.

    Raises:
        ValueError: A target column is missing, or its values are not two classes.
    """
    names = list(targets.names if isinstance(targets, Targets) else targets)
    for name in names:
        source.check_column(name, "target")
    table = source.read(list(dict.fromkeys([*columns, *names])))
    fitted = targets if isinstance(targets, Targets) else Targets.fit(names, table, positive=positive)
    labels = fitted.labels(table).reshape(table.num_rows, len(names)) if names else np.empty((table.num_rows, 0))
    return LabelledTable(table, labels.astype(np.float32, copy=False), fitted)


def _class_names(column: Any) -> Any:
    """Return the values as lower-case text."""
    return pc.utf8_lower(parsing.words(column))


def _remedy(counts: Mapping[str, int]) -> str:
    """Return what to do about a column that has not two values."""
    if not counts:
        return "the column is empty"
    if len(counts) == 1:
        return "add rows of the other class"
    first = "make a column of 0 and 1 first"
    if len(counts) > _SHOWN and not parsing.numbers(pa.array(list(counts)))[1]:
        first += ", such as 1 for numbers above a threshold"
    return f"{first} (positive=... names one of two values, and merges none)"


def _list_counts(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    text = ", ".join(f"{value!r} ({count} rows)" for value, count in ordered[:_SHOWN])
    return text if len(counts) <= _SHOWN else f"{text}, … ({len(counts)} different values)"
