"""The columns to be predicted: one, or several of which each row may have some."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data.images import ImageFolder
from apmax.data.tables import Target
from apmax.data.tables.encoder import shown
from apmax.workflows.sources import AnySource

Labels = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Targets:
    """What the values of every target mean."""

    each: tuple[Target, ...]

    @staticmethod
    def fit(names: Sequence[str], table: Any, *, positive: str | None = None) -> Targets:
        """Learn the two values of each column.

        Raises:
            ValueError: A column that has not two values, or whose positive is not plain.
        """
        return Targets(tuple(Target.fit(name, table.column(name), positive=positive) for name in names))

    @staticmethod
    def from_table(tables: Sequence[Mapping[str, str]]) -> Targets:
        """Return what `to_table` wrote."""
        return Targets(tuple(Target(**table) for table in tables))

    def to_table(self) -> list[dict[str, str]]:
        """Return plain dicts."""
        return [asdict(target) for target in self.each]

    @property
    def names(self) -> tuple[str, ...]:
        """The columns."""
        return tuple(target.name for target in self.each)

    def labels(self, table: Any) -> Labels:
        """Return 1 for the positive, 0 for the other, NaN for none: (rows,), or (rows, targets) of several."""
        columns = [target.labels(table.column(target.name)) for target in self.each]
        return columns[0] if len(columns) == 1 else np.stack(columns, 1)

    def check_in(self, source: AnySource) -> None:
        """Raise unless the file has all the columns."""
        for name in self.names:
            has_column(source, name, "target")


def has_column(source: AnySource, name: str, what: str) -> str:
    """Return `name` if the file has such a column, or the folder such a class.

    Raises:
        ValueError: It has not.
    """
    if name not in source.columns:
        if isinstance(source, ImageFolder) and what == "target":
            found = (
                f"its folders are {shown(source.classes)}"
                if source.classes
                else "it has none: sort the images into a folder per class, or name them in a csv (--path, --target)"
            )
            raise ValueError(f"target: {source.path} has no folder {name!r} of that class; {found}")
        if isinstance(source, ImageFolder):
            raise ValueError(
                f"{what}: {source.path} is a folder and has no column {name!r}: name its images in a csv that has one "
                "(--path, --target)"
            )
        raise ValueError(f"{what}: {source.path} has no column {name!r}; its columns are {shown(source.columns)}")
    return name


def has_both(source: AnySource, name: str) -> None:
    """Raise if a folder has no images of the class, or of no other; what a file has, its column tells."""
    if isinstance(source, ImageFolder):
        positives, negatives = source.count(name)
        if not positives:
            raise ValueError(f"target: the folder {name!r} of {source.path} has no images")
        if not negatives:
            raise ValueError(
                f"target: {source.path} has images of {name!r} only; put the negatives into another folder beside it"
            )


def any_known(labels: Labels) -> npt.NDArray[np.bool_]:
    """Return which rows have a label of any target."""
    return np.asarray(np.atleast_2d(~np.isnan(labels).T).any(0), dtype=np.bool_)


def any_positive(labels: Labels) -> npt.NDArray[np.bool_]:
    """Return which rows are positive for any target."""
    return np.asarray(np.atleast_2d((labels == 1).T).any(0), dtype=np.bool_)
