"""Graph networks over molecules, on plain tensors."""

from apmax.models.graphs.base import GraphNetwork
from apmax.models.graphs.gine import GINE
from apmax.models.graphs.ml_mpnn import MLMPNN
from apmax.models.graphs.mpnn import MPNN

GRAPH_MODELS: dict[str, type[GraphNetwork]] = {"gine": GINE, "mpnn": MPNN, "ml-mpnn": MLMPNN}

__all__ = ["GINE", "GRAPH_MODELS", "MLMPNN", "MPNN", "GraphNetwork"]
