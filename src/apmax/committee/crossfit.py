"""Cross-fitting: every row is scored by models that have not seen it, and these scores choose the blend."""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax import validation
from apmax.blend import LEAST_DEVIATION, Blend, fit_blend
from apmax.committee.features import Features, FittedFeatures
from apmax.committee.fold_data import FittedMember
from apmax.committee.leaderboard import CROSS_FITTED, HELD_OUT, Leaderboard, LeaderboardRow, make_leaderboard
from apmax.committee.members import Member
from apmax.committee.tasks import (
    FINAL,
    FitProgress,
    FitResult,
    FitTask,
    FoldRows,
    common_rounds,
    one_thread_each,
    remaining_seconds,
    run_tasks,
)
from apmax.data import k_fold, split_by_group, split_by_time, split_stratified
from apmax.data.parallel import available_cores
from apmax.metrics import Interval
from apmax.train import PlattCurve, fit_platt

_Array = NDArray[np.float64]
_RowNumbers = NDArray[np.int64]
_Fold = tuple[_RowNumbers, _RowNumbers]
_STOPPING_SHARE = 0.2
_REFIT_NOTE = (
    "the members were fitted again to all rows; the figures are of their fits without the rows that they score"
)
_UNSCORED_NOTE = "no rows of both classes could be held out: members are not compared, and scores are not calibrated"


@dataclass(frozen=True)
class TrainingRows:
    """Rows that a committee learns from.

    Attributes:
        features: The rows before they are encoded.
        labels: (n,) of 0/1.
        sample_weight: (n,) positive.
        groups: (n,) rows of a group stay together in every split; None without groups.
        times: (n,) models are only scored on later rows than they were fitted to; None without times.
    """

    features: Features
    labels: _Array
    sample_weight: _Array
    groups: NDArray[Any] | None = None
    times: _Array | None = None

    def __post_init__(self) -> None:
        if self.groups is not None and self.times is not None:
            raise ValueError("groups and times exclude each other: each decides how rows are split")
        if self.times is not None:
            validation.known_times(self.times)


@dataclass(frozen=True)
class FoldModels:
    """The models of one fold: the encoding and the members that were fitted to its training rows.

    Attributes:
        features: The encoding.
        members: The fitted members by name.
        location, scale: Mean and standard deviation of each member's scores on the held-out rows.
    """

    features: FittedFeatures
    members: Mapping[str, FittedMember]
    location: Mapping[str, float]
    scale: Mapping[str, float]

    def score(self, name: str, member: Member, rows: Any, matrix: Any) -> _Array:
        """Return a member's scores on the scale that all folds share."""
        raw = self.members[name].score(rows if member.raw else matrix)
        aligned: _Array = (raw - self.location[name]) / self.scale[name]
        return aligned

    def score_members(self, names: Sequence[str], table: Mapping[str, Member], rows: Any) -> dict[str, _Array]:
        """Return the aligned scores of several members by name."""
        matrix = None if all(table[name].raw for name in names) else self.features.matrix(rows)
        return {name: self.score(name, table[name], rows, matrix) for name in names}


