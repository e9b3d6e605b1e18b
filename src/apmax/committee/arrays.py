"""Arrays as bytes and back, without pickle and with a bound on their size."""

from __future__ import annotations

import io
import zipfile
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAX_BYTES = 2**33
"""Arrays of a larger total size are refused before they are read."""


def arrays_to_bytes(**arrays: Any) -> bytes:
    """Return arrays as the content of an .npz file.

    >>> arrays_from_bytes(arrays_to_bytes(weight=[1.0, 2.0]), ["weight"])
    {'weight': array([1., 2.])}
    """
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: np.asarray(value) for name, value in arrays.items()})  # type: ignore[arg-type]
    return buffer.getvalue()


def arrays_from_bytes(content: bytes, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """Return the arrays of an .npz file.

    Raises:
        ValueError: It is no .npz file, an array is missing, holds objects, or the arrays are too large.
    """
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > MAX_BYTES:
            raise ValueError(f"the arrays have {size:,} bytes, more than {MAX_BYTES:,}")
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            missing = [name for name in names if name not in file]
            if missing:
                raise ValueError(f"there is no array {missing[0]!r}")
            return {name: file[name] for name in names}
    except (zipfile.BadZipFile, OSError, EOFError, KeyError) as error:
        raise ValueError(f"not an .npz file of arrays: {error}") from None
