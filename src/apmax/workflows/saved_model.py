"""Trained models in their folders, which score files, data frames and SMILES.

run.toml            the job, every default written out: `apmax train FOLDER/run.toml --out OTHER` repeats it
encoder.json        the encoder of the rows and the meaning of the targets' values
results.json        validation and test metrics of the chosen model
unreadable.csv      the rows that could not be read, if there were any
contact-sheet.png   the best-ranked images, if the data are images
model.pt            the weights; of an ensemble member-0/model.pt, member-1/model.pt, …
scores-*.npz        the scores of the validation and test rows (`apmax.workflows.scored_rows`)
calibration.json    the curve from scores to probabilities of each target, fitted to the validation rows
manifest.json       the checksums of the files from which the model is loaded, written last
.lock               held by the training
(and the files of the trainer: config.toml, run.json, records.jsonl, log.txt, checkpoint.pt)
"""

from __future__ import annotations

import io
import json
import math
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apmax import extras
from apmax.data import Labels, RowSource, Targets
from apmax.data.tables import EncodingReport
from apmax.folders import FolderError, Manifest, read_manifest, write_manifest
from apmax.train import Ensemble, PlattCurve, fit_platt, predict, write_atomic
from apmax.workflows.data_types import (
    DATA_TYPES,
    DataType,
    Encoder,
    RowReport,
    data_type_of,
    encode_rows,
)
from apmax.workflows.job import Job, job_from_toml, write_job
from apmax.workflows.scored_rows import MODEL_KIND

FORMAT_VERSION = 3
JOB_FILES = ("run.toml", "encoder.json")
"""Files that are written before training."""
CALIBRATION_FILE = "calibration.json"
_SHOWN_ROWS = 10
Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SavedModel:
    """A trained model with the encoder of its rows.

    Args:
        job: The training's job.
        encoder: The encoder of its rows.
        targets: The targets and the meaning of their values.
        network: The network, or the ensemble of them.
        calibration: The curve from scores to probabilities of each target; None for a target without validation rows.
    """

    job: Job
    encoder: Encoder
    targets: Targets
    network: nn.Module
    calibration: tuple[PlattCurve | None, ...] = ()

    @property
    def data_type(self) -> DataType[Any]:
        """The data type of the training."""
        return data_type_of(self.job.data)

    def score(self, data: Any, *, probability: bool = False, **options: str | Path | None) -> Scores:
        """Return the scores of rows; a higher score means more likely positive.

        Args:
            data: A file or folder as `apmax predict` reads it; a pandas or polars data frame or a `pyarrow.Table` with
                the training columns (one that is missing is a warning, and counts as unknown in every row); for a
                model of molecules also a list, array or series of SMILES.
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
            if not all(isinstance(text, str) for text in data):
                raise TypeError("data: a list must hold SMILES, which are texts; put other columns into a data frame")
            data = extras.load("pyarrow", "tables").table({known.get("smiles", self.encoder.names[0]): list(data)})
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
        for encoded in encode_rows(self.encoder, table, report):
            report.add_time("features")
            if len(encoded.rows):
                scores[encoded.rows] = self.score_dataset(encoded.dataset, first + encoded.rows)
                report.add_time("network")
        return scores

    def score_dataset(self, dataset: Any, rows: npt.NDArray[np.int64] | None = None) -> Scores:
        """Return the scores of encoded rows.

        Args:
            dataset: The rows.
            rows: Their numbers, for the error message; by default they are counted from 0.

        Raises:
            ValueError: A score is not finite.
        """
        batch_size = self.data_type.scoring_batch_size
        scores: Scores = predict(self.network, dataset, batch_size=batch_size).float().numpy()
        self._check_finite(scores, np.arange(len(scores)) if rows is None else rows)
        return scores.reshape(-1) if len(self.targets.each) == 1 else scores

    def probabilities(self, scores: Scores) -> Scores:
        """Return the probabilities of scores, of the same shape; NaN stays NaN.

        Raises:
            ValueError: There is no calibration of a target.
        """
        columns = scores.reshape(len(scores), len(self.targets.each)).astype(np.float64).T
        parts = [curve.probability(column) for curve, column in zip(self.check_calibration(), columns, strict=True)]
        return np.stack(parts, 1).astype(np.float32).reshape(scores.shape)

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

    def calibrated(
        self, scores: Scores, labels: Labels, sample_weight: npt.NDArray[np.float64] | None = None
    ) -> SavedModel:
        """Return the model with a calibration of each target, fitted to the scores of labelled rows."""
        weight = np.ones(len(scores)) if sample_weight is None else sample_weight
        columns = zip(scores.reshape(len(scores), -1).T, labels.reshape(len(labels), -1).T, strict=True)
        return replace(self, calibration=tuple(_fit_curve(score, label, weight) for score, label in columns))

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
        source = self.data_type.with_fields(**known).open_source(Path(file))
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
        finite = np.isfinite(scores.reshape(len(scores), len(self.targets.each)))
        bad = rows[~finite.all(1)]
        shown = ", ".join(map(str, bad[:_SHOWN_ROWS])) + (", …" if len(bad) > _SHOWN_ROWS else "")
        names = [repr(name) for name, good in zip(self.targets.names, finite.T, strict=True) if not good.all()]
        column = f" of {', '.join(names)}" if len(self.targets.each) > 1 else ""
        raise ValueError(
            f"the scores{column} are not finite in {len(bad):,} of {len(rows):,} rows (counted from 0): {shown}; "
            "look for huge values in these rows, or train the model again"
        )

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


def _warn_anomalies(report: RowReport) -> None:
    """Warn of missing columns and unknown values; unreadable rows have no score, which tells."""
    for line in EncodingReport.lines(report):
        warnings.warn(line, stacklevel=4)


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


def save_job(folder: Path, job: Job, encoder: Encoder, targets: Targets) -> None:
    """Write all of a model's folder that is known before training."""
    if read_started(folder) is not None:
        # While the files are replaced, the manifest lists none of them.
        write_manifest(folder, (), kind=MODEL_KIND, complete=False)
    write_job(job, folder / "run.toml")
    content = {
        "version": FORMAT_VERSION,
        "kind": job.data.kind,
        "targets": targets.to_table(),
        "encoder": encoder.to_table(),
    }
    write_atomic(folder / "encoder.json", (json.dumps(content, indent=1) + "\n").encode())
    write_manifest(folder, JOB_FILES, kind=MODEL_KIND, complete=False)


