"""Data set of images with labels, whose batches are read and augmented at once."""

from __future__ import annotations

import hashlib
import math
import mmap
from collections.abc import Callable, Sequence
from itertools import groupby
from os import PathLike
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data._utils.collate import default_collate_fn_map

from apmax.data.images.augmentation import CIFAR, DRAWS, Augment, Normalise, uniforms
from apmax.data.splits import RowNumbers
from apmax.data.store_dataset import StoreDataset

Pixels = npt.NDArray[np.uint8]
Transform = Callable[[Pixels], Tensor]
"""A user's own transform: uint8 array (H, W, channels) to floating tensor (channels, H', W')."""
_CHUNK = 1 << 19
_RESIDENT = 256 << 20
_HASHED_IMAGES = 64
_MOST_HASHED = 64 << 20


class ImageStore:
    """8-bit pixels of many images of one size, in memory or memory-mapped from a file.

    A memory-mapped store is sent to other processes as its path: workers share its pages.

    Args:
        pixels: uint8 array (n, H, W, channels); not copied.
        path: The .npy file that it is mapped from, if it is.

    Raises:
        ValueError: Not an array of that shape and type.

    >>> ImageStore(np.zeros((2, 32, 32, 3), np.uint8)).shape
    (32, 32, 3)
    """

    def __init__(self, pixels: Any, *, path: Path | None = None) -> None:
        if not isinstance(pixels, np.ndarray) or pixels.dtype != np.uint8 or pixels.ndim != 4:
            found = f"{pixels.dtype} {pixels.shape}" if isinstance(pixels, np.ndarray) else type(pixels).__name__
            raise ValueError(f"pixels must be a uint8 array of shape (n, H, W, channels), got {found}")
        self.pixels: Pixels = pixels
        self.path = path
        self._touched = 0

    @classmethod
    def open(cls, path: str | PathLike[str]) -> ImageStore:
        """Return the images of an .npy file, memory-mapped."""
        file = Path(path).absolute()
        return cls(np.load(file, mmap_mode="r", allow_pickle=False), path=file)

    def __len__(self) -> int:
        return len(self.pixels)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Height, width and channels."""
        height, width, channels = self.pixels.shape[1:]
        return height, width, channels

    def take(self, places: Any) -> Pixels:
        """Return a copy of these images, (B, H, W, channels)."""
        images = np.asarray(self.pixels[np.asarray(places, dtype=np.int64)])
        if self.path is not None:
            self._touched += images.nbytes
            if self._touched > _RESIDENT:
                self._unmap_pages()
        return images

    def _unmap_pages(self) -> None:
        """Unmap the pages read so far: they stay in the system's cache but not in this process's memory."""
        self._touched = 0
        mapping = getattr(self.pixels, "_mmap", None)
        if mapping is not None and hasattr(mmap, "MADV_DONTNEED"):
            mapping.madvise(mmap.MADV_DONTNEED)

    def __reduce__(self) -> tuple[Any, ...]:
        if self.path is not None:
            return ImageStore.open, (self.path,)
        return ImageStore, (self.pixels,)


class LazyImage:
    """An image of a data set that is not read yet; the images of a batch are read at once when they are collated."""

    __slots__ = ("dataset", "row")

    def __init__(self, dataset: ImageDataset, row: int) -> None:
        self.dataset, self.row = dataset, row

    @property
    def pixels(self) -> Tensor:
        """The transformed image, (channels, H, W)."""
        return self.dataset.read([self.row])[0]


class LabelledImage(tuple[LazyImage, Tensor]):
    """A lazy image and its label."""

    __slots__ = ()


class LazyBatch(Sequence[Any]):
    """The items of a batch, made only if they are accessed one by one."""

    def __init__(self, dataset: ImageDataset, rows: RowNumbers) -> None:
        self.dataset, self.rows = dataset, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        row = int(self.rows[place])
        image = LazyImage(self.dataset, row)
        return image if self.dataset.labels is None else LabelledImage((image, self.dataset.labels[row]))


def collate_images(images: Sequence[LazyImage], **_: Any) -> Tensor:
    """Return the images of a batch, (B, channels, H, W)."""
    if isinstance(images, LazyBatch):
        return images.dataset.read(images.rows)
    parts = [
        dataset.read([image.row for image in group])
        for dataset, group in groupby(images, key=lambda each: each.dataset)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def collate_labelled_images(items: Sequence[LabelledImage], **_: Any) -> list[Tensor]:
    """Return the images of a batch, (B, channels, H, W), and their labels, (B,) or (B, tasks)."""
    if isinstance(items, LazyBatch) and items.dataset.labels is not None:
        return [items.dataset.read(items.rows), items.dataset.labels[torch.from_numpy(items.rows)]]
    return [collate_images([image for image, _ in items]), torch.stack([label for _, label in items])]


# With this torch's own loader collates these images without a collate function, also of a `Subset` or an `Indexed`.
default_collate_fn_map |= {LazyImage: collate_images, LabelledImage: collate_labelled_images}


class ImageDataset(StoreDataset):
    """Images of a store with labels, or some of them.

    An item is `(image, label)`, or the image alone where there are no labels. Augmentation is a function of (seed,
    epoch, row): the same in every process, and after a resume. In epochs below 0, which the trainer uses for scoring,
    it is left out.

    `transform` replaces augmentation and normalisation by your own, such as a `torchvision.transforms.v2.Compose` that
    begins with `ToImage()`: it is called with one image, a uint8 array (H, W, channels), and returns a floating tensor
    (channels, H', W') as the network takes it. It is applied in all epochs: give validation images one without
    randomness. torch's generator is seeded by (seed, epoch, row) around each call, so that draws from it are
    reproducible; those from other generators are not.

    A loader whose workers outlive an epoch (`persistent_workers=True`) would not see `set_epoch`: do not use one.

    Args:
        store: The images, or a uint8 array (n, H, W, channels).
        labels: One per image of the *store*: (n,), or (n, tasks) with NaN for "not measured"; None where unknown.
        places: The images of the store that belong to this data set; all by default.
        augment: Random changes, such as `SMALL_IMAGES` or `LARGE_IMAGES`; none by default.
        transform: Your own transform, in place of `augment` and `normalise`.
        normalise: Mean and deviation per channel.
        seed: Seed of the augmentation.
        names: Names of the store's images, such as paths.

    Raises:
        ValueError: Labels or names not one per image, places outside of the store, or both `augment` and `transform`.

    >>> data = ImageDataset(np.zeros((3, 32, 32, 3), np.uint8), [1, 0, 1], augment=Augment(pad=4))
    >>> images, labels = next(iter(torch.utils.data.DataLoader(data, batch_size=2)))
    >>> images.shape, labels
    (torch.Size([2, 3, 32, 32]), tensor([1., 0.]))
    """

    item = "image"
    store: ImageStore

    def __init__(
        self,
        store: Any,
        labels: Any = None,
        *,
        places: Any = None,
        augment: Augment | None = None,
        transform: Transform | None = None,
        normalise: Normalise = CIFAR,
        seed: int = 0,
        names: Sequence[str] | None = None,
    ) -> None:
        super().__init__(store if isinstance(store, ImageStore) else ImageStore(store), labels, places)
        if names is not None and len(names) != len(self.store):
            raise ValueError(f"names must be one per image, got {len(names)} for {len(self.store)} images")
        if augment is not None and transform is not None:
            raise ValueError("transform replaces augment: give one of them")
        self.augment, self.transform = augment, transform
        self.normalise, self.seed, self.epoch = normalise, seed, 0
        self._names = names

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch that the augmentation depends on."""
        self.epoch = epoch

    @property
    def names(self) -> list[str]:
        """The names of the images: their paths, or their places in the store."""
        return [str(place) if self._names is None else self._names[place] for place in self.places.tolist()]

    def content_hash(self) -> str:
        """Return a text that is the same for data sets of the same pixels in the same order and normalisation.

        Labels and augmentation do not count: scoring sees neither.

        Raises:
            ValueError: The images have a `transform`, whose result is not known.
        """
        if self.transform is not None:
            raise ValueError("transform: images with a transform of your own have no content hash; leave out cache")
        return self._hash(self.places)

    @property
    def fingerprint(self) -> str:
        """A hash of the pixels, by which a training that is continued knows its images; of many, of some of them."""
        height, width, channels = self.store.shape
        step = max(1, math.ceil(len(self) * height * width * channels / _MOST_HASHED))
        return self._hash(self.places[::step])

    def _hash(self, places: RowNumbers) -> str:
        """Return a hash of the normalisation, the number of images, and the pixels at some places of the store."""
        digest = hashlib.blake2b(f"{self.store.shape} {len(self)} {self.normalise}".encode(), digest_size=16)
        for first in range(0, len(places), _HASHED_IMAGES):
            digest.update(self.store.take(places[first : first + _HASHED_IMAGES]).tobytes())
        return digest.hexdigest()

    def read(self, rows: Sequence[int] | RowNumbers) -> Tensor:
        """Return the images of these rows as the network takes them, float32 (B, channels, H, W).

        Without a `transform` they have torch's memory format `channels_last`.

        Raises:
            ValueError: `transform` does not return floating tensors of one shape.
        """
        index = self._check_rows(rows)
        if self.transform is not None:
            return self._transformed(self.transform, index)
        height, width, channels = self.store.shape
        result = torch.empty(len(index), height, width, channels)
        # Few large images at a time, so that intermediate results stay in the processor's cache.
        step = max(1, _CHUNK // max(height * width * channels, 1))
        for first in range(0, len(index), step):
            self._read_into(result[first : first + step], index[first : first + step])
        return result.permute(0, 3, 1, 2)

    def _read_into(self, result: Tensor, index: RowNumbers) -> None:
        images = torch.from_numpy(self.store.take(self.places[index]))
        if self.augment is not None and self.epoch >= 0:
            draws = uniforms(self.seed, self.epoch, index, DRAWS)
            images = self.augment.geometry(images, draws)
            if self.augment.recolours:
                planes = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
                self.augment.colour(planes, draws)
                images = planes.permute(0, 2, 3, 1)
        self.normalise(result.copy_(images))

    def _transformed(self, transform: Transform, index: RowNumbers) -> Tensor:
        seeds = (uniforms(self.seed, self.epoch, index, 1)[:, 0] * 2**53).astype(np.int64).tolist()
        images: list[Tensor] = []
        with torch.random.fork_rng(devices=[]):
            for pixels, seed in zip(self.store.take(self.places[index]), seeds, strict=True):
                torch.manual_seed(seed)
                image = transform(pixels)
                if not isinstance(image, Tensor) or not image.is_floating_point() or image.ndim != 3:
                    found = f"{image.dtype} {tuple(image.shape)}" if isinstance(image, Tensor) else type(image).__name__
                    raise ValueError(f"transform must return a floating tensor (channels, H, W), got {found}")
                if images and image.shape != images[0].shape:
                    raise ValueError(
                        f"transform must return tensors of one shape, got {tuple(images[0].shape)} and "
                        f"{tuple(image.shape)}"
                    )
                images.append(image.float())
        return torch.stack(images)

    def __getitem__(self, row: int) -> Any:
        image = self.read([row])[0]
        return image if self.labels is None else (image, self.labels[row])

    def __getitems__(self, rows: list[int]) -> Sequence[Any]:
        """Return the lazy images of a batch, which are read when they are collated."""
        return LazyBatch(self, self._check_rows(rows))

    def subset(
        self,
        rows: Any,
        *,
        augment: Augment | None = None,
        transform: Transform | None = None,
        seed: int | None = None,
    ) -> ImageDataset:
        """Return the data set of these rows, counted from 0, with another augmentation or transform, or none.

        `seed` is that of the augmentation; by default the same as here.
        """
        index = self._check_rows(rows)
        part = ImageDataset(
            self.store,
            places=self.places[index],
            augment=augment,
            transform=transform,
            normalise=self.normalise,
            seed=self.seed if seed is None else seed,
            names=self._names,
        )
        part.labels = None if self.labels is None else self.labels[torch.from_numpy(index)]
        return part

    def with_transform(self, transform: Transform, *, seed: int | None = None) -> ImageDataset:
        """Return the same images with your own transform in place of augmentation and normalisation."""
        return self.subset(np.arange(len(self)), transform=transform, seed=seed)

    def __repr__(self) -> str:
        height, width, channels = self.store.shape
        shape = "no labels" if self.labels is None else f"labels {tuple(self.labels.shape)}"
        return f"ImageDataset({len(self)} images of {height}×{width}×{channels}, {shape})"


def images_at_a_time(size: int) -> int:
    """Return how many images of that size a network scores at a time within a few hundred megabytes.

    >>> images_at_a_time(32), images_at_a_time(224), images_at_a_time(384)
    (1024, 41, 16)
    """
    return max(16, min(1024, 2**21 // size**2))
