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
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice, pairwise
from pathlib import Path
from typing import Any, TextIO

from apmax import extras
from apmax.data.archives import is_gzip
from apmax.validation import first_line

pa = extras.load("pyarrow", "tables")
arrow_csv = extras.load("pyarrow.csv", "tables")
parquet = extras.load("pyarrow.parquet", "tables")

TABLE_SUFFIXES = (".csv", ".csv.gz", ".parquet")
SMILES_SUFFIXES = (".smi", ".smi.gz")
SDF_SUFFIXES = (".sdf", ".sdf.gz")
MAX_SDF_ATOMS = 5_000
"""The most atoms of a structure of an .sdf file."""
DELIMITERS = ",;\t|"
CHUNK_ROWS = 2**16
BLOCK_BYTES = 2**23
"""The longest row of a csv, line of an .smi file, record of an .sdf file, and header (8 MiB)."""
MAX_COLUMNS = 100_000
"""The most columns of a file; one with more is refused by its header."""
MAX_NAME_LENGTH = 10_000
"""The most characters of a column's name."""
ON_ERROR = ("skip", "raise")
"""What to do with rows that cannot be read: leave them out and report them, or raise."""
_QUOTED = re.compile(rf'(?:^|(?<=[{DELIMITERS}])) *"(?:[^"]|"")*(?:"|$)')
"""A quoted name in a header, or the first line of one."""
_PROPERTY = re.compile(r"^>.*<([^<>]+)>")
_BLOCK_TEXT = f"{BLOCK_BYTES // 2**20} MiB"
_SHOWN = 200
"""Characters of an Arrow error that are shown: it may quote a whole row."""


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

    @property
    def short_value(self) -> str:
        """The first hundred characters of the value, for messages."""
        return self.value if len(self.value) <= 100 else f"{self.value[:100]}…"


def describe_unreadable(unreadable: Sequence[UnreadableRow], total: int, noun: str = "rows", *, most: int = 5) -> str:
    """Return one line that counts the unreadable rows and shows the first few.

    >>> describe_unreadable([UnreadableRow(7, "C(C", "extra open parentheses")], 10, "molecules")
    "1 of 10 molecules cannot be read: row 7 'C(C' (extra open parentheses)"
    """
    shown = "; ".join(f"row {item.row} {item.short_value!r} ({item.reason})" for item in unreadable[:most])
    more = f"; and {len(unreadable) - most:,} more" if len(unreadable) > most else ""
    return f"{len(unreadable):,} of {total:,} {noun} cannot be read: {shown}{more}"


