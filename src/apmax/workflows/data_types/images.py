"""Images: a folder per class, or a column of image files."""

from __future__ import annotations

import inspect
import os
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import nn

from apmax import extras, validation
from apmax.committee import Features, ImageFeatures, ImageTraining, Member, image_members
from apmax.data import ON_ERROR, RowSource, Targets, UnreadableRow, any_known
from apmax.data.images import (
    DECODER_VERSION,
    ENDINGS,
    FITS,
    IMAGENET,
    LARGE_IMAGES,
    Augment,
    Decoder,
    ImageDataset,
    ImageFolder,
    Normalise,
    augment_for,
    contact_sheet_of_files,
    decode_stream,
    describe_ignored,
    image_dataset,
    images_at_a_time,
    shape_of,
)
from apmax.data.images.folder import PATH
from apmax.data.parallel import with_progress, worker_processes
from apmax.models.images import (
    FEW_POSITIVES,
    IMAGE_MODELS,
    NARROW_SIZE,
    build_image_model,
    load_pretrained,
    small_image_options,
)
from apmax.train import Stage, image_recipe
from apmax.validation import plural
from apmax.workflows.data_types.base import DataConfig, DataType
from apmax.workflows.data_types.networks import is_import_path
from apmax.workflows.data_types.rows import EncodedRows, LabelledRows, RowReport, column_texts, target_columns

AUGMENTS = ("none", "small", "large")
USUAL_SIZE = 224
LARGEST_SIZE = 4096
INSPECTED_FILES = 64
"""Number of files whose size is read where the configuration gives none."""


@dataclass(frozen=True)
class ImageData(DataConfig):
    """Configuration of images.

    Args:
        path: The column of image files.
        root: The folder at which relative paths begin; by default that of the table.
        ending: Appended to every path, such as ".jpg".
        size: Height and width that images are resized to; by default 224, or the images' own size if smaller.
        fit: How images become square: "stretch" or "crop".
        augment: Random changes of training images: "none", "small" (shifts of an eighth of the size, at most 4 pixels)
            or "large" (crops, colours); by default "small" up to 64×64.
        mirror: Mirror training images left to right; by default those of 32×32 or more that are augmented.
        upside_down: Mirror training images top to bottom too.
        on_error: "skip" images that cannot be read, or "raise".
    """

    path: str = PATH
    root: str | None = None
    ending: str = ""
    size: int | None = None
    fit: str = FITS[0]
    augment: str | None = None
    mirror: bool | None = None
    upside_down: bool = False
    on_error: str = "skip"

    kind: ClassVar[str] = "images"
    several_targets: ClassVar[bool] = True
    paths: ClassVar[tuple[str, ...]] = (*DataConfig.paths, "root")
    fixed_on_resume: ClassVar[tuple[str, ...]] = ("size", "fit")

    def check(self) -> None:
        """Raise for values out of range."""
        super().check()
        if self.size is not None:
            validation.interval("size", validation.whole("size", self.size, 8), 8, LARGEST_SIZE)
        validation.choice("fit", self.fit, FITS)
        if self.augment is not None:
            validation.choice("augment", self.augment, AUGMENTS)
        for name in ("mirror", "upside_down"):
            if getattr(self, name) and self.augment == "none":
                raise ValueError(f'{name} mirrors training images, and augment="none" leaves them as they are')
        validation.choice("on_error", self.on_error, ON_ERROR)

    @property
    def input_size(self) -> int:
        """Height and width of the inputs of networks; 224 before the training images have decided."""
        return self.size or USUAL_SIZE


