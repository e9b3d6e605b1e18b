"""The search for good settings: the paper's grids, chosen by validation AP, in a file that survives everything."""

from apmax.workflows.tuning.figures import draw
from apmax.workflows.tuning.outcome import Best, best_of, write_best
from apmax.workflows.tuning.search import Plan, open_study, search
from apmax.workflows.tuning.spaces import SPACES, read_space, space_for

__all__ = [
    "SPACES",
    "Best",
    "Plan",
    "best_of",
    "draw",
    "open_study",
    "read_space",
    "search",
    "space_for",
    "write_best",
]
