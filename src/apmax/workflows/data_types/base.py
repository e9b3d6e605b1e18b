"""Interface of a data type: its configuration, and how its rows are read, encoded and modelled."""

from __future__ import annotations

import inspect
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import numpy as np
import numpy.typing as npt
from torch import nn

from apmax import extras, validation
from apmax.committee import MEMBERS_BY_KIND, Features, Member
from apmax.committee.plan import MOST_FOLDS
from apmax.data import Labels, RowSource, Targets, UnreadableRow, any_known, is_molecule_file, open_table
from apmax.train import ConfigTable, Stage, check_known_key
from apmax.workflows.data_types.networks import is_import_path, limited_parameters
from apmax.workflows.data_types.rows import EncodedRows, Encoder, LabelledRows

if TYPE_CHECKING:
    from typing_extensions import Self

SPLITS = ("stratified", "random")
"""Splits that every data type knows."""


@dataclass(frozen=True)
class DataConfig(ConfigTable):
    """The files of a job, the target and the split; each data type adds its own fields in a subclass.

    Args:
        train: File of the training rows, or a folder with one folder of images per class.
        target: The column (or class of images) to predict, or several of them.
        valid: File of validation rows; without it `share` of the training rows are held out.
        test: File of test rows, which are scored once, after training.
        positive: The value of the target that counts as positive, where the two values do not tell.
        group: A column whose groups are kept on one side of the split.
        time: A column of dates; the latest rows are held out.
        split: "stratified" (default), "random" or one of the data type's groupings.
        share: Share of the rows held out for validation.
        test_share: Share of the rows held out for the test, by the same split.
        weight: A column of sample weights, in training and in all metrics; rows of weight 0 are left out.
    """

    train: str
    target: str | tuple[str, ...]
    valid: str | None = None
    test: str | None = None
    positive: str | None = None
    group: str | None = None
    time: str | None = None
    split: str | None = None
    share: float = 0.2
    test_share: float = 0.0
    weight: str | None = None

    kind: ClassVar[str]
    several_targets: ClassVar[bool] = False
    groupings: ClassVar[tuple[str, ...]] = ()
    paths: ClassVar[tuple[str, ...]] = ("train", "valid", "test")
    """Fields that name files or folders."""
    fixed_on_resume: ClassVar[tuple[str, ...]] = ()
    """Fields of the data type that decide the inputs of the network."""
    _floats = ("share", "test_share")

    def check(self) -> None:
        """Raise for several targets where one is possible, an unknown split, and splits that exclude each other."""
        self._set("target", self.targets[0] if len(self.targets) == 1 else self.targets)
        if len(set(self.targets)) < len(self.targets):
            raise ValueError(f"target must name every column once, got {', '.join(self.targets)}")
        if len(self.targets) > 1 and not self.several_targets:
            raise ValueError(
                f"target: data of kind {self.kind} have one target, got {', '.join(self.targets)}; molecules "
                "(smiles=COLUMN) and images (path=COLUMN) may have several"
            )
        for name in ("train", "valid", "test"):
            if str(getattr(self, name)).lower().endswith((".smi", ".smi.gz")):
                raise ValueError(f"{name}: a .smi file holds no labels; use a csv with a column of SMILES and a target")
        if self.split is not None:
            validation.choice("split", self.split, (*SPLITS, *self.groupings))
        self._check_shares()
        for name in ("group", "time", "weight"):
            if getattr(self, name) in self.targets:
                raise ValueError(f"{name} must be another column than the target {getattr(self, name)!r}")
        if self.weight is not None and self.weight in (self.group, self.time):
            raise ValueError(f"weight must be another column than group and time, got {self.weight!r}")

    def _check_shares(self) -> None:
        validation.interval("share", self.share, 0, 1, closed="neither")
        validation.interval("test_share", self.test_share, 0, 1, closed="left")
        if self.share + self.test_share >= 1:
            raise ValueError(f"share {self.share:g} and test_share {self.test_share:g} leave no rows to train on")
        ways = [name for name in ("valid", "group", "time", "split") if getattr(self, name) is not None]
        if len(ways) > 1:
            raise ValueError(f"{' and '.join(ways)} exclude each other: each decides which rows are for validation")
        other = [name for name in ("valid", "test") if getattr(self, name) is not None]
        if self.test_share and other:
            raise ValueError(f"{other[0]} and test_share exclude each other: give files for both, or for neither")

    @property
    def targets(self) -> tuple[str, ...]:
        """The columns to predict."""
        return (self.target,) if isinstance(self.target, str) else tuple(self.target)

    @property
    def not_features(self) -> tuple[str, ...]:
        """The columns that no model may read: targets, group, time and weight."""
        return tuple(name for name in (*self.targets, self.group, self.time, self.weight) if name is not None)


Config = TypeVar("Config", bound=DataConfig)


