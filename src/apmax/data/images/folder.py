"""Folders of images as rows: the path of each image, and per target class whether the image is of it."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from apmax import extras
from apmax.data.images.decoding import ENDINGS
from apmax.data.reading import RowSource, list_names

PATH = "path"
FILES_PER_CHUNK = 2**16


class ImageFolder(RowSource):
    """The images below a folder, sorted by name; names that begin with a dot are skipped.

    Args:
        path: The folder. Each folder in it is a class, images in it are found at any depth.
        targets: Classes. Each that has a folder becomes a column: 1 for its images, 0 for those of other classes,
            empty for those in no folder.

    Attributes:
        columns: "path", and the targets that have a folder.
        classes: The folders in it.
        files: The images, those of the folder itself first.
        class_of: The class of each image, None for those of the folder itself.
        ignored: Files whose ending is not that of an image.

    Raises:
        FileNotFoundError: No such folder.
        ValueError: It has no images, or a target is called "path".
    """

    def __init__(self, path: str | os.PathLike[str], targets: Sequence[str] = ()) -> None:
        self.path = Path(path)
        if PATH in targets:
            raise ValueError(f"a class cannot be called {PATH!r}, which is the column of files: rename its folder")
        if not self.path.is_dir():
            raise FileNotFoundError(f"no folder at {self.path}")
        entries = sorted(entry for entry in self.path.iterdir() if entry.name[0] != ".")
        self.classes = [entry.name for entry in entries if entry.is_dir()]
        self.files: list[str] = []
        self.class_of: list[str | None] = []
        self.ignored: list[str] = []
        self._add(str(self.path), [entry.name for entry in entries if entry.is_file()], None)
        for name in self.classes:
            for folder, folders, names in os.walk(self.path / name):
                folders[:] = sorted(each for each in folders if each[0] != ".")
                self._add(folder, sorted(names), name)
        if not self.files:
            others = f"none of its {len(self.ignored)} files ends in" if self.ignored else "no file in it ends in"
            raise ValueError(f"{self.path} has no images: {others} {', '.join(ENDINGS)}")
        self.columns = [PATH, *(name for name in targets if name in self.classes)]

    def _add(self, folder: str, names: Sequence[str], own_class: str | None) -> None:
        for name in names:
            if name[0] == ".":
                continue
            if name.lower().endswith(ENDINGS):
                self.files.append(str(Path(folder, name)))
                self.class_of.append(own_class)
            else:
                self.ignored.append(str(Path(folder, name)))

    def __len__(self) -> int:
        return len(self.files)

    def count(self, name: str) -> tuple[int, int]:
        """Return the number of images of that class, and of other classes."""
        own = self.class_of.count(name)
        return own, len(self) - own - self.class_of.count(None)

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the images in order as `pyarrow.Table`s; of all columns by default."""
        arrow = extras.load("pyarrow", "tables")
        for first in range(0, len(self), FILES_PER_CHUNK):
            part = slice(first, first + FILES_PER_CHUNK)
            found = {PATH: arrow.array(self.files[part], arrow.string())}
            for name in self.columns[1:]:
                labels = [None if own is None else int(own == name) for own in self.class_of[part]]
                found[name] = arrow.array(labels, arrow.int8())
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
        if not self.classes:
            raise ValueError(
                f"target: {self.path} has no folder {name!r} of that class; it has none: sort the images into a folder "
                "per class, or list them in a csv"
            )
        near = difflib.get_close_matches(name, self.classes, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        folders = list_names(self.classes)
        raise ValueError(f"target: {self.path} has no folder {name!r} of that class{hint}; its folders are {folders}")

    def check_class(self, name: str) -> None:
        """Raise unless there are images of that class, and of another."""
        positives, negatives = self.count(name)
        if not positives:
            raise ValueError(f"target: the folder {name!r} of {self.path} has no images")
        if not negatives:
            raise ValueError(
                f"target: {self.path} has images of {name!r} only; put the negatives into another folder beside it"
            )
