"""What the harness of the paper's experiments costs over the training itself, single thread."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from apmax.experiments import Place, Results, grid, searches
from apmax.experiments.parts import network_of, parts_of
from apmax.experiments.running import run_of
from apmax.experiments.working import run_claimed
from apmax.train import epochs
from benchmarks.timing import ratio


def overhead() -> float:
    """Return the time of a run in the harness over that of its epochs: AICURES, GINE, 100 epochs of cross-entropy.

    Claim, a checkpoint each epoch, the scores of validation and test part and the result are counted. No run of the
    paper has shorter epochs, so that none has a larger share of these.
    """
    trial = searches(grid(), [("aicures", "gine")], ["ce"])[0].tuning[0]
    parts = parts_of(trial)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def bare() -> None:
            for _ in epochs(network_of(trial), (parts.train, parts.valid), run_of(trial)):
                pass

        def harness() -> None:
            run_claimed(trial, Results(folder / "results"), Place(folder / "work", None, {}), say=lambda _: None)
            shutil.rmtree(folder / "work")
            shutil.rmtree(folder / "results")

        return ratio(harness, bare, seconds=0)


def run() -> list[tuple[str, float, float]]:
    """Return (what, ratio, target); nothing where the data are not there."""
    if "APMAX_DATA" not in os.environ:
        return []
    return [("a run of the paper's harness / its epochs bare (AICURES, GINE, 100 epochs of CE)", overhead(), 1.03)]