def save_calibration(folder: Path, model: SavedModel) -> None:
    """Write the calibration of each target, in the order of the targets."""
    curves = [None if curve is None else curve._asdict() for curve in model.calibration]
    write_atomic(folder / CALIBRATION_FILE, (json.dumps({"targets": curves}, indent=1) + "\n").encode())


def _fit_curve(scores: Scores, labels: Labels, weight: npt.NDArray[np.float64]) -> PlattCurve | None:
    known = ~np.isnan(labels) & ~np.isnan(scores)
    if not known.any():
        return None
    return fit_platt(scores[known].astype(np.float64), labels[known].astype(np.float64), weight[known])


def read_started(folder: Path) -> Manifest | None:
    """Return the manifest of a training that was begun in a folder; None if there is none.

    Raises:
        FolderError: The manifest is damaged, or there are checkpoints and no manifest.
    """
    try:
        return read_manifest(folder, kind=MODEL_KIND)
    except FileNotFoundError:
        if any(folder.glob("checkpoint*.pt")) or any(folder.glob("member-*/checkpoint*.pt")):
            raise FolderError(
                f"{folder} is damaged or was not written by `apmax train`: it holds a checkpoint and no manifest.json"
            ) from None
        return None


def weight_files(job: Job) -> list[str]:
    """Return the files of weights below a model's folder."""
    count = job.run.ensemble
    return ["model.pt"] if count == 1 else [f"member-{number}/model.pt" for number in range(count)]


def load_model(folder: str | os.PathLike[str], *, model: str | Callable[..., nn.Module] | None = None) -> SavedModel:
    """Return the model that `apmax train` left in a folder.

    All files are compared with the checksums in manifest.json before any of them is parsed.

    Args:
        folder: The folder.
        model: The builder of a network of your own, or its "package.module:callable" as it was trained. A folder alone
            never causes your or anyone's code to be imported.

    Raises:
        FileNotFoundError: There is no trained model, or its training is not finished.
        ValueError: A file is damaged or missing (`FolderError`), another version of apmax or of the features, weights
            of another network, or a network of the user's own and no `model`.
    """
    manifest = read_manifest(folder, kind=MODEL_KIND)
    if not manifest.complete:
        raise FileNotFoundError(f"the training in {folder} is not finished: continue it with resume=True")
    manifest.verify()
    encoder, targets = _read_encoder(manifest)
    calibration = _read_calibration(manifest, len(targets.each))
    job = job_from_toml(manifest.read("run.toml"))
    builder = _trusted_builder(job, model, folder)
    members = [_load_network(job, encoder, manifest, name, builder) for name in weight_files(job)]
    network = members[0] if len(members) == 1 else Ensemble(members)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return SavedModel(job, encoder, targets, network.eval().to(device), calibration)


