"""Contact sheets: pictures of the best-ranked images."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax.data.images import best_rows, describe_best
from apmax.data.images.contact_sheet import COUNT
from apmax.workflows.data_types import ImageType, LabelledRows
from apmax.workflows.data_types.rows import target_columns
from apmax.workflows.saved_model import SavedModel


def draw_contact_sheets(
    model: SavedModel, rows: LabelledRows, scores: npt.NDArray[np.float32], folder: Path, *, part: str
) -> list[Path]:
    """Draw the best-ranked images for every target, and return the files; nothing where rows are not images.

    Args:
        model: The model that scored them.
        rows: The rows, with their dataset.
        scores: (rows,) or (rows, targets); rows without a score are left out.
        folder: Where the pictures go: contact-sheet.png, or contact-sheet-TARGET.png for several targets
            (with the target's number where two have the same name there).
        part: The part of the data, for the title.
    """
    data_type = model.data_type
    if not isinstance(data_type, ImageType):
        return []
    files = []
    names = model.targets.names
    suffixes = sheet_suffixes(names)
    columns = zip(names, suffixes, target_columns(scores).T, target_columns(rows.labels).T, strict=True)
    for target, suffix, scored, marked in columns:
        # The cross-fitted rows of a committee may have no score: those without a label, or of the earliest times.
        places = np.flatnonzero(~np.isnan(scored))
        if not len(places):
            continue
        column, labels, files_shown = scored[places], marked[places], rows.dataset.subset(places).names
        known = labels[~np.isnan(labels)]
        shown = labels[best_rows(column.astype(np.float64), COUNT)].astype(np.float64)
        title = f"{part}, {target}: {describe_best(shown, len(labels), float(known.mean()) if len(known) else np.nan)}"
        files.append(folder / f"contact-sheet{suffix}.png")
        data_type.draw_contact_sheet(files[-1], files_shown, column, labels, title)
    return files


def sheet_suffixes(targets: Sequence[str]) -> list[str]:
    """Return what the names of the pictures of several targets end in, with their number where names would be equal.

    >>> sheet_suffixes(["toxic", "IC50 > 10", "IC50 < 10"])
    ['-toxic', '-IC50_10-2', '-IC50_10-3']
    """
    if len(targets) == 1:
        return [""]
    plain = [re.sub(r"[^\w.-]+", "_", target) for target in targets]
    # Some file systems do not distinguish small from capital letters.
    counts = Counter(name.lower() for name in plain)
    taken = set(counts)
    suffixes = []
    for number, name in enumerate(plain, start=1):
        unique = name
        while counts[name.lower()] > 1 and unique.lower() in taken:
            unique = f"{unique}-{number}"
        taken.add(unique.lower())
        suffixes.append(f"-{unique}")
    return suffixes


class ContactSheet:
    """The best-ranked of any number of images, collected in constant memory and drawn at the end.

    Args:
        model: The model that scores them.
        file: The picture, a .png file.
        target: Number of the target that ranks them.

    Raises:
        ValueError: The model is not one of images, or the file has another ending.
    """

    def __init__(self, model: SavedModel, file: Path, target: int = 0) -> None:
        if not isinstance(model.data_type, ImageType):
            raise ValueError(f"contact_sheet is for models of images; this one is of kind {model.job.data.kind}")
        if file.suffix.lower() != ".png":
            raise ValueError(f"contact_sheet must name a .png file, got {file}")
        self.encoder: Any = model.encoder
        self.data_type, self.file, self.column = model.data_type, file, target
        self.target = model.targets.each[target]
        self.files: list[str] = []
        self.scores = np.empty(0, np.float32)
        self.labels = np.empty(0, np.float32)
        self.known = self.positives = 0

    def add(self, table: Any, scores: npt.NDArray[np.float32]) -> None:
        """Add the rows of a `pyarrow.Table` with their scores, (rows,) or (rows, targets)."""
        labels = self._labels(table)
        self.known += int((~np.isnan(labels)).sum())
        self.positives += int((labels == 1).sum())
        files = [*self.files, *self.encoder.paths.files(table)]
        all_scores = np.concatenate([self.scores, target_columns(scores)[:, self.column]])
        all_labels = np.concatenate([self.labels, labels])
        rows = best_rows(all_scores.astype(np.float64), COUNT)
        self.files, self.scores, self.labels = [files[row] for row in rows], all_scores[rows], all_labels[rows]

    def draw(self, total: int, *, complete: bool) -> None:
        """Write the picture.

        Args:
            total: Number of ranked rows.
            complete: Whether all of them were added, so that the share of positives is known.
        """
        if not self.files:
            return
        share = self.positives / self.known if complete and self.known else float("nan")
        title = describe_best(self.labels.astype(np.float64), total, share)
        self.data_type.draw_contact_sheet(self.file, self.files, self.scores, self.labels, title)

    def _labels(self, table: Any) -> npt.NDArray[np.float32]:
        if self.target.name in table.column_names:
            try:
                return self.target.labels(table.column(self.target.name))
            except ValueError:  # other values than in training: ranking does not need them
                pass
        return np.full(table.num_rows, np.nan, np.float32)
