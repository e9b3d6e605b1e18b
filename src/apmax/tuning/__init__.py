"""The search for good settings: the paper's grids, chosen by validation AP, in a file that survives everything."""

from apmax.tuning.figures import draw
from apmax.tuning.outcome import Best, best_of, write_best
from apmax.tuning.search import Plan, open_study, search
from apmax.tuning.spaces import SPACES, read_space, space_for

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
