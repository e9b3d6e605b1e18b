"""Coverage of the bounds of decisions: how often the truth lies beyond them, by simulation.

Scores of both classes are normal, 5 % are positive, and the number of positives is random. Each simulated sample
chooses a threshold, whose precision, recall and cost at the decision's prevalence are known. `python -m
benchmarks.decisions` prints the table of docs/guide/decide.md.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from scipy import special

from apmax.decide import Decision, choose_threshold
from benchmarks.markdown import markdown_table
from benchmarks.timing import Row

PREVALENCE = 0.05
SHIFTS = (0.0, 1.5, 2.5, 4.0)
"""Distances between the classes: average precision about 0.05, 0.33, 0.68 and 0.96."""
ROWS = (400, 4000)
COSTS = (1.0, 10.0)
"""Beside (1, 19), where without skill all thresholds cost the same: the rows alone choose one."""
RULES: dict[str, dict[str, Any]] = {
    "precision 0.3": {"precision": 0.3},
    "precision 0.8": {"precision": 0.8},
    "precision 0.8, guarantee": {"precision": 0.8, "guarantee": True},
    "precision 0.3, guarantee": {"precision": 0.3, "guarantee": True},
    "precision 0.3 at prevalence 0.01": {"precision": 0.3, "prevalence": 0.01},
    "recall 0.8": {"recall": 0.8},
    "recall 0.8, guarantee": {"recall": 0.8, "guarantee": True},
    "top 1 %": {"top": 1},
    "cost 1:10": {"cost": COSTS},
    "cost 1:19": {"cost": (1.0, 19.0)},
    "cost 1:10 at prevalence 0.01": {"cost": COSTS, "prevalence": 0.01},
}
MAX_MISSED = 0.07


def true_values(decision: Decision, shift: float) -> dict[str, float]:
    """Return precision, recall and mean cost of a threshold in a population of the decision's prevalence."""
    prevalence = decision.prevalence
    recall, false_rate = special.ndtr(shift - decision.threshold), special.ndtr(-decision.threshold)
    taken = prevalence * recall + (1 - prevalence) * false_rate
    costs = decision.costs or COSTS
    cost = costs[1] * prevalence * (1 - recall) + costs[0] * (1 - prevalence) * false_rate
    return {"precision": prevalence * recall / taken, "recall": float(recall), "cost": float(cost)}


def missed(rule: str, shift: float, rows: int, *, trials: int, seed: int = 0) -> dict[str, float]:
    """Return the share of samples whose true precision, recall or cost is beyond the bound, and of those without one.

    Args:
        rule: A key of `RULES`.
        shift: Distance between the classes.
        rows: Rows of each simulated sample.
        trials: Number of samples.
        seed: Seed of the simulation.
    """
    generator = np.random.default_rng(seed)
    options = dict(RULES[rule])
    if "top" in options:
        options["top"] = rows // 100
    beyond: dict[str, list[bool]] = {"precision": [], "recall": [], "cost": []}
    failed = 0
    for _ in range(trials):
        labels = generator.random(rows) < PREVALENCE
        scores = generator.normal(size=rows) + shift * labels
        try:
            decision = choose_threshold(scores, labels, **options)
        except ValueError:  # no threshold does it
            failed += 1
            continue
        truth = true_values(decision, shift)
        beyond["precision"].append(truth["precision"] < decision.precision.bound)
        beyond["recall"].append(truth["recall"] < decision.recall.bound)
        if decision.cost is not None:
            beyond["cost"].append(truth["cost"] > decision.cost.bound)
    shares = {name: sum(values) / trials for name, values in beyond.items() if values}
    return {**shares, "failed": failed / trials}


def chosen_by(rule: str) -> str:
    """Return the quantity whose bound matters to a rule."""
    return "precision" if rule.startswith("top") else rule.split()[0]


def run(trials: int = 200) -> list[Row]:
    """Return the largest share of misses of each rule over all settings, and the share allowed."""
    settings = [(shift, rows) for shift in SHIFTS for rows in ROWS]
    return [
        (
            f"decision for {rule}: bounds that do not hold, largest share over {len(settings)} settings",
            max(missed(rule, *setting, trials=trials).get(chosen_by(rule), 0.0) for setting in settings),
            MAX_MISSED,
        )
        for rule in RULES
    ]


def table(trials: int) -> str:
    """Return the share of bounds that hold, by rule and setting, as a Markdown table."""
    settings = [(shift, rows) for shift in SHIFTS for rows in ROWS]
    rows = [["rule", "bound of", *(f"{shift:g}, {size:,}" for shift, size in settings)]]
    for rule in RULES:
        results = [missed(rule, *setting, trials=trials) for setting in settings]
        for name in dict.fromkeys((chosen_by(rule), "precision", "recall")):
            cells = [
                f"{1 - result[name]:.3f}" + (f" ({result['failed']:.0%} none)" if result["failed"] >= 0.005 else "")
                if name in result
                else "none"
                for result in results
            ]
            rows.append([rule, name, *cells])
    return markdown_table(rows)


if __name__ == "__main__":
    print(table(1000))