@dataclass(frozen=True)
class ImagePaths:
    """The image files that the rows of a table name.

    Args:
        column: The column of paths.
        folder: Where relative paths begin.
        ending: Appended to them.

    >>> import pyarrow as pa
    >>> ImagePaths("name", Path("skin"), ".jpg").files(pa.table({"name": ["a", ""]}))
    ['skin/a.jpg', '']
    """

    column: str = PATH
    folder: Path = Path()
    ending: str = ""

    @staticmethod
    def of(source: RowSource | None, *, path: str, root: str | Path | None, ending: str) -> ImagePaths:
        """Return the paths of a source's rows (None: rows in memory); those of a folder are complete.

        Raises:
            ValueError: A column of files is given for a folder.
        """
        if source is None:
            return ImagePaths(path, Path() if root is None else Path(root), ending)
        if not isinstance(source, ImageFolder):
            return ImagePaths(path, source.path.parent if root is None else Path(root), ending)
        if path != PATH:
            raise ValueError(f"path: {source.path} is a folder and has no column {path!r}: leave out path")
        return ImagePaths()

    def files(self, table: Any) -> list[str]:
        """Return the files; "" where a cell is empty."""
        names = column_texts(table, self.column, "path")
        return [str(self.folder / f"{name}{self.ending}") if name else "" for name in names]

    def unreadable_message(self, file: str, count: int) -> str:
        """Return the error message for rows none of whose files can be read."""
        return (
            f"none of the {count:,} images of column {self.column!r} can be read, such as {file!r}: "
            "say where paths begin (root=DIR), how they end (ending=.jpg) or which column they are (path=COLUMN)"
        )


