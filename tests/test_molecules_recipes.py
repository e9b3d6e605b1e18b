"""The recipes of docs/guide/molecules.md for models of other libraries, where these are installed, do train."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import torch

pytest.importorskip("rdkit")

from apmax.data.molecules import dense_atoms, dense_bonds
from apmax.functional import ap_objective

PAGE = Path(__file__).parent.parent / "docs" / "guide" / "molecules.md"


def recipe(library):
    """Return the block that imports the library, apart: what stands before its loop, and the loop."""
    # Fenced as "py": blocks of "python" are run by the documentation's own tests, which need what all users have.
    blocks = re.findall(r"^```py\n(.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE)
    [code] = [block for block in blocks if f"from {library}" in block]
    before, loop = code.split("for epoch in range(")
    return before, f"for epoch in range({loop}"


@pytest.fixture
def table(tmp_path, monkeypatch):
    """Write the page's molecules where its recipes read them."""
    monkeypatch.chdir(tmp_path)
    exec(re.search(r"^```python\n(from pathlib.*?)^```", PAGE.read_text(), re.DOTALL | re.MULTILINE).group(1), {})


def scores_of_chemprop(names):
    batch, rows = names["collate"]([names["dataset"][row] for row in range(len(names["dataset"]))])
    assert rows.tolist() == list(range(len(names["dataset"])))
    return names["model"](batch.bmg, batch.V_d, batch.X_d)[:, 0]


def scores_of_torch_geometric(names):
    dataset = names["dataset"]
    batch = dataset.collate([dataset[row] for row in range(len(dataset))])
    atoms = names["model"](dense_atoms(batch.x), batch.edge_index, edge_attr=dense_bonds(batch.edge_attr))
    return names["global_mean_pool"](atoms, batch.batch)[:, 0]


@pytest.mark.parametrize(
    ("library", "scores"), [("chemprop", scores_of_chemprop), ("torch_geometric", scores_of_torch_geometric)]
)
def test_recipe_lowers_the_exact_objective_on_the_training_molecules(table, library, scores):
    pytest.importorskip(library)
    torch.manual_seed(0)
    names = {"__name__": "recipe"}
    before, loop = recipe(library)
    exec(compile(before, PAGE.name, "exec"), names)

    @torch.no_grad()
    def objective():
        return float(ap_objective(scores(names), names["labels"], names["loss"].surrogate, names["loss"].margin))

    start = objective()
    exec(compile(loop, PAGE.name, "exec"), names)
    assert objective() < start - 0.5
