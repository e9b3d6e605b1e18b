"""Trained models that score files, data frames and SMILES."""

from __future__ import annotations

import os
import warnings
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from torch import nn

from apmax import extras, validation
from apmax.committee import Committee
from apmax.data import Labels, RowSource, Targets
from apmax.data.reading import MissingColumnError
from apmax.data.tables import EncodingReport
from apmax.train import PlattCurve, fit_platt, predict
from apmax.train.errors import shown_rows
from apmax.workflows.data_types import (
    DATA_TYPES,
    DataType,
    EncodedRows,
    Encoder,
    FrozenImageType,
    LabelledRows,
    RowReport,
    data_type_of,
    encode_rows,
)
from apmax.workflows.data_types.rows import target_columns
from apmax.workflows.job import CommitteeJob, Job

Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SavedModel(ABC):
    """A trained model with the encoder of its rows.

    Args:
        job: The training's job.
        encoder: The encoder of its rows.
        targets: The targets and the meaning of their values.
        calibration: The curve from scores to probabilities of each target; None for a target without held-out rows.
        thresholds: The least score that is taken, of each target that `apmax decide` has chosen one for.
    """

    job: Job | CommitteeJob
    encoder: Encoder
    targets: Targets
    calibration: tuple[PlattCurve | None, ...]
    thresholds: Mapping[str, float] = field(default_factory=dict, kw_only=True)

    def with_member(self, member: str | None) -> SavedModel:
        """Return the model of which one member of a committee scores; None changes nothing.

        Raises:
            ValueError: There is no such member.
        """
        if member is not None:
            raise ValueError("member: this model is one network; only a committee has members")
        return self

    @abstractmethod
    def _score_encoded(self, encoded: EncodedRows, table: Any) -> npt.NDArray[Any]:
        """Return the scores of encoded rows of a table."""

    @property
    def data_type(self) -> DataType[Any]:
        """The data type of the training."""
        return data_type_of(self.job.data)

    def score(self, data: Any, *, probability: bool = False, **options: str | Path | None) -> Scores:
        """Return the scores of rows; a higher score means more likely positive.

        Args:
            data: A file or folder as `apmax predict` reads it; a pandas or polars data frame or a `pyarrow.Table` with
                the training columns (one that is missing is a warning, and counts as unknown in every row); for a
                model of molecules also a list, array or series of SMILES, None or NaN where one is missing.
            probability: Return probabilities instead, calibrated on the validation rows of the training.
            **options: Differences from the training data: `smiles` (a column), `path` (a column), `root`, `ending`.

        Returns:
            (rows,), or (rows, targets) of several targets; NaN where a row cannot be read.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: All columns are missing, no row of a file can be read, a score is not finite, or there are no
                probabilities of a target.
            TypeError: Data of another type.
        """
        if probability:
            self.check_calibration()
            return self.probabilities(self._score(data, options))
        return self._score(data, options)

    def _score(self, data: Any, options: dict[str, str | Path | None]) -> Scores:
        if isinstance(data, (str, os.PathLike)):
            model, source = self.open(data, **options)
            report = RowReport()
            parts = [scores for _, scores in model.score_chunks(source, report)]
            _warn_anomalies(report)
            return np.concatenate(parts) if parts else self._empty(0)
        known = self._check_options(options)
        if getattr(data, "ndim", None) == 1 and hasattr(data, "tolist"):
            data = data.tolist()
        if isinstance(data, (list, tuple)):
            if self.job.data.kind != "molecules":
                raise TypeError(f"data: a list of SMILES is for a model of molecules, this one is of {self._kind}")
            data = _smiles_table(data, known.get("smiles", self.encoder.names[0]))
        encoder = self.data_type.encoder_for(self.encoder, None, known)
        report = RowReport()
        scores = replace(self, encoder=encoder).score_table(arrow_table(data), report)
        _warn_anomalies(report)
        return scores

    def score_table(self, table: Any, report: RowReport | None = None) -> Scores:
        """Return the scores of the rows of a `pyarrow.Table`; anomalies are added to `report`.

        Raises:
            ValueError: A score is not finite; the message has the numbers of the rows, counted from 0 over all tables
                of the report.
        """
        report = RowReport() if report is None else report
        report.add_time("reading")
        first, scores = report.rows, self._empty(table.num_rows)
        for encoded in encode_rows(self._scoring_encoder, table, report):
            report.add_time("features")
            if len(encoded.rows):
                part = self._score_encoded(encoded, table).astype(np.float32)
                self._check_finite(part, first + encoded.rows)
                scores[encoded.rows] = part.reshape(len(part), *scores.shape[1:])
                report.add_time("model")
        return scores

    def score_dataset(self, dataset: Any) -> Scores:
        """Return the scores of rows that were encoded when they were read: molecules and images.

        Raises:
            ValueError: A score is not finite.
        """
        rows = np.arange(len(dataset))
        scores = self._score_encoded(EncodedRows(dataset, rows), None).astype(np.float32)
        self._check_finite(scores, rows)
        return scores.reshape(self._empty(len(rows)).shape)

    def score_rows(self, rows: LabelledRows, report: RowReport) -> Scores:
        """Return the scores of labelled rows; anomalies of those that are not encoded yet are added to `report`."""
        return self.score_table(rows.table, report) if rows.dataset is None else self.score_dataset(rows.dataset)

    def probabilities(self, scores: Scores) -> Scores:
        """Return the probabilities of scores, of the same shape; NaN stays NaN.

        Raises:
            ValueError: There is no calibration of a target.
        """
        columns = target_columns(scores).astype(np.float64).T
        parts = [curve.probability(column) for curve, column in zip(self.check_calibration(), columns, strict=True)]
        return np.stack(parts, 1).astype(np.float32).reshape(scores.shape)

    def decisions(self, scores: Scores) -> npt.NDArray[np.int8]:
        """Return 1 for scores that are taken and 0 for others, (rows, targets that have a threshold)."""
        columns = target_columns(scores).astype(np.float64)
        names = self.targets.names
        taken = [columns[:, names.index(name)] >= self.thresholds[name] for name in names if name in self.thresholds]
        return np.stack(taken, 1).astype(np.int8) if taken else np.empty((len(scores), 0), np.int8)

    def check_calibration(self) -> list[PlattCurve]:
        """Return the curve of each target.

        Raises:
            ValueError: There is none of a target.
        """
        curves = dict(zip(self.targets.names, self.calibration, strict=True)) if self.calibration else {}
        for name in self.targets.names:
            if curves.get(name) is None:
                raise ValueError(f"probability: there is none of {name!r}, which had no validation row")
        return [curve for curve in curves.values() if curve is not None]

    def open(self, file: str | os.PathLike[str], **options: str | Path | None) -> tuple[SavedModel, RowSource]:
        """Return the rows of a file or folder, and the model with the encoder that reads them.

        Args:
            file: The file or folder.
            **options: Differences from the training data, as in `score`; None for none.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The data type has no such option, or is not read from such a file.
        """
        known = self._check_options(options)
        try:
            source = self.data_type.with_fields(**known).open_source(Path(file))
        except MissingColumnError as error:
            remedy = f"{error.argument}={'COLUMN' if error.near is None else repr(error.near)}"
            raise ValueError(f"{error}; name the right one ({remedy})") from None
        return replace(self, encoder=self.data_type.encoder_for(self.encoder, source, known)), source

    def score_chunks(
        self, source: RowSource, report: RowReport, columns: list[str] | None = None
    ) -> Iterator[tuple[Any, Scores]]:
        """Yield the rows of a source in chunks, each with its scores.

        Raises:
            ValueError: No row of the first chunk can be read.
        """
        for number, chunk in enumerate(source.chunks(columns)):
            scores = self.score_table(chunk, report)
            if number == 0 and chunk.num_rows and len(report.unreadable_rows) == chunk.num_rows:
                raise ValueError(self.data_type.nothing_readable(self.encoder, report.unreadable_rows))
            yield chunk, scores

    def _check_finite(self, scores: Scores, rows: npt.NDArray[np.int64]) -> None:
        if np.isfinite(scores).all():
            return
        finite = np.isfinite(target_columns(scores))
        bad = rows[~finite.all(1)]
        names = [repr(name) for name, good in zip(self.targets.names, finite.T, strict=True) if not good.all()]
        column = f" of {', '.join(names)}" if len(self.targets.each) > 1 else ""
        raise ValueError(
            f"the scores{column} are not finite in {len(bad):,} of {len(rows):,} rows (counted from 0): "
            f"{shown_rows(bad.tolist())}; look for huge values in these rows, or train the model again"
        )

    @property
    def _scoring_encoder(self) -> Encoder:
        """The encoder that makes what the model reads."""
        return self.encoder

    @property
    def _kind(self) -> str:
        return f"kind {self.job.data.kind}"

    def _empty(self, rows: int) -> Scores:
        count = len(self.targets.each)
        return np.full((rows,) if count == 1 else (rows, count), np.nan, np.float32)

    def _check_options(self, options: dict[str, Any]) -> dict[str, Any]:
        known = {name: str(value) for name, value in options.items() if value is not None}
        every = {name: kind for kind, each in DATA_TYPES.items() for name in each.reading_options}
        for name in options:
            if name not in every:
                raise TypeError(f"score has no option {name!r}; there are {', '.join(every)}")
        for name in known:
            if name not in self.data_type.reading_options:
                raise ValueError(f"{name} is for models of {every[name]}; this one is of {self._kind}")
        return known


