"""Scored rows: scores of labelled rows that a model was not fitted to, in files of the model's folder.

scores-validation.npz     of the validation rows that chose a network's epoch
scores-cross-fitted.npz   of all training rows of a committee, by models that were not fitted to them
scores-held-out.npz       of the training rows that the one split of a committee held out
scores-test.npz           of the test rows
"""

from __future__ import annotations

import io
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax.committee.leaderboard import CROSS_FITTED, HELD_OUT
from apmax.data.archives import npz_content, read_npz
from apmax.folders import Manifest, read_manifest, write_atomic
from apmax.workflows.data_types import LabelledRows
from apmax.workflows.data_types.rows import target_columns

_Array = NDArray[np.float64]
SELECTION_PARTS = ("validation", CROSS_FITTED, HELD_OUT)
"""Rows that epoch or blend were chosen by and probabilities fitted to; a folder has one of them."""
PARTS = (*SELECTION_PARTS, "test")
"""What scored rows can be."""
MODEL_KIND = "model"
"""The kind of a model's folder in its manifest."""
_ARRAYS = ("rows", "scores", "labels", "sample_weight", "member_names", "member_scores")


@dataclass(frozen=True)
class ScoredRows:
    """Scores of labelled rows that a model was not fitted to.

    Attributes:
        part: One of `PARTS`.
        rows: (n,) the place of each row in its file, counted from 0.
        scores: (n, targets) of the model.
        labels: (n, targets) of 0/1, NaN where missing.
        sample_weight: (n,).
        members: (n, targets) of each member of a committee, by name.
        table: The rows themselves, a `pyarrow.Table`; None after `load_scored_rows`, as they are not saved.
    """

    part: str
    rows: NDArray[np.int64]
    scores: _Array
    labels: _Array
    sample_weight: _Array
    members: Mapping[str, _Array] = field(default_factory=dict)
    table: Any = field(default=None, compare=False, repr=False)

    @staticmethod
    def of(
        part: str,
        scores: Any,
        labels: Any,
        *,
        rows: Any = None,
        sample_weight: Any = None,
        members: Mapping[str, Any] | None = None,
        table: Any = None,
    ) -> ScoredRows:
        """Return scored rows of arrays (n,) or (n, targets); rows without a score are left out.

        Of several targets one may have no score where others do: its label there is left out.

        >>> part = ScoredRows.of("test", [0.5, np.nan, 2.0], [0, 1, 1])
        >>> part.rows.tolist(), part.scores.tolist(), part.labels.tolist()
        ([0, 2], [[0.5], [2.0]], [[0.0], [1.0]])
        """
        columns = _columns(scores)
        missing = np.isnan(columns)
        known = np.flatnonzero(~missing.all(1))
        numbers = np.arange(len(columns)) if rows is None else np.asarray(rows, np.int64)
        weight = np.ones(len(columns)) if sample_weight is None else np.asarray(sample_weight, np.float64)
        return ScoredRows(
            part,
            numbers[known],
            columns[known],
            np.where(missing, np.nan, _columns(labels))[known],
            weight[known],
            {name: _columns(each)[known] for name, each in (members or {}).items()},
            None if table is None else table.take(known),
        )

    @property
    def file(self) -> str:
        """The name of its file in a model's folder."""
        return scores_file(self.part)


def score_labelled_rows(
    part: str, rows: LabelledRows, scores: Any, members: Mapping[str, Any] | None = None
) -> ScoredRows:
    """Return labelled rows with their scores, (n,) or (n, targets)."""
    return ScoredRows.of(
        part,
        scores,
        rows.labels,
        rows=rows.row_numbers,
        sample_weight=rows.sample_weight,
        members=members,
        table=rows.table,
    )


def unequal_weights(sample_weight: NDArray[Any] | None) -> _Array | None:
    """Return weights as metrics take them: None where they are all the same."""
    if sample_weight is None or not len(sample_weight) or np.ptp(sample_weight) == 0:
        return None
    return np.asarray(sample_weight, np.float64)


def scores_file(part: str) -> str:
    """Return the name of the file of a part's scores."""
    return f"scores-{part}.npz"


def save_scored_rows(folder: Path, parts: Sequence[ScoredRows]) -> list[str]:
    """Write a file for each part and return their names."""
    for each in parts:
        count, targets = each.scores.shape
        members = np.stack(list(each.members.values()), 2) if each.members else np.empty((count, targets, 0))
        content = npz_content(
            rows=each.rows,
            scores=each.scores,
            labels=each.labels,
            sample_weight=each.sample_weight,
            member_names=np.array(list(each.members), dtype=np.str_),
            member_scores=members,
        )
        write_atomic(folder / each.file, content)
    return [each.file for each in parts]


def load_scored_rows(folder: str | os.PathLike[str]) -> dict[str, ScoredRows]:
    """Return the scored rows of a model's folder by part, after a comparison with their checksums.

    Raises:
        FileNotFoundError: There is no trained model.
        FolderError: A file is damaged or missing.
    """
    manifest = read_manifest(folder, kind=MODEL_KIND)
    return {part: _read(manifest, part) for part in PARTS if scores_file(part) in manifest.files}


def _read(manifest: Manifest, part: str) -> ScoredRows:
    arrays = read_npz(io.BytesIO(manifest.read(scores_file(part))), _ARRAYS)
    scores, rows = arrays["scores"].astype(np.float64), arrays["rows"].astype(np.int64)
    labels, weight = arrays["labels"].astype(np.float64), arrays["sample_weight"].astype(np.float64)
    names, members = [str(name) for name in arrays["member_names"]], arrays["member_scores"].astype(np.float64)
    count = len(rows)
    shapes = (scores.shape, labels.shape, weight.shape, members.shape)
    if scores.ndim != 2 or shapes != ((count, scores.shape[1]), scores.shape, (count,), (*scores.shape, len(names))):
        raise ValueError(f"{manifest.folder / scores_file(part)} was not written by apmax: its arrays do not fit")
    return ScoredRows(part, rows, scores, labels, weight, dict(zip(names, np.moveaxis(members, 2, 0), strict=True)))


def _columns(values: Any) -> _Array:
    return target_columns(np.asarray(values, np.float64))
