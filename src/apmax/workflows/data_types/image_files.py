"""Files of images as what a network takes, decoded as they are asked for."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from apmax.data.caching import with_progress
from apmax.data.images import IMAGENET, ImageDataset, ImageFolder, Normalise
from apmax.data.images.decoding import DECODER_VERSION, FITS, DecodedImages, Decoder, decode_stream
from apmax.data.images.folder import PATH
from apmax.workflows.data_types.encoded import Encoded, Refused, RowReport, texts


@dataclass(frozen=True)
class Where:
    """Which files the rows of a table name.

    Args:
        column: The column of paths.
        folder: What they begin at.
        ending: What is added to them.

    >>> import pyarrow as pa
    >>> Where("name", Path("skin"), ".jpg").files(pa.table({"name": ["a", ""]}))
    ['skin/a.jpg', '']
    """

    column: str = PATH
    folder: Path = Path()
    ending: str = ""

    @staticmethod
    def of(source: Any, *, path: str | None, root: str | Path | None, ending: str | None) -> Where:
        """Return where the rows of `source` are; a folder's are named in full.

        Raises:
            ValueError: A folder, and a column of files.
        """
        if not isinstance(source, ImageFolder):
            return Where(path or PATH, source.path.parent if root is None else Path(root), ending or "")
        if path is not None and path != PATH:
            raise ValueError(f"path: {source.path} is a folder and has no column {path!r}: leave out --path")
        return Where()

    def files(self, table: Any) -> list[str]:
        """Return the files; "" where a cell is empty."""
        names = texts(table, self.column, "path")
        return [str(self.folder / f"{name}{self.ending}") if name else "" for name in names]

    def lost(self, files: Sequence[str]) -> str:
        """Return what to say where none of the files can be read."""
        return (
            f"none of the {len(files):,} images of column {self.column!r} can be read, such as {files[0]!r}: "
            "say where paths begin (--root DIR), how they end (--ending .jpg) or which column they are (--path COLUMN)"
        )


@dataclass(frozen=True)
class ImageEncoder:
    """Pixels of one size; nothing is learnt from the rows, and nothing is kept: images are decoded as they are asked.

    Args:
        size: Height and width.
        fit: How images become square, as in `Decoder`.
        tasks: How many columns are predicted.
        normalise: Mean and deviation per channel.
        where: Which files the rows name.
        most: Images at a time.
    """

    size: int
    fit: str = FITS[0]
    tasks: int = 1
    normalise: Normalise = IMAGENET
    where: Where = Where()
    most: int = 64
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The column that is read."""
        return [self.where.column]

    def encode(self, table: Any, report: RowReport | None = None) -> Iterator[Encoded]:
        """Yield the images that Pillow can read; the others are added to `report`.

        Raises:
            ValueError: There is no such column, or no image in it from the file's beginning on.
        """
        report = RowReport() if report is None else report
        files = self.where.files(table)
        before = report.rows
        chunks = decode_stream(Decoder(self.size, self.fit), files, most=self.most, workers=processes())
        shown = with_progress(
            chunks, len(files), label="scoring images", size=lambda c: c.total, progress=None, extra="images"
        )
        for chunk in shown:
            report.refuse([Refused(before + item.row, item.value, item.reason) for item in chunk.unreadable])
            report.rows += chunk.total
            if chunk.rows:
                yield self.of(chunk)
        if files and not before and len(report.refused) == len(files):
            raise ValueError(f"{self.where.lost(files)}; {report.refused[0].reason}")

    def of(self, images: DecodedImages) -> Encoded:
        """Return decoded images as a dataset."""
        return Encoded(ImageDataset(np.stack(images.pixels), normalise=self.normalise), np.array(images.rows))

    def to_table(self) -> dict[str, Any]:
        """Return the encoder as plain values, with the version of the decoder."""
        return {
            "size": self.size,
            "fit": self.fit,
            "tasks": self.tasks,
            "mean": list(self.normalise.mean),
            "std": list(self.normalise.std),
            "path": self.where.column,
            "ending": self.where.ending,
            "decoder": DECODER_VERSION,
        }

    def summary(self) -> dict[str, list[str]]:
        """Return nothing: there is one column, and everyone knows what it is."""
        return {}


def restore(table: Mapping[str, Any]) -> ImageEncoder:
    """Return the encoder that `to_table` wrote.

    Raises:
        ValueError: Its images were decoded by another version.
    """
    if table["decoder"] != DECODER_VERSION:
        raise ValueError(
            f"this model was trained on images of version {table['decoder']} of the decoder, this apmax has version "
            f"{DECODER_VERSION}: train it again, or use the apmax that trained it"
        )
    normalise = Normalise(tuple(table["mean"]), tuple(table["std"]))
    where = Where(table["path"], ending=table["ending"])
    return ImageEncoder(
        table["size"], table["fit"], table["tasks"], normalise, where, most=images_at_a_time(table["size"])
    )


def images_at_a_time(size: int) -> int:
    """Return how many images of that size a network scores at a time within some hundred megabytes.

    >>> images_at_a_time(32), images_at_a_time(224), images_at_a_time(384)
    (1024, 41, 16)
    """
    return max(16, min(1024, 2**21 // size**2))


def processes() -> int:
    """Return how many processes decode images at a time."""
    return min(os.cpu_count() or 1, 8)
