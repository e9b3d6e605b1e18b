"""Jobs: the data and the committee, or the data, the model and the run, planned from a plain table and overrides."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from apmax import extras, validation
from apmax.committee import EFFORTS, MEMBER_NAMES, MEMBERS_BY_KIND, find_members
from apmax.data import is_molecule_file
from apmax.folders import write_atomic
from apmax.train import (
    RECIPES,
    ConfigTable,
    Run,
    Stage,
    check_known_key,
    config_from_table,
    config_to_table,
    format_toml,
    parse_toml,
    run_from_table,
    run_to_table,
)
from apmax.workflows.data_types import DATA_TYPES, DataConfig, DataType, data_type_of, is_import_path
from apmax.workflows.overrides import Overrides, override_run, set_at_path, with_named_setting

LARGEST_SEED = 2**31 - 2**10
"""The largest seed of a committee: LightGBM and scikit-learn take 31 bits, and the number of the fold is added."""
_ONE_NETWORK = ("loss", "epochs", "batch_size", "num_pos", "lr", "ensemble", "head", "devices")


@dataclass(frozen=True)
class ModelConfig:
    """The network of a job.

    Args:
        name: A built-in model of the data type, or "package.module:callable".
        options: Keyword arguments of its builder.
        pretrained: File of weights to begin with.
    """

    name: str
    options: Mapping[str, Any] = field(default_factory=dict)
    pretrained: str | None = None


@dataclass(frozen=True)
class Job:
    """A training with every setting resolved."""

    data: DataConfig
    model: ModelConfig
    run: Run


@dataclass(frozen=True)
class CommitteeConfig(ConfigTable):
    """The committee of a job.

    Args:
        effort: "quick" (gradient boosting or, for images, the network on one split), "standard", or "best" (more folds,
            trees and seeds).
        members: Names of members; empty for those of the effort.
        time_limit: Seconds that the plan may take; None for no limit.
        seed: Seed of all random numbers.
        pretrained: File of weights that the networks of images begin with.
        backbone: The network of a committee of images: a built-in one, "timm:NAME" or "package.module:callable"; None
            for the one that suits the images.
        frozen: Keep the network of a committee of images as it is: its members are heads on embeddings.
    """

    effort: str = "standard"
    members: tuple[str, ...] = ()
    time_limit: float | None = None
    seed: int = 0
    pretrained: str | None = None
    backbone: str | None = None
    frozen: bool = False

    _floats = ("time_limit",)
    _tuples = ("members",)

    def member_kind(self, kind: str) -> str:
        """Return the kind of data that the members read: embeddings are columns of numbers, as in a table."""
        return "table" if self.frozen else kind

    def check(self) -> None:
        """Raise for an unknown effort or member, a time limit that is not positive, and a seed out of range."""
        validation.choice("effort", self.effort, EFFORTS)
        for name in self.members:
            validation.choice("members", name, MEMBER_NAMES)
        if self.time_limit is not None:
            validation.interval("time_limit", self.time_limit, 0, closed="neither")
        validation.whole("seed", self.seed)
        if self.seed > LARGEST_SEED:
            raise ValueError(f"seed must be at most {LARGEST_SEED:,}, got {self.seed:,}")


@dataclass(frozen=True)
class CommitteeJob:
    """A training of a committee, every setting resolved."""

    data: DataConfig
    committee: CommitteeConfig

    @property
    def own_network(self) -> str | None:
        """The user's own network, written "package.module:callable", or None: to load the model, it is named again."""
        backbone = self.committee.backbone
        return backbone if backbone is not None and is_import_path(backbone) else None


