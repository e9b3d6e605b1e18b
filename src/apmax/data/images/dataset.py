"""Images with labels as a map-style data set whose batches are read and augmented at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.utils.data import Dataset
from torch.utils.data._utils.collate import default_collate_fn_map

from apmax import validation
from apmax.data.images.augment import CIFAR, DRAWS, Augment, Normalise
from apmax.data.images.draws import uniforms
from apmax.data.images.store import ImageStore

_CHUNK = 1 << 19


class Picture:
    """One image of a data set that is not read yet: a batch of them is read at once when it is joined."""

    __slots__ = ("dataset", "row")

    def __init__(self, dataset: ImageDataset, row: int) -> None:
        self.dataset, self.row = dataset, row

    @property
    def pixels(self) -> Tensor:
        """The augmented, normalised image, (channels, H, W)."""
        return self.dataset.read([self.row])[0]


class Labelled(tuple[Picture, Tensor]):
    """A picture and its label."""

    __slots__ = ()


class Pictures(Sequence[Any]):
    """The items of a batch, which are made only where somebody looks at them one by one."""

    def __init__(self, dataset: ImageDataset, rows: npt.NDArray[np.int64]) -> None:
        self.dataset, self.rows = dataset, rows

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, place: Any) -> Any:
        row = int(self.rows[place])
        picture = Picture(self.dataset, row)
        return picture if self.dataset.labels is None else Labelled((picture, self.dataset.labels[row]))


def collate_pictures(pictures: Sequence[Picture], **_: Any) -> Tensor:
    """Return the images of a batch, (B, channels, H, W)."""
    if isinstance(pictures, Pictures):
        return pictures.dataset.read(pictures.rows)
    parts = [
        dataset.read([picture.row for picture in group])
        for dataset, group in groupby(pictures, key=lambda picture: picture.dataset)
    ]
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def collate_labelled(items: Sequence[Labelled], **_: Any) -> list[Tensor]:
    """Return the images of a batch, (B, channels, H, W), and their labels, (B,) or (B, tasks)."""
    if isinstance(items, Pictures) and items.dataset.labels is not None:
        return [items.dataset.read(items.rows), items.dataset.labels[torch.from_numpy(items.rows)]]
    return [collate_pictures([picture for picture, _ in items]), torch.stack([label for _, label in items])]


# With this torch's own loader joins pictures, also from a `Subset` or an `Indexed`, without being told how.
default_collate_fn_map |= {Picture: collate_pictures, Labelled: collate_labelled}


class ImageDataset(Dataset[Any]):
    """Images of a store, with labels; a view of some of them where `places` are given.

    An item is `(image, label)`, or the image alone where there are no labels. Augmentation is a function of (seed,
    epoch, row): it is the same in every process, and after a resume. It is left out in epochs below 0, by which the
    trainer means that it only scores.

    A loader whose workers outlive an epoch (`persistent_workers=True`) would not see `set_epoch`: do not use one.

    Args:
        store: All images, or a uint8 array (n, H, W, channels).
        labels: One per image of the *store*: (n,), or (n, tasks) with NaN for "not measured"; None where unknown.
        places: The images of the store that this data set consists of; all by default.
        augment: What is done at random, `SMALL_IMAGES` or `LARGE_IMAGES` for instance; nothing by default.
        normalise: Mean and deviation per channel.
        seed: Of the augmentation.
        names: Of the store's images, such as paths.

    Raises:
        ValueError: Labels or names not one per image, places outside of the store.

    >>> data = ImageDataset(np.zeros((3, 32, 32, 3), np.uint8), [1, 0, 1], augment=Augment(pad=4))
    >>> images, labels = next(iter(torch.utils.data.DataLoader(data, batch_size=2)))
    >>> images.shape, labels
    (torch.Size([2, 3, 32, 32]), tensor([1., 0.]))
    """

    def __init__(
        self,
        store: Any,
        labels: Any = None,
        *,
        places: Any = None,
        augment: Augment | None = None,
        normalise: Normalise = CIFAR,
        seed: int = 0,
        names: Sequence[str] | None = None,
    ) -> None:
        self.store = store if isinstance(store, ImageStore) else ImageStore(store)
        self.places: npt.NDArray[np.int64] = (
            np.arange(len(self.store)) if places is None else np.asarray(places, dtype=np.int64)
        )
        if len(self.places) and not 0 <= self.places.min() <= self.places.max() < len(self.store):
            raise ValueError(f"places must lie in 0 to {len(self.store) - 1}, the images of the store")
        if names is not None and len(names) != len(self.store):
            raise ValueError(f"names must be one per image, got {len(names)} for {len(self.store)} images")
        self.labels: Tensor | None = None
        if labels is not None:
            every = validation.tensor(labels)
            if len(every) != len(self.store):
                raise ValueError(f"labels must have one row per image, got {len(every)} for {len(self.store)} images")
            # Only these rows must be measured: a single task may be unknown elsewhere.
            self.labels = validation.label_array(every[torch.from_numpy(self.places)])
        self.augment, self.normalise, self.seed, self.epoch = augment, normalise, seed, 0
        self._names = names

    def __len__(self) -> int:
        return len(self.places)

    def set_epoch(self, epoch: int) -> None:
        """Draw for that epoch from now on."""
        self.epoch = epoch

    @property
    def names(self) -> list[str]:
        """What the images are called: their paths, or their places in the store."""
        return [str(place) if self._names is None else self._names[place] for place in self.places.tolist()]

    def read(self, rows: Sequence[int] | npt.NDArray[np.int64]) -> Tensor:
        """Return the augmented, normalised images of these rows, float32 (B, channels, H, W).

        In memory a pixel's channels are together, as the store has them (torch's `channels_last`).
        """
        index = self._checked(rows)
        height, width, channels = self.store.shape
        result = torch.empty(len(index), height, width, channels)
        # Few large images at a time, so that what is between stays in the processor's cache.
        step = max(1, _CHUNK // max(height * width * channels, 1))
        for first in range(0, len(index), step):
            self._read_into(result[first : first + step], index[first : first + step])
        return result.permute(0, 3, 1, 2)

    def _read_into(self, result: Tensor, index: npt.NDArray[np.int64]) -> None:
        images = torch.from_numpy(self.store.take(self.places[index]))
        if self.augment is not None and self.epoch >= 0:
            draws = uniforms(self.seed, self.epoch, index, DRAWS)
            images = self.augment.geometry(images, draws)
            if self.augment.recolours:
                planes = images.permute(0, 3, 1, 2).to(torch.float32, memory_format=torch.contiguous_format)
                self.augment.colour(planes, draws)
                images = planes.permute(0, 2, 3, 1)
        self.normalise(result.copy_(images))

    def __getitem__(self, row: int) -> Any:
        image = self.read([row])[0]
        return image if self.labels is None else (image, self.labels[row])

    def __getitems__(self, rows: list[int]) -> Sequence[Any]:
        """Return the pictures of a batch: nothing is read before they are joined."""
        return Pictures(self, self._checked(rows))

    def subset(self, rows: Any, *, augment: Augment | None = None, seed: int | None = None) -> ImageDataset:
        """Return the data set of these rows, whose own rows count from 0, with another augmentation or none.

        `seed` is that of the augmentation; by default the same as here.
        """
        index = self._checked(rows)
        part = ImageDataset(
            self.store,
            places=self.places[index],
            augment=augment,
            normalise=self.normalise,
            seed=self.seed if seed is None else seed,
            names=self._names,
        )
        part.labels = None if self.labels is None else self.labels[torch.from_numpy(index)]
        return part

    def _checked(self, rows: Any) -> npt.NDArray[np.int64]:
        index = np.asarray(rows)
        if index.size and index.dtype.kind not in "iu":
            raise IndexError(f"rows must be whole numbers, got {index.dtype}; of a mask take numpy.flatnonzero")
        index = index.astype(np.int64, copy=False)
        if index.size and not -len(self) <= index.min() <= index.max() < len(self):
            bad = index[(index < -len(self)) | (index >= len(self))]
            raise IndexError(f"row {bad[0]} of a data set of {len(self)} rows")
        return index % max(len(self), 1)

    def __repr__(self) -> str:
        height, width, channels = self.store.shape
        shape = "no labels" if self.labels is None else f"labels {tuple(self.labels.shape)}"
        return f"ImageDataset({len(self)} images of {height}×{width}×{channels}, {shape})"
