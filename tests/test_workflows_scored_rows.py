"""Scores of validation and test rows in a model's folder."""

import json

import numpy as np
import pytest

from apmax.folders import FolderError
from apmax.metrics import average_precision
from apmax.workflows import ScoredRows, load_scored_rows
from apmax.workflows.scored_rows import save_scored_rows
from small_files import read_csv


def test_a_folder_has_the_scores_that_its_results_were_computed_from(client_folder):
    parts = load_scored_rows(client_folder / "run")
    results = json.loads((client_folder / "run" / "results.json").read_text())
    for part, key in (("validation", "valid"), ("test", "test")):
        scored = parts[part]
        ap = average_precision(scored.scores[:, 0], scored.labels[:, 0]).item()
        assert ap == pytest.approx(results[key]["ap"]["estimate"], abs=1e-6)
    labels = [row["bought"] for row in read_csv(client_folder / "train.csv")]
    scored = parts["validation"]
    assert [labels[row] == "yes" for row in scored.rows] == (scored.labels[:, 0] == 1).tolist()


def test_molecules_are_counted_with_the_unreadable_rows(molecule_folder):
    smiles = [row["smiles"] for row in read_csv(molecule_folder / "train.csv")]
    for scored in load_scored_rows(molecule_folder / "one").values():
        assert ["Br" in smiles[row] for row in scored.rows] == (scored.labels[:, 0] == 1).tolist()


def test_saved_rows_are_read_back_and_damage_is_refused(tmp_path):
    from apmax.folders import write_manifest

    generator = np.random.default_rng(0)
    labels = np.array([[1, 0], [0, np.nan], [1, 1], [0, 0]])
    members = {"gbdt": generator.normal(size=(4, 2)), "mlp": generator.normal(size=(4, 2))}
    part = ScoredRows.of(
        "cross-fitted", generator.normal(size=(4, 2)), labels, sample_weight=[1, 2, 3, 4], members=members
    )
    write_manifest(tmp_path, save_scored_rows(tmp_path, [part]), kind="model")
    loaded = load_scored_rows(tmp_path)["cross-fitted"]
    for name in ("rows", "scores", "labels", "sample_weight"):
        np.testing.assert_array_equal(getattr(loaded, name), getattr(part, name))
    assert list(loaded.members) == ["gbdt", "mlp"]
    np.testing.assert_array_equal(loaded.members["mlp"], members["mlp"])
    (tmp_path / part.file).write_bytes(b"x" + (tmp_path / part.file).read_bytes()[1:])
    with pytest.raises(FolderError, match="has changed"):
        load_scored_rows(tmp_path)


def test_what_has_no_score_is_left_out_with_its_weight_and_label():
    scores = np.array([[np.nan, np.nan], [1, np.nan], [2, 3]])
    part = ScoredRows.of("test", scores, np.ones((3, 2)), rows=[4, 5, 6], sample_weight=[1, 2, 3])
    assert (part.rows.tolist(), part.sample_weight.tolist()) == ([5, 6], [2, 3])
    np.testing.assert_array_equal(part.labels, [[1, np.nan], [1, 1]])


@pytest.mark.parametrize("shape", [(0,), (0, 1), (0, 3)])
def test_no_rows_are_scored_rows_as_well(shape):
    part = ScoredRows.of("test", np.empty(shape), np.empty(shape), members={"gbdt": np.empty(shape)})
    targets = 1 if len(shape) == 1 else shape[1]
    assert part.scores.shape == part.labels.shape == part.members["gbdt"].shape == (0, targets)
