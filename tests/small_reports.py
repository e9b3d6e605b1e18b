"""A small report with every part, and with markup in its texts."""

from __future__ import annotations

import numpy as np

from apmax.metrics import Interval
from apmax.report import (
    Contender,
    Example,
    ExampleTable,
    Importance,
    ImportanceTable,
    LearningCurve,
    ReportData,
    TargetReport,
    headline,
    score_part,
    subgroup_table,
)
from apmax.train import PlattCurve

NASTY = "</script><script>window.pwned=1</script><img src=x onerror='window.pwned=1'><!--"


def small_scores(seed=0, count=600, share=0.1):
    """Return scores with some ties, and labels."""
    generator = np.random.default_rng(seed)
    labels = (generator.random(count) < share).astype(float)
    return np.round(generator.normal(size=count) + 1.5 * labels, 2), labels


def small_report():
    """Return a report of two targets, the first of which has markup in all its texts."""
    scores, labels = small_scores()
    interval = Interval(0.3, 0.2, 0.4, 0.95)
    parts = (
        score_part("test", scores, labels, calibration=PlattCurve(1.5, -2.5)),
        score_part("cross-fitted", *small_scores(1, 900), calibration=PlattCurve(1.5, -2.5), calibration_fitted=True),
    )
    first = TargetReport(
        name=f"active {NASTY}",
        positive=NASTY,
        verdict=(headline(parts[0]), f"A second sentence {NASTY}."),
        parts=parts,
        leaderboard=(Contender("blend", interval, 1.0, 7.0, blend=True), Contender(NASTY, interval)),
        leaderboard_title="Members",
        leaderboard_note="A note.",
        importance=ImportanceTable("test", 600, 2, 4, (Importance(NASTY, interval), Importance("age", interval))),
        examples=(
            ExampleTable("Top-ranked rows", "test", ("row", NASTY), (Example(1, 2.5, True, ("3", NASTY)),)),
            ExampleTable(
                "Worst-missed positives",
                "test",
                ("row", "smiles"),
                (Example(600, -2.5, True, ("4", NASTY), "data:image/svg+xml;base64,PHN2Zy8+"),),
                "A note.",
            ),
        ),
        subgroups=(subgroup_table(NASTY, [NASTY if k % 3 else "oslo" for k in range(600)], "test", scores, labels),),
    )
    second = TargetReport("toxic", "1", ("A verdict.",), (score_part("test", *small_scores(2, 80)),))
    learning = LearningCurve(
        "network",
        ("ce", "ce", "ap + ce"),
        (0.7, 0.6, 0.5),
        (float("nan"), 0.3, 0.4),
        (0.2, 0.3, 0.35),
        (float("nan"), 0.4, 0.5),
        (0.3, 0.35, 0.4),
        chosen=3,
    )
    return ReportData(
        title=f"run {NASTY}",
        targets=(first, second),
        learning=(learning,),
        facts=("600 rows",),
        warnings=(f"possible leakage: column {NASTY}",),
        configuration=f"# {NASTY}\nseed = 0\n",
        versions={"apmax": "0.1.0"},
    )