@dataclass(frozen=True)
class JobPlan:
    """A job with checked settings whose default stages wait for the size of the training set.

    Args:
        data: The data, with the files found.
        model: The network, or the data type's first where the job names none.
        run_table: The job's plain table without [data] and [model].
        overrides: Settings that replace those of the table.
        run: The run before its stages are sized: the seed, which the split needs, and the hardware are final.
        names_model: Whether the job names a model; otherwise the size of the training set chooses one.
    """

    data: DataConfig
    model: ModelConfig
    run_table: Mapping[str, Any]
    overrides: Overrides
    run: Run
    names_model: bool = True

    @property
    def seed(self) -> int:
        """The run's seed."""
        return self.run.seed

    @property
    def own_network(self) -> str | None:
        """The user's own network, as in `CommitteeJob`."""
        return self.model.name if is_import_path(self.model.name) else None

    def resolve(self, data: DataConfig, *, rows: int, positives: int, settings: Mapping[str, Any] | None = None) -> Job:
        """Return the job for a training set of that size.

        Args:
            data: The completed configuration of the data.
            rows: Number of training rows.
            positives: Number of positive training rows.
            settings: Further settings by path, as in `Overrides`.

        Raises:
            ValueError: Settings that do not fit the default stages of that size.
        """
        overrides = self.overrides.with_settings(settings or {})
        data_type = data_type_of(data)
        model = _override_model(self.model, settings) if settings else self.model
        if model.pretrained is None:
            # Weights of a file fit only the network that they were saved from.
            if not self.names_model and "model.name" not in (settings or {}):
                model = replace(model, name=data_type.default_model(positives))
            model = replace(model, options={**data_type.default_options(model.name, positives), **model.options})
        data_type.check_options(model.name, model.options, data_type.find_builder(model.name))
        stages = data_type.default_stages(rows, positives, model.name, pretrained=model.pretrained is not None)

        def build(each: Overrides) -> Run:
            return _build_run(self.run_table, each, stages, data_type)

        # Further settings come from the caller, who can name them in an error; the user's are named here.
        return Job(data, model, build(overrides) if settings else with_named_setting(build, overrides))


def plan_training(
    table: Mapping[str, Any],
    overrides: Overrides | None = None,
    folders: Sequence[Path] = (),
    *,
    committee_file: str | None = None,
) -> CommitteeJob | JobPlan:
    """Return the job of a committee, which is the default, or the plan of one network.

    Settings of a network (the model, its loss, stages, number of epochs, a validation file, …) ask for one network.

    Args:
        table: The job as plain tables: [data] and [committee], or [data], [model] and the fields of a run.
        overrides: Settings that replace them.
        folders: Folders in which files that are not in the current one are looked for.
        committee_file: The file that [committee] was read from, for the message where settings of a network are given.

    Raises:
        ValueError: An unknown key, a value out of range, or settings of a committee and of a network.
        FileNotFoundError: A file is missing.
    """
    overrides = Overrides() if overrides is None else overrides
    data = read_data_config(table, overrides, folders)
    data_type = data_type_of(data)
    given = _sub_table(table, "committee")
    network = _network_settings(table, overrides, data_type)
    if given and network:
        if committee_file is not None:
            require_network(table, network[0], committee_file, overrides)
        raise ValueError(f"{next(iter(given))} and {network[0]} exclude each other: the latter is for one network")
    if network:
        return plan_job(table, overrides, folders)
    if overrides.seed is not None:
        given["seed"] = overrides.seed
    if "pretrained" in (weights := _model_table(table, overrides)):
        given["pretrained"] = weights["pretrained"]
    config = config_from_table(CommitteeConfig, {"seed": table.get("seed", 0), **given}, "committee")
    if config.pretrained is not None:
        config = replace(config, pretrained=_find_weights(config.pretrained, data_type, folders))
    if config.backbone is not None:
        _check_backbone(config.backbone, data_type)
    if config.frozen:
        data_type = _check_frozen(config, data_type)
    if config.members:
        _check_members(config, data.kind)
        find_members(config.members, kind=config.member_kind(data.kind))
    if data.split == "random":
        model = next(iter(data_type.models))
        raise ValueError(f"split: the folds of a committee are stratified; 'random' is for one network (model={model})")
    return CommitteeJob(
        _with_found_files(data_type.for_committee(config.effort, config.members).config, folders), config
    )


