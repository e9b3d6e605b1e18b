"""Archives of others, read within bounds: .npz files of arrays, and the members of .tar and .tar.gz files."""

from __future__ import annotations

import gzip
import io
import tarfile
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from os import PathLike
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import numpy.typing as npt

from apmax.validation import first_line

MAX_ARRAY_BYTES = 2**30
"""The largest array of an .npz file (1 GiB)."""


def read_npz(
    path: str | PathLike[str] | BinaryIO, names: Iterable[str], *, most: int = MAX_ARRAY_BYTES
) -> dict[str, npt.NDArray[Any]]:
    """Return arrays of an .npz file by name.

    Sizes are compared with what the archive and the arrays' headers say before anything is allocated or unpacked;
    pickled objects are not read.

    Args:
        path: The file, or its content as a binary stream.
        names: The arrays to read.
        most: The largest number of bytes of an array.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: An array is missing, larger than `most` or damaged, or the file is not an .npz file.
    """
    name = "the content" if isinstance(path, io.IOBase) else str(path)
    try:
        with zipfile.ZipFile(path) as archive:
            return {array: _read_array(archive, array, name, most) for array in names}
    except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError, RuntimeError) as error:
        raise ValueError(f"{name} is damaged or no .npz file: {first_line(error)}") from None


def npz_content(**arrays: Any) -> bytes:
    """Return arrays as the content of an .npz file.

    >>> read_npz(io.BytesIO(npz_content(weight=[1.0, 2.0])), ["weight"])
    {'weight': array([1., 2.])}
    """
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **{name: np.asarray(value) for name, value in arrays.items()})  # type: ignore[arg-type]
    return buffer.getvalue()


def _read_array(archive: zipfile.ZipFile, name: str, path: str, most: int) -> npt.NDArray[Any]:
    try:
        entry = archive.getinfo(f"{name}.npy")
    except KeyError:
        found = [each.removesuffix(".npy") for each in archive.namelist()[:12]]
        raise ValueError(f"{path} must hold an array called {name!r}, it has {found}") from None
    if entry.file_size > most:
        raise ValueError(f"{path}: the array {name!r} must have at most {most:,} bytes, got {entry.file_size:,}")
    with archive.open(entry) as stream:
        content = io.BytesIO(stream.read(entry.file_size))
    try:
        version = np.lib.format.read_magic(content)
        read_header = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        shape, _, dtype = read_header(content)
        size = int(np.prod(shape, dtype=object)) * dtype.itemsize
        if size > entry.file_size - content.tell():
            raise ValueError(f"its header says {size:,} bytes, it has {entry.file_size - content.tell():,}")
        content.seek(0)
        array: npt.NDArray[Any] = np.lib.format.read_array(content, allow_pickle=False)
    except ValueError as error:
        raise ValueError(f"{path}: the array {name!r} cannot be read: {first_line(error)}") from None
    return array


def read_tar_members(path: Path, most: Mapping[str, int], *, total: int) -> dict[str, bytes]:
    """Return the content of files in a .tar or .tar.gz archive by their names without folders.

    The archive is read once from its beginning, and never more of it than `total` and 16 MiB for all else: reading a
    compressed file that grows without end stops there. Nothing is unpacked to the disk.

    Args:
        path: The archive.
        most: The names of the files to read, and the largest number of bytes of each.
        total: The largest number of bytes of these files together.

    Raises:
        ValueError: A file is larger than allowed, or the archive is larger in all, damaged, or no tar archive.
    """
    found: dict[str, bytes] = {}
    try:
        with (
            _open_bytes(path) as raw,
            tarfile.open(fileobj=_BoundedReader(raw, total + _OTHER_BYTES, path), mode="r|") as archive,
        ):
            for member in archive:
                name = Path(member.name).name
                if name not in most or not member.isfile():
                    continue
                if member.size > most[name]:
                    raise ValueError(f"{path}: {name} must have at most {most[name]} bytes, got {member.size}")
                stream = archive.extractfile(member)
                if stream is not None:
                    found[name] = stream.read(most[name])
    except (tarfile.TarError, EOFError, OSError, zlib.error) as error:
        raise ValueError(f"{path} is damaged or no tar archive: {first_line(error)}") from None
    return found


_OTHER_BYTES = 2**24
"""Bytes of an archive beside the files that are read: headers, other files (16 MiB)."""


def is_gzip(path: Path) -> bool:
    """Return whether a file is compressed by gzip: by its content, since a download may come compressed or not."""
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _open_bytes(path: Path) -> BinaryIO:
    return gzip.open(path) if is_gzip(path) else path.open("rb")  # type: ignore[return-value]


class _BoundedReader(io.RawIOBase):
    """A file of which only the first bytes can be read."""

    def __init__(self, file: BinaryIO, limit: int, path: Path) -> None:
        self.file, self.left, self.limit, self.path = file, limit, limit, path

    def read(self, size: int = -1) -> bytes:
        """Return the next bytes, and raise beyond the limit."""
        content = self.file.read(self.left + 1 if size < 0 else min(size, self.left + 1))
        self.left -= len(content)
        if self.left < 0:
            raise ValueError(f"{self.path} must have at most {self.limit:,} bytes, unpacked: it is another archive")
        return content
