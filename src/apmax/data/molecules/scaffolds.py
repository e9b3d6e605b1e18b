"""Bemis–Murcko scaffolds, and the split by them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from apmax.data.molecules.building import MOLECULES_PER_CHUNK
from apmax.data.molecules.featurise import largest_fragment, parse_smiles
from apmax.data.molecules.fingerprints import murcko_scaffold
from apmax.data.parallel import ordered
from apmax.data.splits import EIGHTY_TEN_TEN, Split


def scaffold(smiles: str, *, fragment: bool = False) -> str:
    """Return the Bemis–Murcko scaffold of a SMILES, see `murcko_scaffold`.

    Args:
        smiles: The molecule.
        fragment: Of its largest fragment only.

    Raises:
        ValueError: RDKit cannot read the molecule.

    >>> scaffold("CCc1ccccc1C(=O)O"), scaffold("CCO")
    ('c1ccccc1', '')
    """
    molecule = parse_smiles(smiles)
    return murcko_scaffold(largest_fragment(molecule) if fragment else molecule)


def scaffolds(smiles: Sequence[str], *, fragment: bool = False, workers: int = 2) -> list[str]:
    """Return the scaffold of every molecule, or of its largest fragment only."""
    chunks = [list(smiles[start : start + MOLECULES_PER_CHUNK]) for start in range(0, len(smiles), MOLECULES_PER_CHUNK)]
    found = ordered(partial(_scaffolds, fragment=fragment), chunks, workers=workers if len(chunks) > 2 else 1)
    return [name for chunk in found for name in chunk]


def scaffold_split(smiles: Sequence[str], fractions: Sequence[float] = EIGHTY_TEN_TEN, *, workers: int = 2) -> Split:
    """Return the split in which no scaffold is in two parts, by MoleculeNet's rule (see `Split.by_group`).

    >>> split = scaffold_split(["c1ccccc1", "Cc1ccccc1", "Oc1ccccc1", "C1CCCCC1", "CC1CCNCC1"], (0.6, 0.2, 0.2))
    >>> split.train.tolist(), split.valid.tolist(), split.test.tolist()
    ([0, 1, 2], [4], [3])
    """
    return Split.by_group(scaffolds(smiles, workers=workers), fractions)


def _scaffolds(smiles: list[str], *, fragment: bool) -> list[str]:
    return [scaffold(text, fragment=fragment) for text in smiles]
