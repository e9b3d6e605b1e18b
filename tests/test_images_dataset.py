"""Batches of images: each image as a loop over single images would make it, whichever process reads it."""

from __future__ import annotations

import multiprocessing
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Subset

from apmax import Indexed
from apmax.data.images import store as storing
from apmax.data.images.augment import (
    CIFAR,
    DRAWS,
    IMAGENET,
    LARGE_IMAGES,
    SMALL_IMAGES,
    Augment,
    Normalise,
)
from apmax.data.images.dataset import ImageDataset
from apmax.data.images.draws import uniforms
from apmax.data.images.store import ImageStore
from apmax.train import predict
from apmax.train.data import load_batches

PLAIN = Normalise((0.0, 0.0, 0.0), (1 / 255, 1 / 255, 1 / 255))
"""Leaves 0 … 255 as it is."""


def some_pixels(count=12, height=32, width=32, seed=0):
    return np.random.default_rng(seed).integers(0, 256, (count, height, width, 3), dtype=np.uint8)


def shifted_by_loop(image, pad, draws):
    """Return one image (H, W, 3) padded, cropped and mirrored, pixel by pixel."""
    height, width, _ = image.shape
    top, left = int(draws[0] * (2 * pad + 1)) - pad, int(draws[1] * (2 * pad + 1)) - pad
    result = np.zeros_like(image)
    for y in range(height):
        for x in range(width):
            column = width - 1 - x if draws[2] < 0.5 else x
            if 0 <= y + top < height and 0 <= column + left < width:
                result[y, x] = image[y + top, column + left]
    return result


def test_batch_equals_a_loop_over_images():
    pixels = some_pixels(6, 12, 10)
    data = ImageDataset(pixels, augment=Augment(pad=3), seed=5)
    data.set_epoch(7)
    rows = [4, 0, 5, 1]
    draws = uniforms(5, 7, rows, DRAWS)
    expected = np.stack([shifted_by_loop(pixels[row], 3, own) for row, own in zip(rows, draws, strict=True)])
    normal = (expected / 255 - np.array(CIFAR.mean)) / np.array(CIFAR.std)
    np.testing.assert_allclose(data.read(rows).numpy(), normal.transpose(0, 3, 1, 2), atol=1e-5)


def test_every_shift_and_mirror_image_occurs():
    marked = np.zeros((2000, 5, 5, 3), np.uint8)
    marked[:, 2, 3] = 255
    images = ImageDataset(marked, augment=Augment(pad=1), normalise=PLAIN).read(range(2000))
    places = images[:, 0].flatten(1).argmax(1)
    found, counts = places.unique(return_counts=True)
    # Columns 2 to 4 and their mirror images 0 to 2, which share column 2.
    assert sorted(found.tolist()) == sorted(5 * y + x for y in (1, 2, 3) for x in range(5))
    shares = dict(zip(found.tolist(), (counts / 2000).tolist(), strict=True))
    assert all(abs(share - (2 if place % 5 == 2 else 1) / 18) < 0.03 for place, share in shares.items())


def test_mirror_images_are_left_right_and_top_bottom():
    pixels = some_pixels(12, 6, 5)
    images = ImageDataset(pixels, augment=Augment(upside_down=True), normalise=PLAIN).read(range(12))
    for image, plain, own in zip(images.numpy(), pixels, uniforms(0, 0, range(12), DRAWS), strict=True):
        expected = plain[:: -1 if own[3] < 0.5 else 1, :: -1 if own[2] < 0.5 else 1]
        np.testing.assert_allclose(image.transpose(1, 2, 0), expected, atol=1e-3)


def test_without_augmentation_pixels_are_only_normalised():
    pixels = some_pixels()
    images = ImageDataset(pixels, normalise=IMAGENET).read([3])
    expected = (pixels[3] / 255 - np.array(IMAGENET.mean)) / np.array(IMAGENET.std)
    np.testing.assert_allclose(images[0].numpy(), expected.transpose(2, 0, 1), atol=1e-5)


def test_scoring_epoch_does_not_augment():
    pixels = some_pixels()
    data = ImageDataset(pixels, augment=SMALL_IMAGES)
    data.set_epoch(-1)
    assert torch.equal(data.read([2, 3]), ImageDataset(pixels).read([2, 3]))


def colour_by_loop(image, brightness, contrast, saturation):
    """Return an image (H, W, 3) of 0 to 255 with other colours, by the definitions."""
    grey = np.array([0.299, 0.587, 0.114])
    image = np.minimum(image * brightness, 255)
    mean = (image @ grey).mean()
    image = np.clip(mean + contrast * (image - mean), 0, 255)
    own = (image @ grey)[..., None]
    return np.clip(own + saturation * (image - own), 0, 255)