@dataclass(frozen=True)
class SavedNetwork(SavedModel):
    """A trained network with the encoder of its rows.

    Args:
        network: The network, or the ensemble of them.
    """

    network: nn.Module

    def calibrated(
        self, scores: Scores, labels: Labels, sample_weight: npt.NDArray[np.float64] | None = None
    ) -> SavedNetwork:
        """Return the model with a calibration of each target, fitted to the scores of labelled rows."""
        weight = np.ones(len(scores)) if sample_weight is None else sample_weight
        columns = zip(target_columns(scores).T, target_columns(labels).T, strict=True)
        return replace(self, calibration=tuple(_fit_curve(score, label, weight) for score, label in columns))

    def _score_encoded(self, encoded: EncodedRows, table: Any) -> Scores:  # noqa: ARG002 - encoded is enough
        found = predict(self.network, encoded.dataset, batch_size=self.data_type.scoring_batch_size)
        scores: Scores = found.float().numpy()
        return scores


@dataclass(frozen=True)
class SavedCommittee(SavedModel):
    """A committee, of several targets one each, with the encoder that says which columns it reads.

    Args:
        committees: The committee of each target, all of the same members; each of its folds has an encoder of its own.
        member: The member that scores alone; None for the blend.
        frozen: The data type with the frozen network whose embeddings the members read; None without one.
    """

    committees: tuple[Committee, ...]
    member: str | None = None
    frozen: FrozenImageType | None = None

    @staticmethod
    def of(
        job: CommitteeJob,
        encoder: Encoder,
        targets: Targets,
        committees: Sequence[Committee],
        *,
        frozen: FrozenImageType | None = None,
    ) -> SavedCommittee:
        """Return the committees of all targets with the calibrations of their blends."""
        calibration = tuple(committee.calibration for committee in committees)
        return SavedCommittee(job, encoder, targets, calibration, tuple(committees), frozen=frozen)

    @property
    def data_type(self) -> DataType[Any]:
        """The data type of the training, with the frozen network if there is one."""
        return super().data_type if self.frozen is None else self.frozen

    def with_member(self, member: str | None) -> SavedCommittee:
        """Return the committee of which one member scores; probabilities and thresholds are only the blend's.

        Raises:
            ValueError: There is no such member.
        """
        if member is None:
            return self
        validation.choice("member", member, list(self.committees[0].table))
        return replace(self, member=member, calibration=(), thresholds={})

    def check_calibration(self) -> list[PlattCurve]:
        """Return the curve of each target.

        Raises:
            ValueError: One member scores.
        """
        if self.member is not None:
            raise ValueError("probability and member exclude each other: probabilities are those of the whole blend")
        return super().check_calibration()

    @property
    def _scoring_encoder(self) -> Encoder:
        raw = any(
            committee.table[name].raw for committee in self.committees for name in committee.used_members(self.member)
        )
        encoder: Encoder = self.data_type.committee_encoder(self.encoder, raw=raw)
        return encoder

    def _score_encoded(self, encoded: EncodedRows, table: Any) -> npt.NDArray[np.float64]:
        rows = self.data_type.committee_rows(encoded, table)
        return np.stack([committee.score(rows, member=self.member) for committee in self.committees], 1)


