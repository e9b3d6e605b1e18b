"""Writers of csv, csv.gz and parquet files in chunks; a file appears under its name only when it is complete."""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from apmax import extras
from apmax.data.reading import RowSource, table_suffix
from apmax.validation import first_line

pa = extras.load("pyarrow", "tables")
pc = extras.load("pyarrow.compute", "tables")
parquet = extras.load("pyarrow.parquet", "tables")


class CsvWriter:
    """Writer of csv files; values are quoted only where necessary.

    Args:
        path: The file that is written.
        suffix: ".csv" or ".csv.gz".
        delimiter: The delimiter.
        shown: The file's final name, for messages.
    """

    def __init__(self, path: Path, *, suffix: str, delimiter: str, shown: Path) -> None:
        self.shown = shown
        self.file: Any = gzip.GzipFile(path, "wb", compresslevel=6) if suffix == ".csv.gz" else path.open("wb")
        self.delimiter = delimiter
        self.header_written = False

    def write(self, table: Any) -> None:
        """Append the rows of a `pyarrow.Table`."""
        if not self.header_written:
            names = _quoted(pa.array(table.column_names), self.delimiter)
            self.file.write((self.delimiter.join(names.to_pylist()) + "\n").encode())
            self.header_written = True
        if table.num_rows:
            columns = [self._text(name, table.column(name).combine_chunks()) for name in table.column_names]
            lines = pc.binary_join_element_wise(*columns, self.delimiter)
            self.file.write("\n".join(lines.to_pylist()).encode() + b"\n")

    def _text(self, name: str, column: Any) -> Any:
        try:
            text = column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            text = pc.fill_null(pc.cast(text, pa.string()), "")
        except (pa.ArrowNotImplementedError, pa.ArrowInvalid) as error:
            raise ValueError(
                f"{self.shown}: column {name!r} cannot be written as csv ({first_line(error)}): write parquet"
            ) from None
        return _quoted(text, self.delimiter)

    def close(self) -> None:
        """Finish the file."""
        self.file.close()


class ParquetWriter:
    """Writer of parquet files, one row group per chunk."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.writer: Any = None

    def write(self, table: Any) -> None:
        """Append the rows of a `pyarrow.Table`."""
        if self.writer is None:
            self.writer = parquet.ParquetWriter(self.path, table.schema)
        self.writer.write_table(table)

    def close(self) -> None:
        """Finish the file."""
        if self.writer is not None:
            self.writer.close()


@contextmanager
def open_writer(path: str | os.PathLike[str], *, delimiter: str = ",") -> Iterator[CsvWriter | ParquetWriter]:
    """Give a writer whose `write(table)` appends rows; `path` is replaced at the end, or left alone after an error."""
    path = Path(path)
    suffix = table_suffix(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.writing")
    writer: CsvWriter | ParquetWriter | None = None
    try:
        writer = (
            ParquetWriter(beside)
            if suffix == ".parquet"
            else CsvWriter(beside, suffix=suffix, delimiter=delimiter, shown=path)
        )
        yield writer
        writer.close()
        beside.replace(path)
    except OSError as error:
        if error.errno is None or beside.name not in str(error):
            raise
        # Not the file beside it, which is gone.
        raise OSError(error.errno, os.strerror(error.errno), str(path)) from None
    finally:
        if writer is not None:
            writer.close()
        with suppress(OSError):  # where it could not be written, the error says why
            beside.unlink(missing_ok=True)


def check_writable(path: str | os.PathLike[str], source: RowSource) -> None:
    """Raise unless all columns of a source can be written to a file, before any work is done.

    Raises:
        ValueError: The file is a csv, and a column holds lists, structs, maps or bytes.
    """
    if table_suffix(Path(path)) == ".parquet":
        return
    for name in source.columns:
        kind = source.unreadable_type(name)
        if kind is not None:
            raise ValueError(
                f"column {name!r} of {source.path} is of type {kind} and cannot be written as csv: "
                f"write {Path(path).name} as parquet"
            )


def _quoted(text: Any, delimiter: str) -> Any:
    """Return texts as csv fields, quoted if they contain the delimiter, a quote or a line break.

    >>> print(*_quoted(pa.array(["plain", "a, b"]), ",").to_pylist(), sep=" | ")
    plain | "a, b"
    """
    special = pc.match_substring_regex(text, f'["\\n\\r{delimiter}]')
    if not pc.any(special).as_py():
        return text
    inside = pc.replace_substring(text, '"', '""')
    return pc.if_else(special, pc.binary_join_element_wise('"', inside, '"', ""), text)
