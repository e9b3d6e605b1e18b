"""Molecules: our graph networks, loader and cache against torch_geometric's, each as a ratio measured in one run.

On HIV behind `APMAX_DATA`, else on a small list of drugs repeated. Single thread, h = 64, B = 64, forward + backward +
load; every side is timed in turns and its best taken. Prediction uses two processes. Fingerprints: 41,000 molecules.
"""

from __future__ import annotations

import importlib.util
import os
import time
from array import array
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader

from benchmarks.timing import Row, best_times, timed

HIDDEN, BATCH = 64, 64
DRUGS = (
    "CC(=O)Oc1ccccc1C(=O)O",
    "CN1C=NC2=C1C(=O)N(C(=O)N2C)C",
    "CC(C)Cc1ccc(cc1)C(C)C(=O)O",
    "CN1CCC[C@H]1c1cccnc1",
    "CC1(C)SC2C(NC(=O)Cc3ccccc3)C(=O)N2C1C(=O)O",
    "COc1ccc2nc(S(=O)Cc3ncc(C)c(OC)c3C)[nH]c2c1",
    "CN(C)CCCN1c2ccccc2Sc2ccc(Cl)cc21",
    "O=C(O)c1cn(C2CC2)c2cc(N3CCNCC3)c(F)cc2c1=O",
)


def smiles(count: int) -> list[str]:
    """Return SMILES of `count` molecules, spread over HIV where it is at hand."""
    return hiv_column("smiles", count) or [DRUGS[k % len(DRUGS)] for k in range(count)]


def activities(count: int) -> list[int]:
    """Return the labels of the same molecules; those of drugs are 1 for each 28th, 3.6 %."""
    return [int(label) for label in hiv_column("HIV_active", count)] or [int(k % 28 == 0) for k in range(count)]