@dataclass(frozen=True)
class Committee:
    """Members fitted to several folds, and the blend of their scores.

    Attributes:
        table: The members by name.
        folds: The models of each fold.
        blend: Weights of the members, in the order of `table`.
        calibration: From blended scores to log-odds; None where no held-out rows have both classes.
        leaderboard: Cross-fitted (of one split: held-out) average precision of members and blend, and the verdict.
        cross_fitted: (n, members) aligned scores of the training rows by models that were not fitted to them, NaN
            where a row has none; None after loading, as they are not saved.
    """

    table: Mapping[str, Member]
    folds: Sequence[FoldModels]
    blend: Blend
    calibration: PlattCurve | None
    leaderboard: Leaderboard
    cross_fitted: _Array | None = field(default=None, compare=False, repr=False)

    def score(self, rows: Any, *, member: str | None = None, n_jobs: int | None = None) -> _Array:
        """Return the blended score of each row, or one member's.

        Args:
            rows: Rows of the same form as the training rows.
            member: The name of a member.
            n_jobs: Number of threads; None for the number of cores. The scores do not depend on it.

        Raises:
            ValueError: There is no such member.
        """
        names, used = list(self.table), self.used_members(member)
        averaged = self._averaged_scores(rows, used, available_cores() if n_jobs is None else n_jobs)
        if member is not None:
            return averaged[member]
        count = len(averaged[used[0]])
        # Members of weight 0 take no part; any finite number stands for their scores.
        columns = [averaged[name] if name in averaged else np.zeros(count) for name in names]
        return self.blend.score(np.stack(columns, 1))

    def used_members(self, member: str | None = None) -> list[str]:
        """Return the members that score: those of a positive weight, or one alone.

        Raises:
            ValueError: There is no such member.
        """
        if member is not None:
            return [validation.choice("member", member, list(self.table))]
        return [name for name, weight in zip(self.table, self.blend.weights, strict=True) if weight > 0]

    def _averaged_scores(self, rows: Any, names: Sequence[str], n_jobs: int) -> dict[str, _Array]:
        """Return the mean over the folds of each member's aligned scores."""
        totals: dict[str, _Array] = {}
        with ThreadPoolExecutor(max(1, n_jobs)) as pool:
            scores = [pool.submit(fold.score_members, names, self.table, rows) for fold in self.folds]
            for job in scores:
                for name, own in job.result().items():
                    totals[name] = totals.get(name, 0.0) + own
        return {name: total / len(self.folds) for name, total in totals.items()}

    def log_odds(self, scores: _Array) -> _Array:
        """Return the calibrated log-odds of blended scores; without calibration the scores themselves."""
        return scores if self.calibration is None else self.calibration.logit(scores)


def number_of_folds(
    labels: _Array, groups: NDArray[Any] | None, most: int, *, times: NDArray[Any] | None = None
) -> int:
    """Return min(most, rows of the rarer class, groups that hold positives); with times, the expanding windows.

    >>> number_of_folds(np.array([0, 0, 1, 1, 1, 0, 0]), None, 5)
    3
    >>> number_of_folds(np.array([0, 0, 1, 1, 1, 0, 0]), np.array(list("aabbbcc")), 5)
    1
    >>> number_of_folds(np.array([0, 1, 1, 0, 1, 0, 1]), None, 5, times=np.arange(7))
    3
    """
    rarer = int(min((labels == 1).sum(), (labels == 0).sum()))
    with_positives = rarer if groups is None else len(set(groups[labels == 1].tolist()))
    count = min(most, rarer, with_positives)
    return count if times is None or count < 1 else len(_expanding_windows(labels, times, count))


def make_folds(rows: TrainingRows, most: int, seed: int) -> list[_Fold]:
    """Return (training, held-out) rows of each fold.

    With times the windows expand: each fold is trained on all rows before its held-out block, and the first block has
    no scores. `most=1` gives a single split; where the rows do not allow one, all rows are trained on and none are
    held out.

    Raises:
        ValueError: There are too few positives, groups or moments for two folds, and `most` is not 1.
    """
    if most == 1:
        every = np.arange(len(rows.labels))
        return [stopping_split(rows, every, seed) or (every, every[:0])]
    count = number_of_folds(rows.labels, rows.groups, most)
    if count < 2:
        raise ValueError(
            f"a committee needs two rows of each class (with groups: two groups that hold positives), there are "
            f"{int(rows.labels.sum())} positives in {len(rows.labels)} rows"
        )
    if rows.times is None:
        return _fitting_folds(rows, count, seed)
    folds = _expanding_windows(rows.labels, rows.times, count)
    if len(folds) < 2:
        raise ValueError("time: the rows have too few moments with positives for two folds")
    return folds


