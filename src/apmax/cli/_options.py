"""Command-line options shared by several commands, and those that make up a job."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Callable
from dataclasses import MISSING, dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, get_type_hints

import typer

if TYPE_CHECKING:
    from apmax.workflows import Overrides

DATA, IMAGES, SPLITTING, COMMITTEE, TRAINING = "Data", "Images", "Held-out rows", "Committee", "One network"

DirectoryOption = Annotated[Path, typer.Argument(metavar="DIR", help="The --out of `apmax train`.")]
OtherSmilesOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column of SMILES, if its name differs from training.")
]
OtherPathOption = Annotated[
    str | None, typer.Option(metavar="COLUMN", help="The column of image files, if its name differs from training.")
]
OtherRootOption = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Where relative paths begin (the folder of DATA).")
]
OtherEndingOption = Annotated[
    str | None, typer.Option(metavar="TEXT", help="Appended to the paths, if not as in training.")
]
MemberOption = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="Score with one member of a committee, such as gbdt, instead of the blend."),
]
OtherModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:CALLABLE",
        help="The --model or --backbone of the training, where it is your own: it is imported.",
    ),
]
AgainstModelOption = Annotated[
    str | None,
    typer.Option(
        metavar="MODULE:CALLABLE",
        help="The --model or --backbone of the other model's training, where it is your own: it is imported.",
    ),
]

MODEL_KEYS = {"model": "name", "width": "width", "stem": "stem", "pretrained": "pretrained"}
"""Options of the network, and their keys in [model]."""
OVERRIDES = ("loss", "epochs", "batch_size", "seed")


@dataclass(frozen=True)
class JobOptions:
    """The options that make up a job, in the order of the help text."""

    data: Annotated[
        str,
        typer.Argument(
            metavar="DATA|RUN.TOML",
            help="csv, csv.gz, parquet or sdf; a folder with one folder of images per class; or a job as TOML.",
        ),
    ]
    target: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME",
            help="The column, or the class of images, to predict. May be repeated for molecules and images.",
            rich_help_panel=DATA,
        ),
    ] = None
    positive: Annotated[
        str | None,
        typer.Option(
            metavar="VALUE",
            help="The value of the positives, where it is not clear as in 0/1 or no/yes.",
            rich_help_panel=DATA,
        ),
    ] = None
    column: Annotated[
        list[str] | None,
        typer.Option(
            metavar="NAME=TYPE",
            help="The type of a column: number, category, date or drop. May be repeated.",
            rich_help_panel=DATA,
        ),
    ] = None
    weight: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Sample weights, in training and in all metrics.", rich_help_panel=DATA),
    ] = None
    smiles: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of SMILES; implies --kind molecules.", rich_help_panel=DATA),
    ] = None
    duplicates: Annotated[
        str | None,
        typer.Option(
            metavar="keep|join|drop",
            help="Rows of the same molecule: keep all (default); join to one row, contradictory labels left out; or "
            "keep the first, contradictory molecules left out.",
            rich_help_panel=DATA,
        ),
    ] = None
    largest_fragment: Annotated[
        bool | None,
        typer.Option(
            "--largest-fragment",
            help="Strip salts and solvents: keep the largest fragment of each molecule, also in predictions.",
            rich_help_panel=DATA,
        ),
    ] = None
    on_error: Annotated[
        str | None,
        typer.Option(
            metavar="skip|raise",
            help="Leave out and list molecules and images that cannot be read (default), or stop.",
            rich_help_panel=DATA,
        ),
    ] = None
    kind: Annotated[
        str | None, typer.Option(metavar="NAME", help="Type of data: table, molecules, images.", rich_help_panel=DATA)
    ] = None
    data_dir: Annotated[
        Path | None,
        typer.Option(metavar="DIR", envvar="APMAX_DATA", help="Where else to look for files.", rich_help_panel=DATA),
    ] = None
    path: Annotated[
        str | None,
        typer.Option(
            "--path", metavar="COLUMN", help="The column of image files; implies --kind images.", rich_help_panel=IMAGES
        ),
    ] = None
    root: Annotated[
        str | None,
        typer.Option(metavar="DIR", help="Where relative paths begin (the folder of DATA).", rich_help_panel=IMAGES),
    ] = None
    ending: Annotated[
        str | None, typer.Option(metavar="TEXT", help="Appended to every path, such as .jpg.", rich_help_panel=IMAGES)
    ] = None
    size: Annotated[
        int | None,
        typer.Option(
            min=8, metavar="N", help="Resize to N×N (224, or the images' own size if smaller).", rich_help_panel=IMAGES
        ),
    ] = None
    augment: Annotated[
        str | None,
        typer.Option(
            "--augment",
            metavar="NAME",
            help="In training: small (shifts; default up to 64×64), large (crops, colours), none.",
            rich_help_panel=IMAGES,
        ),
    ] = None
    width: Annotated[
        int | None,
        typer.Option(
            min=1,
            metavar="N",
            help="Channels of the network's first layer (16 or 32 up to 64×64, else 64).",
            rich_help_panel=IMAGES,
        ),
    ] = None
    stem: Annotated[
        str | None,
        typer.Option(
            metavar="imagenet|small",
            help="First layers of the network; small: 3×3, no pooling (up to 32×32).",
            rich_help_panel=IMAGES,
        ),
    ] = None
    pretrained: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Begin with these weights, such as torchvision's resnet18.", rich_help_panel=IMAGES
        ),
    ] = None
    valid: Annotated[
        str | None,
        typer.Option(metavar="FILE", help="Validation rows, instead of a part of DATA.", rich_help_panel=SPLITTING),
    ] = None
    group: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="Hold out whole groups, such as patients.", rich_help_panel=SPLITTING),
    ] = None
    time: Annotated[
        str | None, typer.Option(metavar="COLUMN", help="Hold out the latest rows.", rich_help_panel=SPLITTING)
    ] = None
    split: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="stratified (default), random, scaffold (default of a committee of molecules).",
            rich_help_panel=SPLITTING,
        ),
    ] = None
    share: Annotated[
        float | None,
        typer.Option(metavar="X", help="Share of DATA that is held out for choices (0.2).", rich_help_panel=SPLITTING),
    ] = None
    model: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Train one network. Tables: mlp or linear; molecules: gine, mpnn, ml-mpnn; images: resnet18, "
            "resnet34, resnet10 (default: the first; resnet10 for small images with few positives); or your own as "
            "package.module:callable.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    loss: Annotated[
        str | None,
        typer.Option(
            metavar="NAME",
            help="Loss of the last stage, which follows one of cross-entropy: ap+ce (default), ap, focal, …; or ce "
            "alone. `apmax methods` lists them.",
            rich_help_panel=TRAINING,
        ),
    ] = None
    epochs: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Epochs of the last stage.", rich_help_panel=TRAINING)
    ] = None
    batch_size: Annotated[
        int | None, typer.Option(min=2, metavar="N", help="Rows per step.", rich_help_panel=TRAINING)
    ] = None
    seed: Annotated[
        int | None, typer.Option(min=0, metavar="N", help="Seed of all random numbers (0).", rich_help_panel=TRAINING)
    ] = None
    settings: Annotated[
        list[str] | None,
        typer.Option(
            "--set",
            metavar="PATH=VALUE",
            help="Any other setting, such as stages.1.lr=1e-4. May be repeated.",
            rich_help_panel=TRAINING,
        ),
    ] = None

    def job_table(self, **more: Any) -> dict[str, Any]:
        """Return the job as plain tables: those of a TOML file, or of the data, with the options.

        Args:
            **more: Further keys of [data].
        """
        from apmax.train import parse_toml

        if self._is_toml and not Path(self.data).exists():
            raise FileNotFoundError(f"no such file: {self.data}")
        job = parse_toml(Path(self.data).read_text("utf-8")) if self._is_toml else {"data": {"train": self.data}}
        others = {"data", "data_dir", "settings", "column", "target", *MODEL_KEYS, *OVERRIDES}
        data = {each.name: getattr(self, each.name) for each in fields(self) if each.name not in others}
        data |= {**more, "columns": _column_types(self.column), "target": list(self.target) if self.target else None}
        job["data"] = _joined(job, "data", {name: value for name, value in data.items() if value is not None})
        model = {key: value for name, key in MODEL_KEYS.items() if (value := getattr(self, name)) is not None}
        if model:
            job["model"] = _joined(job, "model", model)
        allow_local_import(self.model)
        return job

    def overrides(self, **more: Any) -> Overrides:
        """Return the overrides of the run.

        Args:
            **more: Further overrides.
        """
        from apmax.workflows import Overrides, parse_settings

        own = {name: getattr(self, name) for name in OVERRIDES}
        return Overrides(settings=parse_settings(self.settings or ()), **own, **more)

    @property
    def folders(self) -> tuple[Path, ...]:
        """Folders in which files are looked for, besides the current one: --data-dir, and that of a job's TOML."""
        folders = [] if self.data_dir is None else [self.data_dir]
        return (*folders, *([Path(self.data).parent] if self._is_toml else []))

    @property
    def _is_toml(self) -> bool:
        return self.data.lower().endswith(".toml")


