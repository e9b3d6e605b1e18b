"""The paper authors' published stage-1 models of HIV in our networks, with our features."""

from __future__ import annotations

import csv
import gzip
import os
from pathlib import Path

import numpy as np
import pytest
import torch

pytest.importorskip("rdkit")

from apmax.data.molecules import MoleculeDataset, build_chunks
from apmax.metrics import auprc
from apmax.models.graphs import GINE, MLMPNN, MPNN
from apmax.reproduce.authors import load_authors_weights, rename_authors_weights

FOLDER = Path(os.environ.get("APMAX_DATA", "/nowhere"))
needs_data = pytest.mark.skipif(not (FOLDER / "hiv" / "authors_ce").is_dir(), reason="APMAX_DATA is not set")


@pytest.fixture(scope="module")
def table():
    """Return the SMILES and labels of the validation and of the test part."""
    with gzip.open(FOLDER / "hiv" / "hiv.csv.gz", "rt", encoding="utf-8") as file:
        rows = [(row["smiles"], float(row["HIV_active"])) for row in csv.DictReader(file)]
    split = np.load(FOLDER / "hiv" / "split_hiv_scaffold122.npz", allow_pickle=False)
    return [[rows[row] for row in split[part]] for part in ("valid", "test")]


def authors_auprc(network, table, **options):
    """Return the AUPRC of the authors' weights on the validation and the test part."""
    model = network(32)
    load_authors_weights(model, FOLDER)
    model.eval()
    found = []
    for rows in table:
        scores, labels = [], []
        for chunk in build_chunks([smiles for smiles, _ in rows], identify=False, workers=2, **options):
            data = MoleculeDataset(chunk.store)
            with torch.no_grad():
                scores.append(model(data.collate(data.__getitems__(list(range(len(data)))))))
            labels.extend(rows[row][1] for row in chunk.store.rows)
        found.append(float(auprc(torch.cat(scores), torch.tensor(labels))))
    return found


@pytest.mark.data
@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(("network", "expected"), [(GINE, (0.2934, 0.2899)), (MPNN, (0.3608, 0.3178))])
def test_weights_of_gine_and_mpnn_give_the_known_auprc(table, network, expected):
    assert authors_auprc(network, table) == pytest.approx(expected, abs=1e-4)


@pytest.mark.data
@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("normalisation", "expected"), [("quantiles", (0.2957, 0.2959)), ("descriptastorus", (0.3247, 0.3071))]
)
def test_weights_of_ml_mpnn_give_the_known_auprc_with_our_cliques(table, normalisation, expected):
    if normalisation == "descriptastorus":
        pytest.importorskip("descriptastorus.descriptors.rdNormalizedDescriptors")
    found = authors_auprc(MLMPNN, table, levels=True, normalisation=normalisation)
    assert found == pytest.approx(expected, abs=2e-4)


@pytest.mark.parametrize("network", [GINE, MPNN, MLMPNN])
def test_weights_of_another_network_are_refused(network):
    with pytest.raises(KeyError, match=r"'conv9\.weight' is not a weight"):
        rename_authors_weights(network, {"conv9.weight": torch.zeros(1)})


def test_batch_norms_of_ml_mpnn_are_renamed_in_the_order_of_use():
    names = [f"bn_{level}.{k}.bias" for level in ("node", "global") for k in (3, 0, 1, 2)]
    renamed = rename_authors_weights(MLMPNN, {name: torch.zeros(32) for name in names})
    assert list(renamed) == [
        *(f"norms.{k}.atoms.bias" for k in range(3)),
        *(f"norms.{k}.molecules.bias" for k in range(3)),
        "last_norm.bias",
    ]