def _fitting_folds(rows: TrainingRows, most: int, seed: int) -> list[_Fold]:
    """Return the largest number of folds, at most `most`, whose training rows have both classes.

    With groups a fold may hold out all those with negatives.

    Raises:
        ValueError: Two folds have not.
    """
    for count in range(most, 1, -1):
        folds = k_fold(rows.labels, count, groups=rows.groups, seed=seed)
        if all(len(set(rows.labels[train].tolist())) == 2 for train, _ in folds):
            return folds
    raise ValueError(
        f"a committee needs folds whose training rows have both classes; there are {int(rows.labels.sum())} positives "
        f"in {len(rows.labels)} rows, and whole groups hold all rows of a class: divide these, or leave groups out"
    )


def _expanding_windows(labels: _Array, times: _Array, count: int) -> list[_Fold]:
    """Return folds that hold out later and later blocks of about equal numbers of positives."""
    moments, place = np.unique(times, return_inverse=True)
    positives = np.bincount(place, weights=labels).cumsum()
    edges = [moments[np.searchsorted(positives, positives[-1] * k / (count + 1))] for k in range(1, count + 1)]
    folds = []
    for early, late in zip(edges, [*edges[1:], moments[-1]], strict=True):
        train, held_out = np.flatnonzero(times <= early), np.flatnonzero((times > early) & (times <= late))
        if len(held_out) and len(set(labels[train].tolist())) == 2:
            folds.append((train, held_out))
    return folds


def stopping_split(rows: TrainingRows, train: _RowNumbers, seed: int) -> tuple[_RowNumbers, _RowNumbers] | None:
    """Return positions in `train` to fit and to stop by, split by the same rule as the folds; None if impossible."""
    labels = rows.labels[train]
    try:
        if rows.groups is not None:
            return split_by_group(labels, rows.groups[train], _STOPPING_SHARE, seed=seed)
        if rows.times is not None:
            return split_by_time(labels, rows.times[train], _STOPPING_SHARE)
        return split_stratified(labels, _STOPPING_SHARE, seed=seed)
    except ValueError:
        return None


def fit_committee(
    rows: TrainingRows,
    members: Mapping[str, Member],
    *,
    folds: int | Sequence[_Fold] = 5,
    seed: int = 0,
    n_jobs: int = 1,
    finished: Mapping[tuple[int, str], FitResult] | None = None,
    on_result: Callable[[FitResult], None] | None = None,
    on_progress: Callable[[FitProgress], None] | None = None,
) -> Committee:
    """Fit members to folds, align their scores, and fit blend and calibration to the cross-fitted scores.

    With several folds and no times the folds' models are the committee. Models of one split, or of earlier times than
    the last, are not averaged: there the members are fitted once more, to all rows, with the (median) number of rounds
    that the folds found, and aligned by the held-out scores of the last fold. Members for which that is too expensive
    (`Member.refit`: networks of images) keep their model of one split.

    Args:
        rows: The training rows.
        members: The members by name.
        folds: The largest number of folds, 1 for a single split; or (training, held-out) rows of each.
        seed: Of folds, members and blend.
        n_jobs: Simultaneous fits; each takes one thread. The result does not depend on their number.
        finished: Results of an earlier, interrupted call by fold and name; they are not fitted again, unless they were
            fitted to other rows.
        on_result: Called with each new result, in this thread.
        on_progress: Called at the start and after each new result, in this thread.

    Raises:
        ValueError: Too few rows for folds, a fold without both classes in its training rows, or scores that are not
            finite.
    """
    split = make_folds(rows, folds, seed) if isinstance(folds, int) else list(folds)
    for number, (train, _) in enumerate(split):
        if len(set(rows.labels[train].tolist())) < 2:
            raise ValueError(f"folds: the training rows of fold {number + 1} are all of one class")
    one_split = len(split) == 1 and (any(member.refit for member in members.values()) or not len(split[0][1]))
    refit = rows.times is not None or one_split
    parts = {
        number: _fold_rows(rows, fold, stopping_split(rows, fold[0], seed + number), seed + number)
        for number, fold in enumerate(split)
    }
    if refit:
        every = np.arange(len(rows.labels))
        parts[FINAL] = _fold_rows(rows, (every, every[:0]), None, seed)
    digests = {number: part.digest() for number, part in parts.items()}
    origins = {(fold, name): f"{name} of {digest}" for fold, digest in digests.items() for name in members}
    # Files of results may have been exchanged, between folds, members, targets or folders.
    done = {key: result for key, result in (finished or {}).items() if result.origin == origins.get(key)}
    whole = parts.pop(FINAL, None)
    tasks = [FitTask(fold, name) for name in members for fold, part in parts.items() if len(part.held_out)]
    final = [FitTask(FINAL, name) for name in members] if refit else []
    size = (len(rows.labels), max(1, len(parts[0].encoding.sizes)))
    finished_tasks = [task for task in tasks + final if (task.fold, task.name) in done]
    progress = _Progress(finished_tasks, tasks + final, members, n_jobs, size, on_progress)
    progress.start()

    def run(these: Sequence[FitTask], of: Mapping[int, FoldRows], rounds: Any = None) -> None:
        new = [task for task in these if (task.fold, task.name) not in done]
        for fitted in run_tasks(new, members, of, n_jobs=n_jobs, rounds=rounds):
            key = fitted.task.fold, fitted.task.name
            result = done[key] = dataclasses.replace(fitted, origin=origins[key])
            if on_result is not None:
                on_result(result)
            progress.add(result)

    run(tasks, parts)
    if whole is not None:
        fitted = {name: [done[task.fold, name].model for task in tasks if task.name == name] for name in members}
        counts = {name: common_rounds(models) for name, models in fitted.items()}
        run(final, {FINAL: whole}, {name: count for name, count in counts.items() if count is not None})
    return _join(rows, members, split, parts, None if whole is None else whole.encoding, done, seed)


