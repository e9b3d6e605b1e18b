"""Predictions: the rows of a file with their scores, in file order or best first, in bounded memory."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterator, Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import extras, validation
from apmax.data import ON_ERROR, RowSource, UnreadableRow, check_writable, open_writer
from apmax.workflows.contact_sheets import ContactSheet
from apmax.workflows.data_types import RowReport
from apmax.workflows.data_types.rows import target_columns
from apmax.workflows.labelled_files import same_file
from apmax.workflows.saved_model import SavedModel, Scores

pa = extras.load("pyarrow", "tables")

BUCKET_ROWS = 2**18
RANK = "apmax rank"


def write_predictions(
    model: SavedModel,
    source: RowSource,
    out: str | os.PathLike[str],
    *,
    sort: bool = False,
    top: int | None = None,
    name: str = "score",
    by: str | None = None,
    probability: bool = False,
    on_error: str = "skip",
    contact_sheet: str | os.PathLike[str] | None = None,
) -> RowReport:
    """Write the rows of a source with a column of scores; a higher score means more likely positive.

    A column of decisions follows, 1 for rows that are taken and 0 for others, if `apmax decide` has stored a threshold.

    Memory does not grow with the file, but for about 24 bytes a row with `sort` or `top`: then the file is read twice,
    for the scores and for the rows, which go through temporary files of 262,144 rows each in the folder of `out`.
    Rows that cannot be read are written to `errors_file(out)` instead, with their number and the reason.

    Args:
        model: The model, and with it the encoder for the source (`SavedModel.open` returns both).
        source: The rows; all columns are kept.
        out: A csv, csv.gz or parquet file; replaced when all is written.
        sort: Best first; rows of equal score keep their order.
        top: Keep only so many rows, best first.
        name: The new column; with several targets the columns are named "name target".
        by: The target to sort by, where there are several.
        probability: Add columns of probabilities too, named as `added_columns` says.
        on_error: "raise" stops at a row that cannot be read.
        contact_sheet: A PNG file for a picture of the best rows in `out`, where rows are images.

    Raises:
        ValueError: The source has a column of that name, `out` or `errors_file(out)` is the source, several targets
            and no `by`, a row that cannot be read with `on_error="raise"`, a score that is not finite, no probabilities
            of a target, or a contact sheet for a model of other data than images. Nothing has been written then.
    """
    if probability:
        model.check_calibration()
    names, file = added_columns(model, name, probability=probability), Path(out)
    errors = errors_file(file)
    _check_output(source, file, errors, names)
    if top is not None:
        validation.whole("top", top, 1)
    validation.choice("on_error", on_error, ON_ERROR)
    check_writable(file, source)
    report = RowReport(strict=on_error == "raise")
    ordered = sort or top is not None
    target = _target_number(model, by, needed=ordered or contact_sheet is not None)
    sheet = None if contact_sheet is None else ContactSheet(model, Path(contact_sheet), target)
    tables = (
        _sorted_rows(model, source, report, file, top, target) if ordered else _readable_rows(model, source, report)
    )
    # Closed after an error, too: sorted rows are in temporary files.
    with closing(tables), open_writer(file, delimiter=source.delimiter) as writer:
        written = False
        for table, scores in tables:
            writer.write(_with_columns(table, _new_columns(model, scores, probability=probability), names))
            written = True
            if sheet is not None:
                sheet.add(table, scores)
            report.add_time("writing")
        if not written:
            none = _new_columns(model, np.empty((0, len(model.targets.each)), np.float32), probability=probability)
            writer.write(_with_columns(source.read().slice(0, 0), none, names))
    if sheet is not None:
        sheet.draw(report.rows - len(report.unreadable_rows), complete=top is None)
    if report.unreadable_rows:
        _write_table(errors, _row_table(report.unreadable_rows))
    else:
        errors.unlink(missing_ok=True)
    report.add_time("writing")
    return report


def _check_output(source: RowSource, file: Path, errors: Path, names: Sequence[str]) -> None:
    """Raise for a new column that the source has, and for a file that is the source."""
    for column in names:
        if column in source.columns:
            raise ValueError(
                f"name: {source.path} has a column {column!r} already: choose another name for the new one (name=...)"
            )
    if same_file(file, source.path):
        raise ValueError(f"out must be another file than the data, got {file}")
    if same_file(errors, source.path):
        raise ValueError(
            f"out: rows that cannot be read are written to {errors}, which is the data: choose another name than "
            f"{file.name}"
        )


def added_columns(model: SavedModel, name: str, *, probability: bool = False) -> list[str]:
    """Return the names of the new columns: those of the scores, of the probabilities, of the decisions.

    The latter are called "probability" and "decision", or after the scores where these have a name of their own: with
    the name "risk" they are "risk probability" and "risk decision". With several targets the name of the target
    follows; only those that have a threshold have a decision.
    """
    prefix = "" if name == "score" else f"{name} "
    targets = model.targets.names
    kinds = [(name, target) for target in targets]
    if probability:
        kinds += [(f"{prefix}probability", target) for target in targets]
    kinds += [(f"{prefix}decision", target) for target in targets if target in model.thresholds]
    return [kind if len(targets) == 1 else f"{kind} {target}" for kind, target in kinds]


def errors_file(out: Path) -> Path:
    """Return the file for the rows that cannot be read, beside the predictions.

    >>> str(errors_file(Path("a/ranked.csv.gz")))
    'a/ranked.errors.csv'
    """
    stem = out.name.lower().removesuffix(".gz").rpartition(".")[0]
    return out.with_name(f"{out.name[: len(stem)]}.errors.csv")


def write_unreadable(folder: Path, files: Mapping[str, Sequence[UnreadableRow]]) -> None:
    """Write the rows that cannot be read, by the name of their file, to unreadable.csv; nothing without any."""
    parts = [_row_table(rows).add_column(0, "file", pa.array([name] * len(rows))) for name, rows in files.items()]
    if parts:
        _write_table(folder / "unreadable.csv", pa.concat_tables(parts))


def _write_table(path: Path, table: Any) -> None:
    with open_writer(path) as writer:
        writer.write(table)


def _row_table(rows: Sequence[UnreadableRow]) -> Any:
    return pa.table({name: [getattr(item, name) for item in rows] for name in ("row", "value", "reason")})


def _target_number(model: SavedModel, by: str | None, *, needed: bool) -> int:
    targets = model.targets.names
    if by is not None:
        if not needed:
            raise ValueError("by names the target to sort by: it needs sort=True or top=K")
        return targets.index(validation.choice("by", by, targets))
    if needed and len(targets) > 1:
        raise ValueError(f"by: there are several targets to sort by, {', '.join(targets)}: choose one")
    return 0


def _readable_rows(
    model: SavedModel, source: RowSource, report: RowReport
) -> Generator[tuple[Any, Scores], None, None]:
    """Yield the rows that can be read, in file order, with their scores."""
    for table, scores in model.score_chunks(source, report):
        known = ~np.isnan(target_columns(scores)[:, 0])
        yield (table, scores) if known.all() else (table.filter(known), scores[known])


def _sorted_rows(
    model: SavedModel, source: RowSource, report: RowReport, out: Path, top: int | None, target: int
) -> Generator[tuple[Any, Scores], None, None]:
    """Yield rows with their scores, best first: a distribution sort by the ranks of the scores."""
    names = [name for name in model.encoder.names if name in source.columns] or None
    parts = [scores for _, scores in model.score_chunks(source, report, names)]
    scores = np.concatenate(parts) if parts else np.empty(0, np.float32)
    keys = scores if scores.ndim == 1 else scores[:, target]
    # Rows that cannot be read have the score NaN, which numpy sorts last.
    order = np.argsort(-keys, kind="stable")
    readable = len(order) - int(np.isnan(keys).sum())
    kept = readable if top is None else min(top, readable)
    ranks = np.empty(len(order), np.int64)
    ranks[order] = np.arange(len(order))
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=".apmax-sort-") as folder:
        buckets = _RankBuckets(Path(folder))
        start = 0
        for chunk in source.chunks():
            chunk_ranks = ranks[start : start + chunk.num_rows]
            start += chunk.num_rows
            if kept < len(order):
                chunk, chunk_ranks = chunk.filter(chunk_ranks < kept), chunk_ranks[chunk_ranks < kept]
            buckets.add(chunk, chunk_ranks)
        for table, table_ranks in buckets.sorted():
            yield table, scores[order[table_ranks]]


class _RankBuckets:
    """Rows in files by rank: each bucket holds the rows of neighbouring ranks."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.writers: dict[int, Any] = {}
        self.column = RANK

    def add(self, table: Any, ranks: npt.NDArray[np.int64]) -> None:
        """Put rows into the buckets of their ranks."""
        bucket = ranks // BUCKET_ROWS
        while self.column in table.column_names:  # every chunk has the same columns
            self.column += "_"
        ranked = table.append_column(self.column, pa.array(ranks))
        for number in np.unique(bucket):
            if number not in self.writers:
                self.writers[number] = pa.ipc.new_file(self._path(number), ranked.schema)
            self.writers[number].write_table(ranked.filter(bucket == number))

    def sorted(self) -> Iterator[tuple[Any, npt.NDArray[np.int64]]]:
        """Yield the rows and their ranks, ascending, bucket by bucket."""
        for writer in self.writers.values():
            writer.close()
        for number in sorted(self.writers):
            with pa.ipc.open_file(self._path(number)) as file:
                table = file.read_all().sort_by(self.column)
            yield table.drop_columns([self.column]), table.column(self.column).to_numpy()
            self._path(number).unlink()

    def _path(self, number: int) -> Path:
        return self.folder / f"{number}.arrow"


def _new_columns(model: SavedModel, scores: Scores, *, probability: bool) -> list[npt.NDArray[Any]]:
    """Return the columns whose names are `added_columns`."""
    parts: list[npt.NDArray[Any]] = [target_columns(scores)]
    if probability:
        parts.append(target_columns(model.probabilities(scores)))
    parts.append(model.decisions(scores))
    return [column for part in parts for column in part.T]


def _with_columns(table: Any, columns: Sequence[npt.NDArray[Any]], names: Sequence[str]) -> Any:
    for name, column in zip(names, columns, strict=True):
        table = table.append_column(name, pa.array(np.ascontiguousarray(column)))
    return table
