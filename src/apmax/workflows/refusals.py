"""Rows that cannot be read, kept where they can be looked up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from apmax import extras
from apmax.data import open_writer
from apmax.workflows.data_types import Refused

pa = extras.load("pyarrow", "tables")


def errors_file(out: Path) -> Path:
    """Return where the rows that cannot be ranked are written, beside the ranking.

    >>> str(errors_file(Path("a/ranked.csv.gz")))
    'a/ranked.errors.csv'
    """
    stem = out.name.lower().removesuffix(".gz").rpartition(".")[0]
    return out.with_name(f"{out.name[: len(stem)]}.errors.csv")


def write_errors(refused: Sequence[Refused], path: Path) -> None:
    """Write the rows that cannot be read; where there are none, no file is left that says otherwise."""
    if not refused:
        path.unlink(missing_ok=True)
        return
    with open_writer(path) as writer:
        writer.write(table_of(refused))


def write_refused(path: Path, refused: Mapping[str, Sequence[Refused]]) -> None:
    """Write the rows of several files that cannot be read, with the name of the file; nothing where there are none."""
    if not refused:
        return
    parts = [table_of(rows).add_column(0, "file", pa.array([name] * len(rows))) for name, rows in refused.items()]
    with open_writer(path) as writer:
        writer.write(pa.concat_tables(parts))


def table_of(refused: Sequence[Refused]) -> Any:
    """Return the rows as a table: number, what stands there, why not."""
    return pa.table({name: [getattr(item, name) for item in refused] for name in ("row", "value", "reason")})
