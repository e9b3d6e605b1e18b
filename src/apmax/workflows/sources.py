"""What commands read: tables, lists of SMILES, folders of images."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from apmax import extras
from apmax.data.images import ImageFolder
from apmax.data.images.parts import describe_ignored
from apmax.data.tables import Source
from apmax.workflows.data_types import KINDS

pa = extras.load("pyarrow", "tables")

SMI = (".smi", ".smi.gz")
CHUNK_ROWS = 2**16


class SmilesList:
    """A .smi file, read as `Source` reads a table: no header; a SMILES, and what follows it on the line as its name.

    Args:
        path: The file.
        column: What to call the column of SMILES.

    Raises:
        FileNotFoundError: There is no such file.
    """

    delimiter = ","

    def __init__(self, path: str | os.PathLike[str], column: str = "smiles") -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no such file: {path}")
        self.columns = [column, "name"]

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the lines in order as `pyarrow.Table`s, of these columns or of all; blank lines are no rows."""
        opened: Any = gzip.open if self.path.name.lower().endswith(".gz") else open
        with opened(self.path, "rt", encoding="utf-8-sig") as file:
            lines = (line.split(maxsplit=1) for line in file if line.strip())
            while part := list(islice(lines, CHUNK_ROWS)):
                texts = ([words[0] for words in part], [words[1].strip() if len(words) > 1 else "" for words in part])
                table = pa.table(dict(zip(self.columns, (pa.array(text, pa.string()) for text in texts), strict=True)))
                yield table if columns is None else table.select(list(columns))

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return all lines as one `pyarrow.Table`."""
        names = self.columns if columns is None else list(columns)
        empty = pa.table({name: pa.array([], pa.string()) for name in names})
        return pa.concat_tables([empty, *self.chunks(columns)])


AnySource = Source | SmilesList | ImageFolder


def open_source(
    path: str | os.PathLike[str], *, kind: str, smiles: str | None = None, targets: Sequence[str] = ()
) -> AnySource:
    """Return the rows of a file, or of a folder of images.

    Args:
        path: The file or folder.
        kind: An entry of `KINDS`.
        smiles: What the only column of a .smi file is to be called.
        targets: The classes that become columns of a folder.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: That kind of data is not read from such.
    """
    if Path(path).is_dir():
        if not KINDS[kind].folders:
            raise ValueError(
                f"{path} is a folder, and data of kind {kind} are read from a file: csv, csv.gz or parquet"
            )
        return ImageFolder(path, targets)
    if not is_smi(path):
        return Source(path)
    if "smiles" not in KINDS[kind].takes:
        raise ValueError(f"{path} is a list of molecules, and these data are of kind {kind}")
    return SmilesList(path, smiles or "smiles")


def remarks(source: AnySource) -> list[str]:
    """Return lines about what a folder holds and is passed over."""
    ignored = source.ignored if isinstance(source, ImageFolder) else []
    return [describe_ignored(ignored)] if ignored else []


def is_smi(path: str | os.PathLike[str]) -> bool:
    """Tell a list of SMILES by its name."""
    return str(path).lower().endswith(SMI)


def find(path: str, places: Sequence[Path]) -> Path:
    """Return the file or folder in the current folder, or else in the first of `places` that has it.

    Raises:
        FileNotFoundError: None has it.
    """
    for place in (Path(), *places):
        if (place / path).exists():
            return (place / path).resolve()
    also = f", nor in {', '.join(map(str, places))}" if places else ""
    raise FileNotFoundError(f"no such file: {path}{also}")
