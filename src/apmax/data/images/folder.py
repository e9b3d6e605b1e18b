"""A folder of images as a table: a path a row, and for every target whether the image is of that class."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from apmax import extras
from apmax.data.images.listing import list_images

PATH = "path"
CHUNK_ROWS = 2**16


class ImageFolder:
    """The images of a folder, read as `apmax.data.tables.Source` reads a file.

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

    delimiter = ","

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

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return all images as one `pyarrow.Table`."""
        return extras.load("pyarrow", "tables").concat_tables(self.chunks(columns))
