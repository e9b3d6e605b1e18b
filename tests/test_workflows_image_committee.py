"""Committees of images: default, folders, several targets, and resumed trainings."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

pytest.importorskip("PIL")
from PIL import Image

from apmax.committee import (
    save_result,
)
from apmax.models.images import resnet18
from apmax.workflows import (
    CommitteeJob,
    ImageData,
    JobPlan,
    Overrides,
    load_model,
    load_scored_rows,
    plan_training,
    train_job,
)
from apmax.workflows.data_types import ImageType
from apmax.workflows.job import job_from_table, job_to_table
from commands import interrupted_after, run
from small_files import read_csv
from small_image_committees import COUNT, digits_job, digits_labels

pytestmark = pytest.mark.usefixtures("short_image_training", "image_committee_cache")


def test_a_committee_is_the_default_of_images(image_committee, tmp_path):
    images, _ = image_committee
    assert isinstance(plan_training(digits_job(images)), CommitteeJob)
    (tmp_path / "w.pth").touch()
    begun = plan_training(digits_job(images), Overrides(settings={"model.pretrained": str(tmp_path / "w.pth")}))
    assert begun.committee.pretrained == str(tmp_path / "w.pth")
    assert job_from_table(job_to_table(begun)) == begun
    assert isinstance(
        plan_training({**digits_job(images), "model": {"pretrained": str(tmp_path / "w.pth")}}), CommitteeJob
    )
    for settings in ({"model.name": "resnet18"}, {"model.width": 8}, {"stages.0.epochs": 1}):
        assert isinstance(plan_training(digits_job(images), Overrides(settings=settings)), JobPlan)
    for overrides in ({"loss": "ce"}, {"epochs": 2}, {"ensemble": 2}, {"head": "exact"}):
        assert isinstance(plan_training(digits_job(images), Overrides(**overrides)), JobPlan)


@pytest.mark.slow
def test_a_committee_begins_with_a_file_of_weights(image_committee, tmp_path):
    images, _ = image_committee
    torch.save(resnet18(1000, width=64).state_dict(), tmp_path / "w.pth")
    lines = []
    table = {**digits_job(images), "model": {"pretrained": str(tmp_path / "w.pth")}, "committee": {"effort": "quick"}}
    result = train_job(table, out=tmp_path / "r", notify=lambda facts, warnings: lines.extend(facts))
    assert any(line.startswith("networks begin with 120 tensors from w.pth") for line in lines)
    (tmp_path / "w.pth").rename(tmp_path / "moved.pth")
    moved = {**table, "model": {"pretrained": str(tmp_path / "moved.pth")}}
    again = train_job(moved, out=tmp_path / "r", resume=True)
    np.testing.assert_array_equal(again.model.score(images), result.model.score(images))
    with pytest.raises(ValueError, match=r"pretrained was .* and is not set now"):
        train_job({**digits_job(images), "committee": {"effort": "quick"}}, out=tmp_path / "r", resume=True)
    torch.save(resnet18(1000, width=64).state_dict(), tmp_path / "w.pth")
    with pytest.raises(ValueError, match=r"was of other weights \(pretrained='.*w.pth'\): their fingerprint differs"):
        train_job(table, out=tmp_path / "r", resume=True)
    (tmp_path / "w.pth").unlink()
    np.testing.assert_array_equal(load_model(tmp_path / "r").score(images), result.model.score(images))


def test_small_images_with_few_positives_are_annealed_on_four_folds():
    class Rows:
        labels = np.zeros(2000)

        def __init__(self, positives):
            self.positives = positives

    def training(size, positives):
        found = ImageType(ImageData("images", "y", size=size, augment="small")).committee_members(Rows(positives))
        return found["network"].fit.keywords["design"].architecture(None)["name"]

    few, many, large = training(8, 130), training(8, 140), training(100, 30)
    assert (few, many, large) == ("resnet10", "resnet18", "resnet18")
    assert [ImageType(ImageData("i", "y", size=size)).committee_folds("standard") for size in (64, 65)] == [4, 3]


def test_the_committee_of_a_folder_is_complete(image_committee):
    images, result = image_committee
    folder = images.parent / "run"
    assert result.contact_sheets == [folder / "contact-sheet.png"]
    plan = json.loads((folder / "plan.json").read_text())["plan"]
    assert (plan["members"], plan["folds"]) == (["network", "network_ce", "head"], 4)
    stored = load_scored_rows(folder)
    expected = average_precision_score(stored["test"].labels.ravel(), stored["test"].scores.ravel())
    assert result.test.each["target"].ap.estimate == pytest.approx(expected, abs=1e-6)
    loaded = load_model(folder)
    scores = loaded.score(images)
    np.testing.assert_array_equal(scores, result.model.score(images))
    assert average_precision_score(digits_labels(images), scores) > 0.5
    assert loaded.with_member("head").score(images).tolist() != loaded.with_member("network").score(images).tolist()
    probability = loaded.score(images, probability=True)
    assert ((probability > 0) & (probability < 1)).all()


def test_test_rows_are_scored_as_new_files_are(image_committee):
    images, result = image_committee
    stored = load_scored_rows(images.parent / "run")["test"]
    every = result.model.score(images)
    np.testing.assert_allclose(np.sort(every[stored.rows]), np.sort(stored.scores.ravel()), atol=1e-5)


def test_an_interrupted_training_continues_to_the_same_scores(image_committee, tmp_path, monkeypatch):
    from apmax.workflows import committee_training

    images, result = image_committee
    monkeypatch.setattr(committee_training, "save_result", interrupted_after(4))
    with pytest.raises(KeyboardInterrupt):
        train_job(digits_job(images), out=tmp_path / "r")
    monkeypatch.setattr(committee_training, "save_result", save_result)
    with pytest.raises(ValueError, match="augment was small"):
        train_job(digits_job(images, augment="none"), out=tmp_path / "r", resume=True)
    again = train_job(digits_job(images), out=tmp_path / "r", resume=True)
    np.testing.assert_array_equal(again.model.score(images), result.model.score(images))


def test_other_images_are_not_resumed(image_committee, tmp_path):
    images, _ = image_committee
    shutil.copytree(images.parent / "run", tmp_path / "run")
    shutil.copytree(images, tmp_path / "images")
    path = tmp_path / "images" / "other" / "001.png"
    Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    with pytest.raises(ValueError, match="was of other rows"):
        train_job(digits_job(tmp_path / "images"), out=tmp_path / "run", resume=True)


@pytest.mark.slow
def test_several_targets_of_a_table_have_a_committee_each(image_committee, tmp_path):
    images, _ = image_committee
    data = {"train": str(images / "t.csv"), "target": ["y", "bright"], "path": "path"}
    result = train_job({"data": data, "committee": {"members": ["network", "head"]}}, out=tmp_path / "r")
    assert list(result.leaderboards) == ["y", "bright"]
    assert len(result.contact_sheets) == 2
    loaded = load_model(tmp_path / "r")
    scores = loaded.score(images / "t.csv")
    assert scores.shape == (COUNT, 2)
    np.testing.assert_array_equal(scores, result.model.score(images / "t.csv"))
    stored = load_scored_rows(tmp_path / "r")["cross-fitted"]
    assert np.isnan(stored.scores[np.isnan(stored.labels)]).all()


@pytest.mark.slow
def test_the_command_line_trains_ranks_evaluates_and_decides(image_committee, tmp_path, capsys):
    images, _ = image_committee
    assert run("train", images, "--target", "target", "--effort", "quick", "--out", tmp_path / "r") == 0
    shown = capsys.readouterr().out
    for text in ("plan (quick): network on one split", "held-out", "The best-ranked images"):
        assert text in shown
    assert run("predict", tmp_path / "r", images, "--sort", "--out", tmp_path / "s.csv", "--member", "network") == 0
    assert len(read_csv(tmp_path / "s.csv")) == COUNT
    assert run("evaluate", tmp_path / "r", images) == 0
    assert run("decide", tmp_path / "r", "--recall", "0.7") == 0
    assert run("report", tmp_path / "r", "--out", tmp_path / "r.html") == 0