class MissingColumnError(ValueError):
    """A source has not the column that an argument names.

    Attributes:
        argument: The argument.
        text: The message without it.
        near: The column that may be meant; None if none is similar.
    """

    def __init__(self, argument: str, text: str, near: str | None) -> None:
        super().__init__(f"{argument}: {text}")
        self.argument, self.text, self.near = argument, text, near


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
            MissingColumnError: There is none.
        """
        self.check_name(name, argument)

    def check_name(self, name: str, argument: str) -> None:
        """Raise unless there is a column `name`, of whatever type."""
        if name in self.columns:
            return
        same = [column for column in self.columns if column.strip().lower() == name.strip().lower()]
        near = next(iter(same or difflib.get_close_matches(name, self.columns, n=1)), None)
        hint = "" if near is None else f" (did you mean {near!r}?)"
        columns = list_names(self.columns)
        raise MissingColumnError(argument, f"{self.path} has no column {name!r}{hint}; its columns are {columns}", near)

    def unreadable_type(self, name: str) -> str | None:  # noqa: ARG002 - overridden
        """Return the type of a column whose values cannot be read as text, such as "list<int64>"; None of others."""
        return None


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
            and bar is most frequent in the header outside of quotation marks.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Another ending, no columns, a column name twice, or a file that is not what its ending says.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = _existing(path)
        try:
            self.suffix = table_suffix(self.path)
        except ValueError as error:
            molecules = ", ".join(SMILES_SUFFIXES + SDF_SUFFIXES)
            raise ValueError(
                f"{error}, or of molecules {molecules}: save a spreadsheet as csv, and call other text with delimiters "
                "(.tsv, .txt) .csv"
            ) from None
        self._types: dict[str, Any] = {}
        names = self._parquet_names() if self.suffix == ".parquet" else self._header()
        # A space after the delimiter is not part of a column's name.
        self._stored = {name.strip(): name for name in names}
        self.columns = [name.strip() for name in names]
        _check_names(self.path, self.columns)

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
            raise ValueError(f"{self.path}: {_arrow_reason(error)}") from None

    def check_column(self, name: str, argument: str) -> None:
        """Raise unless there is a column `name` whose values can be read as text."""
        super().check_column(name, argument)
        kind = self.unreadable_type(name)
        if kind is not None:
            raise ValueError(
                f"{argument}: column {name!r} of {self.path} is of type {kind}, which cannot be read: "
                "save it as text, numbers or dates"
            )

    def unreadable_type(self, name: str) -> str | None:
        """Return the type of a column of lists, structs, maps, or bytes that are not UTF-8; None of others."""
        if self.suffix != ".parquet":
            return None
        kind = self._types[self._stored[name]]
        if pa.types.is_nested(kind):
            return str(kind)
        if pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind):
            # Some writers store text as bytes: only the values show whether they are text.
            try:
                for chunk in self.chunks([name]):
                    chunk.column(name).cast(pa.binary()).cast(pa.string())
            except pa.ArrowInvalid:
                return str(kind)
        return None

    def _open_csv(self, stored: Sequence[str]) -> Any:
        return arrow_csv.open_csv(
            pa.input_stream(str(self.path), compression="gzip" if is_gzip(self.path) else None),
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
            with _text_of(self.path, newline="") as file:
                start = file.readline(BLOCK_BYTES)
                while start and not start.strip("\r\n"):  # blank lines are no rows, before the header as after it
                    start = file.readline(BLOCK_BYTES)
                unquoted = _QUOTED.sub("", start)
                self.delimiter = max(DELIMITERS, key=unquoted.count)
                _check_count(self.path, unquoted.count(self.delimiter) + 1, complete=start.endswith("\n"))
                file.seek(0)
                rows = csv.reader(_bounded_lines(file, self.path), delimiter=self.delimiter)
                names = next(filter(None, rows), [])
        except csv.Error:  # a field that is longer than the module's limit
            raise ValueError(_long_name(self.path)) from None
        if not names:
            raise ValueError(f"{self.path} is empty: a header with the columns' names is needed")
        return names

    def _parquet_names(self) -> list[str]:
        try:
            schema = parquet.read_schema(self.path)
        except pa.ArrowException as error:
            raise ValueError(f"{self.path} is not a parquet file: {first_line(error)}") from None
        self._types = {field.name: field.type for field in schema}
        return list(schema.names)


class SmilesFile(RowSource):
    """A .smi or .smi.gz file: no header, one molecule per line, a SMILES and after a space its name.

    Args:
        path: The file.
        smiles_column: The name of the column of SMILES; the other column is "name" (or "id", if that is "name").

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: When it is read: a line is longer than `BLOCK_BYTES`, or it is not UTF-8 or not a whole gzip file.
    """

    def __init__(self, path: str | os.PathLike[str], smiles_column: str = "smiles") -> None:
        self.path = _existing(path)
        self.columns = [smiles_column, "id" if smiles_column == "name" else "name"]

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the molecules in order as `pyarrow.Table`s; blank lines are not rows."""
        with _text_of(self.path) as file:
            lines = (line.split(maxsplit=1) for line in _bounded_lines(file, self.path) if line.strip())
            smiles, name = self.columns
            rows = ({smiles: first, name: rest[0].strip() if rest else ""} for first, *rest in lines)
            yield from _tables(rows, self.columns if columns is None else columns)


