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
from statistics import fmean, stdev
from typing import Any

import torch

from apmax import __version__
from apmax.data.molecules import MOLECULE_SETS, load_molecules
from apmax.models.graphs import GRAPH_MODELS
from apmax.train import RECIPES, Run, Stage, epochs, predict
from apmax.workflows import evaluate_scores

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
# Added after the cells above had been seen, to separate chance from a defect: CE with GINE, other seed and folds.
CELLS += [Cell("hiv", "scaffold122", "gine", "ce", epochs=100, joint_epochs=5, num_pos=8, ema=0.999, seed=1)]
CELLS += [
    Cell("aicures", f"fold{fold}", "gine", "ce", epochs=100, joint_epochs=20, num_pos=8, ema=0.99, seed=fold)
    for fold in range(3, 10)
]
FIRST_FOLDS = ("fold0", "fold1", "fold2", "scaffold122")

# Tables 2 and 3 of the paper: test AUPRC, mean and deviation of three runs.
PAPER = {
    ("aicures", "gine"): {"ce": (0.5037, 0.0718), "soap": (0.6639, 0.0515)},
    ("aicures", "mpnn"): {"ce": (0.6282, 0.0634), "soap": (0.6547, 0.0616)},
    ("hiv", "gine"): {"ce": (0.2774, 0.0101), "soap": (0.3385, 0.0024)},
}

REMARKS = """
## What it says

* AICURES: the official folds are scaffold folds (in folds 0–2 no test molecule's scaffold occurs in training), which
  should be harder than the paper's random splits, and have 1 to 14 positives in the test, so that single folds say next
  to nothing: 0.015 to 0.733 for one network and method. Over folds 0–2 MPNN's cross-entropy is as high as the paper's,
  GINE's lower; neither mean is known to better than 0.1. On three random 80/10/10 splits (`random_split`, seeds 0–2; 3,
  3 and 2 positives) GINE's cross-entropy gave 0.012, 0.672 and 1.000.
* HIV, the paper's test molecules but for two that RDKit refuses: GINE's cross-entropy is 0.05 and 0.03 below the
  paper's, more than seeds differ. Looked for, and not found, was a fault: features (133 and 14 columns, the "other"
  slots, mass / 100), GINE (trained ε, shared lin1 and lin2, mean pooling, head, initialisation), width, decay, rate,
  epochs and split agree line by line with the authors' released code. What differs: they drop the last batch of 55,
  read SMILES with RDKit 2020.03, and choose by trapezoidal AUPRC; and their program returns, beside the test value at
  the best validation epoch, the best test value of all epochs. Which of the two the table prints is not known. With
  the test part scored after every epoch (`results/histories.jsonl`; nothing is chosen by it) ours has 0.227 and 0.244
  at the best validation epoch and 0.245 and 0.289 at the best of all, mean 0.267: as high as the paper's 0.277 within
  the seeds' spread. That would explain the gap; it does not prove it. Validation and test differ much here: at
  the end of training the test value is back at 0.19 to 0.21.
* The default recipe is above cross-entropy in the one HIV cell and above or equal to it in the six AICURES cells; no
  interval separates them.
"""


def measure(cell: Cell, folder: Path, until: float, version: dict[str, str]) -> dict[str, Any] | None:
    """Return a finished cell's line, or None if the time was up before."""
    parts = load_molecules(cell.data, split=cell.split, progress=False)
    torch.manual_seed(cell.seed)
    model = GRAPH_MODELS[cell.model](hidden=MOLECULE_SETS[cell.data].width)
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
        "hidden": MOLECULE_SETS[cell.data].width,
        "chosen": chosen,
        "seconds": round(time.monotonic() - began, 1),
        "epochs_in_seconds": records,
        **version,
        "test": evaluate_scores(scores.numpy(), labels).to_table(),
    }


def commit() -> str:
    """Return the commit that is checked out."""
    result = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return result.stdout.strip()


def read_lines(out: Path) -> list[dict[str, Any]]:
    """Return the finished results."""
    path = out / LINES
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()] if path.exists() else []


