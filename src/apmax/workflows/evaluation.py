"""Evaluation: ranking metrics with confidence intervals, by target, of one model or of two on the same rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from apmax import metrics
from apmax.data import RowSource, any_known
from apmax.metrics import Difference, Interval
from apmax.train import nan_to_none
from apmax.validation import plural
from apmax.workflows.data_types import RowReport
from apmax.workflows.data_types.rows import target_columns
from apmax.workflows.labelled_files import read_weights, same_file
from apmax.workflows.saved_model import SavedModel
from apmax.workflows.scored_rows import ScoredRows, unequal_weights

PRECISION_AT = (10, 50, 100, 500, 1000)


@dataclass(frozen=True)
class Evaluation:
    """Metrics of one target on a set of rows.

    Args:
        rows: Number of rows.
        positives: Number of positive ones.
        no_skill: The AP of a random ranking, which is the (weighted) share of positives.
        ap: Average precision with its 95 % interval.
        auprc: Trapezoidal area under the precision–recall curve with its interval.
        auroc: Area under the ROC curve with its interval.
        bedroc: BEDROC (α = 20) with its interval.
        enrichment: Enrichment factor of the best-ranked 1 % with its interval.
        precision_at: Precision among the k best-ranked rows with its interval, by k.
        recall_at: Share of the positives among the k best-ranked rows with its interval, by k.
    """

    rows: int
    positives: int
    no_skill: float
    ap: Interval
    auprc: Interval
    auroc: Interval
    bedroc: Interval
    enrichment: Interval
    precision_at: dict[int, Interval]
    recall_at: dict[int, Interval]

    def to_table(self) -> dict[str, Any]:
        """Return plain dicts and numbers for JSON, None where a metric is undefined."""
        table: dict[str, Any] = nan_to_none(asdict(self))
        return table


def evaluate_scores(
    scores: npt.NDArray[Any], labels: npt.NDArray[Any], sample_weight: npt.NDArray[Any] | None = None
) -> Evaluation:
    """Return all metrics with 95 % intervals, precision and recall at several k and at the number of positives.

    Precision and recall at k are those of k rows of the list, whatever their weights.

    >>> result = evaluate_scores(np.array([0.9, 0.8, 0.7, 0.1]), np.array([1, 0, 1, 0]))
    >>> round(result.ap.estimate, 3), result.no_skill, result.precision_at[2].estimate
    (0.833, 0.5, 0.5)
    """
    score, label = torch.as_tensor(scores), torch.as_tensor(labels)
    rows, positives = len(label), int(label.sum())
    weight = np.ones(rows) if sample_weight is None else sample_weight
    lengths = sorted({k for k in (*PRECISION_AT, positives) if 0 < k <= rows})
    return Evaluation(
        rows=rows,
        positives=positives,
        no_skill=float(weight @ np.asarray(labels, np.float64) / weight.sum()),
        ap=metrics.average_precision_interval(score, label, sample_weight=sample_weight),
        auprc=metrics.auprc_interval(score, label, sample_weight=sample_weight),
        auroc=metrics.auroc_interval(score, label, sample_weight=sample_weight),
        bedroc=metrics.bedroc_interval(score, label, sample_weight=sample_weight),
        enrichment=metrics.enrichment_factor_interval(score, label, sample_weight=sample_weight),
        precision_at={k: metrics.precision_at_k_interval(score, label, k=k) for k in lengths},
        recall_at={k: metrics.recall_at_k_interval(score, label, k=k) for k in lengths},
    )


@dataclass(frozen=True)
class TargetEvaluations:
    """The evaluation of each target that has positive and negative rows.

    Args:
        each: Evaluations by target.
        several: Whether the model has several targets.
    """

    each: dict[str, Evaluation]
    several: bool

    def to_table(self) -> dict[str, Any]:
        """Return plain dicts: the metrics of the only target, or those of each by name and the mean AP."""
        tables = {name: part.to_table() for name, part in self.each.items()}
        if not self.several:
            return next(iter(tables.values()))
        return {"mean_ap": self.mean_ap, "targets": tables}

    @property
    def mean_ap(self) -> float:
        """The mean AP over the targets."""
        return float(np.mean([part.ap.estimate for part in self.each.values()]))


def evaluate_targets(
    scores: npt.NDArray[Any],
    labels: npt.NDArray[Any],
    names: Sequence[str],
    sample_weight: npt.NDArray[Any] | None = None,
) -> TargetEvaluations:
    """Return the evaluation of each target over the rows that have its label and a score, and no weight of 0.

    Args:
        scores: (rows,), or (rows, targets) of several targets; NaN where a row could not be read.
        labels: 0 or 1, NaN where missing.
        names: The targets.
        sample_weight: (rows,); None for equal weights.

    Raises:
        ValueError: No target has a positive and a negative row.

    >>> labels = np.array([[1, 1], [0, np.nan], [0, 1]])
    >>> result = evaluate_targets(np.array([[3.0, 1.0], [2.0, 2.0], [1.0, 3.0]]), labels, ["a", "b"])
    >>> {name: part.ap.estimate for name, part in result.each.items()}
    {'a': 1.0}
    """
    each, counted = {}, True if sample_weight is None else sample_weight > 0
    columns = zip(names, target_columns(scores).T, target_columns(labels).T, strict=True)
    for name, score, label in columns:
        known = ~np.isnan(label) & ~np.isnan(score) & counted
        if (label[known] == 1).any() and (len(names) == 1 or (label[known] == 0).any()):
            weight = None if sample_weight is None else sample_weight[known]
            each[name] = evaluate_scores(np.ascontiguousarray(score[known]), np.ascontiguousarray(label[known]), weight)
    if not each:
        raise ValueError(f"there is no positive row of {', '.join(map(repr, names))}: AP is undefined")
    return TargetEvaluations(each, len(names) > 1)


def score_source(model: SavedModel, source: RowSource) -> tuple[ScoredRows, list[str]]:
    """Return the scores of a model on labelled rows, and warnings about these; rows that cannot be read are left out.

    Args:
        model: The model, and with it the encoder for the source (`SavedModel.open` returns both).
        source: The rows.

    Raises:
        ValueError: A target column is missing, there are no rows, or all have weight 0.
    """
    model.targets.check_columns(source)
    report, scores, labels, weights = RowReport(), [], [], []
    column = model.job.data.weight
    weighted = column is not None and column in source.columns
    start = 0
    for chunk, chunk_scores in model.score_chunks(source, report):
        if weighted:
            weights.append(read_weights(chunk, str(column), source, np.arange(start, start + chunk.num_rows)))
        start += chunk.num_rows
        scores.append(chunk_scores)
        labels.append(model.targets.labels(chunk))
    if not scores:
        raise ValueError(f"{source.path} has no rows")
    label, weight = np.concatenate(labels), np.concatenate(weights) if weighted else None
    if weight is not None and not weight.any():
        raise ValueError(f"weight: column {column!r} of {source.path.name} is 0 in every row")
    unlabelled = int((~any_known(label)).sum())
    warnings = [
        *_training_file(model, source),
        *report.lines(),
        *([f"left out: {plural(unlabelled, 'row')} without a target"] if unlabelled else []),
        *([f"there is no column {column!r}: all rows have the same weight"] if column and not weighted else []),
    ]
    return ScoredRows.of("test", np.concatenate(scores), label, sample_weight=weight), warnings


def _training_file(model: SavedModel, source: RowSource) -> list[str]:
    """Return a warning if the rows are those that the model was trained on."""
    if not same_file(model.job.data.train, source.path):
        return []
    return [f"{source.path.name} is what the model was trained on: its figures say nothing about new rows"]


def evaluate_source(model: SavedModel, source: RowSource) -> tuple[TargetEvaluations, list[str]]:
    """Return the evaluation of a model on labelled rows, and warnings about them.

    Args:
        model: The model, and with it the encoder for the source (`SavedModel.open` returns both).
        source: The rows.

    Raises:
        ValueError: A target column is missing, there are no rows, or none is positive.
    """
    scored, warnings = score_source(model, source)
    results, remarks = evaluate_scored_rows(model, source, scored)
    return results, [*warnings, *remarks]


def evaluate_scored_rows(
    model: SavedModel, source: RowSource, scored: ScoredRows
) -> tuple[TargetEvaluations, list[str]]:
    """Return the evaluation of rows that `score_source` has scored, and warnings about their labels and weights.

    Raises:
        ValueError: None of the rows is positive.
    """
    names = model.targets.names
    if len(names) == 1 and not (scored.labels[scored.sample_weight > 0] == 1).any():
        target = model.targets.each[0]
        counted = " and whose weight is above 0" if (scored.sample_weight == 0).any() else ""
        raise ValueError(
            f"{source.path} has no row whose {target.name!r} is {target.positive!r}{counted}: AP is undefined"
        )
    results = evaluate_targets(scored.scores, scored.labels, names, unequal_weights(scored.sample_weight))
    return results, [*without_weight(scored), *_undefined(names, results)]


@dataclass(frozen=True)
class ModelComparison:
    """Two models on the same rows.

    Args:
        first: The metrics of the first model.
        second: Those of the second.
        differences: AP of the first minus AP of the second by target, with the interval of a paired bootstrap.
        scored: The rows that both can read with the scores of each; of the targets that both have.
    """

    first: TargetEvaluations
    second: TargetEvaluations
    differences: dict[str, Difference]
    scored: tuple[ScoredRows, ScoredRows]

    def to_table(self) -> dict[str, Any]:
        """Return plain dicts: the metrics of both models, and the difference of the only target or of each."""
        each = {name: nan_to_none(asdict(difference)) for name, difference in self.differences.items()}
        difference = each if self.first.several else next(iter(each.values()))
        return {"first": self.first.to_table(), "second": self.second.to_table(), "difference": difference}


def compare_models(
    model: SavedModel, source: RowSource, other: SavedModel, other_source: RowSource
) -> tuple[ModelComparison, list[str]]:
    """Compare two models on the same labelled rows, and return warnings about these.

    Args:
        model: The first model, and with it the encoder for its source (`SavedModel.open` returns both).
        source: The rows.
        other: The second model, likewise.
        other_source: The same rows, as the second model opened them.

    Raises:
        ValueError: As `evaluate_source`; the models have no target in common, or differ in what is positive.
    """
    names = [name for name in model.targets.names if name in other.targets.names]
    if not names:
        raise ValueError(
            f"against: the models have no target in common: {', '.join(model.targets.names)} and "
            f"{', '.join(other.targets.names)}"
        )
    first, warnings = score_source(model, source)
    second, more = score_source(other, other_source)
    _, own, others = np.intersect1d(first.rows, second.rows, return_indices=True)
    a = _part_of(first, own, [model.targets.names.index(name) for name in names])
    b = _part_of(second, others, [other.targets.names.index(name) for name in names])
    if not np.array_equal(a.labels, b.labels, equal_nan=True):
        raise ValueError(f"against: the models differ in which rows are positive ({', '.join(names)})")
    weight = unequal_weights(a.sample_weight)
    results = [evaluate_targets(part.scores, part.labels, names, weight) for part in (a, b)]
    differences = {}
    for number, name in enumerate(names):
        known = ~np.isnan(a.labels[:, number])
        if name in results[0].each:
            differences[name] = metrics.paired_difference(
                a.scores[known, number],
                b.scores[known, number],
                a.labels[known, number],
                sample_weight=None if weight is None else weight[known],
            )
    left_out = len(first.rows) + len(second.rows) - 2 * len(own)
    lines = [
        *dict.fromkeys([*warnings, *more]),
        *([f"left out: {plural(left_out, 'row')} that one of the models cannot read"] if left_out else []),
        *without_weight(a),
        *_undefined(names, results[0]),
    ]
    return ModelComparison(results[0], results[1], differences, (a, b)), lines


def _part_of(scored: ScoredRows, rows: npt.NDArray[np.int64], targets: Sequence[int]) -> ScoredRows:
    return ScoredRows(
        scored.part,
        scored.rows[rows],
        scored.scores[rows][:, targets],
        scored.labels[rows][:, targets],
        scored.sample_weight[rows],
    )


def without_weight(scored: ScoredRows) -> list[str]:
    """Return a line about the rows of weight 0, which metrics leave out; none if there are none."""
    count = int((any_known(scored.labels) & (scored.sample_weight == 0)).sum())
    return [f"left out: {plural(count, 'row')} of weight 0"] if count else []


def _undefined(names: Sequence[str], results: TargetEvaluations) -> list[str]:
    return [
        f"{name!r} has no positive or no negative row here: its AP is undefined"
        for name in names
        if name not in results.each
    ]
