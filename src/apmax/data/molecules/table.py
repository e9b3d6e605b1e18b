"""Tables of molecules: csv, csv.gz, parquet and .smi, read as a stream of rows."""

from __future__ import annotations

import csv
import gzip
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, TextIO

import numpy as np
import numpy.typing as npt

from apmax import extras, validation

MISSING = frozenset({"", "nan", "na", "n/a", "none", "null"})
TRUE, FALSE = frozenset({"1", "true"}), frozenset({"0", "false"})


@dataclass(frozen=True)
class Table:
    """SMILES and labels of a file, row by row; a label that was not measured is NaN.

    Attributes:
        smiles: One text per row.
        labels: (rows, tasks), float32.
        tasks: The names of the label columns.
    """

    smiles: list[str]
    labels: npt.NDArray[np.float32]
    tasks: tuple[str, ...]


def read_table(path: str | PathLike[str], smiles: str = "smiles", *, targets: Sequence[str] = ()) -> Table:
    r"""Read a whole table of molecules.

    Args:
        path: A .csv, .csv.gz, .parquet, .smi or .smi.gz file.
        smiles: The column of SMILES. A .smi file has no header: its first word is the SMILES.
        targets: The columns of labels: 0 or 1, empty where not measured.

    Raises:
        ValueError: An unknown kind of file, a column that is not there, a label other than 0, 1 and empty.
        FileNotFoundError: No such file.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = file.write_text("smiles,active\nCCO,1\nCC,\n")
    >>> read_table(file, targets=["active"]).labels.tolist()
    [[1.0], [nan]]
    """
    texts: list[str] = []
    labels: list[list[float]] = []
    for row, record in enumerate(stream(path, [smiles, *targets])):
        texts.append(record[0])
        labels.append([_label(value, row, name) for name, value in zip(targets, record[1:], strict=True)])
    table = np.array(labels, dtype=np.float32).reshape(len(texts), len(targets))
    return Table(texts, table, tuple(targets))


def stream(path: str | PathLike[str], columns: Sequence[str]) -> Iterator[list[str]]:
    """Yield the texts of `columns` row by row, without ever holding the table: "" where a cell is empty.

    Raises:
        ValueError: An unknown kind of file, or a column that is not there.
        FileNotFoundError: No such file.
    """
    path = Path(path)
    name = path.name.lower().removesuffix(".gz")
    if not path.exists():
        raise FileNotFoundError(f"no file at {path}")
    if name.endswith(".parquet"):
        yield from _stream_parquet(path, columns)
        return
    if not name.endswith((".csv", ".smi")):
        raise ValueError(f"path must end in .csv, .csv.gz, .parquet, .smi or .smi.gz, got {path.name!r}")
    with _open(path) as file:
        yield from _stream_smi(file, columns) if name.endswith(".smi") else _stream_csv(file, path, columns)


def _open(path: Path) -> TextIO:
    with path.open("rb") as file:
        # By content and not by name: a download may come compressed or not.
        compressed = file.read(2) == b"\x1f\x8b"
    if compressed:
        return gzip.open(path, "rt", encoding="utf-8-sig", newline="")
    return path.open(encoding="utf-8-sig", newline="")


def _stream_csv(file: TextIO, path: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    reader = csv.reader(file)
    header = next(reader, [])
    places = [_place(column, header, path) for column in columns]
    for row, record in enumerate(reader):
        if not record:  # a blank line, as editors leave at the end
            continue
        if len(record) <= max(places):
            raise ValueError(f"{path.name}: row {row} has {len(record)} cells, the header has {len(header)}")
        yield [record[place].strip() for place in places]


def _stream_smi(file: TextIO, columns: Sequence[str]) -> Iterator[list[str]]:
    if len(columns) > 1:
        raise ValueError(f"a .smi file holds no labels, but targets are {', '.join(columns[1:])}; use a csv")
    for line in file:
        if line.strip():
            yield line.split(maxsplit=1)[:1]


def _stream_parquet(path: Path, columns: Sequence[str]) -> Iterator[list[str]]:
    file = extras.load("pyarrow.parquet", "tables").ParquetFile(path)
    for column in columns:
        _place(column, file.schema_arrow.names, path)
    for batch in file.iter_batches(columns=list(dict.fromkeys(columns))):
        cells = batch.to_pydict()
        yield from ([_text(cell) for cell in record] for record in zip(*(cells[c] for c in columns), strict=True))


def _place(column: str, header: Sequence[str], path: Path) -> int:
    names = [name.strip() for name in header]
    return names.index(validation.choice(f"column of {path.name}", column, names))


def _text(cell: Any) -> str:
    return "" if cell is None or (isinstance(cell, float) and math.isnan(cell)) else str(cell).strip()


def _label(text: str, row: int, name: str) -> float:
    word = text.lower()
    if word in MISSING:
        return math.nan
    if word in TRUE or word in FALSE:
        return float(word in TRUE)
    try:
        number = float(word)
    except ValueError:
        number = math.inf
    if number not in (0.0, 1.0):
        raise ValueError(f"{name} must be 0, 1 or empty (not measured), got {text!r} in row {row}")
    return number
