"""Molecules: SMILES to memory-mapped stores of graphs, and batches of plain tensors."""

from apmax.data.molecules.building import build_chunk, build_chunks, featurise_all
from apmax.data.molecules.dataset import Molecule, MoleculeBatch, MoleculeDataset
from apmax.data.molecules.descriptors import MAX_DESCRIPTOR_ATOMS
from apmax.data.molecules.featurise import MAX_SMILES_LENGTH, largest_fragment
from apmax.data.molecules.reading import (
    DUPLICATES,
    MoleculeReport,
    molecule_dataset,
    read_molecules,
)
from apmax.data.molecules.scaffolds import scaffold_split, scaffolds
from apmax.data.molecules.sets import MOLECULE_SETS, MoleculeParts, load_molecules
from apmax.data.molecules.store import Store
from apmax.data.molecules.vocabulary import (
    ATOM_FIELDS,
    ATOM_WIDTH,
    BOND_FIELDS,
    BOND_WIDTH,
    CLIQUE_KINDS,
    FEATURISER_VERSION,
    dense_atoms,
    dense_bonds,
)

__all__ = [
    "ATOM_FIELDS",
    "ATOM_WIDTH",
    "BOND_FIELDS",
    "BOND_WIDTH",
    "CLIQUE_KINDS",
    "DUPLICATES",
    "FEATURISER_VERSION",
    "MAX_DESCRIPTOR_ATOMS",
    "MAX_SMILES_LENGTH",
    "MOLECULE_SETS",
    "Molecule",
    "MoleculeBatch",
    "MoleculeDataset",
    "MoleculeParts",
    "MoleculeReport",
    "Store",
    "build_chunk",
    "build_chunks",
    "dense_atoms",
    "dense_bonds",
    "featurise_all",
    "largest_fragment",
    "load_molecules",
    "molecule_dataset",
    "read_molecules",
    "scaffold_split",
    "scaffolds",
]