def with_job_options(command: Callable[..., None]) -> Callable[..., None]:
    """Return the command with the fields of its first parameter, a `JobOptions`, as parameters of its own.

    Typer reads the options of a command from its signature, which is therefore built here.
    """
    empty, keyword = inspect.Parameter.empty, inspect.Parameter.KEYWORD_ONLY
    hints = {**get_type_hints(command, include_extras=True), **get_type_hints(JobOptions, include_extras=True)}
    shared = {each.name: empty if each.default is MISSING else each.default for each in fields(JobOptions)}
    own = {each.name: each.default for each in list(inspect.signature(command).parameters.values())[1:]}
    parameters = [
        inspect.Parameter(name, keyword, default=default, annotation=hints[name])
        for name, default in {**shared, **own}.items()
    ]

    @functools.wraps(command)
    def with_parameters(**values: Any) -> None:
        job = JobOptions(**{name: values.pop(name) for name in shared})
        command(job, **values)

    with_parameters.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    with_parameters.__annotations__ = {each.name: each.annotation for each in parameters}
    return with_parameters


def allow_local_import(*models: str | None) -> None:
    """Let models that are written module:callable be imported from the current folder, as `python -m` does."""
    if any(model is not None and ":" in model for model in models) and "" not in sys.path:
        sys.path.insert(0, "")


