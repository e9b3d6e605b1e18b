"""Hand-made results of runs that exist in the grid, for the tests of tables and figures."""

from __future__ import annotations

from typing import Any

from apmax.reproduce import grid, searches


def runs(data: str, model: str, method: str, values: dict[str | int, float | None], **more: Any) -> dict[str, Any]:
    """Return result lines by key: a test AUPRC for each split (or seed), None for a run that diverged.

    AP is half as far from 1 as AUPRC, so that neither the two nor their differences can be taken for each other.
    """
    lines = {}
    for search in searches(grid(), [(data, model)], [method]):
        for seed in search.seeds:
            where = search.split if search.split in values else seed
            if where in values:
                trial = search.trial(seed, search.tuning[0].settings, 0, method)
                lines[trial.key] = {"key": trial.key, **trial.place, **ended(values[where]), **more}
    assert len(lines) == len(values), "a split or seed that the grid does not have"
    return lines


def ended(value: float | None) -> dict[str, Any]:
    """Return how a run ended."""
    if value is None:
        return {"diverged": "loss is nan", "valid": None, "test": None}
    quality = {"rows": 200, "positives": 4, "ap": round((1 + value) / 2, 6), "auprc": value, "auroc": 0.9}
    facts = {"chosen": {"stage": 1, "epoch": 7}, "epochs": 60, "seconds": 90.0, "version": "0.1.0", "commit": "abc1234"}
    return {**facts, "valid": quality, "test": quality}


def history(line: dict[str, Any], **curves: list[float | None]) -> dict[str, Any]:
    """Return how a run's epochs went."""
    length = len(next(iter(curves.values())))
    return {"key": line["key"], "steps": [27 * (epoch + 1) for epoch in range(length)], **curves}
