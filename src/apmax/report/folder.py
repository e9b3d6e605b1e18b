"""Reports of model folders: the rows behind the scores, and the files that a report leaves in a folder."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from apmax.data import RowSource
from apmax.report.collect import collect_report
from apmax.report.content import REPORT_FILE, REPORT_PAGE, ReportData, load_report, save_report
from apmax.report.learning import learning_curves, read_learning_curves
from apmax.report.page import write_report
from apmax.workflows import JobResult, SavedModel, ScoredRows, load_model, load_scored_rows
from apmax.workflows.evaluation import score_source, without_weight
from apmax.workflows.model_folder import open_other_model


def attach_tables(
    model: SavedModel, scored: Sequence[ScoredRows]
) -> tuple[list[ScoredRows], dict[str, SavedModel], list[str]]:
    """Return scored rows of a training with the rows themselves, where their files are still there.

    Returns:
        The scored rows; the model with the encoder for the file of each part that has a table; and a line for each
        file that is missing or has changed.
    """
    parts, readers, lines = [], {}, []
    for part in scored:
        file = _file_of(model, part.part)
        try:
            reader, source = model.open(file, **_reading_options(model, part.part))
            table = source.read().take(part.rows) if part.table is None else part.table
            if part.table is None and not _same_labels(model, part, table):
                raise ValueError("its rows have changed since the training")
        except (OSError, ValueError, IndexError) as error:
            reason = "it is not there any more" if isinstance(error, FileNotFoundError) else str(error)
            lines.append(f"no examples of the {part.part} rows, which come from {file}: {reason}")
            parts.append(part)
            continue
        readers[part.part] = reader
        parts.append(replace(part, table=table))
    return parts, readers, lines


def _file_of(model: SavedModel, part: str) -> str:
    data = model.job.data
    own = data.test if part == "test" else data.valid if part == "validation" else None
    return data.train if own is None else own


def _reading_options(model: SavedModel, part: str) -> dict[str, Any]:
    """Return the options by which the training read a file."""
    folder = Path(_file_of(model, part)).is_dir()
    names = () if folder else model.data_type.reading_options
    return {name: getattr(model.job.data, name) for name in names}


def _same_labels(model: SavedModel, part: ScoredRows, table: Any) -> bool:
    """Return whether the rows of a file have the labels that were stored; of molecules the joined ones may differ."""
    if table.num_rows != len(part.rows):
        return False
    labels = model.targets.labels(table).reshape(part.labels.shape)
    differs = ~((labels == part.labels) | (np.isnan(labels) & np.isnan(part.labels)))
    return bool(differs.mean() <= (0.05 if model.job.data.kind == "molecules" else 0))


def _score_file(model: SavedModel, source: RowSource) -> tuple[ScoredRows, list[str]]:
    """Return the labelled rows of a file, named after it, with the model's scores; and warnings about them."""
    part, warnings = score_source(model, source)
    part = replace(part, part=source.path.name, table=source.read().take(part.rows))
    return part, [*warnings, *without_weight(part)]


