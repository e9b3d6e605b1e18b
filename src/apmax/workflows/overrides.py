"""Overrides of a job: a loss, a number of epochs, or any setting by its path."""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from apmax import validation
from apmax.losses import LOSSES
from apmax.train import (
    MINED_STAGE,
    ExactHead,
    Optimizer,
    Sampler,
    Schedule,
    Stage,
    check_known_key,
    mined_stage,
    parse_literal,
    stage_from_table,
    stage_to_table,
)

STAGE_PARTS = {"optimizer": Optimizer, "sampler": Sampler, "schedule": Schedule}
CROSS_ENTROPY = "ce"
HEADS = ("exact", "only")
Built = TypeVar("Built")


@dataclass(frozen=True)
class Overrides:
    """Settings that replace those of a job's table or the defaults; None keeps them.

    Args:
        loss: Loss of the last stage, names of `LOSSES` joined by "+", or "ce_mined": cross-entropy on mined negatives.
            With the default stages, "ce" gives one stage, and any other loss follows a stage of cross-entropy.
        head: "exact" adds a stage that re-trains the last layer by the exact objective; with "only" it is the only
            stage, and the embeddings are kept in the cache.
        epochs: Epochs of the last stage.
        batch_size: Batch size of every stage.
        num_pos: Positives per batch, in the stages whose sampler has them.
        lr: Learning rate of the first stage; the later stages keep their ratio to it.
        ensemble: Number of models whose scores are averaged.
        seed: Seed of all random numbers.
        devices: Number of processes.
        settings: Other values by path, such as {"stages.1.lr": 1e-4, "model.hidden": [64], "data.share": 0.3}.
    """

    loss: str | None = None
    head: str | None = None
    epochs: int | None = None
    batch_size: int | None = None
    num_pos: int | None = None
    lr: float | None = None
    ensemble: int | None = None
    seed: int | None = None
    devices: int | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    def with_settings(self, settings: Mapping[str, Any]) -> Overrides:
        """Return the overrides with further settings."""
        return dataclasses.replace(self, settings={**self.settings, **settings})

    def settings_of(self, part: str) -> list[tuple[list[str], Any]]:
        """Return the settings of "data", "model" or, for all others, "run", as (keys, value)."""
        found = []
        for path, value in self.settings.items():
            first, *rest = path.split(".")
            if (first if first in ("data", "model") else "run") == part:
                found.append(([first, *rest] if part == "run" else rest, value))
        return found


SHORT_FORMS = tuple(each.name for each in dataclasses.fields(Overrides) if each.name != "settings")
"""Overrides with a name of their own, in place of a path."""


def parse_settings(texts: Iterable[str]) -> dict[str, Any]:
    """Return settings written as PATH=VALUE, with TOML literals or plain words as values.

    >>> parse_settings(["stages.1.lr=1e-4", "model.hidden=[32, 32]", "stages.0.optimizer.name=sgd"])
    {'stages.1.lr': 0.0001, 'model.hidden': [32, 32], 'stages.0.optimizer.name': 'sgd'}

    Raises:
        ValueError: A text of another form.
    """
    settings = {}
    for text in texts:
        path, sign, value = text.partition("=")
        keys = path.strip().split(".")
        if not sign or not all(keys) or keys in (["data"], ["model"]):
            raise ValueError(f"settings must be written PATH=VALUE, such as stages.1.lr=1e-4; got {text!r}")
        settings[path.strip()] = parse_literal(value.strip())
    return settings


def with_named_setting(build: Callable[[Overrides], Built], overrides: Overrides) -> Built:
    """Return what is built by overrides; an error that one of them causes names it.

    A field such as a stage's `optimizer.lr` is set by its path, by the override `lr` or in a file: only here is known
    which it was. The message begins with the setting, or has the override's name in place of the path.

    Raises:
        ValueError: As `build`, which must read no data: it is called again for each override after an error.
        TypeError: As `build`.
    """
    try:
        return build(overrides)
    except (TypeError, ValueError) as error:
        message = _named_setting(build, overrides, error) or _named_override(build, overrides, error)
        if message is None:
            raise
        kind = ValueError if isinstance(error, ValueError) else TypeError
        raise kind(message) from None


def _named_setting(build: Callable[[Overrides], Any], overrides: Overrides, error: Exception) -> str | None:
    """Return the message of an error that one of the settings by path causes."""
    for path, value in overrides.settings.items():
        if _fails_equally(build, dataclasses.replace(overrides, settings={path: value}), error):
            if _fails_equally(build, dataclasses.replace(overrides, settings={}), error):
                return None
            return f"settings={{{path!r}: {value!r}}}: {error}"
    return None


def _named_override(build: Callable[[Overrides], Any], overrides: Overrides, error: Exception) -> str | None:
    """Return the message of an error that names a setting by its path and is caused by another override."""
    path = re.match(r"[a-z_]+\.([a-z_]+)\b", str(error))
    given = [name for name in SHORT_FORMS if getattr(overrides, name) is not None]
    if path is None or not given:
        return None
    without: dict[str, dict[str, Any]] = {name: {name: None} for name in given}
    causes = [
        name for name in given if not _fails_equally(build, dataclasses.replace(overrides, **without[name]), error)
    ]
    if not causes:
        return None
    message = f"{path[1]}{str(error)[path.end() :]}" if path[1] in SHORT_FORMS else str(error)
    return message if path[1] in causes else f"{causes[0]}={getattr(overrides, causes[0])!r}: {message}"


