"""The 200 RDKit 2D descriptors of a molecule, normalised to [0, 1] by a cumulative distribution function.

The paper's experiments took them from the package descriptastorus, which fits a parametric distribution to every
descriptor of a large collection of compounds. The default here, "quantiles", is the empirical distribution in 12,000
public compounds (4,000 each of MoleculeNet's HIV, MUV and Tox21, drawn without regard to labels): a fixed table in the
package, faster, and independent of the data set at hand. Both are increasing; they differ most for counts that are
nearly always zero, where no parametric family fits. "descriptastorus" gives the numbers of that package, if installed.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from apmax import extras, validation

# fmt: off
DESCRIPTOR_NAMES = (
    "BalabanJ", "BertzCT", "Chi0", "Chi0n", "Chi0v", "Chi1", "Chi1n", "Chi1v", "Chi2n", "Chi2v", "Chi3n",
    "Chi3v", "Chi4n", "Chi4v", "EState_VSA1", "EState_VSA10", "EState_VSA11", "EState_VSA2", "EState_VSA3",
    "EState_VSA4", "EState_VSA5", "EState_VSA6", "EState_VSA7", "EState_VSA8", "EState_VSA9", "ExactMolWt",
    "FpDensityMorgan1", "FpDensityMorgan2", "FpDensityMorgan3", "FractionCSP3", "HallKierAlpha",
    "HeavyAtomCount", "HeavyAtomMolWt", "Ipc", "Kappa1", "Kappa2", "Kappa3", "LabuteASA", "MaxAbsEStateIndex",
    "MaxAbsPartialCharge", "MaxEStateIndex", "MaxPartialCharge", "MinAbsEStateIndex", "MinAbsPartialCharge",
    "MinEStateIndex", "MinPartialCharge", "MolLogP", "MolMR", "MolWt", "NHOHCount", "NOCount",
    "NumAliphaticCarbocycles", "NumAliphaticHeterocycles", "NumAliphaticRings", "NumAromaticCarbocycles",
    "NumAromaticHeterocycles", "NumAromaticRings", "NumHAcceptors", "NumHDonors", "NumHeteroatoms",
    "NumRadicalElectrons", "NumRotatableBonds", "NumSaturatedCarbocycles", "NumSaturatedHeterocycles",
    "NumSaturatedRings", "NumValenceElectrons", "PEOE_VSA1", "PEOE_VSA10", "PEOE_VSA11", "PEOE_VSA12",
    "PEOE_VSA13", "PEOE_VSA14", "PEOE_VSA2", "PEOE_VSA3", "PEOE_VSA4", "PEOE_VSA5", "PEOE_VSA6", "PEOE_VSA7",
    "PEOE_VSA8", "PEOE_VSA9", "RingCount", "SMR_VSA1", "SMR_VSA10", "SMR_VSA2", "SMR_VSA3", "SMR_VSA4",
    "SMR_VSA5", "SMR_VSA6", "SMR_VSA7", "SMR_VSA8", "SMR_VSA9", "SlogP_VSA1", "SlogP_VSA10", "SlogP_VSA11",
    "SlogP_VSA12", "SlogP_VSA2", "SlogP_VSA3", "SlogP_VSA4", "SlogP_VSA5", "SlogP_VSA6", "SlogP_VSA7",
    "SlogP_VSA8", "SlogP_VSA9", "TPSA", "VSA_EState1", "VSA_EState10", "VSA_EState2", "VSA_EState3",
    "VSA_EState4", "VSA_EState5", "VSA_EState6", "VSA_EState7", "VSA_EState8", "VSA_EState9", "fr_Al_COO",
    "fr_Al_OH", "fr_Al_OH_noTert", "fr_ArN", "fr_Ar_COO", "fr_Ar_N", "fr_Ar_NH", "fr_Ar_OH", "fr_COO",
    "fr_COO2", "fr_C_O", "fr_C_O_noCOO", "fr_C_S", "fr_HOCCN", "fr_Imine", "fr_NH0", "fr_NH1", "fr_NH2",
    "fr_N_O", "fr_Ndealkylation1", "fr_Ndealkylation2", "fr_Nhpyrrole", "fr_SH", "fr_aldehyde",
    "fr_alkyl_carbamate", "fr_alkyl_halide", "fr_allylic_oxid", "fr_amide", "fr_amidine", "fr_aniline",
    "fr_aryl_methyl", "fr_azide", "fr_azo", "fr_barbitur", "fr_benzene", "fr_benzodiazepine", "fr_bicyclic",
    "fr_diazo", "fr_dihydropyridine", "fr_epoxide", "fr_ester", "fr_ether", "fr_furan", "fr_guanido",
    "fr_halogen", "fr_hdrzine", "fr_hdrzone", "fr_imidazole", "fr_imide", "fr_isocyan", "fr_isothiocyan",
    "fr_ketone", "fr_ketone_Topliss", "fr_lactam", "fr_lactone", "fr_methoxy", "fr_morpholine", "fr_nitrile",
    "fr_nitro", "fr_nitro_arom", "fr_nitro_arom_nonortho", "fr_nitroso", "fr_oxazole", "fr_oxime",
    "fr_para_hydroxylation", "fr_phenol", "fr_phenol_noOrthoHbond", "fr_phos_acid", "fr_phos_ester",
    "fr_piperdine", "fr_piperzine", "fr_priamide", "fr_prisulfonamd", "fr_pyridine", "fr_quatN", "fr_sulfide",
    "fr_sulfonamd", "fr_sulfone", "fr_term_acetylene", "fr_tetrazole", "fr_thiazole", "fr_thiocyan",
    "fr_thiophene", "fr_unbrch_alkane", "fr_urea", "qed",
)
# fmt: on
DESCRIPTOR_COUNT = len(DESCRIPTOR_NAMES)
NORMALISATIONS = ("quantiles", "descriptastorus")

QUANTILES = Path(__file__).with_name("descriptor_quantiles.npy")
"""(200, 101), the percentiles of every descriptor in the reference compounds."""

_LARGEST = 1e30
"""Bound of descriptors that grow exponentially with the molecule (Ipc)."""

LARGE = 200
"""Atoms up to which Ipc is RDKit's own."""

