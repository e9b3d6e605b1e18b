"""Weights of the paper authors' published cross-entropy models of HIV, for our networks."""

from __future__ import annotations

from os import PathLike

import numpy as np
import torch
from torch import Tensor

from apmax.data.download import locate
from apmax.models.graphs import GINE, MLMPNN, MPNN, GraphNetwork

HIDDEN = 32
"""Hidden width of the published models."""

_HEAD = {"mlp1.lin1.": "head.0.", "mlp1.lin2.": "head.3."}
_CONVOLUTIONS = {"conv1.": "first.", "conv2.": "second.", "conv3.": "third."}
_MULTI_LEVEL = {
    "edge_model.edge_mlp.": "bonds.",
    "node_model.node_mlp_1.": "messages.",
    "node_model.node_mlp_2.": "atoms.",
    "subgraph_model.mlp1.": "clique_neighbours.",
    "subgraph_model.mlp2.": "clique_atoms.",
    "subgraph_model.subgraph_mlp.": "cliques.",
    "global_model.global_mlp.": "molecules.",
}
_LEVELS = {"node": "atoms", "edge": "bonds", "subgraph": "cliques", "global": "molecules"}
# Batch norm 3 follows the start, 0 to 2 the layers; of the last, only the molecules' affects the scores.
_NORMS = {f"bn_{level}.{k}.": f"norms.{(k + 1) % 4}.{ours}." for level, ours in _LEVELS.items() for k in (3, 0, 1)}

_RENAMES: dict[type[GraphNetwork], dict[str, str]] = {
    GINE: {
        **_HEAD,
        **{f"{theirs}nn.0.": f"{ours}linear." for theirs, ours in _CONVOLUTIONS.items()},
        **{f"{theirs}eps": f"{ours}eps" for theirs, ours in _CONVOLUTIONS.items()},
        "lin1.": "bonds_first.",
        "lin2.": "bonds_later.",
    },
    MPNN: {
        **_HEAD,
        **{f"{theirs}nn.0.": f"{ours}matrices." for theirs, ours in _CONVOLUTIONS.items()},
        **{f"{theirs}root": f"{ours}root.weight" for theirs, ours in _CONVOLUTIONS.items()},
        **{f"{theirs}bias": f"{ours}root.bias" for theirs, ours in _CONVOLUTIONS.items()},
        "bn1.": "first_norm.",
        "bn2.": "second_norm.",
    },
    MLMPNN: {
        **_HEAD,
        "mlp_node.": "atoms.",
        "mlp_edge.": "bonds.",
        "mlp_global.": "molecules.",
        "emb_subgraph.": "cliques.",
        **{f"gn.{k}.{theirs}": f"layers.{k}.{ours}" for k in range(3) for theirs, ours in _MULTI_LEVEL.items()},
        **_NORMS,
        "bn_global.2.": "last_norm.",
    },
}
_UNUSED = ("bn_node.2.", "bn_edge.2.", "bn_subgraph.2.")
_FILES = {GINE: "gine.npz", MPNN: "mpnn.npz", MLMPNN: "ml_mpnn.npz"}


def load_authors_weights(model: GraphNetwork, data_dir: str | PathLike[str] | None = None) -> None:
    """Copy the authors' stage-1 weights of HIV into a network with `hidden=32`.

    Args:
        model: A `GINE`, `MPNN` or `MLMPNN`.
        data_dir: The folder of data sets, with `hiv/authors_ce/{gine,mpnn,ml_mpnn}.npz`; by default `APMAX_DATA`.

    Raises:
        FileNotFoundError: The weights are not in `data_dir`.
        RuntimeError: The network has other shapes.
    """
    with np.load(locate(f"hiv/authors_ce/{_FILES[type(model)]}", data_dir), allow_pickle=False) as arrays:
        theirs = {name: torch.from_numpy(arrays[name]) for name in arrays.files}
    model.load_state_dict(rename_authors_weights(type(model), theirs) | {"featuriser_version": _version(model)})


def rename_authors_weights(network: type[GraphNetwork], weights: dict[str, Tensor]) -> dict[str, Tensor]:
    """Return the authors' state dict of a network under our names and in our shapes.

    Raises:
        KeyError: A name that the authors' networks do not have.

    >>> weights = {"conv2.root": torch.zeros(32, 16), "mlp1.lin2.bias": torch.zeros(1)}
    >>> {name: tuple(value.shape) for name, value in rename_authors_weights(MPNN, weights).items()}
    {'second.root.weight': (16, 32), 'head.3.bias': (1,)}
    """
    renamed = {}
    for name, value in weights.items():
        if name.startswith(_UNUSED):
            continue
        prefix = next((prefix for prefix in _RENAMES[network] if name.startswith(prefix)), None)
        if prefix is None:
            raise KeyError(f"{name!r} is not a weight of the authors' {network.__name__}")
        rest = name.removeprefix(prefix).replace("lin1", "first").replace("lin2", "second")
        ours = _RENAMES[network][prefix] + rest
        # Their root matrices are multiplied from the right, their ε has one element.
        renamed[ours] = value.T if name.endswith(".root") else value.squeeze() if name.endswith(".eps") else value
    return renamed


def _version(model: GraphNetwork) -> Tensor:
    version = model.featuriser_version
    assert isinstance(version, Tensor)
    return version
