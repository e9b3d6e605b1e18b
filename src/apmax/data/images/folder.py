"""A folder of images as a table: a path a row, and for every target whether the image is of that class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from apmax import extras
from apmax.data.images.listing import list_images
from apmax.data.reading import RowSource, list_names

PATH = "path"
CHUNK_ROWS = 2**16


class ImageFolder(RowSource):
    """The images of a folder as rows: the path of each, and a column per target class.

    Args:
        path: The folder.
        targets: Classes. Each that has a folder of its name becomes a column: 1 for the images in it, 0 for those of
            other folders, empty for those that are in none.

    Attributes:
        columns: "path", and the targets that were found.
        classes: The folders in it.
        ignored: Files that are no images by their name.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: It has no images, or a target is called "path".
    """

    def __init__(self, path: str | os.PathLike[str], targets: Sequence[str] = ()) -> None:
        self.path = Path(path)
        if PATH in targets:
            raise ValueError(f"a class cannot be called {PATH!r}, which is the column of files: rename its folder")
        listing = list_images(path)
        listing.check()
        self.classes, self.ignored = listing.classes, listing.ignored
        self._files, self._class_of = listing.files, listing.class_of
        self.columns = [PATH, *(name for name in targets if name in self.classes)]

    def __len__(self) -> int:
        return len(self._files)

    def count(self, name: str) -> tuple[int, int]:
        """Return how many images are of that class, and how many of another."""
        own = self._class_of.count(name)
        return own, len(self) - own - self._class_of.count(None)

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the images in order as `pyarrow.Table`s, of these columns or of all."""
        arrow = extras.load("pyarrow", "tables")
        for first in range(0, len(self), CHUNK_ROWS):
            part = slice(first, first + CHUNK_ROWS)
            found = {PATH: arrow.array(self._files[part], arrow.string())}
            for name in self.columns[1:]:
                marks = [None if own is None else int(own == name) for own in self._class_of[part]]
                found[name] = arrow.array(marks, arrow.int8())
            table = arrow.table(found)
            yield table if columns is None else table.select(list(columns))

    def check_column(self, name: str, argument: str) -> None:
        """Raise unless there is a column `name`: "path", or a target class that has a folder."""
        if name in self.columns:
            return
        if argument != "target":
            raise ValueError(
                f"{argument}: {self.path} is a folder and has no column {name!r}: list its images in a csv that has one"
            )
        folders = (
            f"its folders are {list_names(self.classes)}"
            if self.classes
            else ("it has none: sort the images into a folder per class, or list them in a csv")
        )
        raise ValueError(f"target: {self.path} has no folder {name!r} of that class; {folders}")

    def check_class(self, name: str) -> None:
        """Raise unless there are images of that class, and of another."""
        positives, negatives = self.count(name)
        if not positives:
            raise ValueError(f"target: the folder {name!r} of {self.path} has no images")
        if not negatives:
            raise ValueError(
                f"target: {self.path} has images of {name!r} only; put the negatives into another folder beside it"
            )
