"""Contact sheets: the best-ranked images in one PNG file, true and false positives marked."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import extras, validation
from apmax.data.images.dataset import ImageDataset, Pixels
from apmax.data.images.decoding import Decoder

# Distinguishable for colour-blind people; the words below the images repeat it.
TRUE, FALSE, UNKNOWN = (0, 114, 178), (213, 94, 0), (120, 120, 120)
_INK, _PAPER = (30, 30, 30), (255, 255, 255)
_BORDER, _GAP, _TEXT = 4, 10, 13
COUNT, COLUMNS, TILE = 48, 8, 112

Values = npt.NDArray[np.float64]


def contact_sheet(
    path: str | PathLike[str],
    data: ImageDataset,
    scores: Any,
    *,
    labels: Any = None,
    count: int = COUNT,
    columns: int = COLUMNS,
    tile: int = TILE,
) -> Path:
    """Write the `count` images with the highest scores to a PNG file, best first, and return its path.

    The frame and a word mark true and false positives, where the label is known. Equal scores keep the order of rows.

    Args:
        path: The file; an existing one is replaced.
        data: The images, shown as stored, without augmentation.
        scores: One per image, (n,).
        labels: 0 or 1, NaN where unknown, (n,); by default those of `data` if it has one task.
        count: The number of images.
        columns: Images per line.
        tile: Height and width of an image in the file.

    Raises:
        ValueError: Scores or labels not one per image, or scores that are not finite.
    """
    if labels is None and data.labels is not None and data.labels.ndim == 1:
        labels = data.labels
    values, known = _checked(len(data), scores, labels)

    def pixels(row: int) -> Any:
        return data.store.take(data.places[[row]])[0]

    return _draw(path, pixels, values, known, count=count, columns=columns, tile=tile)


def contact_sheet_of_files(
    path: str | PathLike[str],
    files: Sequence[str],
    scores: Any,
    *,
    labels: Any = None,
    title: str | None = None,
    fit: str = "stretch",
    count: int = COUNT,
    columns: int = COLUMNS,
    tile: int = TILE,
) -> Path:
    """Write a contact sheet of image files.

    Args:
        path: The file; an existing one is replaced.
        files: The images.
        scores: One per image, (n,).
        labels: 0 or 1, NaN where unknown, (n,).
        title: The title; by default that of `describe_best`.
        fit: How images become square, as in `Decoder`.
        count: The number of images.
        columns: Images per line.
        tile: Height and width of an image in the file.

    Raises:
        ValueError: Scores or labels not one per image, scores that are not finite, or a file that cannot be read.
    """
    values, known = _checked(len(files), scores, labels)
    decoder = Decoder(validation.whole("tile", tile, 16), fit)

    def pixels(row: int) -> Pixels:
        return decoder(files[row])

    return _draw(path, pixels, values, known, title=title, count=count, columns=columns, tile=tile)


def best_rows(scores: Values, count: int) -> npt.NDArray[np.int64]:
    """Return the rows of the `count` highest scores, best first; equal ones in their order."""
    return np.argsort(-scores, kind="stable")[: validation.whole("count", count, 1)]


def describe_best(shown: Values, total: int, share: float) -> str:
    """Return the title of a contact sheet: the counts of shown images and of true positives among them.

    Args:
        shown: The labels of the shown images, NaN where unknown.
        total: The number of all images.
        share: The share of positives among all; NaN where unknown.

    >>> describe_best(np.array([1.0, 0.0, np.nan]), 1000, 0.02)
    '3 best of 1,000 images: 1 of 2 true; 2.00% of all are positive'
    """
    text = f"{len(shown)} best of {total:,} images"
    judged = int((~np.isnan(shown)).sum())
    if judged:
        text += f": {int(np.nansum(shown))} of {judged} true"
    return text if np.isnan(share) else f"{text}{';' if judged else ':'} {share:.2%} of all are positive"


def _draw(
    path: str | PathLike[str],
    pixels: Callable[[int], Pixels],
    values: Values,
    known: Values,
    *,
    title: str | None = None,
    count: int,
    columns: int,
    tile: int,
) -> Path:
    """Write the images with the highest scores; `pixels` returns an image by its row, labels are NaN where unknown."""
    validation.whole("tile", tile, 16)
    validation.whole("columns", columns, 1)
    rows = best_rows(values, count)
    if title is None:
        share = float("nan") if np.isnan(known).all() else float(np.nanmean(known))
        title = describe_best(known[rows], len(values), share)
    columns = min(columns, max(len(rows), 1))
    module, drawing = extras.load("PIL.Image", "images"), extras.load("PIL.ImageDraw", "images")
    font = extras.load("PIL.ImageFont", "images").load_default(_TEXT)
    top = 2 * _GAP + _TEXT
    cell = tile + 2 * _BORDER + _GAP
    high = cell + _TEXT + 4
    width = max(columns * cell + _GAP, int(font.getlength(title)) + 2 * _GAP)
    sheet = module.new("RGB", (width, top + -(-len(rows) // columns) * high + _GAP), _PAPER)
    draw = drawing.Draw(sheet)
    draw.text((_GAP, _GAP), title, fill=_INK, font=font)
    for rank, row in enumerate(rows.tolist()):
        left, upper = _GAP + rank % columns * cell, top + _GAP // 2 + rank // columns * high
        colour, word = _mark(known[row])
        draw.rectangle((left, upper, left + tile + 2 * _BORDER - 1, upper + tile + 2 * _BORDER - 1), fill=colour)
        own = pixels(row)
        image = module.fromarray(own if own.shape[2] == 3 else np.repeat(own[..., :1], 3, 2))
        sheet.paste(image.resize((tile, tile), module.Resampling.LANCZOS), (left + _BORDER, upper + _BORDER))
        below = (left, upper + tile + 2 * _BORDER + 1)
        draw.text(below, f"{rank + 1} {word} {values[row]:.3g}".replace("  ", " "), fill=colour, font=font)
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    sheet.save(target, format="PNG")
    return target


def _checked(count: int, scores: Any, given: Any) -> tuple[Values, Values]:
    values = np.asarray(validation.tensor(scores).cpu(), dtype=np.float64)
    if values.shape != (count,):
        raise ValueError(f"scores must be one per image, shape ({count},), got {values.shape}")
    validation.finite(validation.tensor(values))
    known = np.asarray(validation.tensor(np.full(count, np.nan) if given is None else given).cpu(), dtype=np.float64)
    if known.shape != (count,):
        raise ValueError(f"labels must be one per image, shape ({count},), got {known.shape}")
    if not np.isin(known[~np.isnan(known)], (0, 1)).all():
        raise ValueError("labels must be 0, 1 or NaN (unknown)")
    return values, known


def _mark(label: float) -> tuple[tuple[int, int, int], str]:
    if np.isnan(label):
        return UNKNOWN, ""
    return (TRUE, "true") if label == 1 else (FALSE, "false")
