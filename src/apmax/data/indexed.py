"""Wrapper of data sets that adds the training row to every item."""

from __future__ import annotations

import copy
import operator
from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.utils.data import Dataset

from apmax.samplers import known_labels

KEY, ATTRIBUTE = "index", "row"
"""The key (of dicts) and the attribute (of graphs) of the row. PyG shifts attributes named like "index" in batches."""


class Indexed(Dataset[Any]):
    """Wrap a map-style data set so that every item carries its row, the `index` of the losses.

    | item | becomes | in a batch |
    |---|---|---|
    | a tuple `(x, y)` | `(x, y, row)` | the last element, a tensor (B,) |
    | a dict | a copy with the key `"index"` | `batch["index"]` |
    | a graph (PyG's `Data`) | a shallow copy with the attribute `row` | `batch.row` |
    | anything else, `x` | `(x, row)` | the last element |

    Rows count within the wrapped data set: `Indexed(Subset(data, rows))` counts within the subset, and its
    loss and sampler are built from the subset's labels, which are `indexed.labels`. `Subset(Indexed(data), rows)`
    counts within all of `data`, and its loss is built from the labels of `data`. Only the first keeps the
    loss's memory as small as the training set.

    Args:
        dataset: Anything with `__getitem__` and `__len__`. Its `__getitems__` is used where it has one.

    Raises:
        TypeError: `dataset` has no rows (an iterable data set).
        ValueError: An item has an `"index"` or a `row` already.

    >>> import torch
    >>> from torch.utils.data import DataLoader, TensorDataset
    >>> data = Indexed(TensorDataset(torch.tensor([5.0, 6.0, 7.0]), torch.tensor([0, 1, 0])))
    >>> x, y, index = next(iter(DataLoader(data, batch_sampler=[[2, 1]])))
    >>> index
    tensor([2, 1])
    """

    def __init__(self, dataset: Any) -> None:
        if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
            raise TypeError(
                f"dataset must be map-style, with __getitem__ and __len__, got {type(dataset).__name__}; "
                "an iterable data set has no rows"
            )
        self.dataset = dataset

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> Any:
        row = self._row(row)
        return with_row(self.dataset[row], row)

    def __getitems__(self, rows: list[int]) -> list[Any]:
        """Return the items of a batch, read at once if the wrapped data set supports it."""
        rows = [self._row(row) for row in rows]
        read = getattr(self.dataset, "__getitems__", None)
        items = [self.dataset[row] for row in rows] if read is None else read(rows)
        return [with_row(item, row) for item, row in zip(items, rows, strict=True)]

    @property
    def labels(self) -> Tensor:
        """The labels of the wrapped data set in the order of rows, for samplers and losses."""
        labels = known_labels(self.dataset)
        if labels is None:
            raise AttributeError(f"{type(self.dataset).__name__} has no labels that could be known without reading it")
        return labels

    def _row(self, row: int) -> int:
        # A row from the end would be a second name for the same example, and the losses know only one.
        try:
            position = operator.index(row)
        except TypeError:
            hint = ": a sampler of batches is the batch_sampler of a DataLoader, not its sampler"
            raise TypeError(
                f"a row must be a whole number, got {type(row).__name__}{hint if isinstance(row, list) else ''}"
            ) from None
        if not -len(self) <= position < len(self):
            raise IndexError(f"row {position} of a data set of {len(self)} rows")
        return position % len(self)


def with_row(item: Any, row: int) -> Any:
    """Return a copy of `item` with its row added.

    >>> with_row(("x", "y"), 3), with_row({"x": 1.0}, 3)
    (('x', 'y', 3), {'x': 1.0, 'index': 3})
    """
    if isinstance(item, tuple):
        return (*item, row)
    if isinstance(item, Mapping):
        if KEY in item:
            raise ValueError(f"item {row} has a key {KEY!r} already; rename it in the data set")
        return {**item, KEY: row}
    # What graph libraries' containers have in common, and tensors, arrays and images do not.
    if hasattr(item, "to_dict") and hasattr(item, "clone"):
        if getattr(item, ATTRIBUTE, None) is not None:
            raise ValueError(f"item {row} has an attribute {ATTRIBUTE!r} already; rename it in the data set")
        item = copy.copy(item)
        setattr(item, ATTRIBUTE, row)
        return item
    return item, row
