"""Base class of the graph networks."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from apmax import validation
from apmax.data.molecules import ATOM_WIDTH, BOND_WIDTH, FEATURISER_VERSION
from apmax.models.graphs.graph_batch import GraphBatch, read_graph_batch


class GraphNetwork(nn.Module, ABC):
    """A network over molecules: `model(batch)` or `model(x, edge_index, edge_attr, batch)`.

    A batch is a `MoleculeBatch`, PyG's `Data` or `Batch`, or any object with these attributes. `x` and `edge_attr` are
    integers (categories of `apmax.data.molecules`) or floating-point features (dense one-hots, or your own).
    `state_dict` holds the version of the featuriser; loading weights of another version raises ValueError.

    Args:
        hidden: Width of all layers.
        tasks: Outputs per molecule.
        atom_features: Width of dense atom features.
        bond_features: Width of dense bond features.
        dropout: Dropout probability between the head's two layers.

    Returns:
        Scores (B,) of one task, (B, tasks) of several; raw, without a sigmoid.
    """

    head: nn.Module

    def __init__(
        self,
        hidden: int = 64,
        tasks: int = 1,
        *,
        atom_features: int = ATOM_WIDTH,
        bond_features: int = BOND_WIDTH,
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.hidden = validation.whole("hidden", hidden, 1)
        self.tasks = validation.whole("tasks", tasks, 1)
        self.atom_features = validation.whole("atom_features", atom_features, 1)
        self.bond_features = validation.whole("bond_features", bond_features, 1)
        self.dropout = validation.interval("dropout", dropout, 0, 1, closed="left")

        self.register_buffer("featuriser_version", torch.tensor(FEATURISER_VERSION))
        self.register_load_state_dict_pre_hook(_refuse_other_version)
        self.build()

    def forward(
        self, x: Any, edge_index: Tensor | None = None, edge_attr: Tensor | None = None, batch: Tensor | None = None
    ) -> Tensor:
        """Return the scores of a batch, (B,) or (B, tasks)."""
        # No mixed precision: sums over neighbours need the precision of the weights.
        with torch.autocast(next(self.parameters()).device.type, enabled=False):
            graphs = read_graph_batch(
                x, edge_index, edge_attr, batch, dtype=self.dtype, widths=(self.atom_features, self.bond_features)
            )
            scores: Tensor = self.head(self.embed(graphs, x))
        return scores[:, 0] if self.tasks == 1 else scores

    @abstractmethod
    def build(self) -> None:
        """Create the layers and `head`; the widths are already attributes."""

    @abstractmethod
    def embed(self, graphs: GraphBatch, inputs: Any) -> Tensor:
        """Return the input of the head, (B, width); `inputs` is the first argument of the call."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the parameters."""
        return next(self.parameters()).dtype

    def make_head(self, width: int) -> nn.Sequential:
        """Return the two-layer head, which a second training stage may reset."""
        return nn.Sequential(
            nn.Linear(width, self.hidden), nn.ReLU(), nn.Dropout(self.dropout), nn.Linear(self.hidden, self.tasks)
        )


def _refuse_other_version(module: GraphNetwork, state: dict[str, Any], prefix: str, *_: Any) -> None:
    version = state.get(prefix + "featuriser_version")
    if version is not None and int(version) != FEATURISER_VERSION:
        raise ValueError(
            f"these weights were trained with version {int(version)} of the featuriser, this apmax has "
            f"version {FEATURISER_VERSION}: train {type(module).__name__} again, or use the apmax that trained it"
        )
