"""The column to be predicted: two values, one of them the positive."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import extras
from apmax.data.tables import parsing

pa = extras.load("pyarrow", "tables")
pc = extras.load("pyarrow.compute", "tables")

PAIRS = (
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
"""Values that say themselves which is which: (negative, positive), in any case."""

Labels = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Target:
    """Which column is predicted, and what its two values mean.

    >>> target = Target.fit("churn", pa.array(["no", "yes", None, "no"]))
    >>> target.positive, target.labels(pa.array(["Yes", "no"])).tolist()
    ('yes', [1.0, 0.0])
    """

    name: str
    positive: str
    negative: str

    @staticmethod
    def fit(name: str, column: Any, *, positive: str | None = None) -> Target:
        """Learn the two values.

        Raises:
            ValueError: Not two values; or two that do not say which is positive, and `positive` does not either.
        """
        counts = {each["values"]: each["counts"] for each in pc.value_counts(_words(column)).to_pylist()}
        counts.pop(None, None)
        found = _listed(counts)
        if len(counts) != 2:
            raise ValueError(f"target {name!r} must have two different values, got {found or 'none'}")
        if positive is not None:
            wanted = _words(pa.array([positive]))[0].as_py()
            if wanted not in counts:
                raise ValueError(f"positive must be a value of target {name!r}, got {positive!r}; there are {found}")
            (other,) = set(counts) - {wanted}
            return Target(name, wanted, other)
        for negative, known in PAIRS:
            if set(counts) == {negative, known}:
                return Target(name, known, negative)
        raise ValueError(f"target {name!r} has {found}: say which is positive (--positive VALUE)")

    def labels(self, column: Any) -> Labels:
        """Return 1 for the positive value, 0 for the other, NaN where missing.

        Raises:
            ValueError: A third value.
        """
        text = _words(column)
        code = pc.index_in(text, pa.array([self.negative, self.positive]))
        strange = pc.and_(pc.is_null(code), pc.is_valid(text))
        if pc.any(strange).as_py():
            counts = {each["values"]: each["counts"] for each in pc.value_counts(text.filter(strange)).to_pylist()}
            raise ValueError(
                f"target {self.name!r} must be {self.negative!r} or {self.positive!r} (the positive), "
                f"got {_listed(counts)}"
            )
        # Copied: what Arrow hands out is read-only, which torch does not take.
        return np.array(pc.cast(code, pa.float32()).to_numpy(zero_copy_only=False), dtype=np.float32)


def _words(column: Any) -> Any:
    """Return lower-case words; "1.0" is "1"."""
    text = pc.utf8_lower(parsing.words(column))
    return pc.replace_substring_regex(text, r"^([+-]?\d+)\.0*$", r"\1")


def _listed(counts: dict[str, int]) -> str:
    ordered = sorted(counts.items(), key=lambda each: -each[1])
    text = ", ".join(f"{value!r} ({count} rows)" for value, count in ordered[:6])
    return text if len(counts) <= 6 else f"{text}, … ({len(counts)} different values)"