def require_network(table: Mapping[str, Any], what: str, file: str, overrides: Overrides) -> None:
    """Raise if a job is that of a committee.

    Args:
        table: The job as plain tables.
        what: The setting or command that is for one network.
        file: The file of the job.
        overrides: Settings that replace those of the table.

    Raises:
        ValueError: The table has a committee; the message names its data, from which one network can be trained.
    """
    if "committee" not in table:
        return
    data = read_data_config(table, overrides)
    model = _model_table(table, overrides).get("name", next(iter(DATA_TYPES[data.kind].models)))
    raise ValueError(
        f"{what} is for one network, and {file} is the job of a committee: name its data, {data.train}, "
        f"and a network (model={model}) instead"
    )


def _check_images(setting: str, data_type: DataType[Any]) -> None:
    """Raise for a setting that only networks of images have, of other data."""
    if not data_type.has_pretrained:
        raise ValueError(f"{setting} is for networks of images; these data are of kind {data_type.config.kind}")


def _find_weights(path: str, data_type: DataType[Any], folders: Sequence[Path]) -> str:
    """Return the path of a file of pretrained weights."""
    _check_images("pretrained", data_type)
    return str(find_file(path, folders, "pretrained"))


def _check_frozen(config: CommitteeConfig, data_type: DataType[Any]) -> DataType[Any]:
    """Return the data type of a frozen network, whose images are not changed at random.

    Raises:
        ValueError: Data without networks, a network with random weights, or an augmentation.
    """
    _check_images("frozen", data_type)
    if config.pretrained is None and not (config.backbone is not None and is_import_path(config.backbone)):
        raise ValueError(
            "frozen: the members would read a network with random weights; give weights (pretrained=FILE) or a network "
            'of your own that has them (backbone="package.module:callable")'
        )
    if data_type.config.augment not in (None, "none"):
        raise ValueError("frozen and augment exclude each other: embeddings are of unchanged images")
    return data_type.with_fields(augment="none")


def _check_members(config: CommitteeConfig, kind: str) -> None:
    """Raise for a member of another kind of data; a frozen network's heads are those of tables."""
    own = MEMBERS_BY_KIND[config.member_kind(kind)]
    for name in config.members:
        others = [other for other, table in MEMBERS_BY_KIND.items() if name in table]
        if name not in own and not config.frozen:
            raise ValueError(
                f"members: {name!r} is a member for data of kind {' or '.join(others)}; these are of kind {kind}, "
                f"which has {', '.join(own)}"
            )


def _check_backbone(backbone: str, data_type: DataType[Any]) -> None:
    """Raise for data without a choice of networks, and for code that cannot be imported."""
    _check_images("backbone", data_type)
    if is_import_path(backbone):
        try:
            extras.load_callable(backbone)
        except ValueError as error:
            raise ValueError(f"backbone: {error}") from None


def _network_settings(table: Mapping[str, Any], overrides: Overrides, data_type: DataType[Any]) -> list[str]:
    """Return the names of settings that only one network has."""
    named = [name for name in _ONE_NETWORK if getattr(overrides, name) is not None]
    # The networks of a committee may begin with weights of a file as well.
    weights_only = data_type.has_pretrained and set(_model_table(table, overrides)) == {"pretrained"}
    if "model" in table and not weights_only:
        named.insert(0, "model")
    if (overrides.settings_of("model") and not weights_only) or overrides.settings_of("run"):
        named.append("settings")
    if data_type.config.valid is not None:
        named.append("valid")
    return [*named, *(key for key in table if key not in ("data", "model", "committee", "seed"))]


def _with_found_files(data: DataConfig, folders: Sequence[Path]) -> DataConfig:
    found: dict[str, Any] = {
        name: str(find_file(path, folders, "" if name == "train" else name))
        for name in data.paths
        if (path := getattr(data, name)) is not None
    }
    return replace(data, **found)


