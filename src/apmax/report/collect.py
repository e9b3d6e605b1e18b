"""Collection of a report: from a model and its scored rows to the content of the page."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import extras
from apmax.committee import Leaderboard
from apmax.committee.leaderboard import CROSS_FITTED, HELD_OUT
from apmax.data import parsing
from apmax.data.reading import list_names
from apmax.metrics import paired_difference
from apmax.report.content import (
    Contender,
    Example,
    ExampleTable,
    LearningCurve,
    ReportData,
    SubgroupTable,
    TargetReport,
)
from apmax.report.curves import PIXEL_COLUMNS
from apmax.report.importance import permutation_importance
from apmax.report.pictures import atom_effects, draw_molecule, draw_thumbnail
from apmax.report.rankings import MOST_SUBGROUPS, headline, score_part, subgroup_table
from apmax.train import Record
from apmax.train.records import parse_records
from apmax.workflows import SavedModel, ScoredRows
from apmax.workflows.saved_model import SavedCommittee
from apmax.workflows.scored_rows import SELECTION_PARTS, unequal_weights

MOST_TARGETS = 12
TOP_EXAMPLES, MISSED_EXAMPLES = 24, 12
MOST_CELLS, LONGEST_CELL = 8, 60
SHARE_OF_DUPLICATES = 0.01
PACKAGES = ("apmax", "torch", "numpy", "pyarrow", "lightgbm", "scikit-learn", "rdkit", "pillow")
_INTERVAL_NOTE = "The intervals are of the rows; they do not contain the randomness of training."
_BLEND_NOTE = (
    f"The weights of the blend were fitted to the same rows, which favours it a little. {_INTERVAL_NOTE} "
    "Members of weight 0 are grey in the chart."
)
_ATOMS_NOTE = (
    "An atom is blue where the score falls when it is masked (replaced by an atom without element), orange where it "
    "rises; each molecule has its own scale."
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
        # Those of an earlier report are among them.
        warnings=tuple(dict.fromkeys([*warnings, *_duplicate_warnings(model, ordered)])),
        configuration=configuration,
        versions=software_versions(),
        other_targets=tuple(names[number] for number in shown[MOST_TARGETS:]),
    )


def _both_classes(part: ScoredRows, target: int) -> bool:
    labels = part.labels[:, target]
    return bool((labels == 1).any() and (labels == 0).any())


def _check_columns(by: Sequence[str], scored: Sequence[ScoredRows]) -> None:
    tables = [part.table for part in scored if part.table is not None]
    for name in by:
        if not tables:
            raise ValueError(f"by: the rows are needed for subgroups of {name!r}: name their file (data=FILE)")
        if not any(name in table.column_names for table in tables):
            columns = list_names(tables[0].column_names)
            raise ValueError(f"by: there is no column {name!r}; the columns are {columns}")


def _one_target(part: ScoredRows, target: int) -> ScoredRows:
    """Return the rows whose label of a target is known, with one column of scores and labels."""
    known = np.flatnonzero(~np.isnan(part.labels[:, target]))
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
    curve = model.calibration[number] if model.calibration else None
    own = [_one_target(part, number) for part in scored]
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
    verdict = [headline(parts[0])]
    for name, rivals in others.items():
        for rival in (_one_target(part, number) for part in rivals):
            parts.append(
                score_part(
                    f"{rival.part}, {name}", rival.scores, rival.labels, rival.sample_weight, columns=columns // 2
                )
            )
            verdict += [_comparison(name, part, rival) for part in own if _same_rows(part, rival)]
    if leaderboard is not None:
        verdict += [f"On {leaderboard.part} rows, {each.sentence}." for each in leaderboard.verdicts]
    examples = next((part for part in own if part.table is not None), None)
    reader = model if examples is None else readers.get(examples.part, model)
    importance = None
    if examples is not None and model.job.data.kind == "table":
        importance = permutation_importance(
            lambda table: reader.score_table(table).reshape(table.num_rows, -1)[:, number],
            examples.table,
            examples.labels,
            reader.encoder.names,
            part=examples.part,
            sample_weight=examples.sample_weight,
        )
    first = [] if importance is None else [item.column for item in importance.each]
    return TargetReport(
        name=target.name,
        positive=str(target.positive),
        verdict=tuple(verdict),
        parts=tuple(parts),
        leaderboard=_contenders(leaderboard),
        leaderboard_title="" if leaderboard is None else f"Members of the committee, by {leaderboard.part} AP",
        leaderboard_note=_leaderboard_note(leaderboard),
        importance=importance,
        examples=() if examples is None else _example_tables(reader, examples, number, first),
        subgroups=tuple(_subgroups(model, name, part) for name in by if (part := _first_with(name, own)) is not None),
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


def _example_tables(model: SavedModel, part: ScoredRows, number: int, first: Sequence[str]) -> tuple[ExampleTable, ...]:
    """Return the best-ranked rows, and the positives of the lowest scores that a perfect ranking has higher."""
    order = np.argsort(-part.scores, kind="stable")
    places = np.empty(len(order), np.int64)
    places[order] = np.arange(len(order))
    positives = np.flatnonzero(part.labels == 1)
    missed = positives[places[positives] >= len(positives)]
    missed = missed[np.argsort(-places[missed])][:MISSED_EXAMPLES]
    tables = []
    for title, rows in (("Top-ranked rows", order[:TOP_EXAMPLES]), ("Worst-missed positives", missed)):
        if not len(rows):
            continue
        table = part.table.take(rows)
        columns = _shown_columns(model, table, first)
        cells = [_cell_texts(model, table, name) for name in columns]
        pictures, note = _draw_rows(model, table, number)
        examples = [
            Example(
                rank=int(places[row]) + 1,
                score=float(part.scores[row]),
                positive=bool(part.labels[row] == 1),
                cells=(str(int(part.rows[row])), *(cell[k] for cell in cells)),
                picture=pictures[k] if pictures else "",
            )
            for k, row in enumerate(rows)
        ]
        tables.append(ExampleTable(title, part.part, ("row", *columns), tuple(examples), note))
    return tuple(tables)


def _shown_columns(model: SavedModel, table: Any, first: Sequence[str]) -> list[str]:
    """Return the columns of example rows: those that drive the ranking or are read, then those that identify a row."""
    read = [name for name in (first or model.encoder.names) if name in table.column_names]
    known = {*read, *model.encoder.names, *model.targets.names}
    rest = [name for name in table.column_names if name not in known]
    return [*rest[:2], *read[: MOST_CELLS - min(2, len(rest))]] if first else [*read, *rest[:3]]


def _cell_texts(model: SavedModel, table: Any, column: str) -> list[str]:
    """Return the texts of a column as they are shown: of the path of an image the end, of other texts the beginning."""
    texts = parsing.cells(table.column(column))
    if model.job.data.kind == "images" and column in model.encoder.names:
        return ["/".join(Path(text).parts[-2:])[-LONGEST_CELL:] for text in texts]
    return [text if len(text) <= LONGEST_CELL else text[: LONGEST_CELL - 1] + "…" for text in texts]


def _draw_rows(model: SavedModel, table: Any, number: int) -> tuple[list[str], str]:
    """Return a picture of each row and how to read it; none of rows of numbers."""
    kind = model.job.data.kind
    if kind == "molecules":
        column = model.encoder.names[0]
        smiles = parsing.cells(table.column(column))
        pa = extras.load("pyarrow", "tables")

        def score(texts: list[str]) -> npt.NDArray[Any]:
            return model.score_table(pa.table({column: texts})).reshape(len(texts), -1)[:, number]

        effects = atom_effects(smiles, score)
        return [draw_molecule(text, own) for text, own in zip(smiles, effects, strict=True)], _ATOMS_NOTE
    if kind == "images":
        encoder: Any = model.encoder
        return [draw_thumbnail(file, fit=encoder.fit) for file in encoder.paths.files(table)], ""
    return [], ""


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


def learning_curves(records: Sequence[Record], chosen: Sequence[Mapping[str, Any]] = ()) -> tuple[LearningCurve, ...]:
    """Return the curves of a training, one for each model of an ensemble.

    Args:
        records: The trainer's records.
        chosen: Stage (from 0) and epoch (from 1) of the chosen weights, one a model.
    """
    curves = []
    members = sorted({record.member for record in records})
    for member in members:
        own = [record for record in records if record.member == member]
        kept = chosen[member] if member < len(chosen) else {}
        place = [(record.stage_number, record.epoch) for record in own]
        at = (kept.get("stage"), kept.get("epoch"))
        curves.append(
            LearningCurve(
                name="network" if len(members) == 1 else f"network {member + 1}",
                stage=tuple(record.stage for record in own),
                loss=tuple(float(record.loss) for record in own),
                objective=tuple(-record.train.objective if record.train else math.nan for record in own),
                valid_objective=tuple(-record.valid.objective if record.valid else math.nan for record in own),
                ap=tuple(record.train.ap if record.train else math.nan for record in own),
                valid_ap=tuple(record.valid.ap if record.valid else math.nan for record in own),
                chosen=place.index(at) + 1 if at in place else 0,
            )
        )
    return tuple(curves)


def read_learning_curves(folder: str | os.PathLike[str]) -> tuple[LearningCurve, ...]:
    """Return the curves of the training in a model's folder; none where there are no records."""
    place = Path(folder)
    models = sorted(place.glob("member-*"), key=lambda path: int(path.name.partition("-")[2])) or [place]
    records: list[Record] = []
    chosen: list[Mapping[str, Any]] = []
    for number, model in enumerate(models):
        file = model / "records.jsonl"
        if not file.is_file():
            return ()
        records += [replace(record, member=number) for record in parse_records(file.read_text(encoding="utf-8"))]
        run = json.loads((model / "run.json").read_text(encoding="utf-8"))
        chosen.append(run.get("chosen") or {})
    return learning_curves(records, chosen)


def software_versions() -> dict[str, str]:
    """Return the versions of Python, of apmax and of the packages beside it."""
    versions = {"python": platform.python_version(), "system": f"{platform.system()} {platform.machine()}"}
    installed = {name: next(iter(metadata.distributions(name=name)), None) for name in PACKAGES}
    return versions | {name: package.version for name, package in installed.items() if package is not None}