def parse_duration(text: str | None) -> float | None:
    """Return a time such as "90s", "10m" or "2h" in seconds; a number alone counts seconds.

    >>> [parse_duration(text) for text in ("90", "90s", "1.5m", "2h", None)]
    [90.0, 90.0, 90.0, 7200.0, None]
    """
    if text is None:
        return None
    units = {"s": 1.0, "m": 60.0, "h": 3600.0}
    factor = units.get(text[-1:].lower(), 1.0)
    try:
        return float(text[:-1] if text[-1:].lower() in units else text) * factor
    except ValueError:
        raise typer.BadParameter(f"--time-limit is a time such as 90s, 10m or 2h, got {text!r}") from None


def _joined(job: dict[str, Any], name: str, values: dict[str, Any]) -> dict[str, Any]:
    own = job.get(name, {})
    if not isinstance(own, dict):
        raise TypeError(f"{name} must be a table ([{name}]), got {own!r}")
    return {**own, **values}


def _column_types(columns: list[str] | None) -> dict[str, str] | None:
    if not columns:
        return None
    pairs = [text.rpartition("=") for text in columns]
    for (name, _, kind), text in zip(pairs, columns, strict=True):
        if not name or not kind:
            raise typer.BadParameter(f"--column is written NAME=TYPE, got {text!r}")
    return {name: kind for name, _, kind in pairs}
