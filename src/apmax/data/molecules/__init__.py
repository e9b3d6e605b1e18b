"""Molecules: from SMILES to flat, memory-mapped graphs and batches of plain tensors."""

from apmax.data.molecules.batch import MoleculeBatch
from apmax.data.molecules.building import build_chunks
from apmax.data.molecules.cache import featurise_all
from apmax.data.molecules.dataset import Molecule, MoleculeDataset
from apmax.data.molecules.reading import Report, read_molecules
from apmax.data.molecules.scaffolds import scaffold_split
from apmax.data.molecules.sets import DATASETS, load
from apmax.data.molecules.table import read_table
from apmax.data.molecules.vocabulary import FEATURISER_VERSION, dense_atoms, dense_bonds

__all__ = [
    "DATASETS",
    "FEATURISER_VERSION",
    "Molecule",
    "MoleculeBatch",
    "MoleculeDataset",
    "Report",
    "build_chunks",
    "dense_atoms",
    "dense_bonds",
    "featurise_all",
    "load",
    "read_molecules",
    "read_table",
    "scaffold_split",
]
