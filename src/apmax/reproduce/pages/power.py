"""Power of the comparisons: the runs that would show a small difference, and folds ranked as one test set."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median, stdev
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax import validation
from apmax.metrics import Difference, Interval, average_precision_interval, paired_difference
from apmax.metrics.quantiles import t_quantile
from apmax.reproduce.grid import ExperimentGrid, GridCell
from apmax.reproduce.pages.summary import MethodSummaries
from apmax.reproduce.pages.tables import ResultTable, TableField, TableRow
from apmax.reproduce.pages.text import NO_VALUE, range_text, signed_text
from apmax.reproduce.run import decode_scores

VISIBLE_DIFFERENCE = 0.01
"""The difference in AUPRC for which runs are counted."""
ALIGNMENTS = ("validation", "test")
"""Rows by whose scores the folds are brought to one scale."""
_POWER, _CONFIDENCE = 0.8, 0.95
_COMPARED = ("soap", "apmax")
_FEWEST_PAIRS = 3


def runs_needed(spread: float, difference: float = VISIBLE_DIFFERENCE) -> int:
    """Return the number of pairs with which a paired t-test finds a difference in four of five cases.

    The smallest n, at least 2, with `n ≥ ((t₀.₉₇₅ + t₀.₈)·spread/difference)²`, t with n − 1 degrees of freedom: a
    two-sided test at the level of 5 % with a power of 80 %.

    Args:
        spread: Standard deviation of the paired differences.
        difference: The true difference, above 0.

    >>> runs_needed(0.01), runs_needed(0.05)
    (10, 199)
    """

    def is_enough(runs: int) -> bool:
        quantiles = t_quantile((1 + _CONFIDENCE) / 2, runs - 1) + t_quantile(_POWER, runs - 1)
        return runs >= (quantiles * spread / difference) ** 2

    high = 2
    while not is_enough(high):
        high *= 2
    low = high // 2
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if is_enough(middle) else (middle, high)
    return high


@dataclass(frozen=True)
class CellPower:
    """The spread of a cell's paired differences to the base, by method, and the paper's differences.

    Args:
        cell: Data set and network.
        pairs: The largest number of pairs of any method.
        positives: Fewest and most positives of a test part.
        spreads: Standard deviation of the paired differences of the methods with at least three pairs.
        printed: The paper's difference to the base, where it has both.
    """

    cell: GridCell
    pairs: int
    positives: tuple[int, int]
    spreads: Mapping[str, float]
    printed: Mapping[str, float]


def cell_powers(entries: MethodSummaries, base: str) -> list[CellPower]:
    """Return the power of each cell in which a method has at least three pairs with the base."""
    powers = []
    for cell in dict.fromkeys((data, model) for data, model, _ in entries):
        own = {key[2]: entry for key, entry in entries.items() if key[:2] == cell and key[2] != base}
        other = entries.get((*cell, base))
        if other is None:
            continue
        spreads, printed, pairs = {}, {}, 0
        for method, entry in own.items():
            both = [replicate for replicate in entry.values if replicate in other.values]
            if len(both) < _FEWEST_PAIRS:
                continue
            pairs = max(pairs, len(both))
            spreads[method] = stdev(entry.values[each]["auprc"] - other.values[each]["auprc"] for each in both)
            if entry.printed is not None and other.printed is not None:
                printed[method] = entry.printed.mean - other.printed.mean
        if spreads:
            counts = [line["test"]["positives"] for line in other.lines.values() if line.get("test")]
            powers.append(CellPower(cell, pairs, (min(counts), max(counts)), spreads, printed))
    return powers


def power_table(grid: ExperimentGrid, powers: Sequence[CellPower], base: str) -> ResultTable:
    """Return the table of the runs that each cell would need."""
    label = grid.methods[base].label
    columns = ["Cell", "Pairs so far", "Test positives"]
    for method in _COMPARED:
        name = grid.methods[method].label
        columns += [f"spread of {name} − {label}", f"runs to see {VISIBLE_DIFFERENCE:g}"]
    columns += ["to see the paper's SOAP", f"all methods, median runs to see {VISIBLE_DIFFERENCE:g}"]
    rows = []
    for power in powers:
        texts = [grid.cell_label(power.cell), str(power.pairs), range_text(power.positives, ",")]
        for method in _COMPARED:
            spread = power.spreads.get(method)
            texts += [NO_VALUE] * 2 if spread is None else [f"{spread:.4f}", f"{runs_needed(spread):,}"]
        claim = power.printed.get("soap")
        if claim is None or claim <= 0 or "soap" not in power.spreads:
            texts.append("")
        else:
            texts.append(f"{runs_needed(power.spreads['soap'], claim):,} ({signed_text(claim)})")
        texts.append(f"{math.ceil(median(map(runs_needed, power.spreads.values()))):,}")
        rows.append(TableRow(tuple(map(TableField, texts))))
    title = f"Runs to see a difference of {VISIBLE_DIFFERENCE:g} in AUPRC"
    return ResultTable(title, tuple(columns), tuple(rows))


@dataclass(frozen=True)
class PooledMethod:
    """A method's test rows of all folds, ranked as one list.

    Args:
        cell: Data set and network.
        method: The method's name.
        rows: Number of rows.
        positives: Number of positives.
        ap: AP with its interval, by the rows that align the folds.
        difference: Difference to the base, by a paired bootstrap over the rows, likewise; empty for the base.
    """

    cell: GridCell
    method: str
    rows: int
    positives: int
    ap: Mapping[str, Interval]
    difference: Mapping[str, Difference]


def pool_folds(
    lines: Sequence[Mapping[str, Any]], align: str = "validation"
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the scores and labels of several folds' test rows, the scores of each fold shifted and scaled.

    Args:
        lines: The folds' lines of test scores.
        align: Rows whose scores have mean 0 and standard deviation 1 afterwards: "validation" or "test".

    >>> from apmax.reproduce.run import encode_scores
    >>> fold = {"location": 1.0, "scale": 2.0, "labels": "01", "scores": encode_scores(np.array([1.0, 5.0]))}
    >>> [values.tolist() for values in pool_folds([fold, fold])]
    [[0.0, 2.0, 0.0, 2.0], [0.0, 1.0, 0.0, 1.0]]
    >>> pool_folds([fold], "test")[0].tolist()
    [-1.0, 1.0]
    """
    validation.choice("align", align, ALIGNMENTS)
    aligned = []
    for line in lines:
        scores = decode_scores(line["scores"])
        location, scale = (line["location"], line["scale"]) if align == "validation" else (scores.mean(), scores.std())
        aligned.append((scores - location) / (scale or 1.0))
    labels = [np.array([float(label) for label in line["labels"]]) for line in lines]
    return np.concatenate(aligned), np.concatenate(labels)


