"""From a ranking to a decision: a threshold with bounds, by itself or for a trained model's folder."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apmax.decide.thresholds import Bounded, Decision, assess_threshold, choose_threshold
from apmax.lazy import lazy_attributes

if TYPE_CHECKING:
    from apmax.decide.folder import DECISION_VERSION, FolderDecision, decide_folder, read_decisions

__all__ = [
    "DECISION_VERSION",
    "Bounded",
    "Decision",
    "FolderDecision",
    "assess_threshold",
    "choose_threshold",
    "decide_folder",
    "read_decisions",
]

# Folders of models need what trains them; a threshold for scores does not.
_FOLDER = ("DECISION_VERSION", "FolderDecision", "decide_folder", "read_decisions")
__getattr__, __dir__ = lazy_attributes(__name__, __all__, {"folder": _FOLDER})
