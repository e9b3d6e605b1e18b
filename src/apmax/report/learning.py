"""Learning curves of a report, from the trainer's records."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from apmax.report.content import LearningCurve
from apmax.train import Record
from apmax.train.records import parse_records


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
