"""Small images of digits, and what trains a committee of them in seconds."""

from __future__ import annotations

import numpy as np

from apmax.train.config import Optimizer, Sampler, Stage

TINY = {"width": 2, "stem": "small"}
COUNT = 60


def digits(count=COUNT, every=3):
    """Return 8×8 images of 0 and 1, every third of them a 1, with their labels."""
    from sklearn.datasets import load_digits

    data = load_digits()
    zeros, ones = (np.flatnonzero(data.target == digit) for digit in (0, 1))
    labels = np.arange(count) % every == 0
    rows = [ones[k] if positive else zeros[k] for k, positive in enumerate(labels)]
    pixels = (data.images[rows] * 255 / 16).astype(np.uint8)
    return np.repeat(pixels[..., None], 3, axis=3), labels.astype(np.float64)


def short_recipe(rows, positives, *, size=8, anneal=False):
    """Return two stages of a few steps."""
    first = Stage(loss={"ce": 1.0}, epochs=3, optimizer=Optimizer(lr=1e-2), sampler=Sampler(batch_size=16))
    second = Stage(
        loss={"ap": 1.0, "ce": 1.0},
        epochs=1,
        optimizer=Optimizer(lr=1e-3),
        sampler=Sampler(name="positive", batch_size=16, num_pos=2),
    )
    return first, second


def shorten_training(patch):
    """Let committees of images train tiny networks for a few steps."""
    patch.setattr("apmax.committee.image_networks.image_recipe", short_recipe)
    patch.setattr("apmax.workflows.data_types.images.small_image_options", lambda size, positives: TINY)


def write_digits(folder, count=COUNT):
    """Write digits as images: ones in "target", zeros in "other"; every fourth is in "bright" of a table too."""
    from PIL import Image

    pixels, labels = digits(count)
    lines = ["path,y,bright"]
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / ("target" if label else "other") / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
        bright = "" if number % 4 == 3 else int(image.mean() > 70)
        lines.append(f"{path.relative_to(folder)},{int(label)},{bright}")
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder


def digits_job(images, **data):
    """Return a job that trains a committee on a folder of digits."""
    return {"data": {"train": str(images), "target": "target", "test_share": 0.2, **data}}


def digits_labels(images):
    files = sorted(path for name in ("other", "target") for path in (images / name).iterdir())
    return np.array([path.parent.name == "target" for path in files])
