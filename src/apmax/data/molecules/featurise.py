"""Features of molecules: SMILES read by RDKit, every atom and bond as a row of categories."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from hashlib import blake2b
from typing import Any

from apmax import extras
from apmax.data.molecules.vocabulary import MASS_UNIT

HYBRIDISATIONS = ("SP", "SP2", "SP3", "SP3D", "SP3D2")
CHARGES = (-1, -2, 1, 2, 0)
BONDS = ("SINGLE", "DOUBLE", "TRIPLE", "AROMATIC")

MAX_SMILES_LENGTH = 5_000
"""The most characters of a SMILES. RDKit takes the square of the atoms in time for the canonical SMILES, and crashes
from some 20,000 atoms in a chain on."""

AtomRow = tuple[int, int, int, int, int, int, int, int]
BondRow = tuple[int, int, int, int]


@dataclass(frozen=True)
class MoleculeGraph:
    """One molecule: a row of categories per atom and per bond, and each bond's two ends."""

    atoms: list[AtomRow]
    bonds: list[BondRow]
    ends: list[tuple[int, int]]


@cache
def chemistry() -> Any:
    """Return `rdkit.Chem`, or raise an error that names its extra."""
    return extras.load("rdkit.Chem", "molecules")


def parse_smiles(smiles: str, *, max_length: int = MAX_SMILES_LENGTH) -> Any:
    """Return RDKit's molecule of a SMILES; nothing is written to the terminal.

    Args:
        smiles: The SMILES.
        max_length: The most characters.

    Raises:
        ValueError: RDKit cannot read it, with RDKit's reason; it has no atoms, or more than `max_length` characters.

    >>> parse_smiles("CCO").GetNumAtoms()
    3
    >>> parse_smiles("CN(C)(C)(C)C")
    Traceback (most recent call last):
    ...
    ValueError: Explicit valence for atom # 1 N, 5, is greater than permitted
    """
    if len(smiles) > max_length:
        raise ValueError(f"a SMILES of {len(smiles):,} characters, more than {max_length:,}")
    chem = chemistry()
    with chem.rdBase.BlockLogs():
        molecule = chem.MolFromSmiles(smiles)
    if molecule is None:
        raise ValueError(_reason(smiles))
    if molecule.GetNumAtoms() == 0:
        raise ValueError(
            "no atoms" if smiles.strip() else "no SMILES, or a structure of an .sdf file that RDKit cannot read"
        )
    return molecule


def _reason(smiles: str) -> str:
    chem = chemistry()
    with chem.rdBase.BlockLogs():
        molecule = chem.MolFromSmiles(smiles, sanitize=False)
        if molecule is not None:
            try:
                chem.SanitizeMol(molecule)
            except ValueError as error:
                return str(error).strip()
    if not hasattr(chem.rdBase, "CaptureErrorLog"):  # RDKit before 2025
        return "SMILES parse error"
    with chem.rdBase.CaptureErrorLog() as log:
        chem.MolFromSmiles(smiles)
        lines = str(log.messages).splitlines()
    if not lines:
        return "SMILES parse error"
    # "[12:00:00] SMILES Parse Error: unclosed ring for input: 'c1ccccc'" without the clock and the text itself.
    return re.split(r" while parsing| for input", re.sub(r"^\[[\d:]+\] ", "", lines[0]))[0].strip()


def largest_fragment(molecule: Any) -> Any:
    """Return the largest fragment of a molecule, without its salts and solvents; the molecule itself if it is one.

    The choice is that of RDKit's `LargestFragmentChooser`: most atoms with hydrogens, then highest weight, then the
    first SMILES by the alphabet. Charges are not changed.

    >>> chemistry().MolToSmiles(largest_fragment(parse_smiles("CC(=O)[O-].[Na+]")))
    'CC(=O)[O-]'
    """
    chem = chemistry()
    if len(chem.GetMolFrags(molecule)) == 1:
        return molecule
    with chem.rdBase.BlockLogs():
        fragment = _fragment_chooser().choose(molecule)
        chem.SanitizeMol(fragment)
    return fragment


@cache
def _fragment_chooser() -> Any:
    return extras.load("rdkit.Chem.MolStandardize.rdMolStandardize", "molecules").LargestFragmentChooser()