def plan_job(table: Mapping[str, Any], overrides: Overrides | None = None, folders: Sequence[Path] = ()) -> JobPlan:
    """Return the plan of a job of one network; all mistakes in settings that need no data are raised here.

    Args:
        table: The job as plain tables: [data], [model] and the fields of a run.
        overrides: Settings that replace them.
        folders: Folders in which files that are not in the current one are looked for.

    Raises:
        ValueError: An unknown key, a value out of range.
        FileNotFoundError: A file is missing.

    >>> import tempfile
    >>> with tempfile.NamedTemporaryFile(suffix=".csv") as file:
    ...     plan = plan_job({"data": {"train": file.name, "target": "y"}}, Overrides(epochs=2, lr=0.003))
    >>> job = plan.resolve(plan.data, rows=10_000, positives=200)
    >>> [(stage.name, stage.epochs, stage.optimizer.lr) for stage in job.run.stages]
    [('ce', 51, 0.003), ('ap + ce', 2, 0.001)]
    """
    overrides = Overrides() if overrides is None else overrides
    require_network(table, "plan_job", "this table", overrides)
    return with_named_setting(lambda each: _plan_job(table, each, folders), overrides)


def _plan_job(table: Mapping[str, Any], overrides: Overrides, folders: Sequence[Path]) -> JobPlan:
    data = _with_found_files(_read_data_config(table, overrides, folders), folders)
    data_type = data_type_of(data)
    model_table = _model_table(table, overrides)
    model = _read_model_config(model_table, data_type)
    if model.pretrained is not None:
        model = replace(model, pretrained=_find_weights(model.pretrained, data_type, folders))
    elif overrides.head == "only" and model.name in data_type.models:
        raise ValueError(
            "head: only the last layer would be trained, on a network with random weights; give weights that it begins "
            'with (pretrained=FILE, for images) or a network of your own (model="package.module:callable")'
        )
    data_type.check_options(model.name, model.options, data_type.find_builder(model.name))
    run_table = {key: value for key, value in table.items() if key not in ("data", "model")}
    # The default recipe before it is sized: enough to check the names and the types of all settings.
    run = _build_run(run_table, overrides, RECIPES["default"](num_pos=1), data_type)
    if model.pretrained is not None and run.ensemble > 1:
        raise ValueError("pretrained and ensemble exclude each other: only one model can begin with given weights")
    return JobPlan(data, model, run_table, overrides, run, names_model="name" in model_table)


def read_data_config(
    table: Mapping[str, Any], overrides: Overrides | None = None, folders: Sequence[Path] = ()
) -> DataConfig:
    """Return the configuration of a job's data; its files need not exist.

    Raises:
        ValueError: No data or target, an unknown data type, or a key that is unknown or of another data type.
    """
    overrides = Overrides() if overrides is None else overrides
    return with_named_setting(lambda each: _read_data_config(table, each, folders), overrides)


def _read_data_config(table: Mapping[str, Any], overrides: Overrides, folders: Sequence[Path]) -> DataConfig:
    values = _sub_table(table, "data")
    for keys, value in overrides.settings_of("data"):
        set_at_path(values, keys, value)
    if isinstance(values.get("positive"), (bool, int, float)):
        values["positive"] = str(values["positive"]).lower()
    for name in ("train", "path", "smiles", "kind"):
        if not isinstance(values.get(name, ""), (str, type(None))):
            raise TypeError(f"{name} must be a text, got {values[name]!r}")
    if not values.get("train"):
        raise ValueError("train: a data file is needed")
    if not values.get("target"):
        raise ValueError("target: name the column to predict (of a folder of images: the class)")
    kind = values.pop("kind", None) or _guess_kind(values, folders)
    data_type = DATA_TYPES[validation.choice("kind", kind, DATA_TYPES)]
    known = {name: [each.name for each in fields(other.config_class)] for name, other in DATA_TYPES.items()}
    for key in values:
        others = [name for name, keys in known.items() if key in keys]
        if others and kind not in others:
            raise ValueError(f"{key} is for data of kind {' or '.join(others)}; these are of kind {kind}")
        check_known_key(key, known[kind], "[data]")
    config = data_type.config_class(**values)
    # A model that needs more of the data says so here, for everyone who reads them.
    completed: DataConfig = data_type(config).for_model(str(_model_table(table, overrides).get("name", ""))).config
    return completed


