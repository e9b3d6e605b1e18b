"""A picture of the best-ranked images, with true and false positives marked."""

from __future__ import annotations

from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np

from apmax import extras, validation
from apmax.data.images.dataset import ImageDataset

# Told apart by people who do not see red and green, too; the words below the images say it again.
TRUE, FALSE, UNKNOWN = (0, 114, 178), (213, 94, 0), (120, 120, 120)
_INK, _PAPER = (30, 30, 30), (255, 255, 255)
_BORDER, _GAP, _TEXT = 4, 10, 13


def contact_sheet(
    path: str | PathLike[str],
    data: ImageDataset,
    scores: Any,
    *,
    labels: Any = None,
    count: int = 48,
    columns: int = 8,
    tile: int = 112,
) -> Path:
    """Write the `count` images with the highest scores to a PNG file, best first, and return its path.

    A frame and a word say whether an image is a true or a false positive, where its label is known. Equal scores
    keep the order of rows.

    Args:
        path: The file, which is replaced if it is there.
        data: The images; they are shown as stored, without augmentation.
        scores: One per image, (n,).
        labels: 0 or 1, NaN where unknown, (n,); by default those of `data` if it has one task.
        count: How many images.
        columns: Images per line.
        tile: Their height and width in the picture.

    Raises:
        ValueError: Scores or labels not one per image, or scores that are not finite.
    """
    values = np.asarray(validation.tensor(scores).cpu(), dtype=np.float64)
    if values.shape != (len(data),):
        raise ValueError(f"scores must be one per image, shape ({len(data)},), got {values.shape}")
    validation.finite(validation.tensor(values))
    known = _labels(data, labels)
    count = min(validation.whole("count", count, 1), len(data))
    columns = min(validation.whole("columns", columns, 1), count)
    tile = validation.whole("tile", tile, 16)
    best = np.argsort(-values, kind="stable")[:count]

    module, drawing = extras.load("PIL.Image", "images"), extras.load("PIL.ImageDraw", "images")
    font = extras.load("PIL.ImageFont", "images").load_default(_TEXT)
    title, top = _title(known, best), 2 * _GAP + _TEXT
    cell = tile + 2 * _BORDER + _GAP
    high = cell + _TEXT + 4
    width = max(columns * cell + _GAP, int(font.getlength(title)) + 2 * _GAP)
    sheet = module.new("RGB", (width, top + -(-count // columns) * high + _GAP), _PAPER)
    draw = drawing.Draw(sheet)
    draw.text((_GAP, _GAP), title, fill=_INK, font=font)
    for rank, row in enumerate(best.tolist()):
        left, upper = _GAP + rank % columns * cell, top + _GAP // 2 + rank // columns * high
        colour, word = _mark(known[row])
        draw.rectangle((left, upper, left + tile + 2 * _BORDER - 1, upper + tile + 2 * _BORDER - 1), fill=colour)
        pixels = data.store.take(data.places[[row]])[0]
        image = module.fromarray(pixels if pixels.shape[2] == 3 else np.repeat(pixels[..., :1], 3, 2))
        sheet.paste(image.resize((tile, tile), module.Resampling.LANCZOS), (left + _BORDER, upper + _BORDER))
        below = (left, upper + tile + 2 * _BORDER + 1)
        draw.text(below, f"{rank + 1} {word} {values[row]:.3g}".replace("  ", " "), fill=colour, font=font)
    target = Path(path)
    sheet.save(target, format="PNG")
    return target


def _labels(data: ImageDataset, given: Any) -> np.ndarray[Any, np.dtype[np.float64]]:
    if given is None:
        given = data.labels if data.labels is not None and data.labels.ndim == 1 else np.full(len(data), np.nan)
    known = np.asarray(validation.tensor(given).cpu(), dtype=np.float64)
    if known.shape != (len(data),):
        raise ValueError(f"labels must be one per image, shape ({len(data)},), got {known.shape}")
    if not np.isin(known[~np.isnan(known)], (0, 1)).all():
        raise ValueError("labels must be 0, 1 or NaN (unknown)")
    return known


def _mark(label: float) -> tuple[tuple[int, int, int], str]:
    if np.isnan(label):
        return UNKNOWN, ""
    return (TRUE, "true") if label == 1 else (FALSE, "false")


def _title(known: Any, best: Any) -> str:
    text = f"{len(best)} best of {len(known):,} images"
    shown = known[best]
    if np.isnan(known).all():
        return text
    right, judged = int(np.nansum(shown)), int((~np.isnan(shown)).sum())
    return f"{text}: {right} of {judged} true; {np.nanmean(known):.2%} of all are positive"
