"""What the harness of the paper's experiments costs over the training itself, single thread."""

from __future__ import annotations

import shutil
import tempfile
from pathlib import Path

import numpy as np

from apmax.experiments import Place, Results, grid, searches
from apmax.experiments.parts import network_of, parts_of
from apmax.experiments.running import run_of
from apmax.experiments.settings import merged
from apmax.experiments.trial import Trial
from apmax.experiments.working import run_claimed
from apmax.train import epochs
from benchmarks.timing import ratio

EPOCHS = 6


def pictures(folder: Path) -> None:
    """Write random images in the layout of the imbalanced CIFAR-10, a tenth of its size."""
    random = np.random.default_rng(0)
    arrays = {}
    for part, rows in (("train", 2040), ("valid", 510), ("test", 1000)):
        arrays[f"x_{part}"] = random.integers(0, 256, (rows, 32, 32, 3), dtype=np.uint8)
        arrays[f"y_{part}"] = (np.arange(rows) % 50 == 0).astype(np.uint8)
    (folder / "cifar10").mkdir()
    np.savez(folder / "cifar10" / "cifar10_imbalanced.npz", **arrays)


def overhead() -> float:
    """Return the time of a run in the harness, claim, checkpoints and result included, over that of its epochs."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pictures(folder)
        search = searches(grid(), [("cifar10", "narrow")], ["ce"])[0].tuning[0]
        settings = merged(search.settings, {"first_epochs": EPOCHS})
        trial = Trial(grid(), "cifar10", "narrow", "ce", None, 0, settings)
        parts = parts_of(trial, folder)

        def bare() -> None:
            for _ in epochs(network_of(trial), (parts.train, parts.valid), run_of(trial)):
                pass

        def harness() -> None:
            place = Place(folder / "work", folder, {})
            run_claimed(trial, Results(folder / "results"), place, say=lambda _: None, trace=False)
            shutil.rmtree(folder / "work")
            shutil.rmtree(folder / "results")

        return ratio(harness, bare, least=4)


def run() -> list[tuple[str, float, float]]:
    """Return (what, ratio, target)."""
    return [("a run of the paper's harness / the same epochs bare (ResNet-18 of width 16)", overhead(), 1.03)]
