"""Collection of a report: from a model and its scored rows to the content of the page."""

from __future__ import annotations

import math
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from typing import Any

import numpy as np

from apmax import extras
from apmax.committee import Leaderboard
from apmax.committee.leaderboard import CROSS_FITTED, HELD_OUT
from apmax.data import parsing
from apmax.data.reading import list_names
from apmax.data.splits import RowNumbers
from apmax.metrics import paired_difference
from apmax.report.content import (
    Contender,
    ImportanceTable,
    LearningCurve,
    ReportData,
    ScoredPart,
    SubgroupTable,
    TargetReport,
)
from apmax.report.curves import PIXEL_COLUMNS
from apmax.report.examples import example_tables
from apmax.report.importance import permutation_importance
from apmax.report.rankings import MOST_SUBGROUPS, headline, score_part, subgroup_table
from apmax.workflows import SavedModel, ScoredRows
from apmax.workflows.data_types.rows import target_columns
from apmax.workflows.saved_model import SavedCommittee
from apmax.workflows.scored_rows import SELECTION_PARTS, unequal_weights

MOST_TARGETS = 12
SHARE_OF_DUPLICATES = 0.01
PACKAGES = ("apmax", "torch", "numpy", "pyarrow", "lightgbm", "scikit-learn", "rdkit", "pillow")
_INTERVAL_NOTE = "The intervals are of the rows; they do not contain the randomness of training."
_BLEND_NOTE = (
    f"The weights of the blend were fitted to the same rows, which favours it a little. {_INTERVAL_NOTE} "
    "Members of weight 0 are grey in the chart."
)


