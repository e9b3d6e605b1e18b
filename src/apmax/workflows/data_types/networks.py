"""Building of networks: the limit of their parameters, and the names of a user's own."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from apmax import validation

LARGEST_NETWORK = 2 * 10**9
"""Number of parameters that no network may exceed: job files and folders may be of unknown origin."""


class _AllocationLimit(TorchFunctionMode):
    """Raises before the tensors that are created inside have more than a number of elements in all."""

    factories = (torch.empty, torch.zeros, torch.ones, torch.full, torch.rand, torch.randn)

    def __init__(self, limit: int) -> None:
        super().__init__()
        self.left = limit

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count the elements of a new tensor."""
        kwargs = kwargs or {}
        if func in self.factories:
            size = args[0] if args and isinstance(args[0], (tuple, list)) else args or kwargs.get("size", ())
            self.left -= math.prod(each for each in size if isinstance(each, int))
            if self.left < 0:
                raise MemoryError
        return func(*args, **kwargs)


@contextmanager
def limited_parameters(name: str, options: Mapping[str, Any]) -> Iterator[None]:
    """Turn what fails while a network is built into an error that names its options.

    Raises:
        ValueError: The network would have more than `LARGEST_NETWORK` parameters, or options are of another type.
    """
    given = ", ".join(f"{key} = {value!r}" for key, value in options.items())
    try:
        with _AllocationLimit(LARGEST_NETWORK):
            yield
    except MemoryError:
        raise ValueError(
            f"model: {name} with {given or 'these inputs'} would have more than {LARGEST_NETWORK:,} parameters"
        ) from None
    except (TypeError, RuntimeError, OverflowError) as error:
        if is_import_path(name):  # the user's own code
            raise
        reason = validation.first_line(error)
        raise ValueError(f"model: {name} with {given or 'these inputs'} cannot be built: {reason}") from None


def is_import_path(model: str) -> bool:
    """Return whether a model is a user's own, written "package.module:callable"; "timm:NAME" is one of timm's."""
    return ":" in model and not model.startswith("timm:")