MAX_DESCRIPTOR_ATOMS = 500
"""The most atoms of a molecule whose descriptors are computed: RDKit takes the third power of the atoms in time."""

_Matrix = npt.NDArray[np.float64]


def raw_descriptors(molecule: Any, *, normalisation: str = "quantiles") -> list[float]:
    """Return the 200 descriptors of an RDKit molecule before normalisation; NaN where RDKit fails.

    descriptastorus counts `fr_unbrch_alkane` as RDKit did before 2024.03; all other descriptors are RDKit's own.

    Ipc of more than 200 atoms is that of `information_content`.

    >>> from apmax.data.molecules.featurise import parse_smiles
    >>> round(raw_descriptors(parse_smiles("CCO"))[DESCRIPTOR_NAMES.index("MolWt")], 3)
    46.069
    """
    return [_value(function, molecule) for function in _functions(normalisation)]


def normalise_descriptors(
    values: Sequence[Sequence[float]] | _Matrix, *, normalisation: str = "quantiles"
) -> npt.NDArray[np.float32]:
    """Return raw descriptors (n, 200) as cumulative probabilities in a reference population.

    Args:
        values: Raw descriptors, of `raw_descriptors` with the same `normalisation`.
        normalisation: "quantiles": the share of 12,000 reference compounds below the value, ties counted half, linear
            between two percentiles; 0.5 for NaN. "descriptastorus": that package's fitted distributions; 0 for NaN.

    Raises:
        ValueError: Not 200 columns, or an unknown normalisation.
        ModuleNotFoundError: descriptastorus is needed and not installed.
    """
    validation.choice("normalisation", normalisation, NORMALISATIONS)
    table = np.clip(np.asarray(values, dtype=np.float64), -_LARGEST, _LARGEST)
    if table.ndim != 2 or table.shape[1] != DESCRIPTOR_COUNT:
        raise ValueError(f"values must have shape (n, {DESCRIPTOR_COUNT}), got {table.shape}")
    if normalisation == "descriptastorus":
        cdfs = _descriptastorus().cdfs
        columns = [cdfs[name](table[:, column]) for column, name in enumerate(DESCRIPTOR_NAMES)]
        shares: npt.NDArray[np.float32] = np.nan_to_num(np.stack(columns, axis=1)).astype(np.float32)
        return shares
    return _quantile_shares(table)


