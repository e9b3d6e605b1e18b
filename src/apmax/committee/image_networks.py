"""Networks of a committee of images: their architecture, training and cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import nn
from torch.utils.flop_counter import FlopCounterMode

from apmax import validation
from apmax.committee.fold_data import FoldData
from apmax.committee.network_members import NetworkDesign
from apmax.models.images import IMAGE_MODELS, load_pretrained
from apmax.train import Stage, embed, image_recipe

if TYPE_CHECKING:
    from apmax.data.images import Augment, ImageDataset

# Seconds of one core for a training step, per image and per operation of its forward pass; measured on a ResNet-10 at
# 8×8 and ResNet-18 at 8×8 to 224×224, all within a quarter. Scoring takes a quarter of that.
_SECONDS_PER_IMAGE, _SECONDS_PER_OPERATION, _SCORING_SHARE = 1.5e-4, 4.2e-11, 0.25
_OPTIONS = ("width", "stem")


@dataclass(frozen=True)
class ImageTraining(NetworkDesign):
    """How the networks of a committee of images are built and trained.

    Attributes:
        name: A key of `IMAGE_MODELS`, or how the user names the network of `builder`.
        options: Keyword arguments of its builder: width and stem.
        size: Height and width of the images.
        augment: Random changes of training images; None for none.
        anneal: As in `image_recipe`; annealed networks learn from all rows of a fold, without a stopping split.
        pretrained: File of weights that the networks begin with, as in `load_pretrained`; None for none.
        builder: Returns a new network that is not in `IMAGE_MODELS`, with one score per image; None for one of these.

    >>> [stage.epochs for stage in ImageTraining(size=32, anneal=True).stages(1000, 20)]
    [30, 3]
    """

    name: str = next(iter(IMAGE_MODELS))
    options: Mapping[str, Any] = field(default_factory=dict)
    size: int = 224
    augment: Augment | None = None
    anneal: bool = False
    pretrained: str | None = None
    builder: Callable[[], nn.Module] | None = None

    accelerator = "auto"

    @property
    def selects(self) -> bool:
        """Whether held-out rows select the epoch: of an annealed network the last one is taken."""
        return not self.anneal

    @property
    def own_code(self) -> bool:
        """Whether a new network comes from code of the user's own."""
        return self.builder is not None

    def architecture(self, data: FoldData | None) -> Mapping[str, Any]:  # noqa: ARG002 - the same for all folds
        """Return the name of the network and the options of its builder."""
        return {"name": self.name, "options": dict(self.options)}

    def build(self, architecture: Mapping[str, Any], prior: float | None) -> nn.Module:  # noqa: ARG002 - found soon
        """Return a new network."""
        if self.builder is not None and architecture == {"name": self.name, "options": {}}:
            return self.builder()
        name = validation.choice("model", architecture["name"], IMAGE_MODELS)
        options = {key: architecture["options"][key] for key in _OPTIONS if key in architecture["options"]}
        if set(options) != set(architecture["options"]):
            raise ValueError(f"options must be some of {', '.join(_OPTIONS)}, got {', '.join(architecture['options'])}")
        return IMAGE_MODELS[name](1, **options)

    def begin(self, network: nn.Module) -> nn.Module:
        """Return a new network with the pretrained weights, if there are any."""
        if self.pretrained is not None:
            load_pretrained(network, self.pretrained)
        return network

    def stages(self, rows: int, positives: int) -> tuple[Stage, ...]:
        """Return the two stages for a number of rows and of positives."""
        return image_recipe(rows, positives, size=self.size, anneal=self.anneal)

    def augmented(self, dataset: ImageDataset, seed: int) -> ImageDataset:
        """Return the images with random changes by a seed."""
        return dataset.subset(range(len(dataset)), augment=self.augment, seed=seed)

    def batch_size(self, rows: ImageDataset) -> int:
        """Return how many of the images are scored at a time."""
        # Imported here, because it brings the readers of images and pyarrow, which tables as arrays do not need.
        from apmax.data.images import images_at_a_time

        return images_at_a_time(rows.store.shape[0])

    def seconds_per_row(self, rows: int) -> SecondsPerRow:
        """Return the estimated time of one core for each row of a training set of that many."""
        # Code of the user's own may not know the device "meta".
        with torch.device("meta") if self.builder is None else nullcontext():
            network, image = self._new_network().eval(), torch.zeros(1, 3, self.size, self.size)
            with FlopCounterMode(display=False) as counter, torch.no_grad():
                network(image)
        step = _SECONDS_PER_IMAGE + _SECONDS_PER_OPERATION * counter.get_total_flops()
        # The number of epochs does not depend on the positives.
        first, second = (stage.epochs * step for stage in self.stages(max(rows, 2), 1))
        return SecondsPerRow(first, second, _SCORING_SHARE * step)

    def has_linear_head(self) -> bool:
        """Return whether the scores are the output of a last linear layer, which can be fitted to embeddings."""
        if self.builder is None:
            return True
        from apmax.data.images import ImageDataset

        pixels = np.random.default_rng(0).integers(0, 256, (2, self.size, self.size, 3), dtype=np.uint8)
        try:
            embed(self._new_network(), ImageDataset(pixels))
        except ValueError:
            return False
        return True

    def _new_network(self) -> nn.Module:
        return self.build(self.architecture(None), None)


class SecondsPerRow(NamedTuple):
    """Time of the first stage, of the second stage and of scoring, in seconds for each row."""

    first: float
    second: float
    scoring: float


NO_SECONDS = SecondsPerRow(0.0, 0.0, 0.0)
"""Where nothing is planned."""
