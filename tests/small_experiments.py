"""A tiny grid and hand-made results of runs in the real grid, for the tests of `apmax.reproduce`."""

from __future__ import annotations

from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np

from apmax.reproduce import ExperimentGrid, Trial, load_grid, plan_searches
from apmax.reproduce.grid import parse_grid, resolve_settings
from apmax.reproduce.pages import ItemSummary, summarise_item
from apmax.train import parse_toml

PAPER_METHODS = ("ce", "cb_ce", "focal", "ldam", "auc_m", "smooth_ap", "fast_ap", "minmax", "soap")
CELL = ("aicures", "gine")
TINY_CELL = ("cifar10", "narrow")


def write_tiny_images(folder: Path) -> Path:
    """Write a CIFAR-10 of 120 random images, and return the folder of data sets."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, count in (("train", 60), ("valid", 30), ("test", 30)):
        arrays[f"x_{part}"] = random.integers(0, 256, (count, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = (np.arange(count) % 6 == 0).astype(np.uint8)
    (folder / "cifar10").mkdir()
    np.savez(folder / "cifar10" / "cifar10_imbalanced.npz", **arrays)
    return folder


def tiny_grid(**images: Any) -> ExperimentGrid:
    """Return the grid with CIFAR-10 runs that take a fraction of a second."""
    table = parse_toml(resources.files("apmax.reproduce").joinpath("grid.toml").read_text())
    table["domains"]["images"].update({"first_epochs": 2, "epochs": 2, "milestone": 1.0, "batch_size": 16, **images})
    table["domains"]["images"]["recipe"].update(epochs=2, joint_epochs=1, num_pos=2)
    table["models"]["narrow"]["settings"] = {"width": 2}
    table["data"]["cifar10"]["seeds"] = 1
    return parse_grid(table)


def trial(
    data: str = "aicures",
    model: str = "gine",
    method: str = "soap",
    split: str | None = "fold0",
    seed: int = 0,
    **changed: Any,
) -> Trial:
    """Return a run of the real grid with some settings changed."""
    settings = {**resolve_settings(load_grid(), data, model, method), **changed}
    return Trial(load_grid(), data, model, method, split, seed, settings)


def result_lines(
    data: str, model: str, method: str, values: dict[str | int, float | None], **more: Any
) -> dict[str, Any]:
    """Return result lines by key: a test AUPRC for each split (or seed), None for a run that diverged.

    AP is half as far from 1 as AUPRC, so that neither the two nor their differences are mistaken for each other.
    """
    lines = {}
    for search in plan_searches(load_grid(), [(data, model)], [method]):
        for seed in search.seeds:
            replicate = search.split if search.split in values else seed
            if replicate in values:
                run = search.trial(seed, search.tuning[0].settings, 0, method)
                lines[run.key] = {"key": run.key, **run.coordinates, **_outcome(values[replicate]), **more}
    assert len(lines) == len(values), "a split or seed that the grid does not have"
    return lines


def _outcome(value: float | None) -> dict[str, Any]:
    """Return the outcome of a run with this test AUPRC."""
    if value is None:
        return {"diverged": "loss is nan", "valid": None, "test": None}
    metrics = {"rows": 200, "positives": 4, "ap": round((1 + value) / 2, 6), "auprc": value, "auroc": 0.9}
    facts = {"chosen": {"stage": 1, "epoch": 7}, "epochs": 60, "seconds": 90.0, "version": "0.1.0", "commit": "abc1234"}
    return {**facts, "valid": metrics, "test": metrics}


def every_fold(value: float | None) -> dict[str | int, float | None]:
    """Return the same value for all folds of AICURES."""
    return {f"fold{k}": value for k in range(10)}


def partial_table6() -> dict[str, Any]:
    """Return results of AICURES, GINE: all of CE, all of SOAP but one diverged, one of the recipe."""
    return {
        **result_lines(*CELL, "ce", {f"fold{k}": 0.4 + 0.01 * k for k in range(10)}),
        **result_lines(*CELL, "soap", {f"fold{k}": 0.5 + 0.02 * k for k in range(9)} | {"fold9": None}),
        **result_lines(*CELL, "apmax", {"fold0": 0.9}),
    }


def three_cells() -> dict[str, Any]:
    """Return results of CE and SOAP in three cells: surely above, above, and below with one pair."""
    return {
        **result_lines("aicures", "gine", "ce", {f"fold{k}": 0.1 * k for k in range(10)}),
        **result_lines("aicures", "gine", "soap", {f"fold{k}": 0.1 * k + 0.01 + 0.001 * k for k in range(10)}),
        **result_lines("aicures", "mpnn", "ce", {"fold0": 0.2, "fold1": 0.3}),
        **result_lines("aicures", "mpnn", "soap", {"fold0": 0.9, "fold1": 0.31}),
        **result_lines("aicures", "ml-mpnn", "ce", {"fold0": 0.5}),
        **result_lines("aicures", "ml-mpnn", "soap", {"fold0": 0.4}),
    }


def tuned_lines(valid: list[float], method: str = "soap", splits: Sequence[str] = ("fold0",)) -> dict[str, Any]:
    """Return results of a method's first configurations on folds with these validation APs; test is 0.5 higher."""
    return {
        run.key: {
            "key": run.key,
            **run.coordinates,
            "valid": {"ap": value, "positives": 4},
            "test": {"ap": value + 0.5, "auprc": value + 0.5, "auroc": 0.9, "positives": 4, "rows": 200},
        }
        for search in plan_searches(load_grid(), [CELL], [method], budget=4, splits=splits)
        for run, value in zip(search.tuning, valid, strict=False)
    }


def epoch_values(line: dict[str, Any], **curves: list[float | None]) -> dict[str, Any]:
    """Return the history of a run's epochs."""
    length = len(next(iter(curves.values())))
    return {"key": line["key"], "steps": [27 * (epoch + 1) for epoch in range(length)], **curves}


def summarise(item: str, lines: dict[str, Any], **part: Any) -> ItemSummary:
    """Return the summary of an item of the real grid."""
    return summarise_item(load_grid(), load_grid().items[item], lines, **part)


def table6(lines: dict[str, Any], **part: Any) -> ItemSummary:
    """Return the summary of the cell AICURES, GINE of table 6."""
    return summarise("table6", lines, cells=[CELL], **part)
