"""Cross-fitting: every row is scored by models that have not seen it, and these scores choose the blend."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax import extras, validation
from apmax.blend import Blend, fit_blend
from apmax.committee.features import Features, FittedFeatures
from apmax.committee.leaderboard import Leaderboard, make_leaderboard
from apmax.committee.members import FittedMember, FoldData, Member
from apmax.data import k_fold, split_by_group, split_by_time, split_stratified
from apmax.train import PlattCurve, fit_platt

_Array = NDArray[np.float64]
_RowNumbers = NDArray[np.int64]
_Fold = tuple[_RowNumbers, _RowNumbers]
_STOPPING_SHARE = 0.2


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


@dataclass(frozen=True)
class Committee:
    """Members fitted to several folds, and the blend of their scores.

    Attributes:
        table: The members by name.
        folds: The models of each fold.
        blend: Weights of the members, in the order of `table`.
        calibration: From blended scores to log-odds.
        leaderboard: Cross-fitted average precision of members and blend, and the verdict.
        cross_fitted: (n, members) aligned scores of the training rows by models that were not fitted to them, NaN
            where a row has none; None after loading, as they are not saved.
    """

    table: Mapping[str, Member]
    folds: Sequence[FoldModels]
    blend: Blend
    calibration: PlattCurve
    leaderboard: Leaderboard
    cross_fitted: _Array | None = field(default=None, compare=False, repr=False)

    def score(self, rows: Any, *, member: str | None = None) -> _Array:
        """Return the blended score of each row, or one member's.

        Args:
            rows: Rows of the same form as the training rows.
            member: The name of a member.

        Raises:
            ValueError: There is no such member.
        """
        names = list(self.table)
        if member is not None:
            validation.choice("member", member, names)
        used = [name for name, weight in zip(names, self.blend.weights, strict=True) if weight > 0 or name == member]
        used = [member] if member is not None else used
        totals: dict[str, _Array] = {}
        for fold in self.folds:
            matrix = fold.features.matrix(rows)
            for name in used:
                totals[name] = totals.get(name, 0.0) + fold.score(name, self.table[name], rows, matrix)
        if member is not None:
            return totals[member] / len(self.folds)
        count = len(next(iter(totals.values())))
        # Members of weight 0 take no part; any finite number stands for their scores.
        columns = [totals[name] / len(self.folds) if name in totals else np.zeros(count) for name in names]
        return self.blend.score(np.stack(columns, 1))

    def log_odds(self, scores: _Array) -> _Array:
        """Return the calibrated log-odds of blended scores."""
        return self.calibration.logit(scores)


def number_of_folds(labels: _Array, groups: NDArray[Any] | None, most: int) -> int:
    """Return min(most, rows of the rarer class, groups that hold positives).

    >>> number_of_folds(np.array([0, 0, 1, 1, 1, 0, 0]), None, 5)
    3
    >>> number_of_folds(np.array([0, 0, 1, 1, 1, 0, 0]), np.array(list("aabbbcc")), 5)
    1
    """
    rarer = int(min((labels == 1).sum(), (labels == 0).sum()))
    with_positives = rarer if groups is None else len(set(groups[labels == 1].tolist()))
    return min(most, rarer, with_positives)


def make_folds(rows: TrainingRows, most: int, seed: int) -> list[_Fold]:
    """Return (training, held-out) rows of each fold.

    With times the windows expand: each fold is trained on all rows before its held-out block, and the first block has
    no scores.

    Raises:
        ValueError: There are too few positives, groups or moments for two folds.
    """
    count = number_of_folds(rows.labels, rows.groups, most)
    if count < 2:
        raise ValueError(
            f"a committee needs two rows of each class (with groups: two groups that hold positives), there are "
            f"{int(rows.labels.sum())} positives in {len(rows.labels)} rows"
        )
    if rows.times is None:
        return k_fold(rows.labels, count, groups=rows.groups, seed=seed)
    return _expanding_windows(rows.labels, rows.times, count)


def _expanding_windows(labels: _Array, times: _Array, count: int) -> list[_Fold]:
    """Return folds that hold out later and later blocks of about equal numbers of positives."""
    moments = np.unique(times)
    positives = np.array([labels[times <= moment].sum() for moment in moments])
    edges = [moments[np.searchsorted(positives, positives[-1] * k / (count + 1))] for k in range(1, count + 1)]
    folds = []
    for early, late in zip(edges, [*edges[1:], moments[-1]], strict=True):
        train, held_out = np.flatnonzero(times <= early), np.flatnonzero((times > early) & (times <= late))
        if len(held_out) and len(set(labels[train].tolist())) == 2:
            folds.append((train, held_out))
    if len(folds) < 2:
        raise ValueError("time: the rows have too few moments with positives for two folds")
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


@dataclass(frozen=True)
class FitTask:
    """One member on one fold."""

    fold: int
    name: str


@dataclass(frozen=True)
class FitResult:
    """A fitted member, its scores of the held-out rows, and the seconds that it took."""

    task: FitTask
    model: FittedMember
    scores: _Array
    seconds: float


def fit_committee(
    rows: TrainingRows,
    members: Mapping[str, Member],
    *,
    folds: int | Sequence[_Fold] = 5,
    seed: int = 0,
    n_jobs: int = 1,
    finished: Mapping[tuple[int, str], FitResult] | None = None,
    on_result: Callable[[FitResult], None] | None = None,
) -> Committee:
    """Fit members to folds, align their scores, and fit blend and calibration to the cross-fitted scores.

    Args:
        rows: The training rows.
        members: The members by name.
        folds: The largest number of folds, or (training, held-out) rows of each.
        seed: Of folds, members and blend.
        n_jobs: Processes; each fit takes one thread. The result does not depend on their number.
        finished: Results of an earlier, interrupted call by fold and name; they are not fitted again.
        on_result: Called with each new result, in this process.
    """
    split = make_folds(rows, folds, seed) if isinstance(folds, int) else list(folds)
    encodings = [rows.features.fit(train, rows.sample_weight) for train, _ in split]
    done = dict(finished or {})
    tasks = [FitTask(fold, name) for name in members for fold in range(len(split)) if (fold, name) not in done]

    def arguments(task: FitTask) -> tuple[Any, ...]:
        return (task, members[task.name], rows, split[task.fold], encodings[task.fold], seed + task.fold)

    for result in _run_tasks([arguments(task) for task in tasks], n_jobs):
        done[result.task.fold, result.task.name] = result
        if on_result is not None:
            on_result(result)
    fold_models, scores = [], np.full((len(rows.labels), len(members)), np.nan)
    for number, ((_, held_out), features) in enumerate(zip(split, encodings, strict=True)):
        results = {name: done[number, name] for name in members}
        share = rows.sample_weight[held_out] / rows.sample_weight[held_out].sum()
        location = {name: float(share @ result.scores) for name, result in results.items()}
        scale = {
            name: float(np.sqrt(share @ np.square(result.scores - location[name]))) or 1.0
            for name, result in results.items()
        }
        fold_models.append(FoldModels(features, {name: r.model for name, r in results.items()}, location, scale))
        for place, (name, result) in enumerate(results.items()):
            scores[held_out, place] = (result.scores - location[name]) / scale[name]
    blend = fit_blend(scores, rows.labels, sample_weight=rows.sample_weight, groups=rows.groups, seed=seed)
    scored = ~np.isnan(scores).any(1)
    blended = blend.score(scores[scored])
    calibration = fit_platt(blended, rows.labels[scored], rows.sample_weight[scored])
    seconds = {name: sum(done[fold, name].seconds for fold in range(len(split))) for name in members}
    leaderboard = make_leaderboard(
        dict(zip(members, scores[scored].T, strict=True)),
        blended,
        rows.labels[scored],
        rows.sample_weight[scored],
        blend=blend,
        seconds=seconds,
    )
    return Committee(dict(members), fold_models, blend, calibration, leaderboard, scores)


def _run_tasks(arguments: Sequence[tuple[Any, ...]], n_jobs: int) -> Iterable[FitResult]:
    if n_jobs == 1 or len(arguments) < 2:
        return (_fit_task(*each) for each in arguments)
    joblib = extras.load("joblib", "sklearn")
    results: Iterable[FitResult] = joblib.Parallel(n_jobs=n_jobs, return_as="generator")(
        joblib.delayed(_fit_task)(*each) for each in arguments
    )
    return results


def _fit_task(
    task: FitTask, member: Member, rows: TrainingRows, fold: _Fold, features: FittedFeatures, seed: int
) -> FitResult:
    """Fit a member to a fold and score the held-out rows."""
    import torch

    started = time.monotonic()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        train, held_out = fold
        raw, held_raw = rows.features.take(train), rows.features.take(held_out)
        data = FoldData(
            features.matrix(raw),
            raw if member.raw else None,
            rows.labels[train],
            rows.sample_weight[train],
            features.sizes,
            stopping_split(rows, train, seed),
            seed,
        )
        model = member.fit(data)
        scores = model.score(held_raw if member.raw else features.matrix(held_raw))
    finally:
        torch.set_num_threads(threads)
    if not np.isfinite(scores).all():
        raise ValueError(f"member {task.name!r} gave a score that is not finite in fold {task.fold + 1}")
    return FitResult(task, model, scores, time.monotonic() - started)
