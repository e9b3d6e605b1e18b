"""Read pickled dicts of arrays without executing anything that the file asks for."""

from __future__ import annotations

import io
import pickle
from typing import Any

import numpy as np

_RECONSTRUCT = {("numpy.core.multiarray", "_reconstruct"), ("numpy._core.multiarray", "_reconstruct")}


class Inert:
    """Stands where the file asks for a numpy array or type: keeps what it is given, and does nothing with it."""

    def __init__(self, *given: Any) -> None:
        self.given = given
        self.state: Any = None

    def __setstate__(self, state: Any) -> None:
        self.state = state


class _Array(Inert):
    pass


class _Type(Inert):
    pass


class _Encode(Inert):
    """How Python 3 writes bytes in old protocols: a text and "latin1"."""


class _Reader(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Any:
        if (module, name) in _RECONSTRUCT or (module, name) == ("numpy", "ndarray"):
            return _Array
        if (module, name) == ("numpy", "dtype"):
            return _Type
        if (module, name) == ("_codecs", "encode"):
            return _Encode
        raise pickle.UnpicklingError(f"it asks for {module}.{name}, which is not data")


def plain_arrays(content: bytes, name: str) -> dict[str, Any]:
    """Return the entries of a pickled dict of uint8 arrays, lists, texts and numbers.

    Args:
        content: The file, of any protocol, written by Python 2 or 3.
        name: What to call it in errors.

    Raises:
        ValueError: It is damaged, or holds anything else; nothing of it has been executed.

    >>> plain_arrays(pickle.dumps({"labels": [3, 5]}), "batch")
    {'labels': [3, 5]}
    """
    try:
        found = _Reader(io.BytesIO(content), encoding="bytes").load()
    except Exception as error:  # a damaged pickle may raise anything
        raise ValueError(f"{name} is not a plain pickle of arrays: {error}") from None
    if not isinstance(found, dict):
        raise ValueError(f"{name} must hold a dict, got {type(found).__name__}")
    return {_text(key, name): _value(value, name) for key, value in found.items()}


def _text(key: Any, name: str) -> str:
    if isinstance(key, _Encode):
        key = _bytes(key)
    if isinstance(key, bytes):
        return key.decode("latin1")
    if isinstance(key, str):
        return key
    raise ValueError(f"{name} must have texts as keys, got {type(key).__name__}")


def _value(value: Any, name: str) -> Any:
    if not isinstance(value, _Array):
        return value
    try:
        _, shape, kind, fortran, content = value.state
        content = _bytes(content) if isinstance(content, _Encode) else content
        plain = isinstance(kind, _Type) and kind.given[0] in ("u1", b"u1") and not fortran
        if not plain or not isinstance(content, bytes):
            raise TypeError("not an array of bytes")
        return np.frombuffer(content, dtype=np.uint8).reshape(shape)
    except (TypeError, ValueError, IndexError) as error:
        raise ValueError(f"{name} holds an array that cannot be read: {error}") from None


def _bytes(encoded: _Encode) -> bytes | None:
    text = encoded.given[0] if encoded.given else None
    return text.encode("latin1") if isinstance(text, str) else None
