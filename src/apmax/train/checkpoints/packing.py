"""A nested state taken apart into an outline and few tensors: to write a tensor costs more than to write its numbers.

Plain is what can be read back without executing code: tensors, numbers, strings, None, and lists, tuples and dicts of
these.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from apmax.train.checkpoints.failures import CheckpointError

MARK = "apmax.packed "
"""Begins the string that stands for a tensor; the number of its vector, its first place there and its shape follow."""
MOST = 2**16
"""Numbers of a tensor that is laid together with others; a larger one is worth a record, and not worth a copy."""
_ATOMS = frozenset((bool, int, float, str, type(None)))
_TENSORS = frozenset((Tensor, torch.nn.Parameter))


def packed(state: Mapping[str, Any]) -> tuple[dict[str, Any], list[Tensor]]:
    """Return `state` with marks in the place of its small tensors, and their numbers: a vector for each type.

    All tensors are on the CPU then. A tensor that stands in several places stays one.

    Raises:
        CheckpointError: `state` is not plain.

    >>> outline, vectors = packed({"a": torch.ones(2), "b": [torch.zeros(1, 1)]})
    >>> outline
    {'a': 'apmax.packed 0 0 2', 'b': ['apmax.packed 0 2 1 1']}
    >>> vectors
    [tensor([1., 1., 0.])]
    """
    places: dict[int, tuple[Tensor, Any]] = {}
    numbers: dict[tuple[torch.dtype, torch.device], int] = {}
    parts: list[list[Tensor]] = []
    lengths: list[int] = []

    def outlined(value: Any) -> Any:
        kind = type(value)
        if kind in _ATOMS and not is_mark(value):
            return value
        if kind in _TENSORS:
            if id(value) not in places:
                # The tensor is held, so that no other takes its id.
                places[id(value)] = value, placed(value.detach())
            return places[id(value)][1]
        if isinstance(value, dict) or isinstance(value, Mapping):  # noqa: SIM101 - the first is the faster by far
            return {outlined(key): outlined(part) for key, part in value.items()}
        if isinstance(value, list):
            return [outlined(part) for part in value]
        if isinstance(value, tuple):
            return tuple([outlined(part) for part in value])
        check_plain(state)
        raise AssertionError("what is not plain was refused above")

    def placed(value: Tensor) -> Any:
        length = value.numel()
        if not 0 < length <= MOST or not is_simple(value) or not value.is_contiguous():
            return alone(value)
        number = numbers.setdefault((value.dtype, value.device), len(parts))
        if number == len(parts):
            parts.append([])
            lengths.append(0)
        parts[number].append(value.view(-1))
        lengths[number] += length
        # One string, not a tuple: torch's pickler asks a question about every object.
        return MARK + " ".join(map(str, (number, lengths[number] - length, *value.shape)))

    return outlined(state), [torch.cat(each).cpu() for each in parts]


def alone(value: Tensor) -> Tensor:
    """Return `value` on the CPU, without what else lies in its memory: all of that would be written."""
    value = value.cpu()
    if is_simple(value) and value.untyped_storage().nbytes() > value.numel() * value.element_size():
        return value.clone()
    return value


def is_simple(value: Tensor) -> bool:
    """Tell whether the tensor is its numbers, its type and its shape, and nothing else."""
    return value.layout == torch.strided and not value.is_quantized and not value.is_nested


def unpacked(outline: Mapping[str, Any], vectors: Sequence[Tensor]) -> dict[str, Any]:
    """Return the state that `packed` took apart; small tensors have memory of their own again."""
    tensors: dict[Any, Tensor] = {}

    def filled(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {filled(key): filled(part) for key, part in value.items()}
        if isinstance(value, list):
            return [filled(part) for part in value]
        if isinstance(value, tuple):
            return tuple([filled(part) for part in value])
        if not is_mark(value):
            return value
        if value not in tensors:
            number, start, *shape = map(int, value.removeprefix(MARK).split())
            if min(number, start, *shape, 0) < 0:
                raise ValueError(f"{value!r} has a negative number")
            tensors[value] = vectors[number].narrow(0, start, torch.Size(shape).numel()).reshape(shape).clone()
        return tensors[value]

    return {filled(key): filled(part) for key, part in outline.items()}


def is_mark(value: Any) -> bool:
    """Tell whether the value stands for a tensor."""
    return type(value) is str and value.startswith(MARK)


def check_plain(value: Any, where: str = "state") -> None:
    """Raise, with the place of what is wrong, unless `value` is plain."""
    if isinstance(value, Mapping):
        for key, part in value.items():
            check_plain(key, f"{where}'s key {key!r}")
            check_plain(part, f"{where}.{key}")
    elif isinstance(value, (list, tuple)):
        for position, part in enumerate(value):
            check_plain(part, f"{where}[{position}]")
    elif is_mark(value):
        raise CheckpointError(f"{where} begins with {MARK!r}, which marks a tensor in a checkpoint; rename it")
    elif type(value) not in _ATOMS | _TENSORS:
        raise CheckpointError(
            f"{where} is a {name_of(type(value))}, which cannot be read back without executing code; "
            "keep tensors, numbers and strings in state_dict"
        )


def name_of(kind: type) -> str:
    """Return a type's name, with its module unless it is Python's own."""
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"