def bonds_in_order(molecule: Any) -> list[Any]:
    """Return the bonds of an RDKit molecule, as `GetBonds` does, in time linear in their number.

    RDKit counts from the first bond to every one: the square of their number.
    """
    number = molecule.GetNumBonds()
    if number < _FEW_BONDS:
        # Half the time of iterating over `GetBonds`.
        return list(map(molecule.GetBondWithIdx, range(number)))
    bonds = {bond.GetIdx(): bond for atom in molecule.GetAtoms() for bond in atom.GetBonds()}
    return [bonds[place] for place in range(number)]


_FEW_BONDS = 500


def featurise(molecule: Any) -> MoleculeGraph:
    """Return the categories of every atom and bond of an RDKit molecule; bonds come once.

    >>> graph = featurise(parse_smiles("C=O"))
    >>> graph.atoms[1], graph.bonds, graph.ends
    ((7, 1, 4, 0, 0, 1, 0, 15999000), [(1, 0, 0, 0)], [(0, 1)])
    """
    codes = _codes()
    atoms = list(map(molecule.GetAtomWithIdx, range(molecule.GetNumAtoms())))
    bonds = bonds_in_order(molecule)
    # Each function is mapped over all atoms: a loop over the atoms in Python would take half as long again.
    return MoleculeGraph(
        [
            codes.atoms.get(found) or codes.atom(found)
            for found in zip(*(map(function, atoms) for function in codes.atom_functions), strict=True)
        ],
        [
            codes.bonds.get(found) or codes.bond(found)
            for found in zip(*(map(function, bonds) for function in codes.bond_functions), strict=True)
        ],
        list(zip(*(map(function, bonds) for function in codes.end_functions), strict=True)),
    )


def canonical_hash(molecule: Any) -> int:
    """Return 64 bits of the canonical SMILES: equal for equal molecules, whatever their SMILES.

    >>> canonical_hash(parse_smiles("OCC")) == canonical_hash(parse_smiles("CCO"))
    True
    """
    return text_hash(chemistry().MolToSmiles(molecule))


def text_hash(text: str) -> int:
    """Return 64 bits of a text."""
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little")


class _Codes:
    """RDKit's values as positions in the one-hots, the last of which is "other"; every combination is coded once."""

    def __init__(self) -> None:
        chem = chemistry()
        self.types = {getattr(chem.BondType, name): code for code, name in enumerate(BONDS)}
        self.hybridisations = {getattr(chem.HybridizationType, name): k for k, name in enumerate(HYBRIDISATIONS)}
        self.charges = {charge: code for code, charge in enumerate(CHARGES)}
        self.atom_functions: tuple[Callable[[Any], Any], ...] = (
            chem.Atom.GetAtomicNum,
            chem.Atom.GetTotalDegree,
            chem.Atom.GetFormalCharge,
            chem.Atom.GetChiralTag,
            chem.Atom.GetTotalNumHs,
            chem.Atom.GetHybridization,
            chem.Atom.GetIsAromatic,
            chem.Atom.GetMass,
        )
        self.bond_functions: tuple[Callable[[Any], Any], ...] = (
            chem.Bond.GetBondType,
            chem.Bond.GetIsConjugated,
            chem.Bond.IsInRing,
            chem.Bond.GetStereo,
        )
        self.end_functions: tuple[Callable[[Any], int], ...] = (chem.Bond.GetBeginAtomIdx, chem.Bond.GetEndAtomIdx)
        self.atoms: dict[tuple[Any, ...], AtomRow] = {}
        self.bonds: dict[tuple[Any, ...], BondRow] = {}

    def atom(self, found: tuple[Any, ...]) -> AtomRow:
        number, degree, charge, chirality, hydrogens, hybridisation, aromatic, mass = found
        self.atoms[found] = (
            number - 1 if 1 <= number <= 100 else 100,
            min(degree, 6),
            self.charges.get(charge, len(CHARGES)),
            min(int(chirality), 4),
            min(hydrogens, 5),
            self.hybridisations.get(hybridisation, len(HYBRIDISATIONS)),
            int(aromatic),
            round(mass / MASS_UNIT),
        )
        return self.atoms[found]

    def bond(self, found: tuple[Any, ...]) -> BondRow:
        kind, conjugated, ring, stereo = found
        code = self.types.get(kind, len(BONDS))
        self.bonds[found] = (code, int(conjugated), int(ring), min(int(stereo), 6))
        return self.bonds[found]


@cache
def _codes() -> _Codes:
    return _Codes()
