"""Data set of the items of a store, or of some of them, with labels."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np
from torch import Tensor, from_numpy
from torch.utils.data import Dataset

from apmax import validation
from apmax.data.splits import RowNumbers


class StoreDataset(Dataset[Any]):
    """Base class of data sets of molecules and of images: the places of their items in a store, and their labels.

    A subclass sets `item`, the word for one of them in messages.
    """

    item: ClassVar[str]

    def __init__(self, store: Any, labels: Any, places: Any) -> None:
        self.store = store
        self.places: RowNumbers = np.arange(len(store)) if places is None else _numbers("places", places)
        if len(self.places) and not 0 <= self.places.min() <= self.places.max() < len(store):
            raise ValueError(f"places must lie in 0 to {len(store) - 1}, the {self.item}s of the store")
        self.labels: Tensor | None = None
        if labels is not None:
            every = validation.tensor(labels)
            if len(every) != len(store):
                raise ValueError(
                    f"labels must have one row per {self.item}, got {len(every)} for {len(store)} {self.item}s"
                )
            # Only these rows must be measured: a single task may be unknown elsewhere.
            self.labels = validation.label_array(every[from_numpy(self.places)])

    def __len__(self) -> int:
        return len(self.places)

    def _check_rows(self, rows: Any) -> RowNumbers:
        """Return rows as numbers from 0; negative ones count from the end."""
        index = _numbers("rows", rows)
        if index.size and not -len(self) <= index.min() <= index.max() < len(self):
            bad = index[(index < -len(self)) | (index >= len(self))]
            raise IndexError(f"row {bad[0]} of a data set of {len(self)} rows")
        return index % max(len(self), 1)


def _numbers(name: str, values: Any) -> RowNumbers:
    """Return values as an array; raise for a mask, which would be taken for the rows 0 and 1."""
    index = np.asarray(values)
    if index.size and index.dtype.kind not in "iu":
        raise IndexError(f"{name} must be whole numbers, got {index.dtype}; of a mask take numpy.flatnonzero")
    return index.astype(np.int64, copy=False)
