"""Set-up shared by all tests; fixtures import what they use, so that the process that hands out tests does not."""

import os

import pytest
from hypothesis import settings

from commands import SHORT, SHORT_IMAGES, SHORT_MOLECULES, run

# Tests work on tiny arrays, where a second thread of OpenBLAS or OpenMP costs more than it brings. Libraries read this
# when they are imported, and so do the processes that tests start.
for _library in ("OMP", "OPENBLAS"):
    os.environ[f"{_library}_NUM_THREADS"] = "1"

# Programs that tests start in processes of their own: the collection of doctests would import them.
collect_ignore = ["lightning_script.py", "training_script.py"]

# Local runs try new examples every time; CI must not fail by chance.
settings.register_profile("ci", derandomize=True)
if os.environ.get("CI"):
    settings.load_profile("ci")


@pytest.fixture(scope="session")
def client_folder(tmp_path_factory):
    """Two csv files of clients, and a model in `run`."""
    from small_files import client_rows, write_csv

    folder = tmp_path_factory.mktemp("clients")
    write_csv(folder / "train.csv", client_rows())
    write_csv(folder / "test.csv", client_rows(200, seed=1))
    data = [folder / "train.csv", "--target", "bought", "--test", folder / "test.csv"]
    assert run("train", *data, *SHORT, "--out", folder / "run") == 0
    return folder


@pytest.fixture(scope="session")
def data_cache(tmp_path_factory):
    """A cache of read molecules and images for the whole session."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APMAX_CACHE", str(tmp_path_factory.mktemp("cache")))
        yield


@pytest.fixture(scope="session")
def molecule_folder(tmp_path_factory, data_cache):
    """Files of molecules, and models of one target in `one` and of two targets in `two`."""
    from small_files import write_molecules

    folder = tmp_path_factory.mktemp("molecules")
    write_molecules(folder)
    data = [folder / "train.csv", "--smiles", "smiles", *SHORT_MOLECULES, "--quiet"]
    assert run("train", *data, "--target", "active", "--test-share", "0.2", "--out", folder / "one") == 0
    assert run("train", *data, "--target", "active", "--target", "toxic", "--out", folder / "two") == 0
    return folder


@pytest.fixture(scope="session")
def image_folder(tmp_path_factory, data_cache):
    """Images, a table of them, and models of one target in `one` and of two targets in `two`."""
    from small_files import write_images

    folder = tmp_path_factory.mktemp("images")
    write_images(folder)
    short = [*SHORT_IMAGES, "--quiet"]
    data = [folder / "images", "--target", "malignant", "--test-share", 0.2]
    assert run("train", *data, *short, "--out", folder / "one") == 0
    paths = ["--path", "name", "--root", folder / "images", "--ending", ".png"]
    data = [folder / "tables" / "a.csv", *paths, "--target", "bad", "--target", "worse"]
    assert run("train", *data, *short, "--out", folder / "two") == 0
    return folder


@pytest.fixture
def short_image_training(monkeypatch):
    """Committees of images train for a few steps."""
    from small_image_committees import shorten_training

    shorten_training(monkeypatch)


@pytest.fixture(scope="session")
def image_committee(tmp_path_factory):
    """A folder of images, and the committee that was trained on it; the cache of both is beside the images."""
    pytest.importorskip("PIL")
    from apmax.workflows import train_job
    from small_image_committees import digits_job, shorten_training, write_digits

    folder = tmp_path_factory.mktemp("committee")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APMAX_CACHE", str(folder / "cache"))
        shorten_training(patch)
        images = write_digits(folder / "images")
        return images, train_job(digits_job(images), out=folder / "run")


@pytest.fixture
def image_committee_cache(image_committee, monkeypatch):
    """The cache that the committee of images has filled."""
    monkeypatch.setenv("APMAX_CACHE", str(image_committee[0].parent / "cache"))
