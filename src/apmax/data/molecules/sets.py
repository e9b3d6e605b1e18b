"""The paper's sets of molecules: files, tasks, splits, public addresses."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from os import PathLike
from pathlib import Path

from apmax import validation
from apmax.data import parsing
from apmax.data.download import locate
from apmax.data.molecules.dataset import MoleculeDataset
from apmax.data.molecules.reading import MoleculeReport, read_molecules
from apmax.data.reading import open_table
from apmax.data.splits import Split, load_split
from apmax.data.targets import read_labelled
from apmax.validation import first_line

_AUTHORS = (
    "https://raw.githubusercontent.com/divelab/MoleculeX/83289899312b21ae3a48756e6066b4a7fe7ae93a/"
    "AdvProp/datasets/moleculenet/"
)
_MOLECULENET = "https://deepchemdata.s3-us-west-1.amazonaws.com/datasets/"


@dataclass(frozen=True)
class MoleculeSet:
    """A set of the paper.

    Attributes:
        file: The csv below the folder of data sets.
        tasks: Its label columns; the first is the default.
        split: The pattern of its split files, in which {} is the split's name.
        splits: The names of its splits; the first is the default.
        drawn: Splits without a file, by `Split.random`: the seed by name.
        digest: SHA-256 of its SMILES and labels (`content_digest`), whatever the file's format.
        url: Its public address, if it has one.
        width: The paper's hidden width.
    """

    file: str
    tasks: tuple[str, ...]
    split: str
    splits: tuple[str, ...]
    digest: str
    url: str | None = None
    width: int = 64
    drawn: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True)
class MoleculeParts:
    """The three parts of a set of molecules."""

    train: MoleculeDataset
    valid: MoleculeDataset
    test: MoleculeDataset
    report: MoleculeReport = field(repr=False)


TOX21_TASKS = (
    "NR-AR",
    "NR-AR-LBD",
    "NR-AhR",
    "NR-Aromatase",
    "NR-ER",
    "NR-ER-LBD",
    "NR-PPAR-gamma",
    "SR-ARE",
    "SR-ATAD5",
    "SR-HSE",
    "SR-MMP",
    "SR-p53",
)
RANDOM = ("random122", "random123", "random124")
FOLDS = tuple(f"fold{fold}" for fold in range(10))
DRAWN = {f"random{seed}": seed for seed in range(10)}

MOLECULE_SETS: dict[str, MoleculeSet] = {
    "hiv": MoleculeSet(
        file="hiv/hiv.csv.gz",
        tasks=("HIV_active",),
        split="hiv/split_hiv_{}.npz",
        splits=("scaffold122",),
        digest="498e04fa382a5e7602565501d7c011e7563e54bd16810ea5a8086dec0af7ff17",
        url=_AUTHORS + "hiv.csv",
        width=32,
    ),
    "muv": MoleculeSet(
        file="muv/muv.csv.gz",
        tasks=("MUV-600",),
        split="muv/split_muv_{}.npz",
        splits=RANDOM,
        digest="ecc976d21e52cb22ed31fa8f2dd687089e924587118fbeab8021d2ae3cfc5505",
        url=_MOLECULENET + "muv.csv.gz",
        width=32,
    ),
    "tox21": MoleculeSet(
        file="tox21/tox21.csv.gz",
        tasks=TOX21_TASKS,
        split="tox21/split_tox21_{}.npz",
        splits=RANDOM,
        digest="8b2d1a92bbd90b86c5d6fd68ea03a21d3963c1d4f504473d8906f53cd6c3f382",
        url=_AUTHORS + "tox21.csv",
        width=128,
    ),
    "toxcast": MoleculeSet(
        file="toxcast/toxcast.csv.gz",
        tasks=("APR_HepG2_MicrotubuleCSK_24h_up", "APR_HepG2_MitoMass_24h_up"),
        split="toxcast/split_toxcast_{}.npz",
        splits=RANDOM,
        digest="2c91821873339085f9a25e0762ab783d665ca033d310f09e01577544256d1b99",
        url=_MOLECULENET + "toxcast_data.csv.gz",
    ),
    "aicures": MoleculeSet(
        file="aicures/pseudomonas.csv.gz",
        tasks=("activity",),
        split="aicures/split_official_cv_{}.npz",
        splits=(*FOLDS, *DRAWN),
        drawn=DRAWN,
        digest="1fe4cc1dd9182979ca169105d34f255eddd87c97c2fc8ca3ee6d17385d622023",
    ),
}


def load_molecules(
    name: str,
    tasks: str | Sequence[str] | None = None,
    *,
    split: str | None = None,
    data_dir: str | PathLike[str] | None = None,
    cache: str | PathLike[str] | None = None,
    levels: bool = False,
    normalisation: str = "quantiles",
    workers: int = 2,
    progress: bool | None = None,
    download: bool = False,
) -> MoleculeParts:
    """Return the training, validation and test part of one of `MOLECULE_SETS`, each row of which has a label.

    Args:
        name: A key of `MOLECULE_SETS`.
        tasks: One column, or several for labels (n, tasks); by default the set's first.
        split: One of the set's splits; by default its first. Splits are files of the folder and are not downloaded.
        data_dir: The folder of data sets; by default `APMAX_DATA`.
        cache: The folder of caches, as in `featurise_all`.
        levels: Cliques and descriptors as well, for ML-MPNN.
        normalisation: Of the descriptors, as in `featurise_all`.
        workers: The number of processes that read molecules.
        progress: Show a progress bar; by default on a terminal.
        download: Download a missing csv from its public address, and check its content.

    Raises:
        ValueError: Unknown name, task or split; or a download with other content than the paper's set.
        FileNotFoundError: A file is missing.
    """
    entry = MOLECULE_SETS[validation.choice("name", name, MOLECULE_SETS)]
    columns = [entry.tasks[0]] if tasks is None else [tasks] if isinstance(tasks, str) else list(tasks)
    for column in columns:
        validation.choice("tasks", column, entry.tasks)
    part = entry.splits[0] if split is None else validation.choice("split", split, entry.splits)

    def verify(path: Path) -> None:
        try:
            found = f"its digest is {content_digest(path, entry.tasks)}"
        except ValueError as error:
            found = first_line(error)
        if found != f"its digest is {entry.digest}":
            raise ValueError(f"{entry.url} does not hold the {name} set of the paper: {found}")

    path = locate(entry.file, data_dir, url=entry.url, verify=verify, download=download)
    rows = None if part in entry.drawn else load_split(locate(entry.split.format(part), data_dir))
    data, report = read_molecules(
        path,
        targets=columns,
        cache=cache,
        levels=levels,
        normalisation=normalisation,
        workers=workers,
        progress=progress,
    )
    rows = rows or Split.random(report.total, seed=entry.drawn[part])
    return MoleculeParts(
        train=data.at_table_rows(rows.train),
        valid=data.at_table_rows(rows.valid),
        test=data.at_table_rows(rows.test),
        report=report,
    )


def content_digest(path: str | PathLike[str], tasks: Sequence[str]) -> str:
    """Return the SHA-256 of a table's SMILES and labels, the same for every file format."""
    rows = read_labelled(open_table(path), tasks, ["smiles"])
    digest = sha256()
    for text, labels in zip(parsing.cells(rows.table.column("smiles")), rows.labels.tolist(), strict=True):
        cells = ["" if label != label else str(int(label)) for label in labels]
        digest.update((",".join([text, *cells]) + "\n").encode())
    return digest.hexdigest()