def report_folder(
    folder: str | os.PathLike[str],
    *,
    data: str | os.PathLike[str] | None = None,
    by: Sequence[str] = (),
    against: str | os.PathLike[str] | None = None,
    against_model: Any = None,
    member: str | None = None,
    model: Any = None,
    **options: Any,
) -> ReportData:
    """Return the content of the report of a model's folder.

    Without `data` and `by` it is the stored one (report.json), if there is one. Otherwise it is collected anew, from
    the stored scores and the files of the training, or from `data`.

    Args:
        folder: The folder.
        data: Other labelled rows to report on.
        by: Columns of subgroups.
        against: The folder of another model of the same targets, whose curve on `data` is drawn beside.
        against_model: The builder of that model's network, where it is of your own.
        member: The member of a committee that scores `data` alone.
        model: The builder of a network of your own, as in `load_model`.
        **options: Differences of `data` from the training data, as in `SavedModel.score`.

    Raises:
        FileNotFoundError: There is no trained model, or no such file.
        ValueError: A file is damaged, there is no such column, or the rows have no positive or no negative one.
    """
    if against is not None and data is None:
        raise ValueError("against: the rows to compare on are needed: name their file (data=FILE)")
    if against_model is not None and against is None:
        raise ValueError("against_model names the network of another model: name its folder, too (against=FOLDER)")
    place = Path(folder)
    stored = None
    with suppress(FileNotFoundError, NotADirectoryError, ValueError):  # of another version: it is collected anew
        stored = load_report(place / REPORT_FILE)
    if stored is not None and data is None and not by:
        return stored
    saved = load_model(place, model=model).with_member(member)
    if data is None:
        return _report_on_training(saved, place, stored, by)
    reader, source = saved.open(data, **options)
    part, warnings = _score_file(reader, source)
    others = {}
    if against is not None:
        rival = _score_other(saved, *open_other_model(against, data, model=against_model, options=options))
        if np.array_equal(rival.rows, part.rows):
            # Both count the same rows: another model may know of no weights.
            rival = replace(rival, sample_weight=part.sample_weight)
        others[Path(against).resolve().name] = [rival]
    return collect_report(
        saved,
        [part],
        title=f"{place.resolve().name} on {source.path.name}",
        by=by,
        readers={part.part: reader},
        others=others,
        warnings=warnings,
        configuration=read_configuration(place),
    )


def _report_on_training(saved: SavedModel, place: Path, stored: ReportData | None, by: Sequence[str]) -> ReportData:
    """Return the report on the scores in a model's folder, with the facts and warnings of the stored report."""
    facts, known = ((), ()) if stored is None else (stored.facts, stored.warnings)
    parts, readers, lines = attach_tables(saved, list(load_scored_rows(place).values()))
    return collect_report(
        saved,
        parts,
        title=place.resolve().name,
        by=by,
        readers=readers,
        learning=read_learning_curves(place),
        facts=facts,
        warnings=(*known, *lines),
        configuration=read_configuration(place),
    )


def _score_other(model: SavedModel, other: SavedModel, source: RowSource) -> ScoredRows:
    """Return the scores of another model, its targets in the order of the first."""
    if set(other.targets.each) != set(model.targets.each):
        raise ValueError(f"against: the other model has other targets than {', '.join(map(repr, model.targets.names))}")
    part, _ = _score_file(other, source)
    order = [other.targets.names.index(name) for name in model.targets.names]
    return replace(part, scores=part.scores[:, order], labels=part.labels[:, order])


def report_training(result: JobResult, *, facts: Sequence[str] = (), warnings: Sequence[str] = ()) -> ReportData:
    """Return the content of the report of a training.

    Args:
        result: The training.
        facts: Lines about how the data were understood.
        warnings: Lines about the data that deserve a look.
    """
    parts, readers, lines = attach_tables(result.model, result.scored)
    return collect_report(
        result.model,
        parts,
        title=result.folder.resolve().name,
        readers=readers,
        learning=learning_curves(result.records, result.chosen),
        facts=facts,
        warnings=(*warnings, *result.warnings, *lines),
        configuration=read_configuration(result.folder),
    )


def read_configuration(folder: str | os.PathLike[str]) -> str:
    """Return the text of a folder's run.toml."""
    return (Path(folder) / "run.toml").read_text(encoding="utf-8")


def page_name(data: str | os.PathLike[str]) -> str:
    """Return the name of the page on other rows.

    >>> page_name("tables/clients.2024.csv.gz")
    'report-clients.2024.html'
    """
    name = re.sub(r"\.(csv|parquet|smi|sdf)(\.gz)?$", "", Path(data).name, flags=re.IGNORECASE)
    return f"report-{name}.html"


def store_report(folder: str | os.PathLike[str], data: ReportData) -> Path:
    """Write report.json and report.html into a model's folder, and return the latter."""
    place = Path(folder)
    save_report(data, place / REPORT_FILE)
    write_report(data, place / REPORT_PAGE)
    return place / REPORT_PAGE
