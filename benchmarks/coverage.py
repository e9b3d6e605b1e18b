"""Coverage of the confidence intervals: how often those of confidence 0.95 miss the true value, by simulation.

Scores of both classes are normal, the distance between the classes is such that the metric has the given value in the
population, 5 % are positive. `python -m benchmarks.coverage` prints the table of docs/metrics.md.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy import integrate, optimize, stats

from apmax import metrics

Row = tuple[str, float, float]

PREVALENCE = 0.05
TRUTHS = (0.5, 0.9, 0.99, 0.999)
POSITIVES = (5, 20, 200)
INTERVALS: dict[str, Callable[..., metrics.Interval]] = {
    "AP": metrics.average_precision_interval,
    "AUPRC": metrics.auprc_interval,
    "AUROC": metrics.auroc_interval,
}
MAX_MISSED = 0.07


def population_value(metric: str, shift: float) -> float:
    """Return the metric of normal scores `shift` apart in an infinite population; AUPRC is then equal to AP."""
    if metric == "AUROC":
        return float(stats.norm.cdf(shift / np.sqrt(2)))

    def term(cut: float) -> float:
        found = PREVALENCE * stats.norm.sf(cut, shift)
        return float(stats.norm.pdf(cut, shift) * found / (found + (1 - PREVALENCE) * stats.norm.sf(cut)))

    return float(integrate.quad(term, shift - 8, shift + 8, limit=200)[0])


def shift_of(metric: str, truth: float) -> float:
    """Return the distance between the classes at which the metric has the value `truth`."""
    return float(optimize.brentq(lambda shift: population_value(metric, shift) - truth, 0, 12))


def missed(
    metric: str, truth: float, num_pos: int, *, trials: int, seed: int = 0, weighted: bool = False, **options: Any
) -> float:
    """Return the share of simulated intervals that do not hold the truth.

    Args:
        metric: A key of `INTERVALS`.
        truth: The value in the population.
        num_pos: Positives in each simulated test set.
        trials: Number of test sets.
        seed: Seed of the simulation.
        weighted: Whether rows have exponential weights, independent of their scores.
        **options: Arguments of the interval.
    """
    generator = np.random.default_rng(seed)
    shift, labels = shift_of(metric, truth), np.repeat([1.0, 0.0], [num_pos, round(num_pos / PREVALENCE) - num_pos])
    misses = 0
    for _ in range(trials):
        scores = generator.normal(size=labels.size) + shift * labels
        weight = generator.exponential(size=labels.size) if weighted else None
        interval = INTERVALS[metric](scores, labels, sample_weight=weight, **options)
        misses += not interval.low <= truth <= interval.high
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


def table(trials: int) -> str:
    """Return the coverage of every setting as a Markdown table."""
    columns: dict[str, tuple[str, dict[str, Any]]] = {
        "AP": ("AP", {}),
        "AP, bootstrap": ("AP", {"method": "bootstrap", "resamples": 200}),
        "AP, weighted": ("AP", {"weighted": True}),
        "AUPRC": ("AUPRC", {}),
        "AUROC": ("AUROC", {}),
        "AUROC, weighted": ("AUROC", {"weighted": True}),
    }
    lines = ["| true value | positives | " + " | ".join(columns) + " |", "|---|---|" + "---|" * len(columns)]
    for truth in TRUTHS:
        for num_pos in POSITIVES:
            cells = []
            for metric, options in columns.values():
                fewer = trials // 4 if "method" in options else trials
                cells.append(f"{1 - missed(metric, truth, num_pos, trials=fewer, **options):.3f}")
            lines.append(f"| {truth:g} | {num_pos} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    print(table(400))
