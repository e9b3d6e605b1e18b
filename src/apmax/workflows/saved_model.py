"""Trained models in their folders, which score files, data frames and SMILES.

run.toml            the job, every default written out: `apmax train FOLDER/run.toml --out OTHER` repeats it
encoder.json        the encoder of the rows and the meaning of the targets' values
results.json        validation and test metrics of the chosen model
unreadable.csv      the rows that could not be read, if there were any
contact-sheet.png   the best-ranked images, if the data are images
model.pt            the weights; of an ensemble member-0/model.pt, member-1/model.pt, …
(and the files of the trainer: config.toml, run.json, records.jsonl, log.txt, checkpoint.pt)
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apmax import extras
from apmax.data import RowSource, Targets
from apmax.train import Ensemble, predict, write_atomic
from apmax.workflows.data_types import (
    DATA_TYPES,
    DataType,
    Encoder,
    RowReport,
    data_type_of,
    encode_rows,
)
from apmax.workflows.job import Job, read_job, write_job

FORMAT_VERSION = 3
Scores = npt.NDArray[np.float32]


@dataclass(frozen=True)
class SavedModel:
    """A trained model with the encoder of its rows.

    Args:
        job: The training's job.
        encoder: The encoder of its rows.
        targets: The targets and the meaning of their values.
        network: The network, or the ensemble of them.
    """

    job: Job
    encoder: Encoder
    targets: Targets
    network: nn.Module

    @property
    def data_type(self) -> DataType[Any]:
        """The data type of the training."""
        return data_type_of(self.job.data)

    def score(self, data: Any, **options: str | Path | None) -> Scores:
        """Return the scores of rows; a higher score means more likely positive.

        Args:
            data: A file or folder as `apmax predict` reads it; a pandas or polars data frame or a `pyarrow.Table` with
                the training columns; for a model of molecules also a list of SMILES.
            **options: Differences from the training data: `smiles` (a column), `path` (a column), `root`, `ending`.

        Returns:
            (rows,), or (rows, targets) of several targets; NaN where a row cannot be read.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: A column is missing, or no row of a file can be read.
            TypeError: Data of another type.
        """
        if isinstance(data, (str, os.PathLike)):
            model, source = self.open(data, **options)
            parts = [scores for _, scores in model.score_chunks(source, RowReport())]
            return np.concatenate(parts) if parts else self._empty(0)
        known = self._check_options(options)
        if isinstance(data, (list, tuple)):
            if self.job.data.kind != "molecules":
                raise TypeError(f"data: a list of SMILES is for a model of molecules, this one is of {self._kind}")
            if not all(isinstance(text, str) for text in data):
                raise TypeError("data: a list must hold SMILES, which are texts; put other columns into a data frame")
            data = extras.load("pyarrow", "tables").table({known.get("smiles", self.encoder.names[0]): list(data)})
        encoder = self.data_type.encoder_for(self.encoder, None, known)
        return replace(self, encoder=encoder).score_table(arrow_table(data))

    def score_table(self, table: Any, report: RowReport | None = None) -> Scores:
        """Return the scores of the rows of a `pyarrow.Table`; anomalies are added to `report`."""
        report = RowReport() if report is None else report
        report.add_time("reading")
        scores = self._empty(table.num_rows)
        for encoded in encode_rows(self.encoder, table, report):
            report.add_time("features")
            if len(encoded.rows):
                scores[encoded.rows] = self.score_dataset(encoded.dataset)
                report.add_time("network")
        return scores

    def score_dataset(self, dataset: Any) -> Scores:
        """Return the scores of encoded rows."""
        batch_size = self.data_type.scoring_batch_size
        scores: Scores = predict(self.network, dataset, batch_size=batch_size).float().numpy()
        return scores.reshape(-1) if len(self.targets.each) == 1 else scores

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
    folder.mkdir(parents=True, exist_ok=True)
    write_job(job, folder / "run.toml")
    content = {
        "version": FORMAT_VERSION,
        "kind": job.data.kind,
        "targets": targets.to_table(),
        "encoder": encoder.to_table(),
    }
    write_atomic(folder / "encoder.json", (json.dumps(content, indent=1) + "\n").encode())


def load_model(folder: str | os.PathLike[str], *, model: str | Callable[..., nn.Module] | None = None) -> SavedModel:
    """Return the model that `apmax train` left in a folder.

    Args:
        folder: The folder.
        model: The builder of a network of your own, or its "package.module:callable" as it was trained. A folder alone
            never causes your or anyone's code to be imported.

    Raises:
        FileNotFoundError: There is no trained model, or its training is not finished.
        ValueError: Another version of apmax or of the features, weights of another network, or a network of the
            user's own and no `model`.
    """
    path = Path(folder)
    if not (path / "encoder.json").exists():
        raise FileNotFoundError(f"{folder} holds no model trained by `apmax train`")
    content = json.loads((path / "encoder.json").read_text(encoding="utf-8"))
    if content["version"] != FORMAT_VERSION:
        age, advice = (
            ("a newer", "upgrade apmax") if content["version"] > FORMAT_VERSION else ("an older", "train again")
        )
        raise ValueError(f"{folder} was written by {age} apmax: {advice}")
    job = read_job(path / "run.toml")
    builder = _trusted_builder(job, model, folder)
    encoder = DATA_TYPES[content["kind"]].restore_encoder(content["encoder"])
    count = job.run.ensemble
    members = []
    for place in [path] if count == 1 else [path / f"member-{number}" for number in range(count)]:
        if not (place / "model.pt").exists():
            raise FileNotFoundError(f"the training in {folder} is not finished: continue it with resume=True")
        members.append(_load_network(job, encoder, place / "model.pt", builder))
    network = members[0] if count == 1 else Ensemble(members)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return SavedModel(job, encoder, Targets.from_table(content["targets"]), network.eval().to(device))


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


def _load_network(job: Job, encoder: Encoder, file: Path, builder: Callable[..., nn.Module]) -> nn.Module:
    network = data_type_of(job.data).build_model(encoder, job.model.name, job.model.options, builder=builder)
    try:
        network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    except Exception as error:  # the type that torch raises for a damaged file depends on its first bytes
        options = "".join(f", {key} = {value}" for key, value in job.model.options.items())
        lines = [line.strip() for line in str(error).splitlines()]
        reason = lines[min(1, len(lines) - 1)] if lines else type(error).__name__
        raise ValueError(
            f"{file} does not hold the weights of the network in run.toml ({job.model.name}{options}): {reason}"
        ) from None
    return network
