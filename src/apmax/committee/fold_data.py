"""Interface of members: the rows of a fold that one is fitted to, and what a fitted one can do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from apmax.committee.features import Matrix

_Array = NDArray[np.float64]


@dataclass(frozen=True)
class FoldData:
    """What a member is fitted to: the training rows of one fold.

    Attributes:
        matrix: Encoded rows, (n, d).
        rows: The same rows in their original form, for a user's own estimators.
        labels: (n,) of 0/1.
        sample_weight: (n,) positive.
        sizes: Per column of the matrix 0 for numbers, else the number of codes.
        stopping: Rows to fit and rows to stop or select by; None where there are too few positives for that.
        seed: Of everything random.
        rounds: Fixed numbers of rounds, of each stage for networks, to fit all rows with instead of stopping.
        threads: Number of threads that a fit may use if the result does not depend on it.
        shared: What members of the same fold have in common and need to compute once only, by their own keys.
    """

    matrix: Matrix
    rows: Any
    labels: _Array
    sample_weight: _Array
    sizes: Sequence[int]
    stopping: tuple[NDArray[np.int64], NDArray[np.int64]] | None
    seed: int
    rounds: tuple[int, ...] | None = None
    threads: int = 1
    shared: dict[Any, Any] = field(default_factory=dict)


class FittedMember(Protocol):
    """A member that was fitted to one fold."""

    @property
    def rounds(self) -> tuple[int, ...]:
        """Numbers of rounds that stopping found, of each stage for networks; empty without stopping."""

    def score(self, matrix: Matrix) -> _Array:
        """Return a score for each row, log-odds where the member has probabilities."""

    def to_bytes(self) -> bytes:
        """Return the member in a form whose reading executes no code."""
