"""The contact sheet: the best first, true and false told apart."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image

from apmax.data.images.contact_sheet import FALSE, TRUE, UNKNOWN, contact_sheet
from apmax.data.images.dataset import ImageDataset

LABELS = [0, 1, 1, 0, 1, 0]
SCORES = [0.5, -1.0, 2.0, 1.0, 0.5, -3.0]  # order: 2, 3, 0, 4, 1, 5


def shades(count=6):
    """Return images of one grey each, 40 apart."""
    return np.repeat(np.arange(count, dtype=np.uint8)[:, None, None, None] * 40, 32, 1).repeat(32, 2).repeat(3, 3)


def tiles(path, columns, count, tile=32):
    """Return frame colour and grey of every tile, by where they must be."""
    sheet = np.asarray(Image.open(path).convert("RGB"))
    found = []
    for rank in range(count):
        left, upper = 10 + rank % columns * (tile + 18), 33 + 5 + rank // columns * (tile + 18 + 17)
        found.append((tuple(int(v) for v in sheet[upper + 1, left + 1]), int(sheet[upper + 20, left + 20, 0])))
    return found


def test_best_are_first_and_marked(tmp_path):
    path = contact_sheet(tmp_path / "a.png", ImageDataset(shades(), LABELS), SCORES, count=4, columns=3, tile=32)
    assert tiles(path, 3, 4) == [(TRUE, 80), (FALSE, 120), (FALSE, 0), (TRUE, 160)]


def test_view_of_a_store_shows_its_own_images(tmp_path):
    data = ImageDataset(shades(), LABELS).subset([5, 4])
    path = contact_sheet(tmp_path / "a.png", data, [1.0, 2.0], columns=2, tile=32)
    assert tiles(path, 2, 2) == [(TRUE, 160), (FALSE, 200)]


def test_without_labels_nothing_is_claimed(tmp_path):
    path = contact_sheet(tmp_path / "a.png", ImageDataset(shades()), SCORES, count=2, columns=2, tile=32)
    assert [frame for frame, _ in tiles(path, 2, 2)] == [UNKNOWN, UNKNOWN]


def test_unknown_among_known_is_grey(tmp_path):
    labels = [0, 1, np.nan, 1, 0, 0]
    path = contact_sheet(tmp_path / "a.png", ImageDataset(shades()), SCORES, labels=labels, count=2, columns=2, tile=32)
    assert [frame for frame, _ in tiles(path, 2, 2)] == [UNKNOWN, TRUE]


@pytest.mark.parametrize(
    ("scores", "labels", "message"),
    [
        ([1.0], None, r"scores must be one per image, shape \(6,\)"),
        ([np.nan] * 6, None, "scores must be finite"),
        (SCORES, [0, 1], "labels must be one per image"),
        (SCORES, [2] * 6, "labels must be 0, 1 or NaN"),
    ],
)
def test_wrong_input_is_named_and_nothing_is_written(tmp_path, scores, labels, message):
    with pytest.raises(ValueError, match=message):
        contact_sheet(tmp_path / "a.png", ImageDataset(shades()), scores, labels=labels)
    assert not (tmp_path / "a.png").exists()