def find_file(path: str, folders: Sequence[Path], argument: str = "") -> Path:
    """Return a file or folder of the current folder, or else of the first of `folders` that has it.

    Args:
        path: The file or folder.
        folders: The other folders.
        argument: The argument that names it, for the message; empty for the data themselves.

    Raises:
        FileNotFoundError: None has it.
    """
    for folder in (Path(), *folders):
        if (folder / path).exists():
            return (folder / path).resolve()
    also = f", nor in {', '.join(map(str, folders))}" if folders else ""
    raise FileNotFoundError(f"{argument and f'{argument}: '}no such file: {path}{also}")


def job_to_table(job: Job | CommitteeJob) -> dict[str, Any]:
    """Return a job as plain tables, every default written out; `job_from_table` gives back an equal job."""
    data = {"kind": job.data.kind, **config_to_table(job.data)}
    if isinstance(job, CommitteeJob):
        return {"data": data, "committee": config_to_table(job.committee)}
    model: dict[str, Any] = {"name": job.model.name, **job.model.options}
    if job.model.pretrained is not None:
        model["pretrained"] = job.model.pretrained
    return {**run_to_table(job.run), "data": data, "model": model}


def job_from_table(table: Mapping[str, Any]) -> Job | CommitteeJob:
    """Return the job of plain tables in which every setting is written out."""
    data = read_data_config(table)
    if "committee" in table:
        return CommitteeJob(data, config_from_table(CommitteeConfig, _sub_table(table, "committee"), "committee"))
    model = _read_model_config(_sub_table(table, "model"), data_type_of(data))
    return Job(data, model, run_from_table({key: table[key] for key in table if key not in ("data", "model")}))


def job_from_toml(content: bytes) -> Job | CommitteeJob:
    """Return the job of the content of a run.toml file."""
    return job_from_table(parse_toml(content.decode("utf-8")))


def write_job(job: Job | CommitteeJob, path: Path) -> None:
    """Write a job as TOML."""
    write_atomic(path, format_toml(job_to_table(job)).encode())


def _guess_kind(values: Mapping[str, Any], folders: Sequence[Path]) -> str:
    if values.get("smiles") or is_molecule_file(values["train"]):
        return "molecules"
    is_folder = any((folder / values["train"]).is_dir() for folder in (Path(), *folders))
    return "images" if is_folder or values.get("path") else next(iter(DATA_TYPES))


def _sub_table(table: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a copy of the table under a key, an empty one if it is missing."""
    values = table.get(name, {})
    if not isinstance(values, Mapping):
        raise TypeError(f"{name} must be a table ([{name}]), got {values!r}")
    return copy.deepcopy(dict(values))


def _model_table(table: Mapping[str, Any], overrides: Overrides) -> dict[str, Any]:
    model = _sub_table(table, "model")
    for keys, value in overrides.settings_of("model"):
        set_at_path(model, keys, value)
    return model


def _read_model_config(table: Mapping[str, Any], data_type: DataType[Any]) -> ModelConfig:
    options = dict(table)
    name, pretrained = options.pop("name", next(iter(data_type.models))), options.pop("pretrained", None)
    for key, value in (("model", name), ("pretrained", "" if pretrained is None else pretrained)):
        if not isinstance(value, str):
            raise TypeError(f"{key} must be a text, got {value!r}")
    return ModelConfig(name, options, pretrained=pretrained)


def _override_model(model: ModelConfig, settings: Mapping[str, Any]) -> ModelConfig:
    """Return a planned network with further settings; those of the plan, its file of weights too, are part of it."""
    table = copy.deepcopy({"name": model.name, **model.options})
    for keys, value in Overrides(settings=settings).settings_of("model"):
        set_at_path(table, keys, value)
    return replace(model, name=table.pop("name"), options=table)


def _build_run(
    table: Mapping[str, Any], overrides: Overrides, stages: Sequence[Stage], data_type: DataType[Any]
) -> Run:
    """Return the run of a table, with these stages where it names none."""
    run = run_from_table(table)
    if "stage" not in table and "recipe" not in table:
        run = replace(run, stages=tuple(stages))
    if "eval_batch_size" not in table:
        run = replace(run, eval_batch_size=min(run.eval_batch_size, data_type.scoring_batch_size))
    return run_from_table(override_run(run_to_table(run), overrides))
