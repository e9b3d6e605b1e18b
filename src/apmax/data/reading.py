"""Row sources: csv, parquet, SMILES and SD files read in chunks of rows.

Every column of a text file is read as text ("007" stays "007"); `apmax.data.parsing` reads numbers and dates from it,
`apmax.data.targets` labels. The command line, `read_molecules` and `apmax.data.images.read_csv` all read files here.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import os
import re
import zlib
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any, TextIO

from apmax import extras
from apmax.validation import first_line

pa = extras.load("pyarrow", "tables")
arrow_csv = extras.load("pyarrow.csv", "tables")
parquet = extras.load("pyarrow.parquet", "tables")

TABLE_SUFFIXES = (".csv", ".csv.gz", ".parquet")
SMILES_SUFFIXES = (".smi", ".smi.gz")
SDF_SUFFIXES = (".sdf", ".sdf.gz")
DELIMITERS = ",;\t|"
CHUNK_ROWS = 2**16
BLOCK_BYTES = 2**23
ON_ERROR = ("skip", "raise")
"""What to do with rows that cannot be read: leave them out and report them, or raise."""
_PROPERTY = re.compile(r"^>.*<([^<>]+)>")


@dataclass(frozen=True)
class UnreadableRow:
    """A row that cannot be read.

    Attributes:
        row: Its number in the file, from 0.
        value: Its content: a SMILES, the path of an image.
        reason: Why it cannot be read.
    """

    row: int
    value: str
    reason: str


def describe_unreadable(unreadable: Sequence[UnreadableRow], total: int, noun: str = "rows", *, most: int = 5) -> str:
    """Return one line that counts the unreadable rows and shows the first few.

    >>> describe_unreadable([UnreadableRow(7, "C(C", "extra open parentheses")], 10, "molecules")
    "1 of 10 molecules cannot be read: row 7 'C(C' (extra open parentheses)"
    """
    shown = "; ".join(f"row {item.row} {item.value!r} ({item.reason})" for item in unreadable[:most])
    more = f"; and {len(unreadable) - most:,} more" if len(unreadable) > most else ""
    return f"{len(unreadable):,} of {total:,} {noun} cannot be read: {shown}{more}"


class RowSource(ABC):
    """Rows with named columns, read on demand as `pyarrow.Table`s.

    Attributes:
        path: The file or folder.
        columns: The names of its columns.
        delimiter: The delimiter of its text, "," where it has none.
    """

    path: Path
    columns: list[str]
    delimiter: str = ","

    @abstractmethod
    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows in order as `pyarrow.Table`s of some ten thousand rows; of all columns by default."""

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return all rows as one `pyarrow.Table`; of all columns by default."""
        parts = list(self.chunks(columns))
        if parts:
            return pa.concat_tables(parts)
        return pa.table({name: pa.array([], pa.string()) for name in (self.columns if columns is None else columns)})

    def check_column(self, name: str, argument: str) -> None:
        """Raise unless there is a column `name`.

        Args:
            name: The column.
            argument: The argument that names it, for the message.

        Raises:
            ValueError: There is none.
        """
        if name not in self.columns:
            near = difflib.get_close_matches(name, self.columns, n=1)
            hint = f" (did you mean {near[0]!r}?)" if near else ""
            columns = list_names(self.columns)
            raise ValueError(f"{argument}: {self.path} has no column {name!r}{hint}; its columns are {columns}")


def open_table(path: str | os.PathLike[str], *, smiles_column: str = "smiles") -> RowSource:
    r"""Return the rows of a file, by its ending: csv, csv.gz, parquet, smi, smi.gz, sdf or sdf.gz.

    Args:
        path: The file.
        smiles_column: The name of the column of SMILES of an .smi or .sdf file.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Another ending, or a file that is not what its ending says.

    >>> import tempfile
    >>> file = Path(tempfile.mkdtemp()) / "a.csv"
    >>> _ = file.write_text("smiles;active\nCCO;yes\n")
    >>> open_table(file).read().to_pydict()
    {'smiles': ['CCO'], 'active': ['yes']}
    """
    name = Path(path).name.lower()
    if name.endswith(SMILES_SUFFIXES):
        return SmilesFile(path, smiles_column)
    if name.endswith(SDF_SUFFIXES):
        return SdfFile(path, smiles_column)
    return TableFile(path)


def is_molecule_file(path: str | os.PathLike[str]) -> bool:
    """Return whether a file holds molecules by its ending: .smi, .smi.gz, .sdf or .sdf.gz."""
    return str(path).lower().endswith(SMILES_SUFFIXES + SDF_SUFFIXES)


class TableFile(RowSource):
    """A csv or parquet file.

    Args:
        path: A file that ends in .csv, .csv.gz or .parquet. A csv has a header, is UTF-8 (with or without a byte-order
            mark), compressed by gzip or not whatever its ending, and delimited by whichever of comma, semicolon, tab
            and bar is most frequent in the header.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Another ending, no columns, a column name twice, or a file that is not what its ending says.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _existing(path)
        self.suffix = table_suffix(self.path)
        names = self._parquet_names() if self.suffix == ".parquet" else self._header()
        # A space after the delimiter is not part of a column's name.
        self._stored = {name.strip(): name for name in names}
        self.columns = [name.strip() for name in names]
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if twice:
            raise ValueError(f"{path}: there are {self.columns.count(twice[0])} columns with the name {twice[0]!r}")

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows in order as `pyarrow.Table`s of some ten thousand rows; of all columns by default."""
        names = self.columns if columns is None else list(columns)
        stored = [self._stored[name] for name in names]
        try:
            if self.suffix == ".parquet":
                # Not memory-mapped: mapped pages count as memory of the process, and the file may be larger than that.
                with parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=2**20) as file:
                    for batch in file.iter_batches(CHUNK_ROWS, columns=None if columns is None else stored):
                        yield pa.Table.from_batches([batch]).select(stored).rename_columns(names)
            else:
                with self._open_csv(stored) as reader:
                    for batch in reader:
                        yield pa.Table.from_batches([batch]).rename_columns(names)
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise ValueError(f"{self.path}: {first_line(error)}") from None

    def _open_csv(self, stored: Sequence[str]) -> Any:
        return arrow_csv.open_csv(
            pa.input_stream(str(self.path), compression="gzip" if _is_gzip(self.path) else None),
            read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in self._stored.values()},
                strings_can_be_null=False,
                include_columns=list(stored),
            ),
        )

    def _header(self) -> list[str]:
        try:
            with _open_text(self.path, newline="") as file:
                start = file.readline()
                self.delimiter = max(DELIMITERS, key=start.count)
                file.seek(0)
                names = next(csv.reader(file, delimiter=self.delimiter), [])
        except UnicodeDecodeError:
            raise ValueError(f"{self.path} is not UTF-8 text: save it as UTF-8") from None
        except (gzip.BadGzipFile, EOFError, zlib.error):
            raise ValueError(f"{self.path} is not a whole gzip file") from None
        if not names:
            raise ValueError(f"{self.path} is empty: a header with the columns' names is needed")
        return names

    def _parquet_names(self) -> list[str]:
        try:
            return list(parquet.read_schema(self.path).names)
        except pa.ArrowException as error:
            raise ValueError(f"{self.path} is not a parquet file: {first_line(error)}") from None


class SmilesFile(RowSource):
    """A .smi or .smi.gz file: no header, one molecule per line, a SMILES and after a space its name.

    Args:
        path: The file.
        smiles_column: The name of the column of SMILES; the other column is "name".

    Raises:
        FileNotFoundError: There is no such file.
    """

    def __init__(self, path: str | os.PathLike[str], smiles_column: str = "smiles") -> None:
        self.path = _existing(path)
        self.columns = [smiles_column, "name"]

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the molecules in order as `pyarrow.Table`s; blank lines are not rows."""
        with _open_text(self.path) as file:
            lines = (line.split(maxsplit=1) for line in file if line.strip())
            rows = ({self.columns[0]: first, "name": rest[0].strip() if rest else ""} for first, *rest in lines)
            yield from _tables(rows, self.columns if columns is None else columns)


