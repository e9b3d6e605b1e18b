"""A finished training in its directory: the network, the encoder and the target, ready to score rows.

run.toml        the whole job, every default written out: `apmax train DIR/run.toml --out OTHER` does it again
encoder.json    what a row becomes, and what the target's values mean
results.json    how good the chosen model is
model.pt        its weights; with an ensemble member-0/model.pt, member-1/model.pt, …
(and what the trainer writes: config.toml, run.json, records.jsonl, checkpoint.pt)
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apmax.checkpoint import write_atomic
from apmax.jobs import spec
from apmax.jobs.sources import AnySource
from apmax.jobs.spec import Job
from apmax.jobs.targets import Targets
from apmax.kinds import KINDS, Encoder, RowReport, encode
from apmax.train import Ensemble, predict

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
        encoded = encode(self.encoder, table, report)
        count = len(self.target.each)
        scores = np.full((table.num_rows,) if count == 1 else (table.num_rows, count), np.nan, np.float32)
        if len(encoded.rows):
            batch = KINDS[self.job.data.kind].batch_rows
            scores[encoded.rows] = predict(self.model, encoded.dataset, batch_size=batch).float().numpy()
        return scores

    def reading(self, smiles: str | None) -> Trained:
        """Return the model for files whose column of molecules has another name; None: the name it was trained with.

        Raises:
            ValueError: It was not trained on molecules.
        """
        if smiles is None:
            return self
        if "smiles" not in KINDS[self.job.data.kind].takes:
            raise ValueError(f"--smiles is for models of molecules; this one is of kind {self.job.data.kind}")
        return replace(self, encoder=replace(self.encoder, smiles=smiles))  # type: ignore[type-var]

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
        ValueError: It is of another version of apmax, or of the features that its kind of data are read to.
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
    kind = KINDS[facts["kind"]]
    encoder = kind.restore(facts["encoder"])
    count = job.run.ensemble
    places = [place] if count == 1 else [place / f"member-{number}" for number in range(count)]
    members = []
    for each in places:
        if not (each / "model.pt").exists():
            raise FileNotFoundError(f"the training in {directory} is not finished: go on with `apmax train … --resume`")
        member = kind.build(encoder, job.model.name, job.model.options)
        member.load_state_dict(torch.load(each / "model.pt", map_location="cpu", weights_only=True))
        members.append(member)
    model = members[0] if count == 1 else Ensemble(members)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    return Trained(job, encoder, Targets.from_table(facts["targets"]), model.eval().to(device))
