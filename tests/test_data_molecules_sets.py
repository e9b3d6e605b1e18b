"""The paper's sets: the counts that its tables and our data's README state."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

pytest.importorskip("rdkit")

from apmax.data import load_split, open_table, read_labelled
from apmax.data.molecules.sets import MOLECULE_SETS, content_digest, load_molecules

needs_data = pytest.mark.skipif(
    not (Path(os.environ.get("APMAX_DATA", "/nowhere")) / "hiv").is_dir(), reason="APMAX_DATA is not set"
)


@pytest.mark.data
@needs_data
@pytest.mark.parametrize("name", MOLECULE_SETS)
def test_content_is_that_of_the_recorded_digest(name):
    entry = MOLECULE_SETS[name]
    assert content_digest(Path(os.environ["APMAX_DATA"]) / entry.file, entry.tasks) == entry.digest


@pytest.mark.data
@needs_data
def test_aicures_folds_cover_every_molecule(tmp_path):
    for fold in ("fold0", "fold5", "random0", "random9"):
        parts = load_molecules("aicures", split=fold, cache=tmp_path)
        assert sum(map(len, (parts.train, parts.valid, parts.test))) == 2097 - len(parts.report.unreadable)
        assert sum(int(part.labels.sum()) for part in (parts.train, parts.valid, parts.test)) == 48


@pytest.mark.data
@needs_data
@pytest.mark.slow
def test_tox21_tasks_have_the_papers_positives_less_the_unreadable(tmp_path):
    folder = Path(os.environ["APMAX_DATA"]) / "tox21"
    rows = load_split(folder / "split_tox21_random122.npz").train
    for task, positives in (("NR-AR", 246), ("NR-AhR", 644)):
        parts = load_molecules("tox21", task, cache=tmp_path)
        labels = read_labelled(open_table(folder / "tox21.csv.gz"), [task], []).labels[:, 0]
        refused = [item.row for item in parts.report.unreadable if item.row in rows]
        assert int(parts.train.labels.sum()) + int((labels[refused] == 1).sum()) == positives


@pytest.mark.data
@needs_data
@pytest.mark.slow
def test_tox21_tasks_together_keep_what_was_not_measured(tmp_path):
    several = load_molecules("tox21", ["NR-AR", "NR-AhR"], cache=tmp_path).train.labels
    assert several.shape[1] == 2
    assert several.isnan().any(0).all()
    assert not several.isnan().all(1).any()


@pytest.mark.data
@needs_data
@pytest.mark.slow
def test_hiv_split_has_the_papers_positives(tmp_path):
    parts = load_molecules("hiv", cache=tmp_path)
    assert [int(part.labels.sum()) for part in (parts.train, parts.valid, parts.test)] == [1272, 85, 130]


@pytest.mark.data
@needs_data
@pytest.mark.slow
@pytest.mark.parametrize(("name", "task", "positives"), [("toxcast", 0, 91), ("toxcast", 1, 29), ("muv", 0, 30)])
def test_rare_sets_have_their_positives(tmp_path, name, task, positives):
    parts = load_molecules(name, MOLECULE_SETS[name].tasks[task], cache=tmp_path)
    assert sum(int(part.labels.sum()) for part in (parts.train, parts.valid, parts.test)) == positives


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("hvi", {}, "did you mean 'hiv'"),
        ("tox21", {"tasks": "NR-Ar"}, "did you mean 'NR-AR'"),
        ("hiv", {"split": "random"}, "split must be one of scaffold122"),
    ],
)
def test_unknown_name_is_an_error_that_suggests_the_right_one(name, options, message):
    with pytest.raises(ValueError, match=message):
        load_molecules(name, **options)


def test_missing_folder_says_where_data_belong(tmp_path):
    with pytest.raises(FileNotFoundError, match="it has no public address"):
        load_molecules("aicures", data_dir=tmp_path)


def test_download_of_other_content_is_refused(tmp_path, monkeypatch):
    home = tmp_path / "hiv.csv"
    home.write_text("smiles,HIV_active\nC,1\n")
    monkeypatch.setitem(
        MOLECULE_SETS, "hiv", type(MOLECULE_SETS["hiv"])(**{**vars(MOLECULE_SETS["hiv"]), "url": home.as_uri()})
    )
    with pytest.raises(ValueError, match="does not hold the hiv set of the paper"):
        load_molecules("hiv", data_dir=tmp_path / "data", download=True)