def _read_encoder(manifest: Manifest) -> tuple[Encoder, Targets]:
    """Return the encoder and the targets in encoder.json.

    Raises:
        ValueError: Another version, or not the content that `save_job` writes.
    """
    file = manifest.folder / "encoder.json"
    content = _read_json(manifest, "encoder.json")
    version = content.get("version")
    if not isinstance(version, int) or isinstance(version, bool):
        raise ValueError(f"{file} was not written by apmax: it has no version")
    if version != FORMAT_VERSION:
        age, advice = ("a newer", "upgrade apmax") if version > FORMAT_VERSION else ("an older", "train again")
        raise ValueError(f"{manifest.folder} was written by {age} apmax: {advice}")
    kind = content.get("kind")
    if kind not in DATA_TYPES:
        raise ValueError(f"{file} was not written by apmax: kind must be one of {', '.join(DATA_TYPES)}, got {kind!r}")
    part = "targets"
    try:
        targets = Targets.from_table(content["targets"])
        part = "encoder"
        return DATA_TYPES[kind].restore_encoder(content["encoder"]), targets
    except (LookupError, TypeError, AttributeError) as error:
        reason = f"{type(error).__name__}: {error}"
        raise ValueError(f"{file} was not written by apmax: its {part} cannot be read ({reason})") from None


def _read_calibration(manifest: Manifest, targets: int) -> tuple[PlattCurve | None, ...]:
    """Return the curve of each target in calibration.json.

    Raises:
        ValueError: Not the content that `save_calibration` writes.
    """
    entries = _read_json(manifest, CALIBRATION_FILE).get("targets")
    try:
        curves = tuple(None if entry is None else PlattCurve(**entry) for entry in entries or ())
        good = all(math.isfinite(value) for curve in curves if curve is not None for value in curve)
    except TypeError:
        curves, good = (), False
    if not good or len(curves) != targets:
        file = manifest.folder / CALIBRATION_FILE
        raise ValueError(f"{file} was not written by apmax: it has no curve of slope and intercept for every target")
    return curves


def _read_json(manifest: Manifest, name: str) -> dict[str, Any]:
    """Return the table in a JSON file; an empty one where there is another thing in it."""
    content = manifest.read(name)
    try:
        table = json.loads(content)
    except (ValueError, RecursionError):
        return {}
    return table if isinstance(table, dict) else {}


def _trusted_builder(
    job: Job, model: str | Callable[..., nn.Module] | None, folder: str | os.PathLike[str]
) -> Callable[..., nn.Module]:
    """Return the builder of the network; code outside of apmax is imported only if `model` names it."""
    name = job.model.name
    if callable(model):
        return model
    if model is not None and model != name:
        raise ValueError(f"model must be {name!r}, the network that {folder} was trained with, got {model!r}")
    data_type = data_type_of(job.data)
    if model is None and name not in data_type.models:
        raise ValueError(
            f"model: {folder} was trained with the network {name}, which is code outside of apmax: "
            f"to import it, name it again (model={name})"
        )
    return data_type.find_builder(name)


def _load_network(
    job: Job, encoder: Encoder, manifest: Manifest, name: str, builder: Callable[..., nn.Module]
) -> nn.Module:
    content = manifest.read(name)
    network = data_type_of(job.data).build_model(encoder, job.model.name, job.model.options, builder=builder)
    try:
        network.load_state_dict(torch.load(io.BytesIO(content), map_location="cpu", weights_only=True))
    except Exception as error:  # the type that torch raises for a damaged file depends on its first bytes
        options = "".join(f", {key} = {value}" for key, value in job.model.options.items())
        lines = [line.strip() for line in str(error).splitlines()]
        reason = lines[min(1, len(lines) - 1)] if lines else type(error).__name__
        raise ValueError(
            f"{manifest.folder / name} does not hold the weights of the network in run.toml "
            f"({job.model.name}{options}): {reason}"
        ) from None
    return network
