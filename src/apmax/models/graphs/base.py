"""What the graph networks share: how they are called, and the head."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from torch import Tensor, nn

from apmax import validation
from apmax.data.molecules.vocabulary import ATOM_WIDTH, BOND_WIDTH, FEATURISER_VERSION
from apmax.models.graphs.inputs import Graphs, read_graphs


class GraphNetwork(nn.Module, ABC):
    """A network over molecules: `model(batch)` or `model(x, edge_index, edge_attr, batch)`.

    A batch is a `MoleculeBatch`, PyG's `Data` or `Batch`, or anything with these attributes. `x` and `edge_attr` are
    whole numbers (categories of our featuriser) or floating features (dense one-hots, or your own).
    `state_dict` carries the featuriser's version; weights of another version are refused.

    Args:
        hidden: Width of all layers.
        tasks: Outputs per molecule.
        atom_features: Width of dense atom features.
        bond_features: Width of dense bond features.
        dropout: Between the head's two layers.

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
        """Return the scores of a batch."""
        # In the precision of the weights, also where a trainer asks for a mixed one: sums over neighbours need it.
        with torch.autocast(next(self.parameters()).device.type, enabled=False):
            graphs = read_graphs(
                x, edge_index, edge_attr, batch, dtype=self.dtype, widths=(self.atom_features, self.bond_features)
            )
            scores: Tensor = self.head(self.embed(graphs, x))
        return scores[:, 0] if self.tasks == 1 else scores

    @abstractmethod
    def build(self) -> None:
        """Make the layers, of the widths that the constructor has set, and `head`."""

    @abstractmethod
    def embed(self, graphs: Graphs, given: Any) -> Tensor:
        """Return what the head reads, (B, width); `given` is what the model was called with."""

    @property
    def dtype(self) -> torch.dtype:
        """The precision of the parameters."""
        return next(self.parameters()).dtype

    def make_head(self, width: int) -> nn.Sequential:
        """Return the two-layer head, which the second stage of training re-initialises."""
        return nn.Sequential(
            nn.Linear(width, self.hidden), nn.ReLU(), nn.Dropout(self.dropout), nn.Linear(self.hidden, self.tasks)
        )


def _refuse_other_version(module: GraphNetwork, state: dict[str, Any], prefix: str, *_: Any) -> None:
    found = state.get(prefix + "featuriser_version")
    if found is not None and int(found) != FEATURISER_VERSION:
        raise ValueError(
            f"these weights were trained with version {int(found)} of the featuriser, this apmax has "
            f"version {FEATURISER_VERSION}: train {type(module).__name__} again, or use the apmax that trained it"
        )