def results_page(lines: list[dict[str, Any]]) -> str:
    """Return the table of all cells, and the means beside the paper's, as markdown."""
    lines = sorted(lines, key=lambda line: (line["data"] != "aicures", line["model"], line["method"], line["split"]))
    commits = ", ".join(sorted({line["commit"] for line in lines}))
    text = [
        "# A first look at real molecules",
        "",
        "```",
        "APMAX_DATA=FOLDER OMP_NUM_THREADS=1 python examples/first_look_molecules.py results/molecules",
        "python examples/first_look_molecules.py results/molecules --table",
        "```",
        "",
        f"Commit {commits}. ce: the paper's first stage (Adam 5e-4, halved half-way, batch 64, decay 5e-5/64 beside",
        "a mean loss). default: our default recipe (Adam 1e-3, averaged weights, then AP + CE), batch 64, the same",
        "decay. Chosen by validation AP, test scored once; 95 % logit intervals by the number of positives. For",
        "cross-entropy with GINE, seed 1 of HIV and folds 3–9 of AICURES were added after the others had been seen.",
        "",
        "| data | split | seed | network | method | epochs | chosen | valid AP | positives | test AP | test AUPRC |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    for line in lines:
        test, chosen = line["test"], line["chosen"]
        num_epochs = f"{line['epochs']}" + (f" + {line['joint_epochs']}" if line["method"] == "default" else "")
        text.append(
            f"| {line['data']} | {line['split']} | {line['seed']} | {line['model']} | {line['method']} | {num_epochs} "
            f"| stage {chosen['stage'] + 1}, epoch {chosen['epoch']} | {chosen['smoothed_valid_ap']:.3f} "
            f"| {test['positives']} of {test['rows']:,} "
            f"| {interval_text(test['ap'])} | {interval_text(test['auprc'])} |"
        )
    text += [
        "",
        "Means over splits or seeds, beside the paper's (AUPRC, three runs; of AICURES on splits not public).",
        "Deviations are those between splits or seeds.",
        "",
        "| data | network | method | splits | test AP | test AUPRC | paper's CE | paper's SOAP |",
        "|---|---|---|---|---|---|---|---|",
    ]
    for (data, model), paper in PAPER.items():
        for method in ("ce", "default"):
            own = [line for line in lines if (line["data"], line["model"], line["method"]) == (data, model, method)]
            for name, part in (("0–2", [line for line in own if line["split"] in FIRST_FOLDS]), ("0–9", own)):
                if not part or (name == "0–9" and len(part) < 10):
                    continue
                shown = f"folds {name}" if data == "aicures" else f"{part[0]['split']}, seeds: {len(part)}"
                text.append(
                    f"| {data} | {model} | {method} | {shown} | {mean(part, 'ap')} | {mean(part, 'auprc')} "
                    f"| {paper['ce'][0]:.3f} ± {paper['ce'][1]:.3f} | {paper['soap'][0]:.3f} ± {paper['soap'][1]:.3f} |"
                )
    return "\n".join(text) + "\n" + REMARKS


def interval_text(interval: dict[str, float]) -> str:
    """Return a value with its interval."""
    return f"{interval['estimate']:.3f} ({interval['low']:.3f}–{interval['high']:.3f})"


def mean(lines: list[dict[str, Any]], figure: str) -> str:
    """Return the mean of a test figure, and its deviation where there are several."""
    values = [line["test"][figure]["estimate"] for line in lines]
    return f"{fmean(values):.3f}" + (f" ± {stdev(values):.3f}" if len(values) > 1 else "")


def main() -> None:
    """Run what is missing, or write the table."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("out", type=Path)
    arguments.add_argument("--minutes", type=float, default=60.0)
    arguments.add_argument("--table", action="store_true", help="write README.md from the lines that are there")
    given = arguments.parse_args()
    if given.table:
        (given.out / "README.md").write_text(results_page(read_lines(given.out)), encoding="utf-8")
        return
    # Recorded at the start: this process keeps running the code that it was started with.
    version = {"commit": commit(), "version": __version__}
    until = time.monotonic() + 60 * given.minutes
    given.out.mkdir(parents=True, exist_ok=True)
    done = [{key: line[key] for key in asdict(CELLS[0])} for line in read_lines(given.out)]
    for cell in CELLS:
        if asdict(cell) in done:
            continue
        line = measure(cell, SCRATCH / cell.name, until, version)
        if line is None:
            return
        with (given.out / LINES).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")


if __name__ == "__main__":
    main()
