"""A finished training in its directory: the network, the encoder and the target, ready to score rows.

run.toml        the whole job, every default written out: `apmax train DIR/run.toml --out OTHER` does it again
encoder.json    what a row becomes, and what the target's values mean
results.json    how good the chosen model is
unreadable.csv  the rows that could not be read, if there were any
contact-sheet.png   the best-ranked images of those that the figures are of
model.pt        its weights; with an ensemble member-0/model.pt, member-1/model.pt, …
(and what the trainer writes: config.toml, run.json, records.jsonl, checkpoint.pt)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apmax.train import Ensemble, predict, write_atomic
from apmax.workflows import spec
from apmax.workflows.data_types import KINDS, Encoder, RowReport, encode
from apmax.workflows.networks import trained_network
from apmax.workflows.sources import AnySource, open_source
from apmax.workflows.spec import Job
from apmax.workflows.targets import Targets

VERSION = 2


@dataclass(frozen=True)
class Trained:
    """A model that scores rows of files."""

    job: Job
    encoder: Encoder
    target: Targets
    model: nn.Module

    def score(self, table: Any, report: RowReport | None = None) -> npt.NDArray[np.float32]:
        """Return the scores of a `pyarrow.Table`'s rows, (rows,) or (rows, targets), NaN where a row cannot be read.

        What was strange about them is added to `report`.
        """
        report = RowReport() if report is None else report
        report.lap("reading")
        count = len(self.target.each)
        scores = np.full((table.num_rows,) if count == 1 else (table.num_rows, count), np.nan, np.float32)
        for encoded in encode(self.encoder, table, report):
            report.lap("features")
            if len(encoded.rows):
                scores[encoded.rows] = self.score_items(encoded.dataset)
                report.lap("network")
        return scores

    def score_items(self, dataset: Any) -> npt.NDArray[np.float32]:
        """Return the scores of what rows were read to."""
        batch = KINDS[self.job.data.kind].batch_rows(self.job.data)
        scores: npt.NDArray[np.float32] = predict(self.model, dataset, batch_size=batch).float().numpy()
        return scores

    def open(self, file: str | os.PathLike[str], given: Mapping[str, Any] | None = None) -> tuple[Trained, AnySource]:
        """Return a file's or folder's rows, and the model that reads them.

        Args:
            file: The file or folder.
            given: What differs from the training's [data]: `smiles`, `path` (columns), `root`, `ending`.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: The model's kind of data has no such option, or is not read from such a file.
        """
        kind = KINDS[self.job.data.kind]
        said = {name: value for name, value in (given or {}).items() if value is not None}
        for name in said:
            if name not in kind.takes:
                others = " or ".join(other for other, each in KINDS.items() if name in each.takes)
                raise ValueError(f"--{name} is for models of {others}; this one is of kind {self.job.data.kind}")
        smiles = said.get("smiles", self.encoder.names[0] if "smiles" in kind.takes else None)
        source = open_source(file, kind=self.job.data.kind, smiles=smiles, targets=self.target.names)
        return replace(self, encoder=kind.reading(self.encoder, source, said)), source

    def scored(self, source: AnySource, report: RowReport) -> Iterator[tuple[Any, npt.NDArray[np.float32]]]:
        """Yield the file's rows in chunks, each with its scores."""
        for chunk in source.chunks():
            yield chunk, self.score(chunk, report)


def save(directory: Path, job: Job, encoder: Encoder, target: Targets) -> None:
    """Write what is known before training."""
    directory.mkdir(parents=True, exist_ok=True)
    write_atomic(directory / "run.toml", spec.dumps(job).encode())
    facts = {"version": VERSION, "kind": job.data.kind, "targets": target.to_table(), "encoder": encoder.to_table()}
    write_atomic(directory / "encoder.json", (json.dumps(facts, indent=1) + "\n").encode())


def load(directory: str | os.PathLike[str]) -> Trained:
    """Return the model that was trained in `directory`.

    Raises:
        FileNotFoundError: There is no training, or it has not come to its end.
        ValueError: It is of another version of apmax, or of the features that its kind of data are read to; or its
            weights are of another network.
    """
    place = Path(directory)
    if not (place / "encoder.json").exists():
        raise FileNotFoundError(f"{directory} holds no model trained by `apmax train`")
    facts = json.loads((place / "encoder.json").read_text(encoding="utf-8"))
    if facts["version"] > VERSION:
        raise ValueError(f"{directory} was written by a newer apmax: upgrade apmax to read it")
    if facts["version"] < VERSION:
        raise ValueError(
            f"{directory} was written by an older apmax: train it again (apmax train {directory}/run.toml)"
        )
    job = spec.loads((place / "run.toml").read_text(encoding="utf-8"))
    encoder = KINDS[facts["kind"]].restore(facts["encoder"])
    count = job.run.ensemble
    places = [place] if count == 1 else [place / f"member-{number}" for number in range(count)]
    members = []
    for each in places:
        if not (each / "model.pt").exists():
            raise FileNotFoundError(f"the training in {directory} is not finished: go on with `apmax train … --resume`")
        members.append(trained_network(job, encoder, each / "model.pt"))
    model = members[0] if count == 1 else Ensemble(members)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Trained(job, encoder, Targets.from_table(facts["targets"]), model.eval().to(device))
