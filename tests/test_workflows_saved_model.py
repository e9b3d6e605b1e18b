"""Saved models: scores of files, data frames and SMILES; networks of the user's own; the way of a run."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch
from torch import nn

from apmax import extras
from apmax.folders import FolderError
from apmax.train import parse_toml
from apmax.workflows import Overrides, load_model, train_job
from apmax.workflows.model_folder import open_other_model
from apmax.workflows.saved_model import arrow_table
from commands import SHORT, SHORT_IMAGES, SHORT_MOLECULES, run
from model_folders import copy_model, renew_manifest
from small_files import SMILES, read_csv

QUICK = Overrides(epochs=1, settings={"stages.0.epochs": 1, "accelerator": "cpu"})


@pytest.fixture(scope="module")
def clients(client_folder):
    """The model of clients, and the scores of its test file."""
    model = load_model(client_folder / "run")
    return model, model.score(client_folder / "test.csv")


def test_scores_of_a_file_are_those_of_predict(client_folder, clients, tmp_path):
    run("predict", client_folder / "run", client_folder / "test.csv", "--out", tmp_path / "o.csv")
    assert [float(row["score"]) for row in read_csv(tmp_path / "o.csv")] == pytest.approx(clients[1], abs=1e-6)


@pytest.mark.parametrize("categorical", [False, True])
def test_pandas_frame_has_the_scores_of_its_file(client_folder, clients, categorical):
    frame = pd.read_csv(client_folder / "test.csv", dtype={"id": str}).set_index("id", drop=False)
    if categorical:
        frame["city"] = frame["city"].astype("category")
    scores = clients[0].score(frame)
    assert scores.shape == (200,)
    assert scores == pytest.approx(clients[1], abs=1e-5)


def test_arrow_table_and_arrow_stream_have_the_scores_of_their_file(client_folder, clients):
    table = pa.Table.from_pandas(pd.read_csv(client_folder / "test.csv", dtype={"id": str}))

    class Frame:
        """A data frame as polars hands it over."""

        def __arrow_c_stream__(self, schema=None):
            return table.__arrow_c_stream__(schema)

    for data in (table, Frame()):
        assert clients[0].score(data) == pytest.approx(clients[1], abs=1e-5)


def test_missing_column_is_a_warning_and_counts_as_unknown(client_folder, clients):
    frame = pd.read_csv(client_folder / "test.csv", dtype={"id": str})
    with pytest.warns(UserWarning, match="column 'city' is missing"):
        scores = clients[0].score(frame.drop(columns="city"))
    assert np.isfinite(scores).all()


def test_polars_frame_is_accepted(client_folder, clients):
    polars = pytest.importorskip("polars")
    frame = polars.read_csv(client_folder / "test.csv", schema_overrides={"id": polars.String})
    assert clients[0].score(frame) == pytest.approx(clients[1], abs=1e-5)


@pytest.mark.parametrize(
    ("data", "error", "message"),
    [
        (["CCO"], TypeError, "a list of SMILES is for a model of molecules, this one is of kind table"),
        (np.zeros((3, 2)), TypeError, "data must be a file, a pandas or polars data frame"),
        (pd.DataFrame({"x": [1]}), ValueError, "none of the columns"),
        ("nothing.csv", FileNotFoundError, "no such file"),
    ],
)
def test_other_data_are_refused(clients, data, error, message):
    with pytest.raises(error, match=message):
        clients[0].score(data)


def test_column_of_mixed_types_is_named():
    with pytest.raises(ValueError, match=r"data: .*column age"):
        arrow_table(pd.DataFrame({"age": [1, "old", b"x"]}))


def test_option_of_another_data_type_and_unknown_option_are_refused(client_folder, clients):
    with pytest.raises(ValueError, match="smiles is for models of molecules; this one is of kind table"):
        clients[0].score(client_folder / "test.csv", smiles="x")
    with pytest.raises(TypeError, match="no option 'smile'"):
        clients[0].score(client_folder / "test.csv", smile="x")


def test_list_of_smiles_is_scored_with_nan_for_those_that_cannot_be_read(molecule_folder):
    model = load_model(molecule_folder / "one")
    expected = model.score(molecule_folder / "library.smi")
    for texts in (SMILES, np.array(SMILES), pd.Series(SMILES)):
        assert model.score(texts) == pytest.approx(expected, abs=1e-5)
    scores = model.score([SMILES[0], "C(C", SMILES[1]])
    assert np.isnan(scores).tolist() == [False, True, False]
    assert np.isnan(model.score(["C(C"])).all()
    missing = model.score([SMILES[0], None, float("nan"), SMILES[1]])
    np.testing.assert_allclose(missing, [scores[0], np.nan, np.nan, scores[2]], rtol=1e-5)
    assert model.score([]).shape == (0,)
    with pytest.raises(TypeError, match="must hold SMILES"):
        model.score([1.0])


def test_several_targets_have_a_column_of_scores_each(molecule_folder):
    model = load_model(molecule_folder / "two")
    scores = model.score(molecule_folder / "library.csv", smiles="SMI")
    assert scores.shape == (len(SMILES) + 1, 2)
    assert np.isnan(scores).any(1).tolist() == [row == 30 for row in range(len(scores))]
    frame = pd.read_csv(molecule_folder / "library.csv")
    np.testing.assert_allclose(model.score(frame, smiles="SMI"), scores, atol=1e-5)


def test_frame_of_image_paths_is_scored(image_folder):
    model = load_model(image_folder / "one")
    frame = pd.DataFrame({"path": [f"{number:03d}.png" for number in range(40)] + ["cut.jpg"]})
    scores = model.score(frame, root=image_folder / "unsorted")
    np.testing.assert_allclose(scores, model.score(image_folder / "unsorted"), atol=1e-5)
    assert np.isnan(scores).tolist() == [False] * 40 + [True]


OWN_MODULE = """
import pathlib

