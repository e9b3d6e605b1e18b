"""Methods that are compared on molecules, each from a split to scores of its test molecules, on the same cores."""

from __future__ import annotations

import csv
import sys
import tempfile
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from apmax.data.parallel import available_cores
from benchmarks.committees.methods import EFFORTS, Scored, run_command, train_rows_by_command
from benchmarks.committees.molecules.problems import MoleculeSplit, load_molecule_split
from benchmarks.committees.runner import Suite

NETWORKS = {"gine_ce": ["--loss", "ce"], "gine_recipe": [], "gine_ce_mined": ["--loss", "ce_mined"]}
"""One graph network of `apmax train --model gine`, by method; its recipe (AP after cross-entropy) is the default."""


def _train_molecules(split: MoleculeSplit, method: str, seed: int) -> Scored:
    import pyarrow as pa

    train, test = (pa.table({"smiles": texts}) for texts in (split.train_smiles, split.test_smiles))
    arguments = ["--smiles", "smiles"]
    if method in EFFORTS:
        return train_rows_by_command(train, split.train_labels, test, method, seed, arguments)
    arguments += ["--model", "gine", *NETWORKS[method]]
    return train_rows_by_command(train, split.train_labels, test, None, seed, arguments)


def _chemprop(split: MoleculeSplit, seed: int) -> Scored:
    """Run `chemprop train` with its defaults, and `chemprop predict`; the time is that of the training.

    It holds out a random tenth of the training rows, as by default, and keeps the epoch of the least loss there.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        train, test, out = folder / "train.csv", folder / "test.csv", folder / "model"
        _write_csv(train, [("smiles", "label"), *zip(split.train_smiles, split.train_labels.astype(int), strict=True)])
        _write_csv(test, [("smiles",), *((text,) for text in split.test_smiles)])
        command = Path(sys.executable).with_name("chemprop")
        arguments = ["-i", train, "-s", "smiles", "--target-columns", "label", "-t", "classification", "-o", out]
        arguments += ["--split-sizes", 0.9, 0.1, 0, "--data-seed", seed, "--pytorch-seed", seed]
        facts = run_command([str(word) for word in (command, "train", *arguments)], "chemprop train")
        arguments = [
            "-i",
            test,
            "-s",
            "smiles",
            "--model-paths",
            out / "model_0" / "best.pt",
            "-o",
            folder / "scores.csv",
        ]
        run_command([str(word) for word in (command, "predict", *arguments)], "chemprop predict")
        with (folder / "scores.csv").open(encoding="utf-8", newline="") as file:
            rows = list(csv.DictReader(file))
    assert [row["smiles"] for row in rows] == split.test_smiles
    return Scored(np.array([float(row["label"]) for row in rows]), facts)


def _write_csv(path: Path, rows: Sequence[Sequence[object]]) -> None:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows(rows)


def _lightgbm_counts(split: MoleculeSplit, seed: int) -> Scored:
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(random_state=seed, n_jobs=available_cores(), verbose=-1).fit(split.train, split.train_labels)
    return Scored(model.predict_proba(split.test)[:, 1])


def _forest_bits(split: MoleculeSplit, seed: int) -> Scored:
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(random_state=seed, n_jobs=available_cores())
    model.fit((split.train > 0).astype("float32").tocsc(), split.train_labels)
    return Scored(model.predict_proba((split.test > 0).astype("float32"))[:, 1])


BASELINES: dict[str, Callable[[MoleculeSplit, int], Scored]] = {
    "lightgbm_counts": _lightgbm_counts,
    "forest_bits": _forest_bits,
    "chemprop": _chemprop,
}
"""Models as installed: LightGBM on Morgan counts, a random forest on Morgan bits, chemprop's network."""


def _fit(split: MoleculeSplit, method: str, seed: int, limit: float | None, autogluon: str | None) -> Scored:  # noqa: ARG001
    return BASELINES[method](split, seed) if method in BASELINES else _train_molecules(split, method, seed)


_PACKAGES = ("lightgbm", "scikit-learn", "numpy", "torch", "rdkit", *(["chemprop"] if find_spec("chemprop") else []))
MOLECULE_SUITE = Suite((*EFFORTS, *BASELINES, *NETWORKS), load_molecule_split, _fit, _PACKAGES)
"""Committees of both efforts, their members, the baselines, and the network of the committee alone."""