def _quantile_shares(table: _Matrix) -> npt.NDArray[np.float32]:
    shares = np.empty(table.shape, dtype=np.float32)
    for column, quantiles in enumerate(_reference_quantiles()):
        probabilities = np.linspace(0.0, 1.0, len(quantiles))
        values = table[:, column]
        # Where quantiles repeat, the share strictly below and the share up to the value differ: take the middle.
        upper = np.interp(values, quantiles, probabilities)
        lower = -np.interp(-values, -quantiles[::-1], -probabilities[::-1])
        shares[:, column] = (upper + lower) / 2
    shares[np.isnan(table)] = 0.5
    return shares


def _value(function: Callable[[Any], float], molecule: Any) -> float:
    try:
        return float(function(molecule))
    except (ValueError, ZeroDivisionError, OverflowError, RuntimeError):
        return float("nan")


def information_content(molecule: Any) -> float:
    """Return Ipc (Bonchev and Trinajstić 1977) of a large molecule: Σ|cₖ| times the entropy of |cₖ|/Σ|cⱼ| in bits.

    The cₖ are the coefficients of the characteristic polynomial of the adjacency matrix. RDKit computes them by n
    products of n×n matrices, which takes half a minute for 500 atoms and is rounding errors from some 100 atoms on.
    Without rings of odd size the eigenvalues come in pairs ±λ, so that the polynomial is that of a sum of independent
    Bernoulli variables with p = λ²/(1 + λ²), which is computed here; with such rings it is an approximation.

    >>> from apmax.data.molecules.featurise import parse_smiles
    >>> round(information_content(parse_smiles("C1CCCCC1")), 6)
    34.399462
    """
    matrix = extras.load("rdkit.Chem", "molecules").GetAdjacencyMatrix(molecule).astype(np.float64)
    squares = np.sort(np.linalg.eigvalsh(matrix) ** 2)[::-1]
    pairs = (squares[0 : len(squares) - 1 : 2] + squares[1::2]) / 2
    chances = pairs / (1 + pairs)
    shares = np.ones(1)
    for chance in chances:
        shares = np.convolve(shares, [1 - chance, chance])
    known = shares[shares > 0]
    with np.errstate(over="ignore"):
        return float(np.exp(np.log1p(pairs).sum()) * -(known * np.log2(known)).sum())


def _ipc(molecule: Any) -> float:
    large = molecule.GetNumAtoms() > LARGE
    return information_content(molecule) if large else float(_rdkit_descriptors()["Ipc"](molecule))


@cache
def _rdkit_descriptors() -> dict[str, Callable[[Any], float]]:
    return dict(extras.load("rdkit.Chem.Descriptors", "molecules").descList)


@cache
def _functions(normalisation: str) -> list[Callable[[Any], float]]:
    descriptastorus = normalisation == "descriptastorus"
    functions = _descriptastorus().RDKit2DNormalized().funcs if descriptastorus else _rdkit_descriptors()
    return [_ipc if name == "Ipc" else functions[name] for name in DESCRIPTOR_NAMES]


@cache
def _descriptastorus() -> Any:
    return extras.load("descriptastorus.descriptors.rdNormalizedDescriptors", "descriptastorus")


@cache
def _reference_quantiles() -> _Matrix:
    table: _Matrix = np.load(QUANTILES, allow_pickle=False).astype(np.float64)
    return table