class SdfFile(RowSource):
    """An .sdf or .sdf.gz file: the molecules as SMILES by RDKit, their names and their properties.

    The SMILES of a structure that RDKit cannot read is empty. A property that a molecule does not have is empty, and
    one with the name of the column of SMILES is not read: the structure counts.

    Args:
        path: The file.
        smiles_column: The name of the column of SMILES; the next is "name", then the properties.

    Raises:
        FileNotFoundError: There is no such file.
        ModuleNotFoundError: RDKit is not installed.
    """

    def __init__(self, path: str | os.PathLike[str], smiles_column: str = "smiles") -> None:
        self.path = _existing(path)
        extras.load("rdkit.Chem", "molecules")
        with _open_text(self.path) as file:
            found = (match[1].strip() for line in file if (match := _PROPERTY.match(line)))
            self.columns = list(dict.fromkeys([smiles_column, "name", *found]))

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the molecules in order as `pyarrow.Table`s."""
        names = self.columns if columns is None else list(columns)
        with _open_text(self.path) as file:
            yield from _tables(self._rows(file, with_smiles=self.columns[0] in names), names)

    def _rows(self, file: TextIO, *, with_smiles: bool) -> Iterator[dict[str, str]]:
        for block, properties in _sdf_records(file):
            smiles = {self.columns[0]: _block_smiles(block) if with_smiles else ""}
            yield {"name": block.partition("\n")[0].strip(), **properties, **smiles}


def _sdf_records(file: TextIO) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the block of each structure, and its properties."""
    lines: list[str] = []
    for line in file:
        if line.rstrip() != "$$$$":
            lines.append(line)
            continue
        yield _sdf_record(lines)
        lines = []
    if any(line.strip() for line in lines):
        yield _sdf_record(lines)