import torch
from torch import nn

pathlib.Path(__file__).with_suffix(".imported").touch()


class PerColumn(nn.Module):
    def __init__(self, sizes, *, scale=1.0):
        super().__init__()
        self.scale, self.head = scale, nn.Linear(len(sizes), 1)

    def forward(self, inputs):
        return self.scale * self.head(inputs)[:, 0]


class Molecules(nn.Module):
    def __init__(self, tasks):
        super().__init__()
        self.tasks, self.head = tasks, nn.Linear(1, tasks)

    def forward(self, batch):
        atoms = torch.bincount(batch.batch, minlength=batch.num_graphs).float()
        scores = self.head(atoms[:, None] / 10)
        return scores[:, 0] if self.tasks == 1 else scores


class Images(nn.Module):
    def __init__(self, *, num_outputs, scale=1.0):
        super().__init__()
        self.head = nn.Linear(3, num_outputs)

    def forward(self, images):
        return self.head(images.mean((2, 3)))


def not_a_network(sizes):
    return "network"


def without_argument():
    return PerColumn([0, 0])


def by_keyword(*, sizes):
    return PerColumn(sizes)
"""


@pytest.fixture
def own_module(tmp_path, monkeypatch):
    """A module `own_networks` in the current folder, which is not imported yet."""
    (tmp_path / "own_networks.py").write_text(OWN_MODULE)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    yield tmp_path
    sys.modules.pop("own_networks", None)


def forget(folder):
    """Undo the import of the user's module."""
    sys.modules.pop("own_networks")
    (folder / "own_networks.imported").unlink()


def test_own_network_of_a_table_is_trained_and_loaded_when_it_is_named(client_folder, own_module, capsys):
    own = ["--model", "own_networks:PerColumn"]
    data = [client_folder / "train.csv", "--target", "bought", "--set", "model.scale=2.0", "--quiet"]
    assert run("train", *data, *own, *SHORT, "--out", "r") == 0
    assert parse_toml(Path("r/run.toml").read_text())["model"] == {"name": "own_networks:PerColumn", "scale": 2.0}
    forget(own_module)
    assert run("predict", "r", client_folder / "test.csv", "--out", "o.csv") == 1
    assert "--model: r was trained with the network own_networks:PerColumn" in capsys.readouterr().err
    assert run("predict", "r", client_folder / "test.csv", "--model", "os:system", "--out", "o.csv") == 1
    assert "--model must be 'own_networks:PerColumn'" in capsys.readouterr().err
    assert not (own_module / "own_networks.imported").exists()
    assert run("predict", "r", client_folder / "test.csv", *own, "--out", "o.csv") == 0
    assert run("evaluate", "r", client_folder / "test.csv", *own) == 0
    scores = [float(row["score"]) for row in read_csv(Path("o.csv"))]
    builder = sys.modules["own_networks"].PerColumn
    model = load_model("r", model=builder)
    assert model.score(client_folder / "test.csv") == pytest.approx(scores, abs=1e-6)
    assert model.network.scale == 2.0


