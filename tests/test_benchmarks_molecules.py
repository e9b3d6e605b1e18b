"""Comparison of committees of molecules with other methods: splits and fits."""

from __future__ import annotations

import gzip

import numpy as np
import pytest

pytest.importorskip("rdkit")
pytest.importorskip("lightgbm")

from benchmarks.committees.molecules import problems
from benchmarks.committees.molecules.methods import MOLECULE_SUITE
from benchmarks.committees.molecules.problems import PROBLEMS, load_molecule_split

from apmax.data.molecules import scaffolds
from small_files import ARMS, CORES

SMILES = [arm + core for arm in ARMS for core in CORES]


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    monkeypatch.setenv("APMAX_DATA", str(tmp_path))
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    problems._read.cache_clear()
    rows = np.random.default_rng(0).permutation(len(SMILES))
    lines = [f"{text},{int('Br' in text or 'N' in text)}" for text in [*SMILES, "C(C"]]
    for name, file, column in (("aicures", "pseudomonas", "activity"), ("hiv", "hiv", "HIV_active")):
        (tmp_path / name).mkdir()
        with gzip.open(tmp_path / name / f"{file}.csv.gz", "wt") as stream:
            stream.write("\n".join([f"smiles,{column}", *lines]) + "\n")
    np.savez(
        tmp_path / "aicures" / "split_official_cv_fold0.npz",
        train=rows[:50],
        valid=rows[50:60],
        test=[*rows[60:], len(SMILES)],
    )


def test_training_and_validation_parts_are_trained_on():
    split = load_molecule_split("aicures", 0)
    assert len(split.train_smiles) == len(split.train_labels) == split.train.shape[0] == 60
    assert split.test.shape == (len(SMILES) - 60, 2048)
    assert sorted([*split.train_smiles, *split.test_smiles]) == sorted(SMILES)
    assert split.test_labels.tolist() == ["Br" in text or "N" in text for text in split.test_smiles]


def test_resplits_hold_out_whole_scaffolds():
    first, second = (load_molecule_split("hiv_resplit", number) for number in range(2))
    for split in (first, second):
        assert not set(scaffolds(split.train_smiles)) & set(scaffolds(split.test_smiles))
    assert first.test_smiles != second.test_smiles


@pytest.mark.parametrize("method", ["lightgbm_counts", "forest_bits"])
def test_baselines_score_test_molecules(method):
    split = load_molecule_split("aicures", 0)
    scored = MOLECULE_SUITE.fit(split, method, 0, None, None)
    assert scored.scores.shape == split.test_labels.shape
    assert np.isfinite(scored.scores).all()


def test_seeds_of_the_paper_split_share_their_rows():
    assert PROBLEMS["hiv"].unit == "seeds"
    assert list(PROBLEMS["hiv"].resplits) == [0, 1, 2]
    assert len(set(PROBLEMS["hiv"].splits)) == 1
    assert {name: problem.unit for name, problem in PROBLEMS.items() if name != "hiv"} == {
        "hiv_resplit": "scaffold resplits",
        "tox21_NR-AR": "random splits",
        "tox21_NR-AhR": "random splits",
        "aicures": "folds",
        "muv": "random splits",
    }