def _sdf_record(lines: Sequence[str]) -> tuple[str, dict[str, str]]:
    starts = [place for place, line in enumerate(lines) if _PROPERTY.match(line)]
    properties = {}
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        match = _PROPERTY.match(lines[start])
        assert match is not None
        properties[match[1].strip()] = "".join(lines[start + 1 : end]).strip()
    return "".join(lines[: starts[0]] if starts else lines), properties


def _block_smiles(block: str) -> str:
    chem = extras.load("rdkit.Chem", "molecules")
    with chem.rdBase.BlockLogs():
        molecule = chem.MolFromMolBlock(block)
        return "" if molecule is None else str(chem.MolToSmiles(molecule))


def _tables(rows: Iterator[dict[str, str]], columns: Sequence[str]) -> Iterator[Any]:
    while part := list(islice(rows, CHUNK_ROWS)):
        yield pa.table({name: pa.array([row.get(name, "") for row in part], pa.string()) for name in columns})


def _existing(path: str | os.PathLike[str]) -> Path:
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    return Path(path)


def _is_gzip(path: Path) -> bool:
    # By content and not by name: a download may come compressed or not.
    with path.open("rb") as file:
        return file.read(2) == b"\x1f\x8b"


def _open_text(path: Path, newline: str | None = None) -> TextIO:
    if _is_gzip(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=newline)
    return path.open(encoding="utf-8-sig", newline=newline)


def table_suffix(path: Path) -> str:
    """Return which of `TABLE_SUFFIXES` a path ends in.

    Raises:
        ValueError: None.

    >>> table_suffix(Path("clients.2024.csv.gz"))
    '.csv.gz'
    """
    for suffix in TABLE_SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise ValueError(f"{path} must end in one of {', '.join(TABLE_SUFFIXES)}")


def list_names(names: Iterable[str], most: int = 8) -> str:
    """Return names as a text, the first `most` of them.

    >>> list_names(["a", "b", "c"], 2)
    "'a', 'b', … (3 in all)"
    """
    names = list(names)
    text = ", ".join(repr(name) for name in names[:most])
    return text if len(names) <= most else f"{text}, … ({len(names)} in all)"
