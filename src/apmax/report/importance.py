"""Permutation importance of columns, measured in average precision."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import extras, metrics
from apmax.metrics import Interval
from apmax.metrics.bands import Floats
from apmax.metrics.bootstrap import resampled_average_precision
from apmax.metrics.ranking import sample
from apmax.report.content import Importance, ImportanceTable
from apmax.workflows.scored_rows import unequal_weights

CONFIDENCE = 0.95
MOST_LISTED, REPEATS, RESAMPLES = 15, 4, 50
MOST_ROWS, MOST_POSITIVES = 2000, 1000
# Values that are scored at most in a pass over the columns: of wide tables fewer rows are drawn.
_MOST_VALUES = 100_000_000
_FEWEST_ROWS = 20
_ROWS_AT_A_TIME = 20_000

ScoreTable = Callable[[Any], npt.NDArray[Any]]
"""Returns the scores (n,) of the rows of a `pyarrow.Table`."""


def permutation_importance(
    score: ScoreTable,
    table: Any,
    labels: npt.NDArray[Any],
    columns: Sequence[str],
    *,
    part: str,
    sample_weight: npt.NDArray[Any] | None = None,
    seed: int = 0,
) -> ImportanceTable:
    """Return the loss of average precision where the values of a column are shuffled over the rows.

    At most 1,000 positives and 1,000 negatives are scored, or more negatives if there are fewer positives; rows count
    with the inverse of their chance to be drawn, so that the prevalence remains. Of tables with hundreds of columns
    fewer rows are drawn. Every column is shuffled once; the best of them again, with other shuffles, whose mean is the
    estimate. The interval pools the resamples of the rows (paired, positives and negatives separately) over the
    shuffles.

    Args:
        score: The model.
        table: The rows, a `pyarrow.Table`.
        labels: 0/1, (n,).
        columns: The columns that the model reads.
        part: The part of the data, for the title.
        sample_weight: Weights (n,).
        seed: Seed of the draws.
    """
    generator = np.random.Generator(np.random.PCG64(seed))
    weight = np.ones(len(labels)) if sample_weight is None else np.asarray(sample_weight, np.float64)
    names = [name for name in columns if name in table.column_names]
    most = min(MOST_ROWS, _MOST_VALUES // (MOST_LISTED * REPEATS * max(1, len(names))))
    rows, weight = _draw_rows(np.asarray(labels), weight, max(_FEWEST_ROWS, most), generator)
    drawn, truth = table.take(rows), np.asarray(labels, np.float64)[rows]
    listed = names
    if len(names) > MOST_LISTED:
        few = min(len(rows), max(_FEWEST_ROWS, _MOST_VALUES // len(names) ** 2))
        some, own = _draw_rows(truth, weight, few, generator)
        shuffled = _shuffled_scores(score, drawn.take(some), names, 1, generator)
        reached = {name: _average_precision(shuffled[name][0], truth[some], own) for name in names}
        listed = sorted(names, key=lambda name: reached[name])[:MOST_LISTED]
    base = score(drawn)
    shuffled = _shuffled_scores(score, drawn, listed, REPEATS, generator)
    each = [Importance(name, _loss(base, shuffled[name], truth, weight, seed)) for name in listed]
    each.sort(key=lambda item: -item.loss.estimate)
    return ImportanceTable(part, len(rows), len(names), REPEATS, tuple(each))


def _draw_rows(
    labels: npt.NDArray[Any], weight: Floats, most: int, generator: np.random.Generator
) -> tuple[npt.NDArray[np.int64], Floats]:
    """Return rows of both classes, ascending, and their weights."""
    positives, negatives = np.flatnonzero(labels == 1), np.flatnonzero(labels == 0)
    kept = max(1, min(len(positives), MOST_POSITIVES, most // 2))
    parts, weights = [], []
    for rows, size in ((positives, kept), (negatives, most - kept)):
        size = min(size, len(rows))
        chosen = np.sort(generator.choice(rows, size, replace=False))
        parts.append(chosen)
        weights.append(weight[chosen] * (len(rows) / size))
    order = np.argsort(np.concatenate(parts))
    return np.concatenate(parts)[order], np.concatenate(weights)[order]


def _shuffled_scores(
    score: ScoreTable, table: Any, names: Sequence[str], repeats: int, generator: np.random.Generator
) -> dict[str, list[npt.NDArray[Any]]]:
    """Return the scores after each shuffle of each column; several tables are scored at a time."""
    pa = extras.load("pyarrow", "tables")
    count = table.num_rows
    result: dict[str, list[npt.NDArray[Any]]] = {name: [] for name in names}
    tasks = [name for name in names for _ in range(repeats)]
    step = max(1, _ROWS_AT_A_TIME // count)
    for start in range(0, len(tasks), step):
        part = tasks[start : start + step]
        tables = [
            table.set_column(
                table.column_names.index(name), name, table.column(name).take(generator.permutation(count))
            )
            for name in part
        ]
        scores = score(pa.concat_tables(tables)).reshape(len(part), count)
        for name, own in zip(part, scores, strict=True):
            result[name].append(own)
    return result


def _average_precision(scores: npt.NDArray[Any], labels: Floats, weight: Floats) -> float:
    return metrics.average_precision(scores, labels, sample_weight=weight).item()


def _loss(
    base: npt.NDArray[Any], shuffled: Sequence[npt.NDArray[Any]], labels: Floats, weight: Floats, seed: int
) -> Interval:
    reached = _average_precision(base, labels, weight)
    losses = [reached - _average_precision(each, labels, weight) for each in shuffled]
    given = unequal_weights(weight)
    first, pooled = sample(base, labels, given), []
    if labels.sum() >= 2:
        for number, each in enumerate(shuffled):
            pair = [first, sample(each, labels, given)]
            whole, without = resampled_average_precision(pair, RESAMPLES, seed + number)
            pooled.append(whole - without)
    low, high = (
        np.quantile(np.concatenate(pooled), [(1 - CONFIDENCE) / 2, (1 + CONFIDENCE) / 2]) if pooled else (np.nan,) * 2
    )
    return Interval(float(np.mean(losses)), float(low), float(high), CONFIDENCE)
