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
from apmax.data import RowSource, open_writer
from apmax.workflows.data_types import RowReport
from apmax.workflows.refusals import errors_file, write_errors
from apmax.workflows.sheets import Best
from apmax.workflows.trained import Trained

pa = extras.load("pyarrow", "tables")

BUCKET_ROWS = 2**18
RANK = "apmax rank"


def rank(
    model: Trained,
    source: RowSource,
    out: str | os.PathLike[str],
    *,
    sort: bool = False,
    top: int | None = None,
    name: str = "score",
    by: str | None = None,
    on_error: str = "skip",
    sheet: str | os.PathLike[str] | None = None,
) -> RowReport:
    """Write the rows of `source` with a column `name` of scores to `out`, a higher score being more likely positive.

    Memory does not grow with the file, but for about 24 bytes a row where it is sorted: then the file is read twice,
    for the scores and for the rows, which go through temporary files of 262,144 rows each in the folder of `out`.
    Rows that cannot be read are not in `out` but in a file beside it (`errors_file`), with their number and the reason.

    Args:
        model: What scores.
        source: The rows; all columns are kept as they are.
        out: A csv, csv.gz or parquet file; replaced when all is written.
        sort: Best first; rows of equal score stay in their order.
        top: Only so many, the best first.
        name: The new column; of several targets the columns are called "name target".
        by: The target by which rows are sorted, where there are several.
        on_error: "raise" stops at a row that cannot be read.
        sheet: A PNG file for a picture of the best of those in `out`, where rows are images.

    Raises:
        ValueError: The file has such a column already, `out` is the file itself, several targets and no `by`, or a
            row that cannot be read where that is not wanted; a picture of what are no images.
    """
    names = score_names(model, name)
    for each in names:
        if each in source.columns:
            raise ValueError(f"{source.path} has a column {each!r} already: name the new one otherwise (--name)")
    target = Path(out)
    if target.exists() and target.samefile(source.path):
        raise ValueError(f"out must be another file than the data, got {out}")
    if top is not None:
        validation.whole("top", top, 1)
    validation.choice("on_error", on_error, ("skip", "raise"))
    report = RowReport(strict=on_error == "raise")
    ordered = sort or top is not None
    place = place_of(model, by, needed=ordered or sheet is not None)
    best = None if sheet is None else Best(model, Path(sheet), place)
    tables = in_order(model, source, report, target, top, place) if ordered else readable(model, source, report)
    with open_writer(target, delimiter=source.delimiter) as writer:
        written = False
        for table, scores in tables:
            writer.write(with_scores(table, scores, names))
            written = True
            if best is not None:
                best.add(table, scores)
            report.lap("writing")
        if not written:
            writer.write(with_scores(source.read().slice(0, 0), np.empty((0, len(names)), np.float32), names))
    if best is not None and best.files:
        best.draw(report.rows - len(report.refused), everything=top is None)
    write_errors(report.refused, errors_file(target))
    report.lap("writing")
    return report


def score_names(model: Trained, name: str) -> list[str]:
    """Return what the columns of scores are called."""
    targets = model.target.names
    return [name] if len(targets) == 1 else [f"{name} {target}" for target in targets]


def place_of(model: Trained, by: str | None, *, needed: bool) -> int:
    """Return which of the targets rows are sorted by."""
    targets = model.target.names
    if by is not None:
        if not needed:
            raise ValueError("by says what rows are sorted by: it needs sort or top (--sort, --top)")
        return targets.index(validation.choice("by", by, targets))
    if needed and len(targets) > 1:
        raise ValueError(
            f"there are several targets to sort by: say which, --by {targets[0]} (of {', '.join(targets)})"
        )
    return 0


def readable(model: Trained, source: RowSource, report: RowReport) -> Iterator[tuple[Any, npt.NDArray[np.float32]]]:
    """Yield the file's rows in their order with their scores, without those that cannot be read."""
    for table, scores in model.scored(source, report):
        known = ~np.isnan(scores.reshape(len(scores), -1)[:, 0])
        yield (table, scores) if known.all() else (table.filter(known), scores[known])


def in_order(
    model: Trained, source: RowSource, report: RowReport, out: Path, top: int | None, place: int
) -> Iterator[tuple[Any, npt.NDArray[np.float32]]]:
    """Yield tables of rows with their scores, best first: a distribution sort by the ranks of the scores."""
    names = [name for name in model.encoder.names if name in source.columns] or None
    parts = [model.score(chunk, report) for chunk in source.chunks(names)]
    scores = np.concatenate(parts) if parts else np.empty(0, np.float32)
    keys = scores if scores.ndim == 1 else scores[:, place]
    # Rows that cannot be read have no score; numpy sorts NaN last.
    order = np.argsort(-keys, kind="stable")
    found = len(order) - int(np.isnan(keys).sum())
    kept = found if top is None else min(top, found)
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


def with_scores(table: Any, scores: npt.NDArray[np.float32], names: list[str]) -> Any:
    """Return the table with a column more for each name."""
    for name, column in zip(names, scores.reshape(len(scores), len(names)).T, strict=True):
        table = table.append_column(name, pa.array(np.ascontiguousarray(column), pa.float32()))
    return table
