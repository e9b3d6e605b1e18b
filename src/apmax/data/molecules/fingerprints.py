"""Fingerprints of molecules for models of tables: Morgan counts, cheap properties, Bemis–Murcko scaffolds."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from apmax import extras
from apmax.data.molecules.featurise import chemistry, text_hash

FINGERPRINT_VERSION = 1
"""To be raised when a molecule gives other numbers: caches are rebuilt, committees of another version refused."""
MORGAN_RADIUS = 2
MORGAN_SIZE = 2048
"""Number of columns that the environments of atoms are folded into."""
MAX_SCAFFOLD_ATOMS = 500
"""The most atoms of a molecule that is reduced to its scaffold: RDKit takes the third power of the atoms in time."""

PROPERTY_NAMES = (
    "MolWt",
    "TPSA",
    "LabuteASA",
    "NOCount",
    "NHOHCount",
    "RingCount",
    "NumAromaticRings",
    "NumAromaticHeterocycles",
    "NumSaturatedRings",
    "FractionCSP3",
    "HeavyAtomCount",
    "NumHeteroatoms",
    "FormalCharge",
    "NumAmideBonds",
    "NumAtomStereoCenters",
    "Kappa1",
    "HallKierAlpha",
    "Chi1v",
)
"""Properties that RDKit computes in some 20 µs together. (The partition coefficient alone takes 300.)"""


def morgan_counts(molecule: Any) -> list[tuple[int, int]]:
    """Return the columns of an RDKit molecule's atom environments of radius 0 to 2, and how often each occurs.

    >>> from apmax.data.molecules.featurise import parse_smiles
    >>> len(morgan_counts(parse_smiles("CCC")))
    4
    """
    found: dict[int, int] = _morgan_generator().GetCountFingerprint(molecule).GetNonzeroElements()
    return sorted(found.items())


def cheap_properties(molecule: Any) -> list[float]:
    """Return the values of `PROPERTY_NAMES` for an RDKit molecule.

    >>> from apmax.data.molecules.featurise import parse_smiles
    >>> cheap_properties(parse_smiles("CCO"))[PROPERTY_NAMES.index("HeavyAtomCount")]
    3.0
    """
    return [float(function(molecule)) for function in _property_functions()]


def murcko_scaffold(molecule: Any) -> str:
    """Return the Bemis–Murcko scaffold of an RDKit molecule: its ring systems and their linkers; empty without rings.

    A molecule of more than `MAX_SCAFFOLD_ATOMS` atoms that has rings is its own scaffold.
    """
    if molecule.GetRingInfo().NumRings() == 0:
        return ""
    if molecule.GetNumAtoms() > MAX_SCAFFOLD_ATOMS:
        return str(chemistry().MolToSmiles(molecule, isomericSmiles=False))
    murcko = extras.load("rdkit.Chem.Scaffolds.MurckoScaffold", "molecules")
    found: str = murcko.MurckoScaffoldSmiles(mol=molecule, includeChirality=False)
    return found


def scaffold_hash(molecule: Any) -> int:
    """Return 64 bits of a molecule's scaffold, `NO_SCAFFOLD` without rings."""
    return text_hash(murcko_scaffold(molecule))


NO_SCAFFOLD = text_hash("")
"""The number of a molecule without rings, in place of a scaffold's."""


@cache
def _morgan_generator() -> Any:
    generators = extras.load("rdkit.Chem.rdFingerprintGenerator", "molecules")
    return generators.GetMorganGenerator(radius=MORGAN_RADIUS, fpSize=MORGAN_SIZE)


@cache
def _property_functions() -> tuple[Callable[[Any], float], ...]:
    rdkit = extras.load("rdkit.Chem.rdMolDescriptors", "molecules")
    return (
        rdkit._CalcMolWt,  # RDKit's own Descriptors.MolWt
        rdkit.CalcTPSA,
        rdkit.CalcLabuteASA,
        rdkit.CalcNumLipinskiHBA,
        rdkit.CalcNumLipinskiHBD,
        rdkit.CalcNumRings,
        rdkit.CalcNumAromaticRings,
        rdkit.CalcNumAromaticHeterocycles,
        rdkit.CalcNumSaturatedRings,
        rdkit.CalcFractionCSP3,
        rdkit.CalcNumHeavyAtoms,
        rdkit.CalcNumHeteroatoms,
        chemistry().GetFormalCharge,
        rdkit.CalcNumAmideBonds,
        rdkit.CalcNumAtomStereoCenters,
        rdkit.CalcKappa1,
        rdkit.CalcHallKierAlpha,
        rdkit.CalcChi1v,
    )
