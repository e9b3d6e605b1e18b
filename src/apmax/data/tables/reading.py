"""Rows from files, whole or in chunks."""

from __future__ import annotations

import csv
import gzip
import os
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from apmax import extras

pa = extras.load("pyarrow", "tables")
arrow_csv = extras.load("pyarrow.csv", "tables")
parquet = extras.load("pyarrow.parquet", "tables")

SUFFIXES = (".csv", ".csv.gz", ".parquet")
DELIMITERS = ",;\t|"
CHUNK_ROWS = 2**16
BLOCK_BYTES = 2**23


class Source:
    """A file of rows: its columns are known at once, its rows are read when asked for.

    Every column of a csv is read as text, exactly as it stands there ("007" stays "007"); what it means is decided
    later and once, so that a file of a thousand rows and one of ten million are understood alike.

    Args:
        path: A file that ends in .csv, .csv.gz or .parquet. A csv has a header, is UTF-8, and separates by whichever
            of comma, semicolon, tab and bar is most frequent in the header.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: Another ending, no columns, a column name twice, not readable as what the ending says.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        if not self.path.is_file():
            raise FileNotFoundError(f"no such file: {path}")
        self.suffix = suffix_of(self.path)
        self.delimiter = ","
        self.columns: list[str] = self._parquet_names() if self.suffix == ".parquet" else self._header()
        twice = [name for name, count in Counter(self.columns).items() if count > 1]
        if twice:
            raise ValueError(f"{path}: the column name {twice[0]!r} stands {self.columns.count(twice[0])} times")

    def chunks(self, columns: Sequence[str] | None = None) -> Iterator[Any]:
        """Yield the rows in order as `pyarrow.Table`s of some ten thousand rows, of these columns or of all."""
        try:
            if self.suffix == ".parquet":
                # Not memory-mapped: mapped pages count as memory of the process, and the file may be larger than that.
                with parquet.ParquetFile(self.path, pre_buffer=False, buffer_size=2**20) as file:
                    for batch in file.iter_batches(CHUNK_ROWS, columns=columns and list(columns)):
                        yield pa.Table.from_batches([batch])
            else:
                with self._csv(columns) as reader:
                    for batch in reader:
                        yield pa.Table.from_batches([batch])
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError) as error:
            raise ValueError(f"{self.path}: {first_line(error)}") from None

    def read(self, columns: Sequence[str] | None = None) -> Any:
        """Return all rows as one `pyarrow.Table`."""
        parts = list(self.chunks(columns))
        if not parts:
            names = self.columns if columns is None else columns
            return pa.table({name: pa.array([], pa.string()) for name in names})
        return pa.concat_tables(parts)

    def _csv(self, columns: Sequence[str] | None) -> Any:
        return arrow_csv.open_csv(
            self.path,
            read_options=arrow_csv.ReadOptions(block_size=BLOCK_BYTES),
            parse_options=arrow_csv.ParseOptions(delimiter=self.delimiter, newlines_in_values=True),
            convert_options=arrow_csv.ConvertOptions(
                column_types={name: pa.string() for name in self.columns},
                strings_can_be_null=False,
                include_columns=None if columns is None else list(columns),
            ),
        )

    def _header(self) -> list[str]:
        opened: Any = gzip.open if self.suffix == ".csv.gz" else open
        try:
            with opened(self.path, "rt", encoding="utf-8-sig", newline="") as file:
                start = file.readline()
                self.delimiter = max(DELIMITERS, key=start.count)
                file.seek(0)
                names = next(csv.reader(file, delimiter=self.delimiter), [])
        except UnicodeDecodeError:
            raise ValueError(f"{self.path} is not UTF-8 text: save it as UTF-8") from None
        except (gzip.BadGzipFile, EOFError):
            raise ValueError(f"{self.path} is not a whole gzip file") from None
        if not names:
            raise ValueError(f"{self.path} is empty: a header with the columns' names is needed")
        return names

    def _parquet_names(self) -> list[str]:
        try:
            return list(parquet.read_schema(self.path).names)
        except pa.ArrowException as error:
            raise ValueError(f"{self.path} is not a parquet file: {first_line(error)}") from None


def suffix_of(path: Path) -> str:
    """Return which of the known endings a path has.

    >>> suffix_of(Path("clients.2024.csv.gz"))
    '.csv.gz'
    """
    for suffix in SUFFIXES:
        if path.name.lower().endswith(suffix):
            return suffix
    raise ValueError(f"{path} must end in one of {', '.join(SUFFIXES)}")


def first_line(error: Exception) -> str:
    """Return what an error says, in one line."""
    return (str(error).splitlines() or [type(error).__name__])[0]
