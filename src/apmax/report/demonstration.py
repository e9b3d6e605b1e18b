"""Report of the demonstration: five training methods on two tasks, paired over draws of the data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import mean, stdev

from torch import Tensor

from apmax.metrics import Interval, Paired, compare
from apmax.metrics.quantiles import t_quantile
from apmax.report.collect import software_versions
from apmax.report.content import Contender, ReportData, TargetReport
from apmax.report.curves import CONFIDENCE
from apmax.report.rankings import score_part
from apmax.workflows.demo import BASE_METHOD, DEFAULT_METHOD, DEMO_TASKS


@dataclass(frozen=True)
class DemoScores:
    """Test labels of the first cell of a task, and each method's scores there."""

    labels: Tensor
    scores: Mapping[str, Tensor]


def report_demo(results: Mapping[str, Mapping[str, Sequence[float]]], first: Mapping[str, DemoScores]) -> ReportData:
    """Return the content of the report of the demonstration.

    Args:
        results: The test AP of every cell, by task and method.
        first: The scores of the first cell of each task.
    """
    return ReportData(
        title="Demonstration: rare digits and rare tumours",
        targets=tuple(_report_task(name, methods, first[name]) for name, methods in results.items()),
        facts=(
            "All methods begin with the same weights, take the same number of steps and are chosen by validation AP.",
            "The curves are those of the test rows of the first cell (draw of the data); the list compares all cells.",
        ),
        versions=software_versions(),
    )


def _report_task(name: str, methods: Mapping[str, Sequence[float]], first: DemoScores) -> TargetReport:
    base = methods[BASE_METHOD]
    # The method to judge is fixed beforehand: the best of these test results would look better than it is.
    judged = [DEFAULT_METHOD, *(method for method in methods if method not in (DEFAULT_METHOD, BASE_METHOD))]
    verdict = tuple(_sentence(method, compare(methods[method], base)) for method in judged)
    labels = first.labels.numpy()
    return TargetReport(
        name=DEMO_TASKS[name].title,
        positive="rare class",
        verdict=verdict,
        parts=tuple(score_part(method, scores.numpy(), labels) for method, scores in first.scores.items()),
        leaderboard=tuple(
            Contender(f"{method}, all cells", _mean_interval(values)) for method, values in methods.items()
        ),
        leaderboard_title=f"Mean test AP over {len(base)} cells",
        leaderboard_note="The intervals are of the mean over cells, not of differences, which are paired and narrower.",
    )


def _sentence(method: str, gain: Paired) -> str:
    """Return the verdict on a method in words."""
    if gain.low > 0:
        conclusion = "it ranks better"
    elif gain.high < 0:
        conclusion = "it ranks worse"
    else:
        conclusion = "no difference can be told"
    numbers = f"{gain.difference:+.3f} ({gain.low:+.3f} to {gain.high:+.3f})"
    cells = f"higher in {gain.won} of {gain.cells} cells"
    return f"Test AP of {method} against {BASE_METHOD}: {numbers}, {cells}: {conclusion}."


def _mean_interval(values: Sequence[float]) -> Interval:
    """Return the mean with its interval by Student's t."""
    centre = mean(values)
    half = t_quantile((1 + CONFIDENCE) / 2, len(values) - 1) * stdev(values) / len(values) ** 0.5
    return Interval(centre, max(0.0, centre - half), min(1.0, centre + half), CONFIDENCE)
