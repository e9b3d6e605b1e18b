"""Changes to a run that are named in a word: a loss, a number of epochs, `stages.1.lr=1e-4`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from apmax import validation
from apmax.losses import LOSSES
from apmax.train import Optimizer, Sampler, Schedule, Stage, check_known_key, parse_literal

PARTS = {"optimizer": Optimizer, "sampler": Sampler, "schedule": Schedule}
FIRST = "ce"


@dataclass(frozen=True)
class Wishes:
    """What differs from the job as it is written; None leaves a thing as it is.

    Args:
        loss: The last stage's loss, names of `LOSSES` joined by "+". In a run without stages of its own, `ce` means
            one stage, and any other loss comes after a stage of cross-entropy.
        epochs: The last stage's.
        batch_size: Every stage's.
        num_pos: Positives per batch, of the stages whose sampler has such.
        lr: The first stage's; the later ones keep their ratio to it.
        ensemble: Models whose scores are averaged.
        seed: Of everything random.
        devices: Processes.
        changes: Any other value, as "path=value".
    """

    loss: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    num_pos: int | None = None
    lr: float | None = None
    ensemble: int | None = None
    seed: int | None = None
    devices: int | None = None
    changes: tuple[str, ...] = ()

    def settings(self, part: str) -> Iterator[tuple[list[str], Any]]:
        """Yield the changes to the part of the job: "data", "model", or "run" for the rest, as (path, value)."""
        for change in self.changes:
            path, sign, text = change.partition("=")
            keys = path.strip().split(".")
            if not sign or not all(keys):
                raise ValueError(f"a change is written path=value, such as stages.1.lr=1e-4; got {change!r}")
            own = keys[0] if keys[0] in ("data", "model") else "run"
            if own == part:
                yield (keys if own == "run" else keys[1:]), parse_literal(text.strip())


def change_run(run: dict[str, Any], wishes: Wishes) -> dict[str, Any]:
    """Return a run's plain table changed as wished; `run` itself is left as it is."""
    table = {**run, "stage": [dict(stage) for stage in run["stage"]]}
    for name in ("ensemble", "seed", "devices"):
        if getattr(wishes, name) is not None:
            table[name] = getattr(wishes, name)
    stages = table["stage"]
    if wishes.loss is not None:
        stages = table["stage"] = with_loss(stages, wishes.loss)
    gradient = [stage for stage in stages if stage["kind"] == Stage.kind]
    if wishes.epochs is not None and gradient:
        gradient[-1]["epochs"] = wishes.epochs
    if wishes.lr is not None and gradient:
        factor = wishes.lr / gradient[0]["optimizer"]["lr"]
        for stage in gradient:
            # Ten digits: a third of 0.003 is 0.001, not 0.0010000000000000002.
            stage["optimizer"] = {**stage["optimizer"], "lr": float(f"{stage['optimizer']['lr'] * factor:.10g}")}
    for stage in gradient:
        own = {} if wishes.batch_size is None else {"batch_size": wishes.batch_size}
        if wishes.num_pos is not None and stage["sampler"]["name"] == "positive":
            own["num_pos"] = wishes.num_pos
        stage["sampler"] = {**stage["sampler"], **own}
    for path, value in wishes.settings("run"):
        set_value(table, ["stage", *path[1:]] if path[0] == "stages" else path, value)
    return table


def with_loss(stages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    """Return stages of which the last has this loss."""
    names = [validation.choice("loss", name.strip(), LOSSES) for name in text.split("+")]
    loss = dict.fromkeys(names, 1.0)
    if names == [FIRST]:
        kept = [stage for stage in stages if list(stage.get("loss", {})) == [FIRST]]
        return kept[:1] or [{**stages[-1], "loss": loss, "options": {}, "name": ""}]
    last = stages[-1]
    options = {name: own for name, own in last.get("options", {}).items() if name in loss}
    return [*stages[:-1], {**last, "loss": loss, "options": options, "name": ""}]


def set_value(table: dict[str, Any], path: list[str], value: Any) -> None:
    """Set the entry at `path`; a stage's `lr`, `batch_size`, `num_pos`, … are found in its parts.

    >>> run = {"stage": [{"epochs": 3, "optimizer": {"lr": 0.1}}]}
    >>> set_value(run, ["stage", "0", "lr"], 0.2)
    >>> run
    {'stage': [{'epochs': 3, 'optimizer': {'lr': 0.2}}]}
    """
    here: Any = table
    keys = list(path)
    while len(keys) > 1:
        key = keys.pop(0)
        if isinstance(here, list):
            if not key.isdigit() or int(key) >= len(here):
                raise ValueError(f"there is no stage {key!r}: they are counted from 0 to {len(here) - 1}")
            here = here[int(key)]
            if len(keys) == 1:
                here = _part_with(here, keys[0])
        else:
            # Copied on the way down: what was handed in may be shared with another table.
            here[key] = list(map(dict, here[key])) if isinstance(here.get(key), list) else dict(here.get(key, {}))
            here = here[key]
    if not isinstance(here, dict):
        raise ValueError(f"{'.'.join(path)} names no single value; a stage's is written stages.N.KEY")
    here[keys[0]] = value


def _part_with(stage: dict[str, Any], key: str) -> dict[str, Any]:
    own = [field.name for field in dataclasses.fields(Stage)]
    if key in own or stage.get("kind") == "exact_head":
        return stage
    for part, kind in PARTS.items():
        if key in [field.name for field in dataclasses.fields(kind)]:
            inside: dict[str, Any] = dict(stage.get(part, {}))
            stage[part] = inside
            return inside
    inner = [field.name for kind in PARTS.values() for field in dataclasses.fields(kind)]
    check_known_key(key, [*own, *inner], "a stage")
    return stage
