"""Results of a training job."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apmax.committee import Leaderboard
from apmax.train import Record
from apmax.workflows.evaluation import TargetEvaluations
from apmax.workflows.saved_model import SavedModel
from apmax.workflows.scored_rows import ScoredRows

Notify = Callable[[list[str], list[str]], None]
"""A function that is called with facts and warnings about the data before training begins."""


@dataclass(frozen=True)
class JobResult:
    """The outcome of a training.

    Args:
        folder: Where the model is.
        model: The chosen model.
        valid: Its metrics on the rows by which it was chosen: validation rows (of an ensemble of images each scored by
            the networks that hold it out), or the cross-fitted (of one split: held-out) training rows of a committee.
        test: Its metrics on the test rows, if there are any.
        records: The trainer's records, one an epoch.
        chosen: Stage and epoch of the chosen weights, for each member of an ensemble.
        warnings: Anomalies of the test rows.
        contact_sheets: Pictures of the best-ranked images, of the test rows if there are any.
        scored: Scores of these rows and of the test rows.
        leaderboards: Of a committee, by target; empty of a network.
    """

    folder: Path
    model: SavedModel
    valid: TargetEvaluations
    test: TargetEvaluations | None
    records: list[Record] = field(default_factory=list)
    chosen: list[dict[str, Any]] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    contact_sheets: list[Path] = field(default_factory=list)
    scored: list[ScoredRows] = field(default_factory=list)
    leaderboards: Mapping[str, Leaderboard] = field(default_factory=dict)

    @property
    def parts(self) -> dict[str, TargetEvaluations]:
        """The metrics by part: "validation", "cross-fitted" or "held-out", and "test" if there are test rows."""
        return {self.scored[0].part: self.valid} | ({} if self.test is None else {"test": self.test})
