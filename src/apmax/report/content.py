"""Content of a report as plain values, and its JSON file."""

from __future__ import annotations

import dataclasses
import json
import math
import os
import types
import typing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, Union

from apmax.folders import write_atomic
from apmax.metrics import Interval
from apmax.metrics.bands import CalibrationBin, PrecisionBand
from apmax.report.curves import ScoreHistogram, ThresholdCurve
from apmax.train import nan_to_none

REPORT_FORMAT, REPORT_VERSION = "apmax report", 1
REPORT_FILE = "report.json"
"""The name of the file with the content of a report."""
REPORT_PAGE = "report.html"
"""The name of the page."""
_LARGEST = 2**27


@dataclass(frozen=True)
class ScoredPart:
    """A ranking of labelled rows.

    Args:
        name: Of the part, such as "validation", "cross-fitted", "held-out", "test" or a file; with the model where
            there are two.
        rows: Number of rows.
        positives: Number of positive ones.
        no_skill: The AP of a random ranking: the share (by weight) of positives.
        ap: Average precision with its 95 % interval.
        auroc: Area under the ROC curve with its interval.
        curve: Counts by threshold.
        band: Limits of the precision; None with fewer than two positives.
        histogram: Scores by class.
        calibration: Bins by probability; none where the model has no probabilities.
        calibration_fitted: Whether the curve of probabilities was fitted to these rows.
        platt: Slope and intercept from scores to the logit of probabilities.
    """

    name: str
    rows: int
    positives: int
    no_skill: float
    ap: Interval
    auroc: Interval
    curve: ThresholdCurve
    band: PrecisionBand | None
    histogram: ScoreHistogram
    calibration: tuple[CalibrationBin, ...] = ()
    calibration_fitted: bool = False
    platt: tuple[float, ...] = ()


@dataclass(frozen=True)
class Contender:
    """One of several rankings that are compared: a member of a committee, the blend of all, or a method.

    Args:
        name: The member.
        ap: Its average precision with its interval.
        weight: Its weight in the blend; NaN where there is none.
        seconds: Time of its training; NaN where it is not known.
        blend: Whether it is the blend.
    """

    name: str
    ap: Interval
    weight: float = math.nan
    seconds: float = math.nan
    blend: bool = False


@dataclass(frozen=True)
class Importance:
    """Loss of average precision where the values of a column are shuffled, with its 95 % interval."""

    column: str
    loss: Interval


@dataclass(frozen=True)
class ImportanceTable:
    """Importance of columns, the greatest first.

    Args:
        part: The part of the data.
        rows: Number of rows that were scored.
        columns: Number of columns that were tried; the best of them are listed.
        repeats: Number of shuffles of each listed column.
        each: The columns.
    """

    part: str
    rows: int
    columns: int
    repeats: int
    each: tuple[Importance, ...]


@dataclass(frozen=True)
class Example:
    """A ranked row.

    Args:
        rank: Its place in the ranking, from 1; rows of equal score keep their order.
        score: Its score.
        positive: Whether it is positive.
        cells: Its values, as they are shown.
        picture: A data URI of its picture; "" where there is none.
    """

    rank: int
    score: float
    positive: bool
    cells: tuple[str, ...]
    picture: str = ""


@dataclass(frozen=True)
class ExampleTable:
    """Some rows of a part.

    Args:
        title: What they have in common.
        part: The part of the data.
        columns: Names of the cells.
        rows: The rows.
        note: How the pictures are to be read.
    """

    title: str
    part: str
    columns: tuple[str, ...]
    rows: tuple[Example, ...]
    note: str = ""


@dataclass(frozen=True)
class Subgroup:
    """Average precision of the rows that share a value of a column.

    Args:
        value: The value, or an interval of values.
        rows: Number of rows.
        positives: Number of positive ones.
        no_skill: The AP of a random ranking of these rows.
        ap: Their average precision with its interval; NaN without positives.
        share_of_top: Share of these rows among as many best-ranked rows as there are positives in all.
    """

    value: str
    rows: int
    positives: int
    no_skill: float
    ap: Interval
    share_of_top: float


@dataclass(frozen=True)
class SubgroupTable:
    """Average precision by subgroup of a part."""

    column: str
    part: str
    each: tuple[Subgroup, ...]
    left_out: int = 0


@dataclass(frozen=True)
class LearningCurve:
    """Metrics of a training, one value an epoch; NaN where one was not measured.

    Args:
        name: The network.
        stage: Name of the stage of each epoch.
        loss: Mean training loss.
        objective: Surrogate average precision (the exact objective −P, between 0 and 1) on the training rows.
        valid_objective: The same on the validation rows.
        ap: Average precision on the training rows.
        valid_ap: Average precision on the validation rows.
        chosen: Number of the epoch whose weights were kept, from 1 over all stages; 0 where it is not known.
    """

    name: str
    stage: tuple[str, ...]
    loss: tuple[float, ...]
    objective: tuple[float, ...]
    valid_objective: tuple[float, ...]
    ap: tuple[float, ...]
    valid_ap: tuple[float, ...]
    chosen: int = 0


