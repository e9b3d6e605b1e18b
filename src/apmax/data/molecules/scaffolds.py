"""Bemis–Murcko scaffolds, and the split by them."""

from __future__ import annotations

from collections.abc import Sequence

from apmax import extras
from apmax.data.caching import ordered
from apmax.data.molecules.building import CHUNK
from apmax.data.molecules.featurise import parse_smiles
from apmax.data.splits import EIGHTY_TEN_TEN, Split


def scaffold(smiles: str) -> str:
    """Return the Bemis–Murcko scaffold: the ring systems and their linkers; empty without rings.

    Raises:
        ValueError: RDKit cannot read the molecule.

    >>> scaffold("CCc1ccccc1C(=O)O"), scaffold("CCO")
    ('c1ccccc1', '')
    """
    murcko = extras.load("rdkit.Chem.Scaffolds.MurckoScaffold", "molecules")
    found: str = murcko.MurckoScaffoldSmiles(mol=parse_smiles(smiles), includeChirality=False)
    return found


def scaffolds(smiles: Sequence[str], *, workers: int = 2) -> list[str]:
    """Return the scaffold of every molecule."""
    chunks = [list(smiles[start : start + CHUNK]) for start in range(0, len(smiles), CHUNK)]
    found = ordered(_scaffolds, chunks, workers=workers if len(chunks) > 2 else 1)
    return [name for chunk in found for name in chunk]


def scaffold_split(smiles: Sequence[str], fractions: Sequence[float] = EIGHTY_TEN_TEN, *, workers: int = 2) -> Split:
    """Return the split in which no scaffold is in two parts, by MoleculeNet's rule (see `Split.by_group`).

    >>> split = scaffold_split(["c1ccccc1", "Cc1ccccc1", "Oc1ccccc1", "C1CCCCC1", "CC1CCNCC1"], (0.6, 0.2, 0.2))
    >>> split.train.tolist(), split.valid.tolist(), split.test.tolist()
    ([0, 1, 2], [4], [3])
    """
    return Split.by_group(scaffolds(smiles, workers=workers), fractions)


def _scaffolds(smiles: list[str]) -> list[str]:
    return [scaffold(text) for text in smiles]
