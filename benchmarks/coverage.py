"""Coverage of the confidence intervals: how often those of confidence 0.95 miss the true value, by simulation.

Scores of both classes are normal, the distance between the classes is such that the metric has the given value in the
population, 5 % are positive. `python -m benchmarks.coverage` prints the tables of docs/explanation/intervals.md.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy import integrate, optimize, special

from apmax import metrics
from benchmarks.markdown import markdown_table
from benchmarks.timing import Row

PREVALENCE = 0.05
TRUTHS = (0.5, 0.9, 0.99, 0.999)
POSITIVES = (5, 20, 200)
LIST_SHARES = {"precision at n₊": PREVALENCE, "recall at 2n₊": 2 * PREVALENCE, "enrichment": 0.01}
"""Share of the rows in the list of a metric; the enrichment is a part of the largest possible one, 1/PREVALENCE."""
ALPHA = 20.0


def precision_interval(scores: Any, labels: Any, **options: Any) -> metrics.Interval:
    """Return the precision among as many rows as there are positives."""
    return metrics.precision_at_k_interval(scores, labels, k=round(len(labels) * PREVALENCE), **options)


def recall_interval(scores: Any, labels: Any, **options: Any) -> metrics.Interval:
    """Return the recall in a list of twice as many rows as there are positives."""
    return metrics.recall_at_k_interval(scores, labels, k=round(2 * len(labels) * PREVALENCE), **options)


def enrichment_interval(scores: Any, labels: Any, **options: Any) -> metrics.Interval:
    """Return the enrichment factor at 1 % as a share of the largest one."""
    found = metrics.enrichment_factor_interval(scores, labels, **options)
    ends = (end * PREVALENCE for end in (found.estimate, found.low, found.high))
    return metrics.Interval(*ends, found.confidence)


INTERVALS: dict[str, Callable[..., metrics.Interval]] = {
    "AP": metrics.average_precision_interval,
    "AUPRC": metrics.auprc_interval,
    "AUROC": metrics.auroc_interval,
    "BEDROC": metrics.bedroc_interval,
    "precision at n₊": precision_interval,
    "recall at 2n₊": recall_interval,
    "enrichment": enrichment_interval,
}
MAX_MISSED = 0.07


def exponential_weights(generator: np.random.Generator, labels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return exponential weights of all rows, of mean 1: a weight is also a number of places."""
    weight = generator.exponential(size=labels.size)
    return weight / weight.mean()


