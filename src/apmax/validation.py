"""Checks of user arguments; every error names the argument, the value and the remedy."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


def interval(name: str, value: Any, low: float, high: float = math.inf, *, closed: str = "both") -> float:
    """Return `value` as a float if it lies between `low` and `high`.

    Args:
        name: The argument's name, for the message.
        value: The value passed.
        low: Lower end.
        high: Upper end.
        closed: Which ends belong to the interval: "both", "left", "right" or "neither".

    Raises:
        TypeError: `value` is not a number.
        ValueError: `value` is not in the interval.

    >>> interval("gamma", 0.5, 0, 1, closed="right")
    0.5
    """
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)):
        raise TypeError(f"{name} must be a number, got {value!r}")
    number = float(value)
    above = number >= low if closed in ("both", "left") else number > low
    below = number <= high if closed in ("both", "right") else number < high
    if not (above and below):
        if low == -math.inf and high == math.inf:
            raise ValueError(f"{name} must be a {'number' if closed == 'both' else 'finite number'}, got {value!r}")
        left, right = "[" if closed in ("both", "left") else "(", "]" if closed in ("both", "right") else ")"
        raise ValueError(f"{name} must lie in {left}{low:g}, {high:g}{right}, got {value!r}")
    return number


def whole(name: str, value: Any, low: int = 0) -> int:
    """Return `value` as an int of at least `low`.

    >>> whole("batch_size", 64, 1)
    64
    """
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)):
        raise TypeError(f"{name} must be a whole number, got {value!r}")
    if value < low:
        raise ValueError(f"{name} must be at least {low}, got {value}")
    return int(value)


def choice(name: str, value: Any, options: Iterable[str]) -> str:
    """Return `value` if it is one of `options`; otherwise suggest the nearest.

    >>> choice("surrogate", "squared_hing", ["hinge", "squared_hinge"])
    Traceback (most recent call last):
    ...
    ValueError: surrogate must be one of hinge, squared_hinge; got 'squared_hing' (did you mean 'squared_hinge'?)
    """
    known = list(options)
    if isinstance(value, str) and value in known:
        return value
    near = difflib.get_close_matches(str(value), known, n=1)
    hint = f" (did you mean {near[0]!r}?)" if near else ""
    raise ValueError(f"{name} must be one of {', '.join(known)}; got {value!r}{hint}")


def floating(values: Tensor) -> Tensor:
    """Return `values` in float32 or better: half precision and integers become float32."""
    return values if values.dtype in (torch.float32, torch.float64) else values.float()


def tensor(values: Any) -> Tensor:
    """Return a tensor, list, array or series as a tensor that shares memory with it where that is safe."""
    if isinstance(values, Tensor):
        return values.detach()
    array = np.asarray(values)
    # torch cannot hold a read-only or reversed array, as pandas and slicing make them.
    safe = array.flags.writeable and all(stride >= 0 for stride in array.strides)
    return torch.from_numpy(array if safe else array.copy())


def label_array(labels: Any, name: str = "labels") -> Tensor:
    """Return training labels as a float32 tensor of shape (n,) or (n, tasks).

    Takes tensors, arrays and lists of 0/1 (or booleans). In a table of several tasks NaN means "not measured";
    a single column must be complete. A column of shape (n, 1) becomes (n,).

    Raises:
        ValueError: Wrong shape, no rows, a value other than 0 and 1.

    >>> label_array([0, 1, True])
    tensor([0., 1., 1.])
    """
    try:
        array = tensor(labels)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array, tensor or list of 0 and 1; {error}") from None
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim not in (1, 2) or array.numel() == 0:
        raise ValueError(f"{name} must have shape (n,) or (n, tasks) with n >= 1, got {tuple(array.shape)}")
    array = array.to(torch.float32)
    binary(array, name)
    return array


def binary(labels: Tensor, name: str = "labels") -> None:
    """Raise unless `labels` holds only 0 and 1, and NaN only where there are several tasks."""
    good = (labels == 0) | (labels == 1)
    if labels.ndim == 2:
        good |= labels.isnan()
    if bool(good.all()):
        return
    found = sorted({round(v, 6) for v in labels[~good].flatten()[:1000].tolist()}, key=str)[:5]
    hint = "; labels of -1/1 become 0/1 by (labels + 1) / 2" if -1.0 in found else ""
    if any(math.isnan(v) for v in found):
        hint = "; NaN (not measured) is allowed in labels of shape (n, tasks) only: drop those rows"
    raise ValueError(f"{name} must be 0 or 1, got {', '.join(f'{v:g}' for v in found)}{hint}")


def finite(values: Tensor, name: str = "scores") -> None:
    """Raise if any of `values` is NaN or infinite, naming the first."""
    bad = ~values.isfinite()
    if bool(bad.any()):
        where = tuple(bad.nonzero()[0].tolist())
        position = str(where[0]) if len(where) == 1 else str(where)
        raise ValueError(
            f"{name} must be finite, got {values[where].item():g} at position {position} "
            f"({int(bad.sum())} of {values.numel()} in all); check the model's output and the learning rate"
        )


def rows(index: Tensor, num_rows: int) -> None:
    """Raise unless every element of `index` is a row of a training set of `num_rows` rows."""
    bad = (index < 0) | (index >= num_rows)
    if bool(bad.any()):
        value = int(index[bad][0])
        raise ValueError(
            f"index must hold training-set rows from 0 to {num_rows - 1}, got {value}; "
            "the rows count within the labels given to the loss"
        )


def weights(values: Any, shape: Sequence[int], name: str = "sample_weight") -> Tensor:
    """Return weights as a floating tensor of `shape`, finite, non-negative and not all zero."""
    try:
        weight = floating(tensor(values))
    except (TypeError, ValueError) as error:
        raise ValueError(f"{name} must be an array, tensor or list of numbers; {error}") from None
    if tuple(weight.shape) != tuple(shape):
        raise ValueError(f"{name} must have shape {tuple(shape)}, got {tuple(weight.shape)}")
    bad = weight[~weight.isfinite()]
    if bad.numel():
        raise ValueError(f"{name} must be finite, got {bad[0].item():g}; take 0 for rows that are to be left out")
    if bool((weight < 0).any()):
        raise ValueError(f"{name} must not be negative, got {weight.min().item():g}")
    if not bool((weight > 0).any()):
        raise ValueError(f"{name} must not be all zero")
    return weight


def group_array(groups: Any, num_rows: int) -> NDArray[Any]:
    """Return the group of each row as an array, (num_rows,).

    Raises:
        ValueError: Not one group per row, or groups of types that cannot be compared.

    >>> group_array(["a", None], 2)
    Traceback (most recent call last):
    ...
    ValueError: groups must be of one type, got NoneType and str; rows without a group need one, too
    """
    array = np.asarray(groups)
    if array.shape != (num_rows,):
        raise ValueError(f"groups must have one entry per row, shape ({num_rows},), got {array.shape}")
    if array.dtype == object:
        try:
            np.unique(array)
        except TypeError:
            kinds = " and ".join(sorted({type(group).__name__ for group in array}))
            raise ValueError(f"groups must be of one type, got {kinds}; rows without a group need one, too") from None
    return array


def known_times(times: NDArray[np.float64]) -> None:
    """Raise `ValueError` if the time of a row is missing: the row could be before or after any other.

    >>> known_times(np.array([1.0, np.nan]))
    Traceback (most recent call last):
    ...
    ValueError: time must be known in every row, 1 of 2 are missing or not readable
    """
    unknown = int(np.isnan(times).sum())
    if unknown:
        raise ValueError(f"time must be known in every row, {unknown} of {len(times)} are missing or not readable")


def rescaled_weights(weight: Tensor, *, span: float = 1e30) -> tuple[Tensor, float]:
    """Return checked weights divided by a power of two, which is exact, so that the largest lies in [1, 2); and it.

    Raises:
        ValueError: The largest weight is more than `span` times the smallest one above 0, which would be lost
            (the default leaves room for products in float32).

    >>> rescaled_weights(torch.tensor([3.0, 12.0]))
    (tensor([0.3750, 1.5000]), 8.0)
    """
    largest, smallest = weight.max(), weight[weight > 0].min()
    unit = largest / (2 * torch.frexp(largest).mantissa)
    if bool(largest / span > smallest):
        raise ValueError(
            f"sample_weight must not spread over more than a factor of {span:g}, "
            f"got {smallest.item():g} and {largest.item():g}; take 0 for rows that are to be left out"
        )
    return weight / unit, unit.item()


def within(scores: Tensor, limit: float) -> None:
    """Raise if any of `scores` is larger than `limit` in magnitude."""
    largest = scores.abs().max().item() if scores.numel() else 0.0
    if largest > limit:
        raise ValueError(
            f"scores must not exceed {limit:.3g} in magnitude, where this loss overflows, got {largest:.3g}; "
            "check the model's output and the learning rate"
        )


def same_shape(scores: Tensor, labels: Tensor) -> tuple[Tensor, Tensor]:
    """Return scores and labels with a trailing dimension of one dropped, or raise if their shapes differ."""
    for name, values in (("scores", scores), ("labels", labels)):
        if not isinstance(values, Tensor):
            raise TypeError(f"{name} must be a tensor, got {type(values).__name__}; torch.as_tensor makes one")
        if values.is_complex():
            raise TypeError(f"{name} must be real numbers, got {values.dtype}")
    if scores.ndim == 2 and scores.shape[1] == 1:
        scores = scores[:, 0]
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if scores.shape != labels.shape or scores.ndim not in (1, 2):
        raise ValueError(
            f"scores and labels must both have shape (n,) or (n, tasks), "
            f"got {tuple(scores.shape)} and {tuple(labels.shape)}"
        )
    return scores, labels


def first_line(error: Exception) -> str:
    r"""Return the first line of an error's message, or its type where it has none.

    >>> first_line(ValueError("no\nyes")), first_line(ValueError())
    ('no', 'ValueError')
    """
    return (str(error).splitlines() or [type(error).__name__])[0]


def setting_text(value: object) -> str:
    """Return a setting as messages show it: the names of a tuple, the pairs of a mapping, "not set" for none.

    >>> setting_text(("gbdt", "forest")), setting_text({"zip": "drop"}), setting_text(()), setting_text(0.2)
    ('gbdt, forest', 'zip=drop', 'not set', '0.2')
    """
    if value is None or value in ((), {}):
        return "not set"
    if isinstance(value, Mapping):
        return ", ".join(f"{name}={each}" for name, each in value.items())
    return ", ".join(map(str, value)) if isinstance(value, tuple) else str(value)


def plural(count: int, noun: str) -> str:
    """Return a number with its noun.

    >>> plural(1, "cell"), plural(1205, "cell"), plural(2, "category")
    ('1 cell', '1,205 cells', '2 categories')
    """
    if count == 1:
        return f"{count} {noun}"
    return f"{count:,} {noun[:-1]}ies" if noun.endswith("y") else f"{count:,} {noun}s"