def _fold_rows(rows: TrainingRows, fold: _Fold, stopping: _Fold | None, seed: int) -> FoldRows:
    """Return the rows of a fold with the encoding that is fitted to its training rows."""
    encoding = rows.features.fit(fold[0], rows.sample_weight)
    return FoldRows(rows.features, encoding, rows.labels, rows.sample_weight, *fold, stopping, seed)


@dataclass
class _Progress:
    """Counts tasks and estimates the time left."""

    finished: list[FitTask]
    tasks: Sequence[FitTask]
    members: Mapping[str, Member]
    n_jobs: int
    size: tuple[int, int]
    report: Callable[[FitProgress], None] | None
    started: float = 0.0
    new: list[FitTask] = field(default_factory=list)

    def start(self) -> None:
        self.started = time.monotonic()
        self._report(None, 0.0)

    def add(self, result: FitResult) -> None:
        self.finished.append(result.task)
        self.new.append(result.task)
        self._report(result.task, result.seconds)

    def _report(self, task: FitTask | None, seconds: float) -> None:
        if self.report is None:
            return
        done = set(self.finished)
        remaining = remaining_seconds(
            self.new,
            [each for each in self.tasks if each not in done],
            self.members,
            size=self.size,
            elapsed=time.monotonic() - self.started,
            n_jobs=self.n_jobs,
        )
        self.report(FitProgress(len(done), len(self.tasks), task, seconds, remaining))


