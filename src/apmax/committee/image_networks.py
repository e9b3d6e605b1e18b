"""Networks of a committee of images: their architecture, training and cost."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from apmax import validation
from apmax.committee.fold_data import FoldData
from apmax.committee.network_members import NetworkDesign, original_rows, subset, unchanged
from apmax.models.images import IMAGE_MODELS, load_pretrained
from apmax.train import Stage, image_recipe

if TYPE_CHECKING:  # needs pyarrow, which the extra `sklearn` does not bring
    from apmax.data.images import Augment, ImageDataset

# Seconds of one core for a training step, per image and per operation of its forward pass; measured on a ResNet-10 at
# 8×8 and ResNet-18 at 8×8 to 224×224, all within a quarter. Scoring takes a quarter of that.
_SECONDS_PER_IMAGE, _SECONDS_PER_OPERATION, _SCORING_SHARE = 1.5e-4, 4.2e-11, 0.25
_OPTIONS = ("width", "stem")


@dataclass(frozen=True)
class ImageTraining:
    """How the networks of a committee of images are built and trained.

    Attributes:
        name: A key of `IMAGE_MODELS`.
        options: Keyword arguments of its builder: width and stem.
        size: Height and width of the images.
        augment: Random changes of training images; None for none.
        anneal: As in `image_recipe`; annealed networks learn from all rows of a fold, without a stopping split.
        pretrained: File of weights that the networks begin with, as in `load_pretrained`; None for none.

    >>> ImageTraining(size=32, anneal=True).design().name
    'image network'
    """

    name: str = next(iter(IMAGE_MODELS))
    options: Mapping[str, Any] = field(default_factory=dict)
    size: int = 224
    augment: Augment | None = None
    anneal: bool = False
    pretrained: str | None = None

    def design(self) -> NetworkDesign:
        """Return the design of the members."""
        return NetworkDesign(
            "image network",
            self._architecture,
            _build,
            self.stages,
            unchanged,
            subset,
            original_rows,
            _batch_size,
            partial(_augmented, augment=self.augment),
            selects=not self.anneal,
            accelerator="auto",
            begin=None if self.pretrained is None else partial(load_pretrained, path=self.pretrained),
        )

    def stages(self, rows: int, positives: int) -> tuple[Stage, ...]:
        """Return the two stages for a number of rows and of positives."""
        return image_recipe(rows, positives, size=self.size, anneal=self.anneal)

    def seconds_per_row(self, rows: int) -> SecondsPerRow:
        """Return the estimated time of one core for each row of a training set of that many."""
        with torch.device("meta"):
            network, image = _build(self._table(), None).eval(), torch.zeros(1, 3, self.size, self.size)
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                network(image)
        step = _SECONDS_PER_IMAGE + _SECONDS_PER_OPERATION * counter.get_total_flops()
        # The number of epochs does not depend on the positives.
        first, second = (stage.epochs * step for stage in self.stages(max(rows, 2), 1))
        return SecondsPerRow(first, second, _SCORING_SHARE * step)

    def _architecture(self, data: FoldData) -> Mapping[str, Any]:  # noqa: ARG002 - the same for all folds
        return self._table()

    def _table(self) -> dict[str, Any]:
        return {"name": self.name, "options": dict(self.options)}


class SecondsPerRow(NamedTuple):
    """Time of the first stage, of the second stage and of scoring, in seconds for each row."""

    first: float
    second: float
    scoring: float


NO_SECONDS = SecondsPerRow(0.0, 0.0, 0.0)
"""Where nothing is planned."""


def _build(architecture: Mapping[str, Any], prior: float | None) -> nn.Module:  # noqa: ARG001 - training finds it soon
    name = validation.choice("model", architecture["name"], IMAGE_MODELS)
    options = {key: architecture["options"][key] for key in _OPTIONS if key in architecture["options"]}
    if set(options) != set(architecture["options"]):
        raise ValueError(f"options must be some of {', '.join(_OPTIONS)}, got {', '.join(architecture['options'])}")
    return IMAGE_MODELS[name](1, **options)


def _batch_size(images: ImageDataset) -> int:
    from apmax.data.images import images_at_a_time

    return images_at_a_time(images.store.shape[0])


def _augmented(images: ImageDataset, seed: int, *, augment: Augment | None) -> ImageDataset:
    return images.subset(range(len(images)), augment=augment, seed=seed)