def pooled_methods(
    grid: ExperimentGrid, entries: MethodSummaries, test_scores: Mapping[str, Mapping[str, Any]], base: str
) -> list[PooledMethod]:
    """Return the pooled results of the methods that have the test scores of all folds, of each fold's first seed.

    Args:
        grid: All experiments.
        entries: The summaries, whose runs are pooled.
        test_scores: The test scores of runs, by the key of the run.
        base: The method that others are compared with.
    """
    whole: dict[tuple[str, str, str], dict[str, tuple[NDArray[np.float64], NDArray[np.float64]]]] = {}
    for key, entry in entries.items():
        splits = grid.data[key[0]].splits
        # Each split's first seed is its number.
        runs = [entry.lines.get((split, seed)) for seed, split in enumerate(splits)]
        folds = [test_scores[line["key"]] for line in runs if line is not None and line["key"] in test_scores]
        if folds and len(folds) == len(splits):
            whole[key] = {align: pool_folds(folds, align) for align in ALIGNMENTS}
    pooled = []
    for data, model, method in sorted(whole, key=lambda key: (key[:2], list(grid.methods).index(key[2]))):
        own, other = whole[data, model, method], whole.get((data, model, base), {})
        labels = own["validation"][1]
        pooled.append(
            PooledMethod(
                cell=(data, model),
                method=method,
                rows=len(labels),
                positives=int(labels.sum()),
                ap={align: average_precision_interval(scores, labels) for align, (scores, _) in own.items()},
                difference={
                    align: paired_difference(own[align][0], scores, labels)
                    for align, (scores, _) in other.items()
                    if method != base
                },
            )
        )
    return pooled


def pooled_table(grid: ExperimentGrid, methods: Sequence[PooledMethod], base: str) -> ResultTable:
    """Return the table of methods whose folds are ranked as one list."""
    label = grid.methods[base].label
    columns = ["Method", "Cell", "Test rows", "Positives"]
    for align in ALIGNMENTS:
        columns += [f"AP (95 %), {align} rows align", f"AP − {label} (95 %)"]
    rows = []
    for pooled in methods:
        method = grid.methods[pooled.method]
        texts = [method.label, grid.cell_label(pooled.cell), f"{pooled.rows:,}", f"{pooled.positives:,}"]
        for align in ALIGNMENTS:
            ap, difference = pooled.ap[align], pooled.difference.get(align)
            texts.append(f"{ap.estimate:.4f} ({ap.low:.4f} to {ap.high:.4f})")
            texts.append("" if difference is None else _difference_text(difference))
        rows.append(TableRow(tuple(map(TableField, texts)), method.ours))
    return ResultTable("Test rows of all folds as one list", tuple(columns), tuple(rows))


def _difference_text(difference: Difference) -> str:
    estimate, low, high = map(signed_text, (difference.estimate, difference.low, difference.high))
    return f"{estimate} ({low} to {high})"
