"""Methods that are compared on molecules, each from a split to scores of its test molecules, on the same cores."""

from __future__ import annotations

from collections.abc import Callable

from benchmarks.molecular.problems import MoleculeSplit, load_molecule_split
from benchmarks.tabular.methods import EFFORTS, Scored, cores, train_rows_by_command
from benchmarks.tabular.runner import Suite


def _train_molecules(split: MoleculeSplit, effort: str, seed: int) -> Scored:
    import pyarrow as pa

    train, test = (pa.table({"smiles": texts}) for texts in (split.train_smiles, split.test_smiles))
    return train_rows_by_command(train, split.train_labels, test, effort, seed, ["--smiles", "smiles"])


def _lightgbm_counts(split: MoleculeSplit, seed: int) -> Scored:
    from lightgbm import LGBMClassifier

    model = LGBMClassifier(random_state=seed, n_jobs=cores(), verbose=-1).fit(split.train, split.train_labels)
    return Scored(model.predict_proba(split.test)[:, 1])


def _forest_bits(split: MoleculeSplit, seed: int) -> Scored:
    from sklearn.ensemble import RandomForestClassifier

    model = RandomForestClassifier(random_state=seed, n_jobs=cores())
    model.fit((split.train > 0).astype("float32").tocsc(), split.train_labels)
    return Scored(model.predict_proba((split.test > 0).astype("float32"))[:, 1])


BASELINES: dict[str, Callable[[MoleculeSplit, int], Scored]] = {
    "lightgbm_counts": _lightgbm_counts,
    "forest_bits": _forest_bits,
}
"""Estimators as installed: LightGBM on Morgan counts, a random forest on Morgan bits."""


def _fit(split: MoleculeSplit, method: str, seed: int, limit: float | None, autogluon: str | None) -> Scored:  # noqa: ARG001
    if method in EFFORTS:
        return _train_molecules(split, method, seed)
    return BASELINES[method](split, seed)


MOLECULE_SUITE = Suite(
    (*EFFORTS, *BASELINES), load_molecule_split, _fit, ("lightgbm", "scikit-learn", "numpy", "torch", "rdkit")
)
"""Committees of both efforts, their members, and the baselines."""
