"""The labels of a data set."""

from __future__ import annotations

import numbers
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Subset, TensorDataset

from apmax import validation

_NAMES = ("labels", "targets", "y", "label", "target")
"""Attributes (or keys) of data sets and items that hold labels, in the order in which they are tried."""


def labels_of(source: Any) -> Tensor:
    """Return the 0/1 labels of an array, tensor, list or map-style data set as a float32 tensor on the CPU.

    The labels of a data set are its attribute `labels`, `targets`, `y`, `label` or `target`, the second tensor of a
    `TensorDataset`, or those of the data sets inside a `Subset` (nested too) or `ConcatDataset`. Otherwise every item
    is read once, transforms included, and its label is the entry or attribute of one of those names, or the second
    element of a tuple. That is slow for images: pass the labels where you have them.

    Returns:
        Shape (n,), or (n, tasks) with NaN for "not measured".

    Raises:
        ValueError: No labels found, not one per row, or other than 0 and 1 (and NaN in several columns).

    >>> from torch.utils.data import Subset, TensorDataset
    >>> data = TensorDataset(torch.zeros(4, 2), torch.tensor([0, 1, 0, 1]))
    >>> labels_of(Subset(data, [1, 2]))
    tensor([1., 0.])
    """
    if _is_array(source):
        return validation.label_array(source).cpu()
    known = known_labels(source)
    return validation.label_array(_read_items(source)).cpu() if known is None else known


def known_labels(dataset: Any) -> Tensor | None:
    """Return the labels of a data set where no item has to be read for them, otherwise None.

    >>> known_labels(["a data set", "of two texts"])
    """
    if isinstance(dataset, Subset):
        whole = known_labels(dataset.dataset)
        return None if whole is None else whole[torch.as_tensor(np.asarray(dataset.indices, dtype=np.int64))]
    if isinstance(dataset, ConcatDataset):
        parts = [known_labels(part) for part in dataset.datasets]
        found = [part for part in parts if part is not None]
        return torch.cat(found) if len(found) == len(parts) else None
    if isinstance(dataset, TensorDataset) and len(dataset.tensors) > 1:
        value: Any = dataset.tensors[1]
    else:
        value = next((value for name in _NAMES if _is_array(value := getattr(dataset, name, None))), None)
    if value is None:
        return None
    labels = validation.label_array(value).cpu()
    if len(labels) != len(dataset):
        raise ValueError(f"labels: the data set has {len(dataset)} rows but {len(labels)} labels")
    return labels


def _read_items(dataset: Any) -> list[Any]:
    if not (hasattr(dataset, "__getitem__") and hasattr(dataset, "__len__")):
        raise ValueError(
            f"labels must be an array, tensor, list or map-style data set, got {type(dataset).__name__}; "
            "an iterable data set has no rows to choose from"
        )
    found = []
    for row in range(len(dataset)):
        item = dataset[row]
        label = _named_label(item)
        if label is None and isinstance(item, tuple) and len(item) > 1:
            label = item[1]
        try:
            found.append(torch.as_tensor(label).detach().cpu().double().reshape(-1).numpy())
        except (TypeError, ValueError, RuntimeError):
            raise ValueError(
                f"labels: item {row} of the data set has the label {label!r}, which is not a number; "
                "pass the labels themselves"
            ) from None
    return found


def _named_label(item: Any) -> Any:
    for name in _NAMES:
        value = item.get(name) if isinstance(item, Mapping) else getattr(item, name, None)
        if value is not None:
            return value
    return None


def _is_array(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        # A list of items that carry labels, as graph data often come, or of tuples that begin with an input is a data
        # set and not a list of labels.
        return len(value) == 0 or not (_is_pair(value[0]) or _named_label(value[0]) is not None)
    return isinstance(value, Tensor) or hasattr(value, "__array__")


def _is_pair(item: Any) -> bool:
    """Return whether an item is a tuple that begins with an input, not a row of labels."""
    if not isinstance(item, tuple) or len(item) < 2 or item[0] is None:  # None: a label that was not measured
        return False
    return not isinstance(item[0], (numbers.Number, np.generic)) and getattr(item[0], "ndim", 1) != 0
