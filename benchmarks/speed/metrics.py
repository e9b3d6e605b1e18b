"""Average precision beside scikit-learn's, and a thousand bootstrap resamples beside plain sorts; one thread."""

from __future__ import annotations

import torch
from sklearn.metrics import average_precision_score
from torch import Tensor

from apmax import metrics
from benchmarks.timing import Row, ratio


def data(n: int, prevalence: float) -> tuple[Tensor, Tensor, Tensor]:
    """Return the scores of two related models and labels."""
    generator = torch.Generator().manual_seed(0)
    labels = (torch.rand(n, generator=generator) < prevalence).long()
    first = torch.randn(n, generator=generator) + 1.5 * labels
    return first, first + torch.randn(n, generator=generator), labels


def against_scikit_learn(n: int, prevalence: float) -> Row:
    """Return the row for average precision."""
    scores, _, labels = data(n, prevalence)
    measured = ratio(
        lambda: metrics.average_precision(scores, labels),
        lambda: average_precision_score(labels.numpy(), scores.numpy()),
        seconds=0,
        least=2,
    )
    return f"average_precision, n = {n:.0e}, {prevalence:.0%} positive / scikit-learn", measured, 0.5


def against_sorts(n: int, prevalence: float) -> list[Row]:
    """Return the rows for the bootstraps."""
    first, second, labels = data(n, prevalence)
    setting = f"1,000 resamples of {n:.0e}, {prevalence:.0%} positive"
    alone = ratio(
        lambda: metrics.average_precision_interval(first, labels, method="bootstrap"),
        lambda: torch.sort(first),
    )
    paired = ratio(
        lambda: metrics.paired_difference(first, second, labels),
        lambda: (torch.sort(first), torch.sort(second)),
    )
    return [
        (f"bootstrap interval, {setting} / torch.sort of the scores", alone, 100.0),
        (f"paired difference, {setting} / torch.sort of both models' scores", paired, 100.0),
    ]


def run() -> list[Row]:
    """Return what was measured, the ratio and its target."""
    return [against_scikit_learn(10**7, 0.01), against_scikit_learn(10**7, 0.5), *against_sorts(10**5, 0.01)]