@dataclass(frozen=True)
class TargetReport:
    """Everything about the ranking by one target.

    Args:
        name: The target.
        positive: The value that counts as positive.
        verdict: Sentences, the most important first.
        parts: Scored parts, the one to read first in front.
        leaderboard: Rankings that are compared: the members of a committee and their blend.
        leaderboard_title: What they are.
        leaderboard_note: How their intervals are to be read.
        importance: What drives the ranking.
        examples: Tables of rows.
        subgroups: Average precision by subgroup.
    """

    name: str
    positive: str
    verdict: tuple[str, ...]
    parts: tuple[ScoredPart, ...]
    leaderboard: tuple[Contender, ...] = ()
    leaderboard_title: str = ""
    leaderboard_note: str = ""
    importance: ImportanceTable | None = None
    examples: tuple[ExampleTable, ...] = ()
    subgroups: tuple[SubgroupTable, ...] = ()


@dataclass(frozen=True)
class ReportData:
    """The content of a report: plain numbers and texts, from which the page is rendered without the data.

    Args:
        title: The name of the run.
        targets: One entry a target.
        learning: Curves of the training of networks.
        facts: Lines about how the data were understood.
        warnings: Lines about the data that deserve a look.
        configuration: The configuration as text.
        versions: Versions of the software.
        other_targets: Targets that are not shown.
    """

    title: str
    targets: tuple[TargetReport, ...]
    learning: tuple[LearningCurve, ...] = ()
    facts: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()
    configuration: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    other_targets: tuple[str, ...] = ()

    def to_table(self) -> dict[str, Any]:
        """Return plain dicts, lists and numbers for JSON, None for undefined numbers."""
        table: dict[str, Any] = nan_to_none(dataclasses.asdict(self))
        return {"format": REPORT_FORMAT, "version": REPORT_VERSION, **table}

    @staticmethod
    def from_table(table: Any) -> ReportData:
        """Return the content that `to_table` described.

        Raises:
            ValueError: It is of another format or of a newer version.
        """
        if not isinstance(table, dict) or table.get("format") != REPORT_FORMAT:
            raise ValueError(f"this is no report of apmax: it lacks the mark {REPORT_FORMAT!r}")
        version = table.get("version")
        if version != REPORT_VERSION:
            raise ValueError(f"this report is of format {version}, this apmax reads {REPORT_VERSION}: write it again")
        fields = {name: value for name, value in table.items() if name not in ("format", "version")}
        report: ReportData = _parse(ReportData, fields, "report")
        return report


def save_report(data: ReportData, path: str | os.PathLike[str]) -> None:
    """Write the content of a report to a JSON file."""
    text = json.dumps(data.to_table(), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    write_atomic(Path(path), text.encode("utf-8", "surrogatepass"))


def load_report(path: str | os.PathLike[str]) -> ReportData:
    """Return the content of a report from a JSON file.

    Raises:
        FileNotFoundError: There is none.
        ValueError: It was not written by `save_report`.
    """
    file = Path(path)
    with file.open("rb") as opened:
        content = opened.read(_LARGEST + 1)
    try:
        if len(content) > _LARGEST:
            raise ValueError(f"it is larger than {_LARGEST:,} bytes")
        return ReportData.from_table(json.loads(content))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{file} cannot be read: {error}") from None


_Parsed = TypeVar("_Parsed")


@cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _parse(kind: type[_Parsed], value: Any, name: str) -> _Parsed:
    """Return a value of JSON as the type of a field.

    Raises:
        ValueError: It is of another type, or a table has other fields.
    """
    result: Any
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin in (Union, types.UnionType):
        result = None if value is None else _parse(arguments[0], value, name)
    elif origin is tuple and isinstance(value, list):
        result = tuple(_parse(arguments[0], item, name) for item in value)
    elif origin is dict and isinstance(value, dict):
        result = {str(key): _parse(arguments[1], item, f"{name}.{key}") for key, item in value.items()}
    elif kind is float and (value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))):
        result = math.nan if value is None else float(value)
    elif dataclasses.is_dataclass(kind) and isinstance(value, dict):
        hints = _hints(kind)
        if set(value) != set(hints):
            raise ValueError(f"{name} must have the fields {', '.join(hints)}, got {', '.join(value)}")
        result = kind(**{key: _parse(hints[key], item, f"{name}.{key}") for key, item in value.items()})
    elif kind in (str, int, bool) and type(value) is kind:
        result = value
    else:
        raise ValueError(f"{name} must be {getattr(kind, '__name__', kind)}, got {type(value).__name__}")
    return result  # type: ignore[no-any-return]
