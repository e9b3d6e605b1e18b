"""Images: loading and augmenting against training, a loop over Pillow images, and decoding; ratios of one run.

On random pixels: their content does not change the time.
"""

from __future__ import annotations

import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image, ImageOps
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from apmax.data.images.augmentation import CIFAR, IMAGENET, SMALL_IMAGES
from apmax.data.images.dataset import ImageDataset
from apmax.data.images.decoding import Decoder, decode_all
from apmax.models.images import resnet18
from benchmarks.timing import Row, ratio, threads

BATCH, WORKERS = 64, 2


def small(count: int) -> ImageDataset:
    """Return images of 32×32 with 2 % positives, augmented as in the paper."""
    generator = np.random.default_rng(0)
    pixels = generator.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
    return ImageDataset(pixels, generator.random(count) < 0.02, augment=SMALL_IMAGES)


class PillowLoop(Dataset[tuple[Tensor, Tensor]]):
    """The same augmentation image by image, with torch's generator, as the usual transforms of Pillow images do it."""

    def __init__(self, data: ImageDataset) -> None:
        self.pixels, self.labels = data.store.pixels, data.labels
        self.mean, self.std = (torch.tensor(values)[:, None, None] for values in (CIFAR.mean, CIFAR.std))

    def __len__(self) -> int:
        return len(self.pixels)

    def __getitem__(self, row: int) -> tuple[Tensor, Tensor]:
        """Pad, crop, mirror, normalise one image."""
        image = ImageOps.expand(Image.fromarray(self.pixels[row]), 4)
        left, top = (int(torch.randint(0, 9, (1,))) for _ in range(2))
        image = image.crop((left, top, left + 32, top + 32))
        if torch.rand(1) < 0.5:
            image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
        values = torch.from_numpy(np.array(image)).permute(2, 0, 1).contiguous().float().div_(255)
        return values.sub_(self.mean).div_(self.std), self.labels[row]


def against_training() -> float:
    """Return load + augment over a training step of ResNet-18, a batch of 64 at 32×32, on two cores."""
    data, model = small(4096), resnet18()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    loader = iter(DataLoader(data, batch_sampler=[list(range(BATCH))] * 100_000))
    images, labels = next(loader)

    def step() -> None:
        optimizer.zero_grad()
        nn.functional.binary_cross_entropy_with_logits(model(images), labels).backward()
        optimizer.step()

    with threads(2):
        return ratio(lambda: next(loader), step, seconds=4.0)


def passes(*loaders: Any, rounds: int = 3) -> list[float]:
    """Return the shortest time of a pass over each loader, from its first batch to its last; they take turns.

    The start of worker processes is not counted, in favour of those that have some.
    """
    found = [float("inf")] * len(loaders)
    for _ in range(rounds):
        for number, loader in enumerate(loaders):
            batches = iter(loader)
            next(batches)
            begin = time.perf_counter()
            for _ in batches:
                pass
            found[number] = min(found[number], time.perf_counter() - begin)
    return found


def against_pillow() -> float:
    """Return a pass of our loader in this process over one of the Pillow loop in two others."""
    data = small(20_000)
    ours = DataLoader(data, BATCH, shuffle=True)
    theirs = DataLoader(PillowLoop(data), BATCH, shuffle=True, num_workers=WORKERS)
    own, other = passes(ours, theirs)
    return own / other


def against_decoding(folder: Path, *, size: int = 384, count: int = 64) -> float:
    """Return reading cached images over decoding JPEG files of the same size, both to normalised tensors."""
    y, x = np.mgrid[0:size, 0:size]
    generator = np.random.default_rng(0)
    files = []
    for number in range(count):
        waves = [128 + 80 * np.sin(x / generator.uniform(5, 50) + y / generator.uniform(5, 50)) for _ in range(3)]
        noisy = np.stack(waves, 2) + generator.normal(0, 12, (size, size, 3))
        files.append(str(folder / f"{number}.jpg"))
        Image.fromarray(noisy.clip(0, 255).astype(np.uint8)).save(files[-1], quality=90)
    data = ImageDataset(decode_all(files, size, cache=folder / "cache").store, normalise=IMAGENET)
    decoder = Decoder(size)

    def decode() -> Tensor:
        return ImageDataset(np.stack([decoder(file) for file in files[:16]]), normalise=IMAGENET).read(range(16))

    return ratio(lambda: data.read(range(16)), decode, seconds=3.0)


def run() -> list[Row]:
    """Return what was measured beside its target."""
    with tempfile.TemporaryDirectory() as folder:
        decoding = against_decoding(Path(folder))
    return [
        ("images: load + augment / ResNet-18 training step, 64 at 32×32, two cores", against_training(), 0.10),
        ("images: load + augment here / per-image Pillow loop in 2 workers", against_pillow(), 0.20),
        ("images: cached 384×384 / decoding JPEGs of that size, to tensors", decoding, 0.25),
    ]
