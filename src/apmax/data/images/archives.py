"""The CIFAR archives as their authors publish them: python or binary version, a .tar.gz or what it unpacks to."""

from __future__ import annotations

import hashlib
import tarfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from apmax.data.images.store import Pixels
from apmax.data.images.unpickling import plain_arrays

_HOME = "https://www.cs.toronto.edu/~kriz/"
_PIXELS = 32 * 32 * 3
Classes = npt.NDArray[np.uint8]


@dataclass(frozen=True)
class Archive:
    """One of the two sets.

    Attributes:
        name: The folder's and the files' beginning.
        num_classes: How many classes there are.
        python: Folder of the python version, its training files and its test file.
        binary: The same of the binary version.
        key: The labels' entry in a python file.
        label_bytes: Bytes before an image in a binary file, the last of which is its class.
        sha256: Of the binary version's .tar.gz, the one that is downloaded.
    """

    name: str
    num_classes: int
    python: tuple[str, tuple[str, ...], str]
    binary: tuple[str, tuple[str, ...], str]
    key: str
    label_bytes: int
    sha256: str

    @property
    def url(self) -> str:
        """Where the binary version is published."""
        return f"{_HOME}{self.name}-binary.tar.gz"

    def verify(self, path: Path) -> None:
        """Raise unless the file is the binary version's archive, byte by byte.

        Raises:
            ValueError: Its SHA-256 is another.
        """
        digest = hashlib.sha256()
        with path.open("rb") as file:
            while block := file.read(1 << 20):
                digest.update(block)
        if digest.hexdigest() != self.sha256:
            raise ValueError(f"{self.url} is not the published archive: its SHA-256 is {digest.hexdigest()}")


_TEN = tuple(f"data_batch_{number}" for number in range(1, 6))
CIFAR10 = Archive(
    name="cifar-10",
    num_classes=10,
    python=("cifar-10-batches-py", _TEN, "test_batch"),
    binary=("cifar-10-batches-bin", tuple(f"{name}.bin" for name in _TEN), "test_batch.bin"),
    key="labels",
    label_bytes=1,
    sha256="c4a38c50a1bc5f3a1c5537f2155ab9d68f9f25eb1ed8d9ddda3db29a59bca1dd",
)
CIFAR100 = Archive(
    name="cifar-100",
    num_classes=100,
    python=("cifar-100-python", ("train",), "test"),
    binary=("cifar-100-binary", ("train.bin",), "test.bin"),
    key="fine_labels",
    label_bytes=2,
    sha256="58a81ae192c23a4be8b1804d68e518ed807d710a4eb253b1f2a199162a40d8ec",
)


def find_archive(archive: Archive, folders: list[Path]) -> Path | None:
    """Return the first folder or .tar.gz of the set in these folders, or None."""
    names = [
        archive.binary[0],
        archive.python[0],
        f"{archive.name}-binary.tar.gz",
        f"{archive.name}-python.tar.gz",
    ]
    return next((folder / name for folder in folders for name in names if (folder / name).exists()), None)


def read_archive(archive: Archive, path: Path) -> tuple[Pixels, Classes, Pixels, Classes]:
    """Return training images and classes, then test images and classes; images are (n, 32, 32, 3).

    Raises:
        ValueError: A file is missing, damaged, or holds anything but images and classes.
    """
    binary = path.name.endswith(("-binary.tar.gz", archive.binary[0]))
    _, train, test = archive.binary if binary else archive.python
    contents = _contents(path, [*train, test])
    parts = [_decode(archive, contents[name], f"{path.name}/{name}", binary=binary) for name in (*train, test)]
    pixels, classes = (np.concatenate([part[side] for part in parts[:-1]]) for side in (0, 1))
    return pixels, classes, *parts[-1]


def _contents(path: Path, names: list[str]) -> dict[str, bytes]:
    found: dict[str, bytes] = {}
    if path.is_dir():
        found = {name: (path / name).read_bytes() for name in names if (path / name).is_file()}
    else:
        try:
            # Members are read where they are: nothing is unpacked, whatever their paths say.
            with tarfile.open(path) as file:
                for member in file:
                    name = Path(member.name).name
                    stream = file.extractfile(member) if name in names and member.isfile() else None
                    if stream is not None:
                        found[name] = stream.read()
        except (tarfile.TarError, EOFError, OSError) as error:
            raise ValueError(f"{path} is damaged or no tar archive: {error}") from None
    missing = [name for name in names if name not in found]
    if missing:
        raise ValueError(f"{path} has no file {missing[0]}")
    return found


def _decode(archive: Archive, content: bytes, name: str, *, binary: bool) -> tuple[Pixels, Classes]:
    planes, classes = _records(archive, content, name) if binary else _entries(archive, content, name)
    if classes.max(initial=0) >= archive.num_classes:
        raise ValueError(f"{name} must hold classes below {archive.num_classes}, got {classes.max()}")
    return np.ascontiguousarray(planes.reshape(-1, 3, 32, 32).transpose(0, 2, 3, 1)), classes


def _records(archive: Archive, content: bytes, name: str) -> tuple[Pixels, Classes]:
    size = archive.label_bytes + _PIXELS
    if len(content) == 0 or len(content) % size:
        raise ValueError(f"{name} must hold records of {size} bytes, got {len(content)} bytes: is it cut off?")
    records = np.frombuffer(content, dtype=np.uint8).reshape(-1, size)
    return records[:, archive.label_bytes :], records[:, archive.label_bytes - 1]


def _entries(archive: Archive, content: bytes, name: str) -> tuple[Pixels, Classes]:
    entries = plain_arrays(content, name)
    planes, labels = entries.get("data"), entries.get(archive.key)
    if not isinstance(planes, np.ndarray) or planes.ndim != 2 or planes.shape[1] != _PIXELS:
        raise ValueError(f"{name} must hold an array 'data' of {_PIXELS} bytes per image")
    whole = isinstance(labels, list) and all(isinstance(label, int) and 0 <= label < 256 for label in labels)
    if not isinstance(labels, list) or not whole or len(labels) != len(planes):
        raise ValueError(f"{name} must hold a list {archive.key!r} of one class per image")
    return planes, np.array(labels, dtype=np.uint8)