def hiv_column(name: str, count: int) -> list[str]:
    """Return `count` values of a column, spread over HIV; none where it is not at hand."""
    folder = os.environ.get("APMAX_DATA")
    if not folder or not (Path(folder) / "hiv" / "hiv.csv.gz").exists():
        return []
    from apmax.data import open_table

    values: list[str] = open_table(Path(folder) / "hiv" / "hiv.csv.gz").read([name]).column(name).to_pylist()
    return values[:: max(1, len(values) // count)][:count]


def dataset(count: int, *, levels: bool = False) -> Any:
    """Return that many molecules with labels by chance."""
    from apmax.data.molecules.building import build_chunks
    from apmax.data.molecules.dataset import MoleculeDataset
    from apmax.data.molecules.store import Store

    store = Store.join([chunk.store for chunk in build_chunks(smiles(count), levels=levels, workers=2)])
    labels = (torch.rand(len(store), generator=torch.Generator().manual_seed(0)) < 0.05).float()
    return MoleculeDataset(store, labels)


def epoch(model: nn.Module, loader: Iterable[Any]) -> Callable[[], None]:
    """Return one pass: load, forward, backward."""

    def run() -> None:
        for batch in loader:
            model.zero_grad()
            nn.functional.binary_cross_entropy_with_logits(model(batch), batch.y.view(-1)).backward()

    return run


def peer_ratios() -> list[Row]:
    """Return GINE, MPNN and memory against torch_geometric's."""
    from torch_geometric.loader import DataLoader as PygLoader

    from apmax.models.graphs import GINE, MPNN
    from benchmarks.speed.pyg_networks import PygGINE, PygMPNN, graph_list

    data = dataset(1024)
    graphs = graph_list(data)
    ours, theirs = DataLoader(data, BATCH, shuffle=True), PygLoader(graphs, BATCH, shuffle=True)
    gine = best_times(
        epoch(GINE(HIDDEN), ours), epoch(PygGINE(HIDDEN, 1), theirs), seconds=0, least=5, clock=time.process_time
    )
    few = data.subset(range(192))
    ours, theirs = DataLoader(few, BATCH, shuffle=True), PygLoader(graphs[:192], BATCH, shuffle=True)
    mpnn = best_times(
        epoch(MPNN(HIDDEN), ours), epoch(PygMPNN(HIDDEN, 1), theirs), seconds=0, least=3, clock=time.process_time
    )
    listed = sum(value.nbytes for graph in graphs for value in graph.to_dict().values() if isinstance(value, Tensor))
    compact = sum(
        item.x.nbytes // 4 + item.edge_index.nbytes + item.edge_attr.nbytes // 4 + 4
        for item in (data.collate([data[row]]) for row in range(len(data)))
    )
    return [
        ("GINE epoch / the same network and loader of torch_geometric", gine[0] / gine[1], 0.75),
        ("MPNN epoch / torch_geometric's NNConv", mpnn[0] / mpnn[1], 1 / 20),
        ("flat store, bytes / list of Data (dense features)", data.store.nbytes / listed, 1 / 4),
        ("flat store, bytes / list of Data (one byte a category)", data.store.nbytes / compact, 1 / 4),
    ]


def multilevel_ratios() -> list[Row]:
    """Return an epoch of ML-MPNN over one of the same network in plain torch, and over one of GINE."""
    from apmax.models.graphs import GINE, MLMPNN
    from benchmarks.speed.pyg_networks import PlainMLMPNN

    data = dataset(1024, levels=True)
    jobs = (
        epoch(MLMPNN(HIDDEN), DataLoader(data, BATCH, shuffle=True)),
        epoch(PlainMLMPNN(MLMPNN(HIDDEN)), DataLoader(data, BATCH, shuffle=True)),
        epoch(GINE(HIDDEN), DataLoader(dataset(1024), BATCH, shuffle=True)),
    )
    ours, plain, gine = best_times(*jobs, seconds=0, least=6, clock=time.process_time)
    return [
        ("ML-MPNN epoch / the same network in plain torch", ours / plain, 0.65),
        ("ML-MPNN epoch / GINE epoch, both ours", ours / gine, 4.0),
    ]


def prediction() -> tuple[float, dict[str, float]]:
    """Return molecules per second from SMILES to scores with two processes that read, and where a molecule's time goes.

    The parts are microseconds of one process: RDKit's reading, our categories, the network. Duplicates are not looked
    for, as in `apmax predict`.
    """
    from apmax.data.molecules.building import build_chunk, build_chunks
    from apmax.data.molecules.dataset import MoleculeDataset
    from apmax.data.molecules.featurise import featurise, parse_smiles
    from apmax.models.graphs import GINE

    model = GINE(HIDDEN).eval()
    texts = smiles(8192)
    begin, count, scoring = time.perf_counter(), 0, 0.0
    for chunk in build_chunks(texts, identify=False, workers=2):
        start = time.process_time()
        data = MoleculeDataset(chunk.store)
        with torch.no_grad():
            count += len(model(data.collate(data.__getitems__(list(range(len(data)))))))
        scoring += time.process_time() - start
    rate = count / (time.perf_counter() - begin)
    refused = {item.smiles for item in build_chunk(0, texts[:1024]).unreadable}
    molecules = [(text, parse_smiles(text)) for text in texts[:1024] if text not in refused]
    parts = {}
    for name, job in (
        ("RDKit", lambda text, _: parse_smiles(text)),
        ("categories", lambda _, molecule: featurise(molecule)),
    ):
        start = time.process_time()
        for pair in molecules:
            job(*pair)
        parts[name] = (time.process_time() - start) / len(molecules) * 1e6
    return rate, parts | {"network": scoring / count * 1e6}


def fingerprint_ratios(count: int = 41_000) -> list[Row]:
    """Return the time of features and a LightGBM fit over that of the fit alone: processor time, one thread.

    The features are Morgan counts alone; counts, properties, scaffolds and canonical SMILES, as tree members are
    trained on; and with graphs, for the networks beside them. The fits, all on counts and properties as sparse rows,
    are `LGBMClassifier()` as installed and the member `gbdt` as a committee fits it: stopped by a fifth of the rows,
    100 rounds at least, then fitted again to all. Last, what tree members read to score against RDKit's own functions.
    """
    import numpy as np
    from lightgbm import LGBMClassifier

    from apmax.committee.features import FingerprintColumns
    from apmax.committee.trees import fit_boosting
    from apmax.data.molecules.building import build_chunks
    from apmax.data.molecules.dataset import MoleculeDataset
    from apmax.data.molecules.store import Store

    texts, labels = smiles(count), np.array(activities(count), np.float64)

    def features(**options: bool) -> tuple[Any, Any]:
        store = Store.join([chunk.store for chunk in build_chunks(texts, fingerprints=True, workers=1, **options)])
        return FingerprintColumns().matrix(MoleculeDataset(store)), labels[store.rows]

    rdkit = timed(lambda: rdkit_counts(texts)).processor
    counts = timed(lambda: morgan_matrix(texts)).processor
    scoring = timed(lambda: features(graphs=False, identify=False)).processor
    trees = timed(lambda: features(graphs=False)).processor
    _, everything, (matrix, y) = timed(features)
    held_out = np.random.default_rng(0).random(len(y)) < 0.2
    stopping = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    weight, sizes = np.ones(len(y)), [0] * matrix.shape[1]
    fits = {
        "LGBMClassifier().fit": lambda: LGBMClassifier(verbose=-1, n_jobs=1).fit(matrix, y),
        "gbdt": lambda: fit_boosting(matrix, y, weight, sizes=sizes, stopping=stopping, seed=0),
    }
    found = []
    for name, fit in fits.items():
        alone = min(timed(fit).processor for _ in range(3))
        for what, seconds in (
            (f"Morgan counts of {count:,} molecules", counts),
            ("counts, properties, scaffolds", trees),
            ("counts, properties, scaffolds, graphs", everything),
        ):
            line = f"{what} ({seconds:.1f} s) and {name} ({alone:.1f} s) / the fit alone"
            found.append((line, (seconds + alone) / alone, 2.0))
    found.append(("Morgan counts and properties / MolFromSmiles and GetCountFingerprint alone", scoring / rdkit, 1.5))
    return found


def rdkit_counts(texts: Sequence[str]) -> None:
    """Read molecules and count their environments by RDKit's functions, and keep nothing."""
    from rdkit import Chem
    from rdkit.Chem.rdFingerprintGenerator import GetMorganGenerator

    generator = GetMorganGenerator(radius=2, fpSize=2048)
    with Chem.rdBase.BlockLogs():
        for text in texts:
            molecule = Chem.MolFromSmiles(text)
            if molecule is not None:
                generator.GetCountFingerprint(molecule)


def morgan_matrix(texts: Sequence[str]) -> Any:
    """Return the Morgan counts of the readable molecules as sparse rows."""
    import numpy as np
    from scipy import sparse  # type: ignore[import-untyped]

    from apmax.data.molecules.featurise import parse_smiles
    from apmax.data.molecules.fingerprints import MORGAN_SIZE, morgan_counts

    columns, counts, starts = array("i"), array("f"), [0]
    for text in texts:
        try:
            found = morgan_counts(parse_smiles(text))
        except ValueError:
            continue
        columns.extend(column for column, _ in found)
        counts.extend(count for _, count in found)
        starts.append(len(columns))
    return sparse.csr_matrix((np.array(counts), np.array(columns), starts), shape=(len(starts) - 1, MORGAN_SIZE))


def run() -> list[Row]:
    """Return (what, ratio, target) of every claim; none where RDKit is missing, and no peer where PyG is."""
    if importlib.util.find_spec("rdkit") is None:
        return []
    peers = importlib.util.find_spec("torch_geometric") is not None
    found = peer_ratios() + multilevel_ratios() if peers else []
    rate, parts = prediction()
    where = ", ".join(f"{name} {value:.0f}" for name, value in parts.items())
    found.append((f"1,500 molecules a second / from SMILES to scores (µs each: {where})", 1500 / rate, 1.0))
    return found + fingerprint_ratios()