def _join(
    rows: TrainingRows,
    members: Mapping[str, Member],
    split: Sequence[_Fold],
    parts: Mapping[int, FoldRows],
    final_encoding: FittedFeatures | None,
    done: Mapping[tuple[int, str], FitResult],
    seed: int,
) -> Committee:
    """Return the committee of all results: aligned, blended, calibrated."""
    fold_models, scores = _align(rows, members, split, parts, done)
    notes: tuple[str, ...] = ()
    if final_encoding is not None:
        models = {name: done[FINAL, name].model for name in members}
        # Where nothing was held out the scores stay as they are.
        unaligned = FoldModels(final_encoding, models, dict.fromkeys(members, 0.0), dict.fromkeys(members, 1.0))
        last = fold_models[-1] if fold_models else unaligned
        fold_models = [dataclasses.replace(unaligned, location=last.location, scale=last.scale)]
        notes = (_REFIT_NOTE,)
    part = CROSS_FITTED if sum(len(held_out) > 0 for _, held_out in split) > 1 else HELD_OUT
    scored = ~np.isnan(scores).any(1)
    seconds = {name: sum(result.seconds for (_, own), result in done.items() if own == name) for name in members}
    if len(set(rows.labels[scored].tolist())) < 2:
        return _unscored_committee(members, fold_models, scores, seconds, (*notes, _UNSCORED_NOTE), part)
    with one_thread_each():
        blend = fit_blend(scores, rows.labels, sample_weight=rows.sample_weight, groups=rows.groups, seed=seed)
    blended = blend.score(scores[scored])
    calibration = fit_platt(blended, rows.labels[scored], rows.sample_weight[scored])
    leaderboard = make_leaderboard(
        dict(zip(members, scores[scored].T, strict=True)),
        blended,
        rows.labels[scored],
        rows.sample_weight[scored],
        blend=blend,
        seconds=seconds,
        notes=notes,
        part=part,
    )
    return Committee(dict(members), fold_models, blend, calibration, leaderboard, scores)


def _align(
    rows: TrainingRows,
    members: Mapping[str, Member],
    split: Sequence[_Fold],
    parts: Mapping[int, FoldRows],
    done: Mapping[tuple[int, str], FitResult],
) -> tuple[list[FoldModels], _Array]:
    """Return the models of the folds with their alignment, and the aligned scores of held-out rows; NaN for others."""
    fold_models: list[FoldModels] = []
    scores = np.full((len(rows.labels), len(members)), np.nan)
    for number, (_, held_out) in enumerate(split):
        if not len(held_out):
            continue
        results = {name: done[number, name] for name in members}
        share = rows.sample_weight[held_out] / rows.sample_weight[held_out].sum()
        location = {name: float(share @ result.scores) for name, result in results.items()}
        spread = {name: _deviation(result.scores, location[name], share) for name, result in results.items()}
        scale = {name: deviation or 1.0 for name, deviation in spread.items()}
        models = {name: result.model for name, result in results.items()}
        fold_models.append(FoldModels(parts[number].encoding, models, location, scale))
        for place, (name, result) in enumerate(results.items()):
            # Constant scores become exactly 0: the blend would take their rounding errors for differences.
            scores[held_out, place] = (result.scores - location[name]) / scale[name] if spread[name] else 0.0
    return fold_models, scores


def _deviation(scores: _Array, mean: float, share: _Array) -> float:
    """Return the standard deviation of scores; 0 where they are all the same, up to rounding.

    >>> _deviation(np.array([0.3, 0.3, 0.3]), 0.1 + 0.2, np.full(3, 1 / 3))
    0.0
    """
    deviation = float(np.sqrt(share @ np.square(scores - mean)))
    return deviation if deviation > LEAST_DEVIATION * max(1.0, abs(mean)) else 0.0


def _unscored_committee(
    members: Mapping[str, Member],
    fold_models: Sequence[FoldModels],
    scores: _Array,
    seconds: Mapping[str, float],
    notes: tuple[str, ...],
    part: str,
) -> Committee:
    """Return the committee of members that could be fitted, but not compared."""
    count = len(members)
    blend = Blend(np.full(count, 1 / count), np.zeros(count), np.ones(count), ("equal",), (_UNSCORED_NOTE,), ({},))
    unknown = Interval(*[math.nan] * len(dataclasses.fields(Interval)))
    board = [LeaderboardRow(name, unknown, 1 / count, seconds[name]) for name in members]
    total = LeaderboardRow("blend", unknown, 1.0, sum(seconds.values()))
    leaderboard = Leaderboard(tuple(board), total, (), notes, part)
    return Committee(dict(members), fold_models, blend, None, leaderboard, scores)
