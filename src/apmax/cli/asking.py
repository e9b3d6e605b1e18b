"""What `train` and `tune` both ask: the data, the rows to choose by, the network, the run."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_type_hints

import typer

from apmax.cli import options

if TYPE_CHECKING:
    from apmax.workflows import Wishes

MODEL = {"model": "name", "width": "width", "stem": "stem"}
"""Options of the network, and what they are called in a job's [model]."""
RUN = ("loss", "epochs", "batch_size", "seed")


@dataclass(frozen=True)
class Asked:
    """The options that make up a job, in the order in which a help text shows them."""

    data: options.Source
    target: options.Target = None
    positive: options.Positive = None
    column: options.Column = None
    smiles: options.Smiles = None
    on_error: options.OnError = None
    kind: options.Kind = None
    data_dir: options.DataDir = None
    path: options.FilesColumn = None
    root: options.Root = None
    ending: options.Ending = None
    size: options.Size = None
    augment: options.Augmentation = None
    width: options.Width = None
    stem: options.Stem = None
    pretrained: options.Pretrained = None
    valid: options.Valid = None
    group: options.Group = None
    time: options.Time = None
    split: options.Split = None
    share: options.Share = None
    model: options.Model = None
    loss: options.LossName = None
    epochs: options.Epochs = None
    batch_size: options.BatchSize = None
    seed: options.Seed = None
    change: options.Change = None

    def table(self, **more: Any) -> dict[str, Any]:
        """Return the job as plain tables: that of a TOML file, or one of the data, with what the options say.

        Args:
            **more: Further keys of [data].

        Raises:
            FileNotFoundError: There is no such file of weights.
        """
        from apmax.train import parse_toml
        from apmax.workflows.sources import find

        job = parse_toml(Path(self.data).read_text(encoding="utf-8")) if self.is_job else {"data": {"train": self.data}}
        apart = {"data", "data_dir", "change", "column", "pretrained", "target", *MODEL, *RUN}
        own = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in apart}
        own |= {**more, "columns": roles(self.column) or None, "target": list(self.target) if self.target else None}
        job["data"] = {**job.get("data", {}), **{name: value for name, value in own.items() if value is not None}}
        network = {key: value for name, key in MODEL.items() if (value := getattr(self, name)) is not None}
        if self.pretrained is not None:
            network["pretrained"] = str(find(self.pretrained, self.places))
        if network:
            job["model"] = {**job.get("model", {}), **network}
        return job

    def wishes(self, **more: Any) -> Wishes:
        """Return what differs in the run.

        Args:
            **more: Further wishes.
        """
        from apmax.workflows import Wishes

        return Wishes(changes=tuple(self.change or ()), **{name: getattr(self, name) for name in RUN}, **more)

    @property
    def places(self) -> tuple[Path, ...]:
        """Where files are looked for, besides the current folder: the data's folder, that of the job's file."""
        return tuple(
            ([] if self.data_dir is None else [self.data_dir]) + ([Path(self.data).parent] if self.is_job else [])
        )

    @property
    def is_job(self) -> bool:
        """Whether the data are a job's file."""
        return self.data.lower().endswith(".toml")


def asked(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of its first parameter, an `Asked`, as parameters of its own.

    Typer reads a command's options off its signature, which is therefore spelt out.
    """
    empty, later = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    hints = {**get_type_hints(command, include_extras=True), **get_type_hints(Asked, include_extras=True)}
    shared = {each.name: empty if each.default is MISSING else each.default for each in fields(Asked)}
    own = {each.name: each.default for each in list(inspect.signature(command).parameters.values())[1:]}
    parameters = [
        inspect.Parameter(name, later, default=default, annotation=hints[name])
        for name, default in {**shared, **own}.items()
    ]

    @functools.wraps(command)
    def spelt_out(**given: Any) -> None:
        job = Asked(**{name: given.pop(name) for name in shared})
        command(job, **given)

    spelt_out.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    spelt_out.__annotations__ = {each.name: each.annotation for each in parameters}
    return spelt_out


def roles(columns: list[str] | None) -> dict[str, str]:
    """Return what columns were said to be."""
    pairs = [text.rpartition("=") for text in columns or ()]
    for (name, _, kind), text in zip(pairs, columns or (), strict=True):
        if not name or not kind:
            raise typer.BadParameter(f"--column is written NAME=TYPE, got {text!r}")
    return {name: kind for name, _, kind in pairs}