def _fails_equally(build: Callable[[Overrides], Any], overrides: Overrides, error: Exception) -> bool:
    try:
        build(overrides)
    except (TypeError, ValueError) as other:
        return str(other) == str(error)
    return False


def override_run(run: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    """Return the plain table of a run with the overrides applied."""
    table: dict[str, Any] = copy.deepcopy(dict(run))
    for name in ("ensemble", "seed", "devices"):
        if getattr(overrides, name) is not None:
            table[name] = getattr(overrides, name)
    if overrides.loss is not None:
        table["stage"] = _with_loss(table["stage"], overrides.loss)
    if overrides.head is not None:
        table["stage"] = _with_head(table["stage"], overrides)
    gradient = [stage for stage in table["stage"] if stage["kind"] == Stage.kind]
    if overrides.epochs is not None and gradient:
        gradient[-1]["epochs"] = overrides.epochs
    if overrides.lr is not None and gradient:
        factor = overrides.lr / gradient[0]["optimizer"]["lr"]
        for stage in gradient:
            # Ten digits: a third of 0.003 is 0.001, not 0.0010000000000000002.
            stage["optimizer"]["lr"] = float(f"{stage['optimizer']['lr'] * factor:.10g}")
    for stage in gradient:
        if overrides.batch_size is not None:
            stage["sampler"]["batch_size"] = overrides.batch_size
        if overrides.num_pos is not None and stage["sampler"]["name"] != "shuffle":
            stage["sampler"]["num_pos"] = overrides.num_pos
    for keys, value in overrides.settings_of("run"):
        set_at_path(table, ["stage", *keys[1:]] if keys[0] == "stages" else keys, value)
    return table


def set_at_path(table: dict[str, Any], keys: list[str], value: Any) -> None:
    """Set a value of nested plain tables, in place; a stage's `lr`, `batch_size`, … are found in its parts.

    >>> run = {"stage": [{"epochs": 3, "optimizer": {"lr": 0.1}}]}
    >>> set_at_path(run, ["stage", "0", "lr"], 0.2)
    >>> run
    {'stage': [{'epochs': 3, 'optimizer': {'lr': 0.2}}]}

    Raises:
        ValueError: No such stage, no such key of a stage, or a path that ends at a stage or goes on after a value.
    """
    inner: Any = table
    *parents, last = keys
    message = f"{'.'.join(keys)} names no single value; that of a stage is written stages.N.KEY"
    for depth, key in enumerate(parents):
        if isinstance(inner, list):
            if not key.isdigit() or int(key) >= len(inner):
                raise ValueError(f"there is no stage {key!r}: they are counted from 0 to {len(inner) - 1}")
            inner = inner[int(key)]
            if depth == len(parents) - 1:
                inner = _part_with(inner, last)
        elif isinstance(inner, dict):
            inner = inner.setdefault(key, {})
        else:
            raise ValueError(message)
    if not isinstance(inner, dict):
        raise ValueError(message)
    inner[last] = value


def _with_loss(stages: list[dict[str, Any]], text: str) -> list[dict[str, Any]]:
    if text.strip() == MINED_STAGE:
        stage = stage_from_table(stages[-1])
        if not isinstance(stage, Stage):
            raise ValueError(f"loss {MINED_STAGE} needs a stage of gradient steps, the last one is {stage.name!r}")
        return [*stages[:-1], stage_to_table(mined_stage(stage))]
    names = [validation.choice("loss", name.strip(), [*LOSSES, MINED_STAGE]) for name in text.split("+")]
    if MINED_STAGE in names:
        raise ValueError(f"loss {MINED_STAGE} cannot be part of a sum, got {text!r}")
    loss = dict.fromkeys(names, 1.0)
    gradient = [stage for stage in stages if stage["kind"] == Stage.kind]
    heads = [stage for stage in stages if stage["kind"] != Stage.kind]
    if not gradient:
        raise ValueError("loss: this run has no stage that is trained by a loss")
    *before, last = gradient
    if names == [CROSS_ENTROPY]:
        kept = [stage for stage in gradient if list(stage.get("loss", {})) == [CROSS_ENTROPY]]
        return [*(kept[:1] or [{**last, "loss": loss, "options": {}, "name": ""}]), *heads]
    options = {name: own for name, own in last.get("options", {}).items() if name in loss}
    return [*before, {**last, "loss": loss, "options": options, "name": ""}, *heads]


def _with_head(stages: list[dict[str, Any]], overrides: Overrides) -> list[dict[str, Any]]:
    only = validation.choice("head", overrides.head, HEADS) == "only"
    unused = [
        name for name in ("loss", "epochs", "batch_size", "num_pos", "lr") if getattr(overrides, name) is not None
    ]
    if only and unused:
        raise ValueError(f"head and {unused[0]} exclude each other: with head=only no other stage is trained")
    others = [stage for stage in stages if not only and stage["kind"] != ExactHead.kind]
    return [*others, stage_to_table(ExactHead(cache=only))]


def _part_with(stage: dict[str, Any], key: str) -> dict[str, Any]:
    own = [each.name for each in dataclasses.fields(Stage)]
    if key in own or stage.get("kind") == "exact_head":
        return stage
    for part, config in STAGE_PARTS.items():
        if key in [each.name for each in dataclasses.fields(config)]:
            inner: dict[str, Any] = stage.setdefault(part, {})
            return inner
    inner_keys = [each.name for config in STAGE_PARTS.values() for each in dataclasses.fields(config)]
    check_known_key(key, [*own, *inner_keys], "a stage")
    return stage