def collect_report(
    model: SavedModel,
    scored: Sequence[ScoredRows],
    *,
    title: str,
    by: Sequence[str] = (),
    readers: Mapping[str, SavedModel] | None = None,
    others: Mapping[str, Sequence[ScoredRows]] | None = None,
    learning: Sequence[LearningCurve] = (),
    facts: Sequence[str] = (),
    warnings: Sequence[str] = (),
    configuration: str = "",
) -> ReportData:
    """Return the content of a model's report.

    Args:
        model: The model.
        scored: Its scored rows by part; those with a table also give examples, importance and subgroups.
        title: The name of the run.
        by: Columns of subgroups.
        readers: The model with the encoder for the file of a part, by part; by default the model itself.
        others: Scored rows of other models, by their name, which are drawn beside.
        learning: Curves of the training.
        facts: Lines about how the data were understood.
        warnings: Lines about the data that deserve a look.
        configuration: The configuration as text.

    Raises:
        ValueError: No target has a positive and a negative row, there is no such column of subgroups, or there are
            subgroups and no table.
    """
    if not scored:
        raise ValueError("scored: there are no scored rows, so that there is nothing to report")
    # The test rows come first: they chose nothing.
    ordered = sorted(scored, key=lambda part: part.part != "test")
    _check_columns(by, ordered)
    names = model.targets.names
    shown = [number for number in range(len(names)) if any(_both_classes(part, number) for part in ordered)]
    if not shown:
        raise ValueError(f"scored: no part has a positive and a negative row of {', '.join(map(repr, names))}")
    targets = tuple(
        _report_target(
            model,
            number,
            [part for part in ordered if _both_classes(part, number)],
            by=by,
            readers=readers or {},
            others=others or {},
            columns=max(256, PIXEL_COLUMNS // min(len(shown), MOST_TARGETS)),
        )
        for number in shown[:MOST_TARGETS]
    )
    return ReportData(
        title=title,
        targets=targets,
        learning=tuple(learning),
        facts=tuple(facts),
        # A report that is written again has the lines about duplicates among its warnings already.
        warnings=tuple(dict.fromkeys([*warnings, *_duplicate_warnings(model, ordered)])),
        configuration=configuration,
        versions=software_versions(),
        other_targets=tuple(names[number] for number in shown[MOST_TARGETS:]),
    )


def _both_classes(part: ScoredRows, target: int) -> bool:
    labels = part.labels[_counted_rows(part, target), target]
    return bool((labels == 1).any() and (labels == 0).any())


def _counted_rows(part: ScoredRows, target: int) -> RowNumbers:
    """Return the places of the rows that have a label of a target and no weight of 0."""
    return np.flatnonzero(~np.isnan(part.labels[:, target]) & (part.sample_weight > 0))


def _check_columns(by: Sequence[str], scored: Sequence[ScoredRows]) -> None:
    tables = [part.table for part in scored if part.table is not None]
    for name in by:
        if not tables:
            raise ValueError(f"by: the rows are needed for subgroups of {name!r}: name their file (data=FILE)")
        if not any(name in table.column_names for table in tables):
            columns = list_names(tables[0].column_names)
            raise ValueError(f"by: there is no column {name!r}; the columns are {columns}")


def _one_target(part: ScoredRows, target: int) -> ScoredRows:
    """Return the rows that count for a target, with one column of scores and labels."""
    known = _counted_rows(part, target)
    return replace(
        part,
        rows=part.rows[known],
        scores=part.scores[known, target],
        labels=part.labels[known, target],
        sample_weight=part.sample_weight[known],
        members={name: each[known, target] for name, each in part.members.items()},
        table=None if part.table is None else part.table.take(known),
    )


def _report_target(
    model: SavedModel,
    number: int,
    scored: Sequence[ScoredRows],
    *,
    by: Sequence[str],
    readers: Mapping[str, SavedModel],
    others: Mapping[str, Sequence[ScoredRows]],
    columns: int,
) -> TargetReport:
    leaderboard = model.committees[number].leaderboard if isinstance(model, SavedCommittee) else None
    target = model.targets.each[number]
    own = [_one_target(part, number) for part in scored]
    rivals = [(name, _one_target(part, number)) for name, parts in others.items() for part in parts]
    parts = _target_parts(model, number, own, rivals, columns=columns)
    verdict = [headline(parts[0])]
    verdict += [_comparison(name, part, rival) for name, rival in rivals for part in own if _same_rows(part, rival)]
    if leaderboard is not None:
        verdict += [f"On {leaderboard.part} rows, {each.sentence}." for each in leaderboard.verdicts]
    examples = next((part for part in own if part.table is not None), None)
    reader = model if examples is None else readers.get(examples.part, model)
    importance = None if examples is None else _importance(reader, examples, number)
    first = [] if importance is None else [item.column for item in importance.each]
    return TargetReport(
        name=target.name,
        positive=str(target.positive),
        verdict=tuple(verdict),
        parts=parts,
        leaderboard=_contenders(leaderboard),
        leaderboard_title="" if leaderboard is None else f"Members of the committee, by {leaderboard.part} AP",
        leaderboard_note=_leaderboard_note(leaderboard),
        importance=importance,
        examples=() if examples is None else example_tables(reader, examples, number, first),
        subgroups=tuple(_subgroups(model, name, part) for name in by if (part := _first_with(name, own)) is not None),
    )


def _target_parts(
    model: SavedModel,
    number: int,
    own: Sequence[ScoredRows],
    rivals: Sequence[tuple[str, ScoredRows]],
    *,
    columns: int,
) -> tuple[ScoredPart, ...]:
    """Return the curves of a target: those of the model, then those of the models that it is compared with."""
    curve = model.calibration[number] if model.calibration else None
    parts = [
        score_part(
            part.part,
            part.scores,
            part.labels,
            part.sample_weight,
            calibration=curve,
            calibration_fitted=part.part in SELECTION_PARTS,
            columns=columns,
        )
        for part in own
    ]
    parts += [
        score_part(f"{rival.part}, {name}", rival.scores, rival.labels, rival.sample_weight, columns=columns // 2)
        for name, rival in rivals
    ]
    return tuple(parts)


def _importance(reader: SavedModel, part: ScoredRows, number: int) -> ImportanceTable | None:
    """Return what the columns of a table are worth to a target; None for other kinds of data."""
    if reader.job.data.kind != "table":
        return None
    return permutation_importance(
        lambda table: target_columns(reader.score_table(table))[:, number],
        part.table,
        part.labels,
        reader.encoder.names,
        part=part.part,
        sample_weight=part.sample_weight,
    )


def _first_with(column: str, scored: Sequence[ScoredRows]) -> ScoredRows | None:
    """Return the first part whose table has a column; None where those of a target have none."""
    return next((part for part in scored if part.table is not None and column in part.table.column_names), None)


def _same_rows(part: ScoredRows, other: ScoredRows) -> bool:
    return part.part == other.part and np.array_equal(part.rows, other.rows)


def _comparison(name: str, part: ScoredRows, other: ScoredRows) -> str:
    weight = unequal_weights(part.sample_weight)
    gain = paired_difference(part.scores, other.scores, part.labels, sample_weight=weight)
    if gain.low > 0:
        conclusion = "this model ranks better"
    elif gain.high < 0:
        conclusion = f"{name} ranks better"
    else:
        conclusion = "no difference can be told"
    numbers = f"{gain.estimate:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
    return f"Against {name} on the same {part.part} rows: {numbers}: {conclusion}."


def _contenders(leaderboard: Leaderboard | None) -> tuple[Contender, ...]:
    if leaderboard is None:
        return ()
    rows = [Contender(row.name, row.ap, row.weight, row.seconds) for row in leaderboard.rows]
    if not leaderboard.has_blend:
        return tuple(rows)
    blend = leaderboard.blend
    return (Contender(blend.name, blend.ap, blend.weight, blend.seconds, blend=True), *rows)


def _leaderboard_note(leaderboard: Leaderboard | None) -> str:
    if leaderboard is None:
        return ""
    return _BLEND_NOTE if leaderboard.has_blend else _INTERVAL_NOTE


def _subgroups(model: SavedModel, name: str, part: ScoredRows) -> SubgroupTable:
    column = part.table.column(name)
    words = parsing.words(column).to_pylist()
    values: list[Any] = words
    if len(set(words)) > MOST_SUBGROUPS:
        commas = name in getattr(model.job.data, "decimal_comma", ())
        numbers, unreadable = parsing.numbers(column, decimal_comma=commas)
        if not unreadable:
            values = [None if math.isnan(value) else float(value) for value in numbers]
    return subgroup_table(name, values, part.part, part.scores, part.labels, part.sample_weight)


def _duplicate_warnings(model: SavedModel, scored: Sequence[ScoredRows]) -> list[str]:
    """Return lines about rows of a table that repeat the features of another one."""
    names = list(model.encoder.names)
    tables = {part.part: part.table.select(names) for part in scored if part.table is not None and _has(part, names)}
    if model.job.data.kind != "table":
        return []
    lines = []
    for part, table in tables.items():
        repeated = table.num_rows - table.group_by(names).aggregate([]).num_rows
        if repeated > SHARE_OF_DUPLICATES * table.num_rows:
            lines.append(f"{repeated:,} of {table.num_rows:,} {part} rows repeat the features of another {part} row")
    training = next((each for each in (CROSS_FITTED, HELD_OUT) if each in tables), None)
    if "test" in tables and training is not None:
        pa = extras.load("pyarrow", "tables")
        marked = [
            tables[part].append_column("apmax part", pa.array([value] * tables[part].num_rows, pa.int8()))
            for value, part in enumerate((training, "test"))
        ]
        groups = pa.concat_tables(marked, promote_options="permissive").group_by(names)
        counts = groups.aggregate([("apmax part", "min"), ("apmax part", "sum")])
        seen = counts.column("apmax part_min").to_numpy() == 0
        repeated = int(counts.column("apmax part_sum").to_numpy()[seen].sum())
        if repeated:
            lines.append(f"{repeated:,} of {tables['test'].num_rows:,} test rows have the features of a training row")
    return lines


def _has(part: ScoredRows, names: Sequence[str]) -> bool:
    return bool(names) and set(names) <= set(part.table.column_names)


def software_versions() -> dict[str, str]:
    """Return the versions of Python, of apmax and of the packages beside it."""
    versions = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    installed = {name: next(iter(metadata.distributions(name=name)), None) for name in PACKAGES}
    return versions | {name: package.version for name, package in installed.items() if package is not None}
