"""Kinds of columns (number, category, date), fitted to training rows, and the report of encoding."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, ClassVar

import numpy as np

from apmax import extras
from apmax.data import parsing
from apmax.data.parsing import Numbers
from apmax.data.scaling import RobustScale

pa = extras.load("pyarrow", "tables")
pc = extras.load("pyarrow.compute", "tables")

FEW = 10
"""Categories with fewer training rows are joined."""
MANY = 64
"""The largest number of categories with a code of their own."""
MOST_RARE = 10_000
"""The largest number of rare words that are kept."""
DAY = 86400.0
_SHOWN = 3
"""Values that are shown of a finding."""


@dataclass
class EncodingReport:
    """Findings of encoding rows, over any number of chunks: values that the training rows did not have.

    Args:
        rows: The number of rows.
        absent: Columns that are missing.
        unseen: Per column of categories, the values that training did not have and their counts.
        unreadable: Per column of numbers or dates, the number of values that cannot be read.
        examples: Per column of numbers or dates, some of these values.
        similar: Per missing column, the column whose name differs from it in case and spaces only, if there is one.
    """

    rows: int = 0
    absent: list[str] = field(default_factory=list)
    unseen: dict[str, Counter[str]] = field(default_factory=dict)
    unreadable: dict[str, int] = field(default_factory=dict)
    examples: dict[str, list[str]] = field(default_factory=dict)
    similar: dict[str, str] = field(default_factory=dict)

    def lines(self) -> list[str]:
        """Return one line per finding, none if there are none.

        >>> report = EncodingReport(rows=10, absent=["age"], unseen={"city": Counter(Rome=2)})
        >>> for line in report.lines():
        ...     print(line)
        column 'age' is missing: every row is scored as if its value were unknown
        column 'city': 2 of 10 rows have a value that is not in the training rows: 'Rome'
        """
        lines = []
        for name in self.absent:
            hint = f" (did you mean {self.similar[name]!r}?)" if name in self.similar else ""
            lines.append(f"column {name!r} is missing{hint}: every row is scored as if its value were unknown")
        for name, counts in self.unseen.items():
            shown = _shown([value for value, _ in counts.most_common(_SHOWN + 1)])
            rows = sum(counts.values())
            lines.append(
                f"column {name!r}: {rows} of {self.rows} rows have a value that is not in the training rows: {shown}"
            )
        for name, count in self.unreadable.items():
            line = f"column {name!r}: {count} of {self.rows} values could not be read and count as missing"
            examples = self.examples.get(name)
            lines.append(f"{line}: {_shown(examples)}" if examples else line)
        return lines

    def add_absent(self, names: Sequence[str], present: Sequence[str]) -> None:
        """Note the columns that are missing among those that are there."""
        self.absent = list(names)
        for name in names:
            same = [column for column in present if column.strip().lower() == name.strip().lower()]
            if same:
                self.similar[name] = same[0]

    def add_unseen(self, name: str, values: dict[str, int]) -> None:
        """Count values of a category that training did not have; beyond a thousand different ones as "…"."""
        if not values:
            return
        counts = self.unseen.setdefault(name, Counter())
        for value, count in values.items():
            counts[value if value in counts or len(counts) < 1000 else "…"] += count

    def add_unreadable(self, name: str, count: int, column: Any = None, values: Numbers | None = None) -> None:
        """Count values that could not be read, and keep some: those of `column` that are NaN in `values`."""
        if not count:
            return
        self.unreadable[name] = self.unreadable.get(name, 0) + count
        kept = self.examples.setdefault(name, [])
        if values is not None and len(kept) <= _SHOWN:
            found = parsing.unreadable_words(column, values, _SHOWN + 1)
            kept += [word for word in found if word not in kept][: _SHOWN + 1 - len(kept)]


def _shown(values: Sequence[str]) -> str:
    return ", ".join(map(repr, values[:_SHOWN])) + (", …" if len(values) > _SHOWN else "")


@dataclass(frozen=True)
class Number:
    """A column of numbers: scaled, with an indicator of its own where training had missing values.

    Where training had decimal commas, numbers are read with them and with points in every file.
    """

    kind: ClassVar[str] = "number"
    name: str
    median: float
    scale: float
    indicator: bool
    decimal_comma: bool = False

    @staticmethod
    def fit(name: str, column: Any, *, decimal_comma: bool = False) -> Number:
        """Learn median, scale and whether values are missing."""
        values, _ = parsing.numbers(column, decimal_comma=decimal_comma)
        known = ~np.isnan(values)
        scale = RobustScale.fit(values[known])
        return Number(name, scale.median, scale.scale, indicator=not known.all(), decimal_comma=decimal_comma)

    def refit(self, column: Any) -> Number:
        """Return this column fitted to other rows, which need not tell how it is written."""
        return Number.fit(self.name, column, decimal_comma=self.decimal_comma)

    def read(self, column: Any) -> tuple[Numbers, int]:
        """Return the numbers, NaN where missing, and how many values were not numbers."""
        return parsing.numbers(column, decimal_comma=self.decimal_comma)

    def encode(self, column: Any, report: EncodingReport) -> list[Numbers]:
        """Return the scaled numbers and, where training had missing values, 1 for missing."""
        values, unreadable = self.read(column)
        report.add_unreadable(self.name, unreadable, column, values)
        scaled = RobustScale(self.median, self.scale)(values)
        return [scaled, np.isnan(values).astype(float)] if self.indicator else [scaled]

    @property
    def sizes(self) -> list[int]:
        """0: not a code."""
        return [0, 0] if self.indicator else [0]


@dataclass(frozen=True)
class Category:
    """A column of words: a code for each frequent one, one for all rare ones, one for missing.

    Where training had no rare (or no missing) values, the code of such a value is -1, which is no category. The rare
    words are kept, up to 10,000, so that they are not reported as unseen.
    """

    kind: ClassVar[str] = "category"
    name: str
    values: tuple[str, ...]
    rare: tuple[str, ...]
    missing: bool

    @staticmethod
    def fit(name: str, column: Any) -> Category:
        """Learn the frequent words and the rare ones."""
        text = parsing.words(column)
        counted = pc.value_counts(pc.drop_null(text)).to_pylist()
        counted.sort(key=lambda each: (-each["counts"], each["values"]))
        # In a small table a category of two rows is frequent enough.
        least = min(FEW, max(1, len(text) // 100))
        kept = tuple(each["values"] for each in counted[:MANY] if each["counts"] >= least)
        rare = tuple(each["values"] for each in counted[len(kept) :][:MOST_RARE])
        return Category(name, kept, rare, text.null_count > 0)

    def refit(self, column: Any) -> Category:
        """Return this column fitted to other rows."""
        return Category.fit(self.name, column)

    def encode(self, column: Any, report: EncodingReport) -> list[Numbers]:
        """Return the codes."""
        text = parsing.words(column)
        found = pc.index_in(text, _stored_words(self.values))
        absent = text.is_null().to_numpy(zero_copy_only=False)
        codes = pc.fill_null(found, -1).to_numpy(zero_copy_only=False).astype(float)
        other = (codes < 0) & ~absent
        if other.any() and len(self.rare) < MOST_RARE:
            counted = pc.value_counts(text.filter(pa.array(other))).to_pylist()
            known = set(_stored_words(self.rare).to_pylist())
            report.add_unseen(self.name, {e["values"]: e["counts"] for e in counted if e["values"] not in known})
        codes[other] = len(self.values) if self.rare else -1
        codes[absent] = len(self.values) + bool(self.rare) if self.missing else -1
        return [codes]

    @property
    def sizes(self) -> list[int]:
        """The number of codes."""
        return [len(self.values) + bool(self.rare) + self.missing]


@dataclass(frozen=True)
class Date:
    """A column of dates: the time, the position in the week and the year, and in the day if there are hours."""

    kind: ClassVar[str] = "date"
    name: str
    format: str
    median: float
    scale: float
    hours: bool
    indicator: bool

    @staticmethod
    def fit(name: str, column: Any, form: str | None = None) -> Date:
        """Learn the format (unless it is given), the span and whether times of day are given."""
        form = parsing.column_date_format(column) if form is None else form
        values, _ = parsing.seconds(column, form)
        known = values[~np.isnan(values)]
        scale = RobustScale.fit(known)
        return Date(name, form, scale.median, scale.scale, bool((known % DAY != 0).any()), len(known) < len(values))

    def refit(self, column: Any) -> Date:
        """Return this column fitted to other rows, which need not tell its format."""
        return Date.fit(self.name, column, self.format)

    def encode(self, column: Any, report: EncodingReport) -> list[Numbers]:
        """Return the scaled time, and sine and cosine of each cycle; all 0 where missing, with an indicator."""
        values, unreadable = parsing.seconds(column, self.format)
        report.add_unreadable(self.name, unreadable, column, values)
        parts = [RobustScale(self.median, self.scale)(values)]
        # 1970-01-01 was a Thursday, which only shifts the phase.
        for period in (7 * DAY, 365.2425 * DAY, *([DAY] if self.hours else [])):
            angle = 2 * np.pi * (values % period) / period
            parts += [np.nan_to_num(np.sin(angle), nan=0.0), np.nan_to_num(np.cos(angle), nan=0.0)]
        return [*parts, np.isnan(values).astype(float)] if self.indicator else parts

    @property
    def sizes(self) -> list[int]:
        """0: not codes."""
        return [0] * (5 + 2 * self.hours + self.indicator)


Column = Number | Category | Date
KINDS: dict[str, type[Number] | type[Category] | type[Date]] = {kind.kind: kind for kind in (Number, Category, Date)}


def _stored_words(values: tuple[str, ...]) -> Any:
    """Return words of an encoder as `parsing.words` writes them now: version 0.2 kept the "1.0" of text."""
    return parsing.words(pa.array(values, pa.string()))


def write_column(column: Column) -> dict[str, Any]:
    """Return a column as a plain table."""
    return {"kind": column.kind, **asdict(column)}


def read_column(table: Mapping[str, Any]) -> Column:
    """Return the column that a plain table describes."""
    fields = dict(table)
    kind: Any = KINDS[fields.pop("kind")]
    column: Column = kind(
        **{name: tuple(value) if isinstance(value, list) else value for name, value in fields.items()}
    )
    return column
