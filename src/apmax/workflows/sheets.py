"""Pictures of the best-ranked rows, where a kind of data can be looked at."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data.images.contact_sheet import COUNT, best_rows, describe_best
from apmax.workflows.data_types import KINDS
from apmax.workflows.rows import Rows
from apmax.workflows.trained import Trained

NAME = "contact-sheet"


def draw_best(model: Trained, rows: Rows, scores: npt.NDArray[np.float32], directory: Path, *, what: str) -> list[Path]:
    """Draw the best of the rows that a training is judged by, for every target, and return the files.

    Args:
        model: What scored them.
        rows: The rows, read to a dataset.
        scores: (rows,) or (rows, targets).
        directory: Where the pictures go: contact-sheet.png, or contact-sheet-TARGET.png of several.
        what: What these rows are, for the line above.
    """
    pictures = KINDS[model.job.data.kind].pictures
    if pictures is None:
        return []
    files = []
    columns = zip(
        model.target.names, scores.reshape(len(scores), -1).T, rows.labels.reshape(len(scores), -1).T, strict=True
    )
    for target, own, labels in columns:
        known = labels[~np.isnan(labels)]
        shown = labels[best_rows(own.astype(np.float64), COUNT)].astype(np.float64)
        title = f"{what}, {target}: {describe_best(shown, len(labels), float(known.mean()) if len(known) else np.nan)}"
        ending = "" if len(model.target.names) == 1 else "-" + re.sub(r"[^\w.-]+", "_", target)
        files.append(directory / f"{NAME}{ending}.png")
        pictures.draw(files[-1], rows.dataset.names, own, labels, title, model.job.data)
    return files


class Best:
    """The best rows of all that it is shown, to be drawn at the end; memory does not grow with the rows.

    Args:
        model: What scored them.
        file: The picture, a .png.
        place: The target that rows are judged by.

    Raises:
        ValueError: Rows of this kind cannot be drawn, or another ending.
    """

    def __init__(self, model: Trained, file: Path, place: int = 0) -> None:
        pictures = KINDS[model.job.data.kind].pictures
        if pictures is None:
            raise ValueError(f"--contact-sheet is for models of images; this one is of kind {model.job.data.kind}")
        if file.suffix.lower() != ".png":
            raise ValueError(f"--contact-sheet must name a .png file, got {file}")
        self.model, self.file, self.place, self.pictures = model, file, place, pictures
        self.target = model.target.each[place]
        self.files: list[str] = []
        self.scores = np.empty(0, np.float32)
        self.labels = np.empty(0, np.float32)
        self.known = self.positives = 0

    def add(self, table: Any, scores: npt.NDArray[np.float32]) -> None:
        """Look at rows and their scores, (rows,) or (rows, targets)."""
        labels = self._labels(table)
        self.known += int((~np.isnan(labels)).sum())
        self.positives += int((labels == 1).sum())
        files = [*self.files, *self.pictures.files(self.model.encoder, table)]
        every = np.concatenate([self.scores, scores.reshape(len(scores), -1)[:, self.place]])
        marks = np.concatenate([self.labels, labels])
        rows = best_rows(every.astype(np.float64), COUNT)
        self.files, self.scores, self.labels = [files[row] for row in rows], every[rows], marks[rows]

    def draw(self, total: int, *, everything: bool) -> None:
        """Write the picture.

        Args:
            total: How many rows there were.
            everything: Whether all of them were looked at, so that the share of positives is known.
        """
        share = self.positives / self.known if everything and self.known else float("nan")
        title = describe_best(self.labels.astype(np.float64), total, share)
        self.pictures.draw(self.file, self.files, self.scores, self.labels, title, self.model.job.data)

    def _labels(self, table: Any) -> npt.NDArray[np.float32]:
        if self.target.name in table.column_names:
            try:
                return self.target.labels(table.column(self.target.name))
            except ValueError:  # the file has other words for it: to be ranked it needs none
                pass
        return np.full(table.num_rows, np.nan, np.float32)