class SdfFile(RowSource):
    """An .sdf or .sdf.gz file: the molecules as SMILES by RDKit, their names and their properties.

    The SMILES of a structure that RDKit cannot read, or that has more than `MAX_SDF_ATOMS` atoms, is empty. A property
    that a molecule does not have is empty, and one with the name of the column of SMILES is not read: the structure
    counts.

    Args:
        path: The file.
        smiles_column: The name of the column of SMILES; the next is "name", then the properties.

    Raises:
        FileNotFoundError: There is no such file.
        ModuleNotFoundError: RDKit is not installed.
        ValueError: More than `MAX_COLUMNS` properties, text that is not UTF-8, or not a whole gzip file; when it is
            read, a record longer than `BLOCK_BYTES`.
    """

    def __init__(self, path: str | os.PathLike[str], smiles_column: str = "smiles") -> None:
        self.path = _existing(path)
        extras.load("rdkit.Chem", "molecules")
        with _text_of(self.path) as file:
            columns = {smiles_column: None, "name": None}
            for line in _bounded_lines(file, self.path):
                if match := _PROPERTY.match(line):
                    columns[match[1].strip()] = None
                    _check_count(self.path, len(columns))
        self.columns = list(columns)
        _check_names(self.path, self.columns)

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the molecules in order as `pyarrow.Table`s."""
        names = self.columns if columns is None else list(columns)
        with _text_of(self.path) as file:
            yield from _tables(self._rows(file, with_smiles=self.columns[0] in names), names)

    def _rows(self, file: TextIO, *, with_smiles: bool) -> Iterator[dict[str, str]]:
        for block, properties in _sdf_records(file, self.path):
            smiles = {self.columns[0]: _block_smiles(block) if with_smiles else ""}
            yield {"name": block.partition("\n")[0].strip(), **properties, **smiles}


def _sdf_records(file: TextIO, path: Path) -> Iterator[tuple[str, dict[str, str]]]:
    """Yield the block of each structure, and its properties."""
    lines: list[str] = []
    size = 0
    for line in _bounded_lines(file, path):
        if line.rstrip() != "$$$$":
            lines.append(line)
            size += len(line)
            if size > BLOCK_BYTES:
                raise ValueError(f"{path}: a record is longer than {_BLOCK_TEXT}: is the line $$$$ after it missing?")
            continue
        yield _sdf_record(lines)
        lines, size = [], 0
    if any(line.strip() for line in lines):
        yield _sdf_record(lines)


def _sdf_record(lines: Sequence[str]) -> tuple[str, dict[str, str]]:
    starts = [place for place, line in enumerate(lines) if _PROPERTY.match(line)]
    properties = {}
    for start, end in pairwise([*starts, len(lines)]):
        match = _PROPERTY.match(lines[start])
        assert match is not None
        properties[match[1].strip()] = "".join(lines[start + 1 : end]).strip()
    return "".join(lines[: starts[0]] if starts else lines), properties


def _block_smiles(block: str) -> str:
    chem = extras.load("rdkit.Chem", "molecules")
    with chem.rdBase.BlockLogs():
        molecule = chem.MolFromMolBlock(block)
        # RDKit takes the square of the atoms in time for a SMILES, and crashes from some 20,000 on.
        return "" if molecule is None or molecule.GetNumAtoms() > MAX_SDF_ATOMS else str(chem.MolToSmiles(molecule))


def _tables(rows: Iterator[dict[str, str]], columns: Sequence[str]) -> Iterator[Any]:
    while part := list(islice(rows, CHUNK_ROWS)):
        yield pa.table({name: pa.array([row.get(name, "") for row in part], pa.string()) for name in columns})


def _existing(path: str | os.PathLike[str]) -> Path:
    if not Path(path).is_file():
        raise FileNotFoundError(f"no such file: {path}")
    return Path(path)


def _open_text(path: Path, newline: str | None = None) -> TextIO:
    if is_gzip(path):
        return gzip.open(path, "rt", encoding="utf-8-sig", newline=newline)
    return path.open(encoding="utf-8-sig", newline=newline)


@contextmanager
def _text_of(path: Path, newline: str | None = None) -> Iterator[TextIO]:
    """Give the text of a file, compressed by gzip or not.

    Raises:
        ValueError: When it is read: it is not UTF-8, or not a whole gzip file.
    """
    try:
        with _open_text(path, newline) as file:
            yield file
    except UnicodeDecodeError:
        raise ValueError(f"{path} is not UTF-8 text: save it as UTF-8") from None
    except (gzip.BadGzipFile, EOFError, zlib.error):
        raise ValueError(f"{path} is not a whole gzip file") from None


def _bounded_lines(file: TextIO, path: Path) -> Iterator[str]:
    """Yield the lines of a text file.

    Raises:
        ValueError: A line is longer than `BLOCK_BYTES`; no more of it is read.
    """
    while line := file.readline(BLOCK_BYTES + 1):
        if len(line) > BLOCK_BYTES:
            raise ValueError(f"{path}: a line is longer than {_BLOCK_TEXT}: is this a text file with lines?")
        yield line


def _check_names(path: Path, names: Sequence[str]) -> None:
    _check_count(path, len(names))
    if any(len(name) > MAX_NAME_LENGTH for name in names):
        raise ValueError(_long_name(path))
    twice = [name for name, count in Counter(names).items() if count > 1]
    if twice:
        raise ValueError(f"{path}: there are {names.count(twice[0])} columns with the name {twice[0]!r}")


def _check_count(path: Path, count: int, *, complete: bool = True) -> None:
    if count > MAX_COLUMNS:
        found = f"{'' if complete else 'at least '}{count:,} columns"
        raise ValueError(
            f"{path} has {found}, more than the {MAX_COLUMNS:,} that are read: leave columns out, or save it with rows "
            "and columns exchanged if its rows are the features"
        )


def _long_name(path: Path) -> str:
    return (
        f"{path}: the name of a column is longer than {MAX_NAME_LENGTH:,} characters: "
        "is its first line a header, with all quotation marks closed?"
    )


def _arrow_reason(error: Exception) -> str:
    reason = first_line(error)
    if "straddl" in reason:
        return f"a row is longer than {_BLOCK_TEXT}: is a quotation mark not closed, or a line break missing?"
    return reason if len(reason) <= _SHOWN else f"{reason[:_SHOWN]}…"


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
