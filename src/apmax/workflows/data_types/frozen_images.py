"""Images in front of a frozen network: members are fitted to its embeddings, which are computed once."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import nn

from apmax.committee import MEMBERS_BY_KIND, ArrayFeatures, Member
from apmax.committee.plan import MOST_FOLDS
from apmax.train import embed
from apmax.train.weights import last_linear
from apmax.workflows.data_types.images import ImageData, ImageEncoder, ImageType
from apmax.workflows.data_types.rows import EncodedRows, LabelledRows

if TYPE_CHECKING:
    from typing_extensions import Self

FROZEN_MEMBERS = ("linear", "linear_ce", "gbdt")
"""Heads by exact average precision and by cross-entropy, and gradient boosting, all on embeddings."""


class FrozenImageType(ImageType):
    """Images whose members read what the last linear layer of one network reads; its weights never change.

    Args:
        config: The job's [data].
        network: The network.
        images: Training images: their embeddings are computed here, or read from the cache folder.

    Raises:
        ValueError: The scores of the network are not the output of a last linear layer.

    >>> from apmax.models.images import resnet10
    >>> heads = FrozenImageType(ImageData("images", "malignant"), resnet10(width=8))
    >>> heads.committee_columns(heads.fit_encoder(None, ())), heads.committee_folds("standard")
    (64, 5)
    """

    def __init__(self, config: ImageData, network: nn.Module, images: Any = None) -> None:
        super().__init__(config)
        self.network = network.eval().to("cuda" if torch.cuda.is_available() else "cpu")
        self._rows: npt.NDArray[np.int64] | None = None
        if images is not None:
            try:
                self._embeddings = self._embed(images, cache=True)
            except ValueError as error:
                raise ValueError(f"frozen: {error}") from error
            self._rows = np.full(images.places.max() + 1, -1)
            self._rows[images.places] = np.arange(len(images))

    def with_fields(self, **fields: Any) -> Self:
        """Return the data type with other fields of its configuration, without the training images."""
        return type(self)(replace(self.config, **fields), self.network)

    def committee_features(self, rows: LabelledRows, encoder: Any) -> ArrayFeatures:  # noqa: ARG002 - nothing is fitted
        """Return the embeddings of some of the training images."""
        assert self._rows is not None
        return ArrayFeatures(self._embeddings[self._rows[rows.dataset.places]])

    def committee_members(
        self,
        rows: LabelledRows,  # noqa: ARG002 - always the same members
        *,
        pretrained: str | None = None,  # noqa: ARG002 - the network has its weights
        backbone: str | None = None,  # noqa: ARG002 - and is built
    ) -> Mapping[str, Member]:
        """Return the members that read embeddings."""
        return {name: MEMBERS_BY_KIND["table"][name] for name in FROZEN_MEMBERS}

    def committee_notes(self, backbone: str | None) -> list[str]:  # noqa: ARG002 - heads are all there is
        """Return nothing."""
        return []

    def committee_folds(self, effort: str) -> int:
        """Return as many folds as tables have: members cost seconds."""
        return MOST_FOLDS[effort]

    def committee_columns(self, encoder: ImageEncoder) -> int:  # noqa: ARG002 - the network knows
        """Return the number of values that the last layer reads."""
        return last_linear(self.network).in_features

    def committee_rows(self, encoded: EncodedRows, table: Any) -> npt.NDArray[np.float64]:  # noqa: ARG002
        """Return the embeddings of new images."""
        return self._embed(encoded.dataset, cache=False)

    def _embed(self, images: Any, *, cache: bool) -> npt.NDArray[np.float64]:
        found = embed(self.network, images, batch_size=self.scoring_batch_size, cache=cache)
        embeddings: npt.NDArray[np.float64] = found.double().numpy()
        return embeddings
