"""A first look at real molecules: cross-entropy and the default recipe beside the paper's numbers.

    APMAX_DATA=FOLDER OMP_NUM_THREADS=1 python examples/first_look_molecules.py results/molecules --minutes 30
    python examples/first_look_molecules.py results/molecules --table

The first command appends one line to `first_look.jsonl` per finished cell and skips those that stand there; when the
time is up it stops, and goes on from the last checkpoint when it is called again. The second writes `README.md`.
Epochs are chosen by validation AP alone; the test part is scored once per cell.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from apmax import __version__
from apmax.config import RECIPES, Run, Stage
from apmax.data.molecules import DATASETS, load
from apmax.jobs import evaluate
from apmax.models.graphs import GRAPH_MODELS
from apmax.train import epochs, predict

LINES, SCRATCH = "first_look.jsonl", Path("out", "first_look")
# Adam's decay beside a mean of 64 losses, which the paper's code sums.
DECAY = 5e-5 / 64


@dataclass(frozen=True)
class Cell:
    """One run: everything that decides its numbers."""

    data: str
    split: str
    model: str
    method: str
    epochs: int
    joint_epochs: int
    num_pos: int
    ema: float
    seed: int = 0

    def stages(self) -> tuple[Stage, ...]:
        """Return the paper's first stage for "ce", the default recipe of as many epochs for "default"."""
        if self.method == "ce":
            return RECIPES["paper"](lr=5e-4, epochs=self.epochs, batch_size=64, weight_decay=DECAY)[:1]
        return RECIPES["default"](
            epochs=self.epochs,
            joint_epochs=self.joint_epochs,
            batch_size=64,
            num_pos=self.num_pos,
            ema=self.ema,
            weight_decay=DECAY,
        )

    @property
    def name(self) -> str:
        """A folder's name."""
        return "-".join(str(value) for value in asdict(self).values())


CELLS = [
    Cell("aicures", f"fold{fold}", model, method, epochs=100, joint_epochs=20, num_pos=8, ema=0.99, seed=fold)
    for fold in range(3)
    for model in ("gine", "mpnn")
    for method in ("ce", "default")
] + [
    Cell("hiv", "scaffold122", "gine", method, epochs=100, joint_epochs=5, num_pos=8, ema=0.999)
    for method in ("ce", "default")
]


def measure(cell: Cell, folder: Path, until: float) -> dict[str, Any] | None:
    """Return a finished cell's line, or None if the time was up before."""
    parts = load(cell.data, split=cell.split, progress=False)
    torch.manual_seed(cell.seed)
    model = GRAPH_MODELS[cell.model](hidden=DATASETS[cell.data].width)
    run = Run(stages=cell.stages(), seed=cell.seed, accelerator="cpu")
    began, records = time.monotonic(), 0
    for _ in epochs(model, (parts.train, parts.valid), run, directory=folder, resume=True):
        records += 1
        if time.monotonic() > until:
            return None
    chosen = json.loads((folder / "run.json").read_text(encoding="utf-8"))["chosen"]
    labels, scores = parts.test.labels, predict(model, parts.test)
    return {
        **asdict(cell),
        "hidden": DATASETS[cell.data].width,
        "chosen": chosen,
        "seconds": round(time.monotonic() - began, 1),
        "epochs_in_seconds": records,
        "commit": commit(),
        "version": __version__,
        "test": evaluate(scores.numpy(), labels).to_table(),
    }


def commit() -> str:
    """Return the commit that is checked out."""
    said = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return said.stdout.strip()


def finished(out: Path) -> list[dict[str, Any]]:
    """Return the lines that are there."""
    path = out / LINES
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def main() -> None:
    """Run what is missing, or write the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--minutes", type=float, default=60.0)
    given = arguments.parse_args()
    until = time.monotonic() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    done = [{key: line[key] for key in asdict(CELLS[0])} for line in finished(given.out)]
    for cell in CELLS:
        if asdict(cell) in done:
            continue
        line = measure(cell, SCRATCH / cell.name, until)
        if line is None:
            return
        with (given.out / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