def uneven_negatives(generator: np.random.Generator, labels: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Return equal weights of the positives, and log-normal ones (σ = 2) of the negatives with the same mean."""
    weight = np.where(labels == 1, 1.0, generator.lognormal(sigma=2, size=labels.size))
    return np.where(labels == 1, weight, weight / weight[labels == 0].mean())


WEIGHTS = {"all": exponential_weights, "negatives": uneven_negatives}
"""Weights of rows, independent of their scores."""


def population_value(metric: str, shift: float) -> float:
    """Return the metric of normal scores `shift` apart in an infinite population; AUPRC is then equal to AP."""
    if metric == "AUROC":
        return float(special.ndtr(shift / np.sqrt(2)))

    def share_above(cut: float) -> float:
        return float(PREVALENCE * special.ndtr(shift - cut) + (1 - PREVALENCE) * special.ndtr(-cut))

    def mean_over_positives(value: Callable[[float], float]) -> float:
        def term(cut: float) -> float:
            return math.exp(-((cut - shift) ** 2) / 2) / math.sqrt(2 * math.pi) * value(cut)

        return float(integrate.quad(term, shift - 8, shift + 8, limit=200)[0])

    if metric in LIST_SHARES:
        cut = optimize.brentq(lambda cut: share_above(cut) - LIST_SHARES[metric], -10, 20)
        recall = float(special.ndtr(shift - cut))
        return recall if metric.startswith("recall") else PREVALENCE * recall / LIST_SHARES[metric]
    if metric == "BEDROC":
        value = PREVALENCE * ALPHA * mean_over_positives(lambda cut: math.exp(-ALPHA * share_above(cut)))
        worst, best = np.exp(-ALPHA * (1 - PREVALENCE)) - np.exp(-ALPHA), 1 - np.exp(-ALPHA * PREVALENCE)
        return float((value - worst) / (best - worst))
    return mean_over_positives(lambda cut: PREVALENCE * special.ndtr(shift - cut) / share_above(cut))


def shift_of(metric: str, truth: float) -> float:
    """Return the distance between the classes at which the metric has the value `truth`."""
    return float(optimize.brentq(lambda shift: population_value(metric, shift) - truth, 0, 12))


def missed(
    metric: str, truth: float, num_pos: int, *, trials: int, seed: int = 0, weights: str | None = None, **options: Any
) -> float:
    """Return the share of simulated intervals that do not hold the truth.

    Args:
        metric: A key of `INTERVALS`.
        truth: The value in the population.
        num_pos: Positives in each simulated test set.
        trials: Number of test sets.
        seed: Seed of the simulation.
        weights: A key of `WEIGHTS`, or None for no weights.
        **options: Arguments of the interval.
    """
    generator = np.random.default_rng(seed)
    shift, labels = shift_of(metric, truth), np.repeat([1.0, 0.0], [num_pos, round(num_pos / PREVALENCE) - num_pos])
    misses = 0
    for _ in range(trials):
        scores = generator.normal(size=labels.size) + shift * labels
        weight = None if weights is None else WEIGHTS[weights](generator, labels)
        interval = INTERVALS[metric](scores, labels, sample_weight=weight, **options)
        misses += not interval.low <= truth <= interval.high + 1e-12
    return misses / trials


def run(trials: int = 200) -> list[Row]:
    """Return the largest share of misses of each interval over all settings, and the share allowed."""
    return [
        (
            f"{metric}: 95 % intervals that miss the truth, largest share over {len(TRUTHS) * len(POSITIVES)} settings",
            max(missed(metric, truth, num_pos, trials=trials) for truth in TRUTHS for num_pos in POSITIVES),
            MAX_MISSED,
        )
        for metric in INTERVALS
    ]


AREAS: dict[str, tuple[str, dict[str, Any]]] = {
    "AP": ("AP", {}),
    "AP, bootstrap": ("AP", {"method": "bootstrap", "resamples": 200}),
    "AP, weighted": ("AP", {"weights": "all"}),
    "AP, uneven negatives": ("AP", {"weights": "negatives"}),
    "AUPRC": ("AUPRC", {}),
    "AUROC": ("AUROC", {}),
    "AUROC, weighted": ("AUROC", {"weights": "all"}),
}
EARLY: dict[str, tuple[str, dict[str, Any]]] = {
    "precision at n₊": ("precision at n₊", {}),
    "recall at 2n₊": ("recall at 2n₊", {}),
    "recall, weighted": ("recall at 2n₊", {"weights": "all"}),
    "enrichment at 1 %": ("enrichment", {}),
    "BEDROC": ("BEDROC", {}),
    "BEDROC, weighted": ("BEDROC", {"weights": "all"}),
}


def table(columns: dict[str, tuple[str, dict[str, Any]]], trials: int) -> str:
    """Return the coverage of every setting as a Markdown table."""
    rows = [["true value", "positives", *columns]]
    for truth in TRUTHS:
        for num_pos in POSITIVES:
            cells = []
            for metric, options in columns.values():
                fewer = trials // 4 if "method" in options else trials
                cells.append(f"{1 - missed(metric, truth, num_pos, trials=fewer, **options):.3f}")
            rows.append([f"{truth:g}", str(num_pos), *cells])
    return markdown_table(rows)


def difference_missed(
    truths: tuple[float, float], num_pos: int, correlation: float, *, trials: int, seed: int = 0, resamples: int = 1000
) -> float:
    """Return the share of simulated intervals of a paired difference that do not hold the true difference in AP.

    Args:
        truths: AP of the two models in the population.
        num_pos: Positives in each simulated test set.
        correlation: Correlation of the two models' scores within a class.
        trials: Number of test sets.
        seed: Seed of the simulation.
        resamples: Resamples of each bootstrap.
    """
    generator = np.random.default_rng(seed)
    labels = np.repeat([1.0, 0.0], [num_pos, round(num_pos / PREVALENCE) - num_pos])
    first, second = (shift_of("AP", truth) for truth in truths)
    misses = 0
    for _ in range(trials):
        shared, own = generator.normal(size=labels.size), generator.normal(size=labels.size)
        other = correlation * shared + math.sqrt(1 - correlation**2) * own
        found = metrics.paired_difference(
            shared + first * labels, other + second * labels, labels, resamples=resamples, seed=1
        )
        misses += not found.low <= truths[0] - truths[1] <= found.high
    return misses / trials


DIFFERENCES = {
    "equal models, independent scores": (0.0, 0.0),
    "equal, correlation 0.8": (0.0, 0.8),
    "0.1 apart, correlation 0.8": (0.1, 0.8),
}
"""Difference in AP of two models, and the correlation of their scores within a class."""


def difference_table(trials: int) -> str:
    """Return the coverage of paired differences as a Markdown table."""
    rows = [["AP of the better model", "positives", *DIFFERENCES]]
    for truth in (0.2, 0.5, 0.9):
        for num_pos in (5, 10, 20, 200):
            cells = [
                f"{1 - difference_missed((truth, truth - gain), num_pos, correlation, trials=trials):.3f}"
                for gain, correlation in DIFFERENCES.values()
            ]
            rows.append([f"{truth:g}", str(num_pos), *cells])
    return markdown_table(rows)


if __name__ == "__main__":
    print(table(AREAS, 400), table(EARLY, 400), difference_table(400), sep="\n\n")