def test_two_own_networks_are_compared_when_both_are_named(client_folder, own_module, capsys):
    text = (own_module / "own_networks.py").read_text()
    (own_module / "other_networks.py").write_text(text.replace("own_networks.imported", "other_networks.imported"))
    for name in ("own", "other"):
        data = [client_folder / "train.csv", "--target", "bought", "--quiet"]
        assert run("train", *data, "--model", f"{name}_networks:PerColumn", *SHORT, "--out", name) == 0
    compare = ["evaluate", "own", client_folder / "test.csv", "--model", "own_networks:PerColumn"]
    assert run(*compare, "--against-model", "other_networks:PerColumn") == 1
    assert "name its folder, too (--against FOLDER)" in capsys.readouterr().err
    assert run(*compare, "--against", "other") == 1
    assert "--against-model: other was trained with the network other_networks:PerColumn" in capsys.readouterr().err
    assert run(*compare, "--against", "other", "--against-model", "other_networks:PerColumn") == 0
    assert "AP of own minus AP of other" in capsys.readouterr().out
    report = ["report", "own", "--data", client_folder / "test.csv", "--model", "own_networks:PerColumn"]
    compared = ["--against", "other", "--against-model", "other_networks:PerColumn"]
    assert run(*report, *compared, "--out", "both.html") == 0


@pytest.mark.parametrize("folder", ["models/old", "model"])
def test_error_about_the_folder_of_the_other_model_has_its_name(folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path(folder).mkdir(parents=True)
    (Path(folder) / "manifest.json").write_text("{}")
    with pytest.raises(FolderError, match=f"^{folder} was not written by apmax"):
        open_other_model(folder, "a.csv", options={})


def test_own_network_of_molecules_and_of_images_gets_the_number_of_targets(molecule_folder, image_folder, own_module):
    data = [molecule_folder / "train.csv", "--smiles", "smiles", "--target", "active", "--target", "toxic", "--quiet"]
    assert run("train", *data, "--model", "own_networks:Molecules", *SHORT_MOLECULES[:6], "--out", "m") == 0
    assert load_model("m", model="own_networks:Molecules").network.tasks == 2
    data = [image_folder / "images", "--target", "malignant", "--quiet"]
    assert run("train", *data, "--model", "own_networks:Images", *SHORT_IMAGES[:6], "--out", "i") == 0
    for own in ("own_networks:Images", sys.modules["own_networks"].Images):
        scores = load_model("i", model=own).score(image_folder / "unsorted")
        assert np.isfinite(scores).tolist() == [True] * 40 + [False]


@pytest.mark.parametrize(
    ("model", "message"),
    [
        ("no_such_module:Net", "no_such_module:Net cannot be loaded"),
        ("own_networks:Missing", "has no callable 'Missing'"),
        ("own_networks:not_a_network", "must return a torch.nn.Module, got str"),
        ("perceptron", "--model must be one of mlp, linear"),
    ],
)
def test_network_that_cannot_be_built_is_named(client_folder, own_module, capsys, model, message):
    assert run("train", client_folder / "train.csv", "--target", "bought", "--model", model, "--out", "r") == 1
    assert message in capsys.readouterr().err
    assert not Path("r").exists()


@pytest.mark.parametrize("kind", ["table", "molecules"])
@pytest.mark.parametrize("name", ["without_argument", "by_keyword"])
def test_own_network_that_is_called_with_other_arguments_is_refused_before_data_are_read(
    own_module, capsys, kind, name
):
    Path("data.csv").write_text("smiles,y\nnot read,1\n")
    call = {"table": "sizes", "molecules": "targets"}[kind]
    columns = ["--target", "y", "--kind", kind]
    assert run("train", "data.csv", *columns, "--model", f"own_networks:{name}", "--out", "r") == 1
    shown = capsys.readouterr().err
    assert f"--model: own_networks:{name} is called with ({call}), and its parameters are" in shown
    assert f"write it as build({call})" in shown
    assert not Path("r").exists()


def test_unknown_option_of_an_own_network_is_refused(client_folder, own_module, capsys):
    data = [client_folder / "train.csv", "--target", "bought", "--model", "own_networks:PerColumn"]
    assert run("train", *data, "--set", "model.scal=2", "--out", "r") == 1
    assert "did you mean 'scale'?" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["os:system", "timm:resnet18", "resnet50d"])
