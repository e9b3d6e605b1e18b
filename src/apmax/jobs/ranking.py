"""A file's rows with their scores, in the file's order or best first, however large the file is."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import extras, validation
from apmax.data.tables import Report, Source, open_writer
from apmax.jobs.trained import Trained

pa = extras.load("pyarrow", "tables")

BUCKET_ROWS = 2**18
RANK = "apmax rank"


def rank(
    model: Trained,
    source: Source,
    out: str | os.PathLike[str],
    *,
    sort: bool = False,
    top: int | None = None,
    name: str = "score",
) -> Report:
    """Write the rows of `source` with a column `name` of scores to `out`, a higher score being more likely positive.

    Memory does not grow with the file, but for about 24 bytes a row where it is sorted: then the file is read twice,
    for the scores and for the rows, which go through temporary files of 262,144 rows each in the folder of `out`.

    Args:
        model: What scores.
        source: The rows; all columns are kept as they are.
        out: A csv, csv.gz or parquet file; replaced when all is written.
        sort: Best first; rows of equal score stay in their order.
        top: Only so many, the best first.
        name: The new column.

    Raises:
        ValueError: The file has such a column already, or `out` is the file itself.
    """
    if name in source.columns:
        raise ValueError(f"{source.path} has a column {name!r} already: name the new one otherwise (--name)")
    target = Path(out)
    if target.exists() and target.samefile(source.path):
        raise ValueError(f"out must be another file than the data, got {out}")
    if top is not None:
        validation.whole("top", top, 1)
    report = Report()
    ordered = sort or top is not None
    tables = in_order(model, source, report, target, top) if ordered else model.scored(source, report)
    with open_writer(target, delimiter=source.delimiter) as writer:
        written = False
        for table, scores in tables:
            writer.write(with_scores(table, scores, name))
            written = True
        if not written:
            writer.write(with_scores(source.read(), np.empty(0, np.float32), name))
    return report


def in_order(
    model: Trained, source: Source, report: Report, out: Path, top: int | None
) -> Iterator[tuple[Any, npt.NDArray[np.float32]]]:
    """Yield tables of rows with their scores, best first: a distribution sort by the ranks of the scores."""
    names = [name for name in model.encoder.names if name in source.columns] or None
    parts = [model.score(chunk, report) for chunk in source.chunks(names)]
    scores = np.concatenate(parts) if parts else np.empty(0, np.float32)
    order = np.argsort(-scores, kind="stable")
    kept = len(order) if top is None else min(top, len(order))
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".apmax-sort-") as folder:
        buckets = Buckets(Path(folder))
        start = 0
        for chunk in source.chunks():
            own = ranks[start : start + chunk.num_rows]
            start += chunk.num_rows
            if kept < len(order):
                chunk, own = chunk.filter(own < kept), own[own < kept]
            buckets.add(chunk, own)
        for table, own in buckets.ordered():
            yield table, scores[order[own]]


class Buckets:
    """Rows apart by rank: each bucket holds the rows of neighbouring ranks, in a file of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writers: dict[int, Any] = {}

    def add(self, table: Any, ranks: npt.NDArray[np.int64]) -> None:
        """Put rows into the buckets of their ranks."""
        bucket = ranks // BUCKET_ROWS
        ranked = table.append_column(RANK, pa.array(ranks))
        for number in np.unique(bucket):
            if number not in self.writers:
                self.writers[number] = pa.ipc.new_file(self._path(number), ranked.schema)
            self.writers[number].write_table(ranked.filter(bucket == number))

    def ordered(self) -> Iterator[tuple[Any, npt.NDArray[np.int64]]]:
        """Yield the rows and their ranks, ascending, bucket by bucket."""
        for writer in self.writers.values():
            writer.close()
        for number in sorted(self.writers):
            with pa.ipc.open_file(self._path(number)) as file:
                table = file.read_all().sort_by(RANK)
            yield table.drop_columns([RANK]), table.column(RANK).to_numpy()
            self._path(number).unlink()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.arrow"


def with_scores(table: Any, scores: npt.NDArray[np.float32], name: str) -> Any:
    """Return the table with one column more."""
    return table.append_column(name, pa.array(scores, pa.float32()))
