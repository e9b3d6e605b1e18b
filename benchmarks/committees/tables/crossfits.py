"""Raw scores of single members on every fold, kept on disk for studies of alignment and blends."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax.committee import ArrayFeatures, Member, TrainingRows
from apmax.committee.crossfit import make_folds, stopping_split
from apmax.committee.members import FoldData
from apmax.data.archives import npz_content, read_npz
from apmax.folders import write_atomic
from benchmarks.committees.tables.problems import TableSplit

_Array = NDArray[np.float64]
FOLDS = 5


@dataclass(frozen=True)
class MemberScores:
    """Scores of one member before any alignment.

    Attributes:
        held_out: (n,) of each training row by the model that has not seen it.
        fold: (n,) the fold of each training row.
        test: (folds, m) of each test row by every fold's model.
        seconds: Time of all fits.
    """

    held_out: _Array
    fold: NDArray[np.int64]
    test: _Array
    seconds: float

    def aligned(self, by_fold: bool) -> tuple[_Array, _Array]:
        """Return cross-fitted scores (n,) and test scores (m,), by each fold's location and scale or as they are."""
        held_out, test = self.held_out.copy(), self.test.copy()
        for number in range(len(test)):
            own = self.fold == number
            location, scale = (self.held_out[own].mean(), self.held_out[own].std() or 1.0) if by_fold else (0.0, 1.0)
            held_out[own] = (held_out[own] - location) / scale
            test[number] = (test[number] - location) / scale
        return held_out, test.mean(0)


def keep_positives(split: TableSplit, count: int | None, seed: int) -> TableSplit:
    """Return the split with at most `count` positives in its training part; the test part stays as it is."""
    if count is None or split.train_labels.sum() <= count:
        return split
    positives = np.random.default_rng(seed).permutation(np.flatnonzero(split.train_labels == 1))[:count]
    rows = np.sort(np.concatenate([positives, np.flatnonzero(split.train_labels == 0)]))
    return replace(split, train=split.train[rows], train_labels=split.train_labels[rows])


def cross_fit(split: TableSplit, member: Member, *, seed: int = 0, groups: NDArray[Any] | None = None) -> MemberScores:
    """Fit a member to the folds that a committee makes, and score held-out and test rows."""
    started = time.monotonic()
    rows = TrainingRows(ArrayFeatures(split.train), split.train_labels, np.ones(len(split.train)), groups)
    held_out, fold, test = np.empty(len(split.train)), np.empty(len(split.train), np.int64), []
    for number, (train, own) in enumerate(make_folds(rows, FOLDS, seed)):
        features = rows.features.fit(train, rows.sample_weight)
        data = FoldData(
            features.matrix(split.train[train]),
            None,
            split.train_labels[train],
            rows.sample_weight[train],
            features.sizes,
            stopping_split(rows, train, seed + number),
            seed + number,
        )
        model = member.fit(data)
        held_out[own], fold[own] = model.score(features.matrix(split.train[own])), number
        test.append(model.score(features.matrix(split.test)))
    return MemberScores(held_out, fold, np.stack(test), time.monotonic() - started)


def cached_scores(path: Path, split: TableSplit, member: Member) -> MemberScores:
    """Return the scores that `path` holds, or make and write them."""
    if not path.exists():
        found = cross_fit(split, member)
        path.parent.mkdir(parents=True, exist_ok=True)
        write_atomic(path, npz_content(**vars(found)))
        return found
    arrays = read_npz(path, ("held_out", "fold", "test", "seconds"))
    return MemberScores(arrays["held_out"], arrays["fold"], arrays["test"], float(arrays["seconds"]))