@dataclass(frozen=True)
class ImageEncoder:
    """Pixels of one size; nothing is fitted, and images are decoded when they are needed.

    Args:
        size: Height and width.
        fit: How images become square, as in `Decoder`.
        tasks: Number of targets.
        normalise: Mean and deviation per channel.
        paths: The files that the rows name.
    """

    size: int
    fit: str = FITS[0]
    tasks: int = 1
    normalise: Normalise = IMAGENET
    paths: ImagePaths = ImagePaths()
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The column that is read."""
        return [self.paths.column]

    def encode(self, table: Any, report: RowReport) -> Iterator[EncodedRows]:
        """Yield the images that Pillow can read, a batch at a time; the others are added to `report`.

        Raises:
            ValueError: There is no such column.
        """
        files = self.paths.files(table)
        first = report.rows
        most = images_at_a_time(self.size)
        chunks = decode_stream(Decoder(self.size, self.fit), files, most=most, workers=worker_processes())
        shown = with_progress(
            chunks, len(files), label="scoring images", size=lambda c: c.total, progress=None, extra="images"
        )
        for chunk in shown:
            rows = [UnreadableRow(first + item.row, item.value, item.reason) for item in chunk.unreadable]
            report.add_unreadable_rows(rows)
            report.rows += chunk.total
            if chunk.rows:
                dataset = ImageDataset(np.stack(chunk.pixels), normalise=self.normalise)
                yield EncodedRows(dataset, np.array(chunk.rows))

    def to_table(self) -> dict[str, Any]:
        """Return the encoder as plain values, with the version of the decoder."""
        return {
            "size": self.size,
            "fit": self.fit,
            "tasks": self.tasks,
            "mean": list(self.normalise.mean),
            "std": list(self.normalise.std),
            "path": self.paths.column,
            "ending": self.paths.ending,
            "decoder": DECODER_VERSION,
        }

    def summary(self) -> dict[str, list[str]]:
        """Return nothing: there is one column, whose type is known."""
        return {}


def _network(name: str) -> Callable[..., nn.Module]:
    def build(tasks: int, *, width: int = 64, stem: str = "imagenet") -> nn.Module:
        return IMAGE_MODELS[name](tasks, width=width, stem=stem)

    return build


class ImageType(DataType[ImageData]):
    """Images in a folder per class or named by a table, with residual networks and committees of them."""

    title = "images: a folder per class, or a table of files"
    config_class = ImageData
    models: ClassVar[Mapping[str, Callable[..., nn.Module]]] = {name: _network(name) for name in IMAGE_MODELS}
    builder_argument = None
    reading_options = ("path", "root", "ending")
    learns_from_rows = False
    has_pretrained = True

    def fit_encoder(self, table: Any, excluded: Sequence[str]) -> ImageEncoder:  # noqa: ARG002 - nothing is fitted
        """Return the encoder."""
        paths = ImagePaths(self.config.path, ending=self.config.ending)
        return ImageEncoder(self.config.input_size, self.config.fit, len(self.config.targets), paths=paths)

    @classmethod
    def restore_encoder(cls, table: Mapping[str, Any]) -> ImageEncoder:
        """Return the encoder that `ImageEncoder.to_table` described.

        Raises:
            ValueError: Its images were decoded by another version.
        """
        if table["decoder"] != DECODER_VERSION:
            raise ValueError(
                f"this model was trained on images of version {table['decoder']} of the decoder, this apmax has "
                f"version {DECODER_VERSION}: train it again, or use the apmax that trained it"
            )
        normalise = Normalise(tuple(table["mean"]), tuple(table["std"]))
        paths = ImagePaths(table["path"], ending=table["ending"])
        return ImageEncoder(table["size"], table["fit"], table["tasks"], normalise, paths)

    def model_input(self, encoder: ImageEncoder) -> int:
        """Return the number of targets."""
        return encoder.tasks

    def default_model(self, positives: int) -> str:
        """Return "resnet10" for small images with few positives, else "resnet18"."""
        return "resnet10" if self._has_few_positives(positives) else super().default_model(positives)

    def default_options(self, model: str, positives: int) -> Mapping[str, Any]:
        """Return width and stem of a residual network for images of up to 64×64."""
        return small_image_options(self.config.input_size, positives) if model in self.models else {}

    def default_stages(self, rows: int, positives: int, model: str, *, pretrained: bool = False) -> Sequence[Stage]:
        """Return the stages of `image_recipe`, annealed ones of a new network for small images with few positives.

        >>> stages = ImageType(ImageData("images", "y")).default_stages(8_032, 890, "resnet18")
        >>> [(stage.name, stage.epochs, stage.sampler.num_pos) for stage in stages]
        [('ce', 80, 4), ('ap + ce', 12, 8)]
        """
        anneal = model in self.models and not pretrained and self._has_few_positives(positives)
        return image_recipe(rows, positives, size=self.config.input_size, anneal=anneal)

    def committee_features(self, rows: LabelledRows, encoder: Any) -> Features:  # noqa: ARG002 - nothing is fitted
        """Return the images, without labels: each member is given its own."""
        images = rows.dataset
        return ImageFeatures(ImageDataset(images.store, places=images.places, normalise=images.normalise))

    def committee_members(
        self, rows: LabelledRows, *, pretrained: str | None = None, backbone: str | None = None
    ) -> Mapping[str, Member]:
        """Return a network, its twin and its head: `backbone`, or what suits the images and the positives of a fold."""
        share = 1 - 1 / self.committee_folds("standard")
        positives = int(share * rows.positives)
        new = pretrained is None
        # Weights of a file fit only the network that they were saved from.
        name = backbone or (self.default_model(positives) if new else next(iter(self.models)))
        training = ImageTraining(
            name,
            self.default_options(name, positives) if new else {},
            size=self.config.input_size,
            augment=self._augment(),
            anneal=new and name in self.models and self._has_few_positives(positives),
            pretrained=pretrained,
            builder=self._own_builder(name),
        )
        members = image_members(training, training.seconds_per_row(int(share * len(rows.labels))))
        if not training.has_linear_head():
            del members["head"]
        return members

    def committee_notes(self, backbone: str | None) -> list[str]:
        """Return why a network has no member "head"."""
        if backbone is None:
            return []
        training = ImageTraining(backbone, size=self.config.input_size, builder=self._own_builder(backbone))
        if training.has_linear_head():
            return []
        return [f"no member head: the scores of {backbone} are not the output of a last linear layer"]

    def build_backbone(self, backbone: str | None) -> nn.Module:
        """Return a new network; one that is not built in is tried if the size of the images is known.

        Raises:
            ValueError: There is no such network, it cannot be imported, or its output is something else.
        """
        return _build_backbone(backbone or next(iter(self.models)), self.config.size)

    def saved_members(self, backbone: str, builder: Callable[..., nn.Module]) -> Mapping[str, Member]:
        """Return the members that read saved networks of a user's own builder."""
        encoder = ImageEncoder(self.config.input_size)
        build = partial(self.build_model, encoder, backbone, {}, builder=builder)
        return image_members(ImageTraining(backbone, size=encoder.size, builder=build))

    def _own_builder(self, backbone: str) -> Callable[[], nn.Module] | None:
        return None if backbone in self.models else partial(_build_backbone, backbone, self.config.input_size)

    def committee_folds(self, effort: str) -> int:
        """Return 4, for images above 64×64 3: networks are expensive; 5 with the effort "best"."""
        if effort == "best":
            return 5
        return 1 if effort == "quick" else 4 if self.config.input_size <= NARROW_SIZE else 3

    def committee_columns(self, encoder: ImageEncoder) -> int:  # noqa: ARG002 - there are none
        """Return 1: the time that members take is that of their networks."""
        return 1

    def committee_rows(self, encoded: EncodedRows, table: Any) -> Any:  # noqa: ARG002 - encoded is enough
        """Return the images."""
        return encoded.dataset

    def _has_few_positives(self, positives: int) -> bool:
        return self.config.input_size <= NARROW_SIZE and positives < FEW_POSITIVES

    def complete(self, table: Any, source: RowSource) -> ImageType:
        """Return the data type with the image size and the augmentation that suits it."""
        if isinstance(source, ImageFolder):
            for name in self.config.targets:
                source.check_class(name)
        size = self.config.size
        if size is None:
            files = self._paths(source).files(table)
            shapes = [shape_of(file) for file in files[:: max(1, len(files) // INSPECTED_FILES)]]
            sides = [min(shape) for shape in shapes if shape is not None]
            size = max(8, min(USUAL_SIZE, round(median(sides)))) if sides else USUAL_SIZE
        default = augment_for(size)
        name = self.config.augment or ("large" if default == LARGE_IMAGES else "small")
        mirror = default.flip and name != "none" if self.config.mirror is None else self.config.mirror
        return self.with_fields(size=size, augment=name, mirror=mirror)

    def open_source(self, path: str | Path) -> RowSource:
        """Return the rows of a table, or the images of a folder."""
        if Path(path).is_dir():
            return ImageFolder(path, self.config.targets)
        if str(path).lower().endswith(ENDINGS):
            raise ValueError(f"{path} is one image: name the folder that it is in, or a csv that lists files")
        source = super().open_source(path)
        source.check_column(self.config.path, "path")
        return source

    def read_rows(self, source: RowSource, targets: Targets, table: Any) -> LabelledRows:
        """Return the labelled images of a file or folder, read through the cache."""
        labels = targets.labels(table)
        known = np.flatnonzero(any_known(labels))
        paths = self._paths(source)
        every = paths.files(table)
        files = [every[row] for row in known]
        if files and not any(map(os.path.isfile, files)):
            raise ValueError(paths.unreadable_message(files[0], len(files)))
        dataset, report = image_dataset(
            files,
            target_columns(labels)[known],
            size=self.config.input_size,
            fit=self.config.fit,
            on_error=self.config.on_error,
            workers=worker_processes(),
            unmeasured=len(every) - len(known),
            ignored=source.ignored if isinstance(source, ImageFolder) else (),
        )
        unreadable = tuple(UnreadableRow(int(known[item.row]), item.value, item.reason) for item in report.unreadable)
        rows = known[dataset.places]
        return LabelledRows(table.take(rows), labels[rows], dataset, tuple(report.lines()), unreadable, rows)

    def training_dataset(self, dataset: ImageDataset, seed: int) -> ImageDataset:
        """Return the images with augmentation by that seed."""
        return dataset.subset(np.arange(len(dataset)), augment=self._augment(), seed=seed)

    def _augment(self) -> Augment | None:
        """Return the augmentation of a completed configuration."""
        config = self.config
        if config.augment in (None, "none"):
            return None
        augment = LARGE_IMAGES if config.augment == "large" else augment_for(min(config.input_size, NARROW_SIZE))
        return replace(augment, flip=bool(config.mirror), upside_down=config.upside_down)

    def encoder_for(self, encoder: ImageEncoder, source: RowSource | None, options: Mapping[str, Any]) -> ImageEncoder:
        """Return the encoder for the images of another file or folder."""
        path = options.get("path", PATH if isinstance(source, ImageFolder) else encoder.paths.column)
        ending = options.get("ending", encoder.paths.ending)
        return replace(encoder, paths=ImagePaths.of(source, path=path, root=options.get("root"), ending=ending))

    def facts(self) -> list[str]:
        """Return a line about the size and the augmentation."""
        config, augment = self.config, self._augment()
        changes = ["unchanged"]
        if augment is not None:
            changes = [
                "cropped and recoloured" if augment.pad == 0 else f"shifted by up to {plural(augment.pad, 'pixel')}"
            ]
            changes += ["mirrored"] * augment.flip + ["turned upside down"] * augment.upside_down
        text = ", ".join(changes)
        return [f"images become {config.size}×{config.size} ({config.fit}); in training they are {text}"]

    def nothing_readable(self, encoder: ImageEncoder, rows: Sequence[UnreadableRow]) -> str:
        """Return the error message for a file none of whose images can be read."""
        return f"{encoder.paths.unreadable_message(rows[0].value, len(rows))}; {rows[0].reason}"

    def find_builder(self, name: str) -> Callable[..., nn.Module]:
        """Return the builder of a model: a built-in one, one of timm, or "package.module:callable"."""
        if name in self.models:
            return self.models[name]
        return partial(build_image_model, name, size=self.config.input_size)

    def check_options(self, name: str, options: Mapping[str, Any], builder: Callable[..., nn.Module]) -> None:
        """Raise for options that a model does not have; timm checks those of its models.

        Options by which timm would load weights of its own are refused: `pretrained` names a file of plain weights.
        """
        for key in options:
            if name not in self.models and ("pretrained" in key or "checkpoint" in key):
                raise ValueError(f"model: {key} is no option here; pretrained=FILE loads weights")
        # A builder that the caller has given is not imported again by its name.
        named = is_import_path(name) and getattr(builder, "func", None) is build_image_model
        super().check_options(name, options, extras.load_callable(name) if named else builder)

    def build_model(
        self,
        encoder: ImageEncoder,
        name: str,
        options: Mapping[str, Any],
        *,
        builder: Callable[..., nn.Module] | None = None,
        prior: float | None = None,
    ) -> nn.Module:
        """Return a new network; a user's callable gets the number of targets first, or as `num_outputs`."""
        if builder is not None and "num_outputs" in inspect.signature(builder).parameters:
            return builder(num_outputs=self.model_input(encoder), **options)
        return super().build_model(encoder, name, options, builder=builder, prior=prior)

    def load_weights(self, network: Any, path: str) -> str:
        """Load a file of weights, such as torchvision's, into a new network and return a description."""
        return load_pretrained(network, path)

    @property
    def scoring_batch_size(self) -> int:
        """Number of images that are scored at a time."""
        return images_at_a_time(self.config.input_size)

    def draw_contact_sheet(
        self,
        path: Path,
        files: Sequence[str],
        scores: npt.NDArray[np.float32],
        labels: npt.NDArray[np.float32],
        title: str,
    ) -> None:
        """Draw the best-ranked images, with true and false positives marked; labels are NaN where unknown."""
        contact_sheet_of_files(path, files, scores, labels=labels, title=title, fit=self.config.fit)

    def _paths(self, source: RowSource) -> ImagePaths:
        return ImagePaths.of(source, path=self.config.path, root=self.config.root, ending=self.config.ending)


def _build_backbone(name: str, size: int | None) -> nn.Module:
    """Return a new network with one score per image."""
    try:
        return build_image_model(name, 1, size=size)
    except ValueError as error:
        raise ValueError(re.sub("^model", "backbone", str(error))) from error


def ignored_files_warning(source: RowSource) -> list[str]:
    """Return a line about the files of a folder that are no images by their name, if there are any."""
    ignored = source.ignored if isinstance(source, ImageFolder) else []
    return [describe_ignored(ignored)] if ignored else []
