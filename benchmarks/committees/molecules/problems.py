"""Sets of molecules with their splits: training rows are the training and validation parts together."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apmax.committee.features import FingerprintColumns
from apmax.data import load_split, open_table, split_by_group
from apmax.data.molecules import MOLECULE_SETS, MoleculeDataset, read_molecules
from benchmarks.data_folder import data_folder

TEST_SHARE = 0.1
"""Share of the molecules that a resplit by scaffold holds out."""


@dataclass(frozen=True)
class Problem:
    """A column of a set, and its splits; without splits so many resplits by whole scaffolds are drawn.

    The number of a split is the seed of its methods, too: a split that is named several times has several seeds.
    """

    name: str
    target: str
    splits: tuple[str, ...] = ()
    drawn: int = 0

    @property
    def resplits(self) -> Sequence[int]:
        """The numbers of the splits."""
        return range(self.drawn or len(self.splits))

    @property
    def unit(self) -> str:
        """What the numbers of the splits stand for."""
        if len(set(self.splits)) < len(self.splits):
            return "seeds"
        if self.drawn:
            return "scaffold resplits"
        return "folds" if self.splits[0].startswith("fold") else "random splits"


PROBLEMS: Mapping[str, Problem] = {
    "hiv": Problem("hiv", "HIV_active", ("scaffold122",) * 3),
    "hiv_resplit": Problem("hiv", "HIV_active", drawn=5),
    "tox21_NR-AR": Problem("tox21", "NR-AR", ("random122", "random123", "random124")),
    "tox21_NR-AhR": Problem("tox21", "NR-AhR", ("random122", "random123", "random124")),
    "aicures": Problem("aicures", "activity", tuple(f"fold{fold}" for fold in range(10))),
    "muv": Problem("muv", "MUV-600", ("random122", "random123", "random124")),
}
"""Problems by name. The test rows of "hiv" (one split, three seeds) have been scored before; those of
"hiv_resplit" have not."""


@dataclass(frozen=True)
class MoleculeSplit:
    """Training and test molecules that RDKit can read: Morgan counts (n, 2048), labels and SMILES.

    `test_units` are the rows of the test molecules in the file of the set.
    """

    train: Any
    train_labels: NDArray[np.float64]
    train_smiles: list[str]
    test: Any
    test_labels: NDArray[np.float64]
    test_smiles: list[str]
    test_units: NDArray[np.int64]


def load_molecule_split(problem: str, resplit: int) -> MoleculeSplit:
    """Return a split of a problem.

    Raises:
        SystemExit: APMAX_DATA is not set.
    """
    entry, folder = PROBLEMS[problem], data_folder()
    data, texts = _read(folder / MOLECULE_SETS[entry.name].file, entry.target)
    if entry.drawn:
        labels, prints = data.labels, data.store.fingerprints
        assert labels is not None
        assert prints is not None
        scaffolds = prints.scaffolds[data.places]
        train, test = split_by_group(labels.numpy(), scaffolds, TEST_SHARE, seed=resplit)
        parts = data.subset(train), data.subset(test)
    else:
        rows = load_split(folder / MOLECULE_SETS[entry.name].split.format(entry.splits[resplit]))
        parts = data.at_table_rows(np.concatenate([rows.train, rows.valid])), data.at_table_rows(rows.test)
    found = [(_counts(part), _labels(part), [texts[row] for row in part.table_rows]) for part in parts]
    return MoleculeSplit(*found[0], *found[1], np.asarray(parts[1].table_rows))


@lru_cache(1)
def _read(path: Path, target: str) -> tuple[MoleculeDataset, list[str]]:
    data, _ = read_molecules(path, targets=[target], fingerprints=True)
    texts: list[str] = open_table(path).read(["smiles"]).column("smiles").to_pylist()
    return data, texts


def _labels(data: MoleculeDataset) -> NDArray[np.float64]:
    assert data.labels is not None
    labels: NDArray[np.float64] = data.labels.numpy().astype(np.float64)
    return labels


def _counts(data: MoleculeDataset) -> Any:
    from apmax.data.molecules.fingerprints import MORGAN_SIZE

    return FingerprintColumns().matrix(data)[:, :MORGAN_SIZE]
