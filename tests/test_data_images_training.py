"""Training on images: the weights depend neither on the number of workers nor on interruptions."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from apmax.data.images.augmentation import LARGE_IMAGES, SMALL_IMAGES
from apmax.data.images.dataset import ImageDataset
from apmax.models.images import resnet18
from apmax.train import Stage, epochs
from small_training import POSITIVE, run_of, same, weights


def parts(augment):
    generator = np.random.default_rng(0)
    labels = np.arange(96) % 6 == 0
    pixels = generator.integers(0, 200, (96, 16, 16, 3), dtype=np.uint8)
    pixels[labels, 4:12, 4:12, 0] += 55
    data = ImageDataset(pixels, labels)
    return data.subset(range(64), augment=augment), data.subset(range(64, 96))


def trained(augment, *, workers=0, stop_after=None, directory=None):
    torch.manual_seed(0)
    model = resnet18(width=2, stem="small")
    stages = (Stage(epochs=2), Stage(loss="ap", epochs=1, sampler=POSITIVE, reset=("head",)))
    options = {} if directory is None else {"directory": directory, "resume": True}
    for number, _ in enumerate(epochs(model, parts(augment), run_of(*stages, workers=workers), **options)):
        if number + 1 == stop_after:
            break
    return weights(model)


@pytest.mark.slow
@pytest.mark.parametrize("augment", [SMALL_IMAGES, LARGE_IMAGES], ids=["small", "large"])
def test_workers_do_not_change_the_weights(augment):
    assert same(trained(augment), trained(augment, workers=2))


def test_resumed_run_ends_with_the_same_weights(tmp_path):
    whole = trained(SMALL_IMAGES)
    trained(SMALL_IMAGES, stop_after=1, directory=tmp_path)
    assert same(trained(SMALL_IMAGES, directory=tmp_path), whole)


def test_augmentation_changes_the_weights():
    assert not same(trained(SMALL_IMAGES), trained(None))