class DataType(ABC, Generic[Config]):
    """One type of data, with the configuration of a job: how rows are read and encoded, and which models take them.

    A new type implements the six abstract methods and is entered in `DATA_TYPES`.

    Args:
        config: The job's [data].
    """

    title: ClassVar[str]
    config_class: ClassVar[type[DataConfig]]
    models: ClassVar[Mapping[str, Callable[..., nn.Module]]]
    """Built-in models by name; the first is the default."""
    builder_argument: ClassVar[str | None] = "targets"
    """Name of what a builder is called with, for messages; None where `build_model` has another way to call one."""
    reading_options: ClassVar[tuple[str, ...]] = ()
    """Fields of the configuration that may differ when a saved model reads another file."""
    learns_from_rows: ClassVar[bool] = True
    """Whether the encoder is fitted to training rows; otherwise it exists before data are read."""
    has_pretrained: ClassVar[bool] = False
    """Whether its models can begin with a file of weights, and its committees have a choice of networks."""
    threads: ClassVar[int | None] = None
    """Number of threads that pays; None for all."""

    def __init__(self, config: Config) -> None:
        self.config = config

    @abstractmethod
    def fit_encoder(self, table: Any, excluded: Sequence[str]) -> Encoder:
        """Return the encoder fitted to training rows; `excluded` columns are no features."""

    @classmethod
    @abstractmethod
    def restore_encoder(cls, table: Mapping[str, Any]) -> Encoder:
        """Return the encoder that `Encoder.to_table` described."""

    @abstractmethod
    def model_input(self, encoder: Any) -> Any:
        """Return the first argument of a model builder: the sizes of columns, or the number of tasks."""

    @abstractmethod
    def default_stages(self, rows: int, positives: int, model: str, *, pretrained: bool = False) -> Sequence[Stage]:
        """Return the default stages of training of a new or pretrained network for a training set of that size."""

    def default_model(self, positives: int) -> str:  # noqa: ARG002 - overridden
        """Return the built-in model that suits the completed configuration and the number of positives."""
        return next(iter(self.models))

    def default_options(self, model: str, positives: int) -> Mapping[str, Any]:  # noqa: ARG002 - overridden
        """Return options of a built-in model that suit the completed configuration and the number of positives."""
        return {}

    def for_model(self, model: str) -> Self:  # noqa: ARG002 - overridden
        """Return the data type with what a model needs of the data."""
        return self

    def complete(self, table: Any, source: RowSource) -> Self:  # noqa: ARG002 - overridden
        """Return the data type with the fields that its configuration leaves open, chosen by the training rows."""
        return self

    def open_source(self, path: str | Path) -> RowSource:
        """Return the rows of a file.

        Raises:
            FileNotFoundError: There is no such file.
            ValueError: This type of data is not read from such a file.
        """
        kind = self.config.kind
        if Path(path).is_dir():
            files = "csv, csv.gz, parquet, smi or sdf" if kind == "molecules" else "csv, csv.gz or parquet"
            raise ValueError(f"{path} is a folder, and data of kind {kind} are read from a file: {files}")
        if is_molecule_file(path):
            raise ValueError(f"{path} is a list of molecules, and these data are of kind {kind}")
        return open_table(path)

    def read_rows(self, source: RowSource, targets: Targets, table: Any) -> LabelledRows:  # noqa: ARG002 - overridden
        """Return the labelled rows of a source that can be read.

        Args:
            source: The rows.
            targets: The target columns and their values.
            table: All rows of the source, a `pyarrow.Table`.
        """
        labels = targets.labels(table)
        known = any_known(labels)
        if known.all():
            return LabelledRows(table, labels)
        count = int((~known).sum())
        line = (
            f"{validation.plural(count, 'row')} without a {targets.names[0]!r} {'is' if count == 1 else 'are'} left out"
        )
        return LabelledRows(table.filter(known), labels[known], warnings=(line,), numbers=np.flatnonzero(known))

    def for_committee(self, effort: str, members: Sequence[str]) -> Self:  # noqa: ARG002 - overridden
        """Return the data type with what a committee of some effort, or of named members, needs of the data."""
        return self

    @abstractmethod
    def committee_features(self, rows: LabelledRows, encoder: Any) -> Features:
        """Return the training rows in the form in which a committee encodes them in folds, by kinds as in `encoder`."""

    def committee_members(
        self,
        rows: LabelledRows,  # noqa: ARG002 - overridden
        *,
        pretrained: str | None = None,  # noqa: ARG002 - overridden
        backbone: str | None = None,  # noqa: ARG002 - overridden
    ) -> Mapping[str, Member]:
        """Return the members of a committee that learns these rows, by name.

        Args:
            rows: The training rows.
            pretrained: File of weights that networks begin with, where the data type has any.
            backbone: The network of the members, where the data type has a choice; None for the one that suits.
        """
        return MEMBERS_BY_KIND[self.config.kind]

    def build_backbone(self, backbone: str | None) -> nn.Module:
        """Return a new network as the members of a committee have it; None for the usual one."""
        raise NotImplementedError(f"committees of kind {self.config.kind} have no choice of networks")

    def committee_notes(self, backbone: str | None) -> list[str]:  # noqa: ARG002 - overridden
        """Return lines about members that a network does not have."""
        return []

    def saved_members(self, backbone: str, builder: Callable[..., nn.Module]) -> Mapping[str, Member]:
        """Return members by name that read saved networks, built by the user's own code."""
        raise NotImplementedError(f"committees of kind {self.config.kind} have no choice of networks")

    def committee_folds(self, effort: str) -> int:
        """Return the largest number of folds of a committee."""
        return MOST_FOLDS[effort]

    @abstractmethod
    def committee_columns(self, encoder: Any) -> int:
        """Return the number of columns that members read, categories written out."""

    def committee_encoder(self, encoder: Any, *, raw: bool) -> Any:  # noqa: ARG002 - overridden
        """Return the encoder for the members that score; `raw` says whether any reads rows in their original form."""
        return encoder

    def committee_rows(self, encoded: EncodedRows, table: Any) -> Any:
        """Return the encoded rows of a table in the form of the rows of `committee_features`."""
        return table if len(encoded.rows) == table.num_rows else table.take(encoded.rows)

    def groups(self, rows: LabelledRows) -> npt.NDArray[Any]:
        """Return the group of each row by the grouping of `config.split`."""
        raise NotImplementedError(f"data of kind {self.config.kind} have no grouping {self.config.split!r}")

    def identities(self, rows: LabelledRows) -> npt.NDArray[Any] | None:  # noqa: ARG002 - overridden
        """Return numbers that are equal for rows of the same object, None where that cannot be told."""
        return None

    def training_dataset(self, dataset: Any, seed: int) -> Any:  # noqa: ARG002 - overridden
        """Return the dataset as it is trained on, such as with augmentation."""
        return dataset

    def encoder_for(self, encoder: Any, source: RowSource | None, options: Mapping[str, Any]) -> Any:  # noqa: ARG002
        """Return the encoder for another file (None: rows in memory) with other `reading_options`."""
        return encoder

    def facts(self) -> list[str]:
        """Return lines about the completed configuration."""
        return []

    def suspicions(self, encoder: Any, table: Any, labels: Labels) -> list[str]:  # noqa: ARG002 - overridden
        """Return warnings about columns of the training rows."""
        return []

    def nothing_readable(self, encoder: Any, rows: Sequence[UnreadableRow]) -> str:  # noqa: ARG002 - overridden
        """Return the error message for a file none of whose rows can be read."""
        return f"none of {len(rows):,} rows can be read, such as {rows[0].short_value!r} ({rows[0].reason})"

    def load_weights(self, network: nn.Module, path: str) -> str:
        """Load a file of pretrained weights into a new network and return a description."""
        raise NotImplementedError(f"models of kind {self.config.kind} have no pretrained weights")

    @property
    def scoring_batch_size(self) -> int:
        """Number of rows that are scored at a time."""
        return 8192

    def build_model(
        self,
        encoder: Any,
        name: str,
        options: Mapping[str, Any],
        *,
        builder: Callable[..., nn.Module] | None = None,
        prior: float | None = None,  # noqa: ARG002 - overridden
    ) -> nn.Module:
        """Return a new network.

        Args:
            encoder: The encoder of its inputs.
            name: A built-in model, or "package.module:callable".
            options: Keyword arguments of the builder.
            builder: The callable that `name` stands for, where it has been imported.
            prior: Share of positive training rows, for models that begin at its log-odds.

        Raises:
            ValueError: No such model, or an option that it does not have.
            TypeError: A user's callable does not return a `torch.nn.Module`.
        """
        build = self.find_builder(name) if builder is None else builder
        self.check_options(name, options, build)
        with limited_parameters(name, options):
            network = build(self.model_input(encoder), **options)
        if not isinstance(network, nn.Module):
            raise TypeError(f"model: {name} must return a torch.nn.Module, got {type(network).__name__}")
        return network

    def find_builder(self, name: str) -> Callable[..., nn.Module]:
        """Return the builder of a model; "package.module:callable" is imported.

        Raises:
            ValueError: No such model.
        """
        if is_import_path(name):
            builder: Callable[..., nn.Module] = extras.load_callable(name)
            return builder
        try:
            return self.models[validation.choice("model", name, self.models)]
        except ValueError as error:
            raise ValueError(f"{error}; or your own as package.module:callable") from None

    def check_options(self, name: str, options: Mapping[str, Any], builder: Callable[..., nn.Module]) -> None:
        """Raise for options that a model does not have, and for a builder that does not take what it is called with."""
        signature = inspect.signature(builder)
        parameters = list(signature.parameters.values())[1:]
        if not any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters):
            for key in options:
                check_known_key(key, [parameter.name for parameter in parameters], f"the options of model {name!r}")
        if self.builder_argument is None:
            return
        try:
            signature.bind(None, **options)
        except TypeError as error:
            call = ", ".join([self.builder_argument, *(f"{key}={value!r}" for key, value in options.items())])
            raise ValueError(
                f"model: {name} is called with ({call}), and its parameters are {signature} ({error}): "
                f"write it as build({', '.join([self.builder_argument, *options])})"
            ) from None

    def with_fields(self, **fields: Any) -> Self:
        """Return the data type with other fields of its configuration."""
        return type(self)(replace(self.config, **fields))