def test_colours_follow_the_definitions():
    pixels = some_pixels(5)
    augment = Augment(flip=False, brightness=0.3, contrast=0.5, saturation=0.8)
    images = ImageDataset(pixels, augment=augment, normalise=PLAIN, seed=1).read(range(5))
    for image, plain, own in zip(images.numpy(), pixels, uniforms(1, 0, range(5), DRAWS), strict=True):
        factors = 1 + np.array([0.3, 0.5, 0.8]) * (2 * own[6:9] - 1)
        expected = colour_by_loop(plain.astype(np.float64), *factors)
        np.testing.assert_allclose(image.transpose(1, 2, 0), expected, atol=1e-3)


def test_resized_crop_of_a_slope_is_a_flatter_slope_within_it():
    slope = np.broadcast_to(np.arange(64, dtype=np.uint8)[None, None, :, None] * 4, (50, 64, 64, 3)).copy()
    images = ImageDataset(slope, augment=Augment(area=(0.25, 0.25), aspect=(1, 1), flip=False), normalise=PLAIN)
    left, right = (images.read(range(50))[:, 0, 32, column] for column in (1, 62))
    # A square of half the side: 32 of 64 columns, each 4 brighter than the one before.
    assert ((right - left - 61 / 64 * 32 * 4).abs() < 4).all()
    assert left.min() < 20
    assert right.max() > 230


def test_whole_area_is_the_image_itself():
    pixels = some_pixels(3, 20, 24)
    data = ImageDataset(pixels, augment=Augment(area=(1, 1), aspect=(1, 1), flip=False))
    assert torch.equal(data.read([0, 1, 2]), ImageDataset(pixels).read([0, 1, 2]))


@pytest.mark.parametrize("augment", [SMALL_IMAGES, LARGE_IMAGES, Augment(upside_down=True)])
@settings(max_examples=10, deadline=None)
@given(rows=st.lists(st.integers(0, 11), min_size=1, max_size=12), epoch=st.integers(0, 5))
def test_image_depends_on_seed_epoch_and_row_alone(augment, rows, epoch):
    data = ImageDataset(some_pixels(height=24), augment=augment, seed=3)
    data.set_epoch(epoch)
    together = data.read(rows)
    assert all(torch.equal(together[place], data.read([row])[0]) for place, row in enumerate(rows))


@pytest.mark.parametrize("change", [{"seed": 1}, {"epoch": 1}])
def test_other_seed_or_epoch_is_another_image(change):
    pixels = some_pixels()
    one, two = (ImageDataset(pixels, augment=SMALL_IMAGES, seed=seed) for seed in (0, change.get("seed", 0)))
    two.set_epoch(change.get("epoch", 0))
    same = (one.read(range(12)) == two.read(range(12))).flatten(1).all(1)
    assert same.sum() <= 2


def test_more_threads_give_the_same_bits():
    data = ImageDataset(some_pixels(2, 200, 210), augment=LARGE_IMAGES)
    one = data.read([0, 1])
    try:
        torch.set_num_threads(2)
        assert torch.equal(data.read([0, 1]), one)
    finally:
        torch.set_num_threads(1)


@pytest.mark.parametrize("workers", [0, 2])
def test_workers_read_what_one_process_reads(workers):
    labels = np.arange(12) % 3 == 0
    data = ImageDataset(some_pixels(), labels, augment=SMALL_IMAGES)
    expected = ImageDataset(some_pixels(), labels, augment=SMALL_IMAGES)
    expected.set_epoch(4)
    order = [[3, 1, 2], [0, 11], [7, 8, 9]]
    for rows, (images, index) in zip(order, load_batches(data, order, seed=9, epoch=4, workers=workers), strict=True):
        assert index.tolist() == rows
        assert torch.equal(images, expected.read(rows))


def test_loader_gives_images_and_labels_also_of_views():
    labels = torch.tensor([0.0, 1.0] * 6)
    data = ImageDataset(some_pixels(), labels, augment=SMALL_IMAGES)
    images, found, index = next(iter(DataLoader(Indexed(Subset(data, [5, 6, 8])), batch_sampler=[[2, 0]])))
    assert torch.equal(images, data.read([8, 5]))
    assert found.tolist() == [0.0, 1.0]
    assert index.tolist() == [2, 0]
    joined = next(iter(DataLoader(ConcatDataset([data, data.subset([4])]), batch_sampler=[[12, 1]])))
    assert torch.equal(joined[0], torch.stack([data.subset([4])[0][0], data[1][0]]))