def test_folder_alone_never_imports_code_outside_of_apmax(image_folder, tmp_path, monkeypatch, name):
    copy_model(image_folder / "one", tmp_path)
    text = (tmp_path / "run.toml").read_text()
    assert 'name = "resnet10"' in text
    (tmp_path / "run.toml").write_text(text.replace('name = "resnet10"', f'name = "{name}"'))
    renew_manifest(tmp_path)
    monkeypatch.setattr("apmax.extras.load_callable", lambda *_: pytest.fail("imported"))
    monkeypatch.setattr("apmax.models.images.build_image_model", lambda *_, **__: pytest.fail("built"))
    with pytest.raises(ValueError, match=f"trained with the network {name}, which is code outside of apmax"):
        load_model(tmp_path)


def test_option_that_makes_timm_load_a_file_is_refused(image_folder, tmp_path):
    settings = {"model.name": "timm:resnet18", "model.checkpoint_path": "weights.pt"}
    table = {"data": {"train": str(image_folder / "images"), "target": "malignant"}}
    with pytest.raises(ValueError, match="checkpoint_path is no option here"):
        train_job(table, Overrides(settings=settings), out=tmp_path / "r")


def test_folder_with_other_weights_is_refused(client_folder, tmp_path):
    copy_model(client_folder / "run", tmp_path)
    torch.save(nn.Linear(2, 1).state_dict(), tmp_path / "model.pt")
    renew_manifest(tmp_path)
    with pytest.raises(ValueError, match="does not hold the weights of the network"):
        load_model(tmp_path)


def test_run_writes_its_job_once_and_parses_no_toml(client_folder, tmp_path, monkeypatch):
    import tomli_w

    from apmax.workflows import job, model_folder, training

    calls = []

    def counted(module, name):
        original = getattr(module, name)
        monkeypatch.setattr(module, name, lambda *a, **k: calls.append(name) or original(*a, **k))

    counted(job.JobPlan, "resolve")
    for module, name in ((job, "plan_job"), (training, "save_job"), (model_folder, "write_job")):
        counted(module, name)
    counted(tomli_w, "dumps")
    counted(extras.load("tomllib" if sys.version_info >= (3, 11) else "tomli", "train"), "loads")
    table = {"data": {"train": str(client_folder / "train.csv"), "target": "bought"}}
    train_job(table, QUICK, out=tmp_path / "r")
    # The trainer writes its own config.toml; nothing is read back.
    counts = {name: calls.count(name) for name in ("plan_job", "resolve", "save_job", "write_job", "dumps", "loads")}
    assert counts == {"plan_job": 1, "resolve": 1, "save_job": 1, "write_job": 1, "dumps": 2, "loads": 0}


def test_resumed_run_writes_its_job_once(client_folder, tmp_path, monkeypatch):
    from apmax.workflows import model_folder

    table = {"data": {"train": str(client_folder / "train.csv"), "target": "bought"}}
    train_job(table, QUICK, out=tmp_path / "r")
    written = []
    original = model_folder.write_job
    monkeypatch.setattr(model_folder, "write_job", lambda *a: written.append(a) or original(*a))
    train_job(table, QUICK, out=tmp_path / "r", resume=True)
    assert len(written) == 1