def _fit_curve(scores: Scores, labels: Labels, weight: npt.NDArray[np.float64]) -> PlattCurve | None:
    known = ~np.isnan(labels) & ~np.isnan(scores)
    if not known.any():
        return None
    return fit_platt(scores[known].astype(np.float64), labels[known].astype(np.float64), weight[known])


def _warn_anomalies(report: RowReport) -> None:
    """Warn of missing columns and unknown values; unreadable rows have no score, which tells."""
    for line in EncodingReport.lines(report):
        warnings.warn(line, stacklevel=4)


def _smiles_table(smiles: Sequence[Any], name: str) -> Any:
    """Return SMILES as a `pyarrow.Table` of one column, empty for None, NaN and pandas' NA as in a data frame.

    Raises:
        TypeError: There are other values than texts.
    """
    pa = extras.load("pyarrow", "tables")
    try:
        column = pa.array(smiles, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        column = None
    if column is None or not (pa.types.is_string(column.type) or column.null_count == len(column)):
        raise TypeError("data: a list must hold SMILES, which are texts; put other columns into a data frame")
    return pa.table({name: column.cast(pa.string())})


def arrow_table(data: Any) -> Any:
    """Return a data frame as a `pyarrow.Table`.

    Raises:
        TypeError: Neither a pandas or polars data frame nor a table.
        ValueError: A column of mixed types.
    """
    pa = extras.load("pyarrow", "tables")
    if isinstance(data, pa.Table):
        return data
    try:
        if hasattr(data, "iloc") and hasattr(data, "columns"):
            return pa.Table.from_pandas(data, preserve_index=False)
        if hasattr(data, "__arrow_c_stream__"):
            return pa.table(data)
    except (pa.ArrowInvalid, pa.ArrowTypeError) as error:
        raise ValueError(f"data: {error}: give every column one type") from None
    raise TypeError(
        f"data must be a file, a pandas or polars data frame, a pyarrow.Table or a list of SMILES, got {type(data)!r}"
    )