def test_single_item_is_the_row_of_a_batch():
    data = ImageDataset(some_pixels(), [0, 1] * 6, augment=SMALL_IMAGES)
    image, label = data[5]
    assert torch.equal(image, data.read([5])[0])
    assert label == 1
    assert torch.equal(data.__getitems__([5])[0][0].pixels, image)


def test_images_without_labels_are_scored_in_order():
    pixels = np.broadcast_to(np.array([3, 1, 2], np.uint8)[:, None, None, None], (3, 4, 4, 3)).copy()
    data = ImageDataset(pixels, augment=SMALL_IMAGES, normalise=PLAIN)

    class Mean(torch.nn.Module):
        def forward(self, images):
            return images.mean((1, 2, 3))

    assert predict(Mean(), data, batch_size=2).tolist() == [3.0, 1.0, 2.0]


def test_subset_keeps_labels_names_and_drops_augmentation():
    data = ImageDataset(some_pixels(4), [0, 1, 0, 1], augment=SMALL_IMAGES, names=list("abcd"))
    part = data.subset([3, 0]).subset([0])
    assert part.names == ["d"]
    assert part.labels.tolist() == [1.0]
    assert part.augment is None
    assert ImageDataset(some_pixels(2)).names == ["0", "1"]


def test_several_tasks_and_unmeasured_labels_pass():
    table = np.array([[1, np.nan], [0, 1]])
    assert np.array_equal(ImageDataset(some_pixels(2), table).labels, table, equal_nan=True)


def test_mapped_store_travels_as_its_path(tmp_path):
    np.save(tmp_path / "pixels.npy", some_pixels(50))
    store = ImageStore.open(tmp_path / "pixels.npy")
    sent = pickle.dumps(ImageDataset(store))
    assert len(sent) < 3000
    assert torch.equal(pickle.loads(sent).read([7]), ImageDataset(some_pixels(50)).read([7]))


def _first_pixel(data):
    return float(data.read([1])[0, 0, 0, 0])


def test_spawned_process_reads_the_same(tmp_path):
    np.save(tmp_path / "pixels.npy", some_pixels(4))
    data = ImageDataset(ImageStore.open(tmp_path / "pixels.npy"), augment=SMALL_IMAGES)
    data.set_epoch(3)
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_first_pixel, (data,)) == _first_pixel(data)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: ImageDataset(some_pixels(3), [0, 1]), "labels must have one row per image, got 2 for 3"),
        (lambda: ImageDataset(some_pixels(3), [0, 1, 2]), "labels must be 0 or 1, got 2"),
        (lambda: ImageDataset(some_pixels(3), places=[3]), "places must lie in 0 to 2"),
        (lambda: ImageDataset(some_pixels(3), names=["a"]), "names must be one per image, got 1"),
        (lambda: ImageDataset(some_pixels(3).astype(np.float32)), "uint8 array of shape"),
        (lambda: ImageDataset(some_pixels(3)[..., :1]).read([0]), "mean has 3 channels, the images have 1"),
        (lambda: Augment(pad=2, area=(0.5, 1)), "pad and area"),
        (lambda: Augment(area=(0.5, 1.5)), "area must be two numbers"),
        (lambda: Augment(brightness=2), "brightness must lie in"),
        (lambda: Normalise((0.5,), (0.0,)), "std positive"),
    ],
)
def test_wrong_arguments_are_named(call, message):
    with pytest.raises(ValueError, match=message):
        call()


def test_row_outside_is_an_index_error():
    with pytest.raises(IndexError, match="row 3 of a data set of 3 rows"):
        ImageDataset(some_pixels(3))[3]


def test_mask_is_not_taken_for_rows():
    with pytest.raises(IndexError, match="of a mask take"):
        ImageDataset(some_pixels(3)).subset([True, False, True])


def test_draws_are_uniform_and_independent_of_neighbours():
    table = uniforms(0, 0, range(20000), 4)
    assert abs(table.mean() - 0.5) < 0.005
    assert abs(table.var() - 1 / 12) < 0.002
    assert np.abs(np.corrcoef(table.T) - np.eye(4)).max() < 0.03
    assert np.abs(np.corrcoef(table[:-1, 0], table[1:, 0])[0, 1]) < 0.03
    assert np.abs(np.corrcoef(uniforms(0, 1, range(20000), 1)[:, 0], table[:, 0])[0, 1]) < 0.03


def test_mapped_pages_are_let_go_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(storing, "_RESIDENT", 5000)
    np.save(tmp_path / "pixels.npy", some_pixels(6))
    store = ImageStore.open(tmp_path / "pixels.npy")
    for _ in range(3):
        assert np.array_equal(store.take([5, 0]), some_pixels(6)[[5, 0]])
