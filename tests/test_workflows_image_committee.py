"""Committees of images: members, plan, folds, several targets, saved folders and resumed trainings."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import sys
from dataclasses import replace
from functools import partial
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from sklearn.metrics import average_precision_score

pytest.importorskip("PIL")
from PIL import Image

from apmax import extras
from apmax.committee import (
    ImageFeatures,
    ImageTraining,
    TrainingRows,
    find_members,
    fit_committee,
    image_members,
    network_members,
    plan_committee,
    save_result,
)
from apmax.committee.image_networks import NO_SECONDS
from apmax.committee.network_members import NetworkMember
from apmax.data.images import IMAGENET, Augment, ImageDataset
from apmax.models.images import resnet10, resnet18
from apmax.train import embed, image_recipe
from apmax.train.config import Optimizer, Sampler, Stage
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
from model_folders import renew_manifest
from small_files import read_csv

TINY = {"width": 2, "stem": "small"}
COUNT = 60


def digits(count=COUNT, every=3):
    """Return 8×8 images of 0 and 1, every third of them a 1, with their labels."""
    data = load_digits()
    zeros, ones = (np.flatnonzero(data.target == digit) for digit in (0, 1))
    labels = np.arange(count) % every == 0
    rows = [ones[k] if positive else zeros[k] for k, positive in enumerate(labels)]
    pixels = (data.images[rows] * 255 / 16).astype(np.uint8)
    return np.repeat(pixels[..., None], 3, axis=3), labels.astype(np.float64)


def short_recipe(rows, positives, *, size=8, anneal=False):
    """Return two stages of a few steps."""
    first = Stage(loss={"ce": 1.0}, epochs=3, optimizer=Optimizer(lr=1e-2), sampler=Sampler(batch_size=16))
    second = Stage(
        loss={"ap": 1.0, "ce": 1.0},
        epochs=1,
        optimizer=Optimizer(lr=1e-3),
        sampler=Sampler(name="positive", batch_size=16, num_pos=2),
    )
    return first, second


@pytest.fixture(autouse=True)
def _short(monkeypatch):
    monkeypatch.setattr("apmax.committee.image_networks.image_recipe", short_recipe)
    monkeypatch.setattr("apmax.workflows.data_types.images.small_image_options", lambda size, positives: TINY)


def training_rows(pixels, labels, **more):
    return TrainingRows(ImageFeatures(ImageDataset(pixels)), labels, np.ones(len(labels)), **more)


def tiny_members(names=None, *, anneal=True, effort="standard"):
    training = ImageTraining("resnet10", TINY, size=8, augment=Augment(pad=1, flip=False), anneal=anneal)
    return find_members(names, effort=effort, table=image_members(training))


class TestMembers:
    def test_all_members_rank_and_the_verdict_is_of_the_twins(self):
        pixels, labels = digits()
        fitted = fit_committee(training_rows(pixels, labels), tiny_members(), folds=2)
        assert {row.name for row in fitted.leaderboard.rows} == {"network", "network_ce", "head"}
        (verdict,) = fitted.leaderboard.verdicts
        assert (verdict.ap_member, verdict.ce_member) == ("network", "network_ce")
        assert fitted.leaderboard.blend.ap.estimate > 0.6

    def test_mined_negatives_are_a_twin_of_effort_best_and_enter_the_verdict(self):
        assert list(tiny_members(effort="best")) == [*tiny_members(), "network_mined"]
        pixels, labels = digits(40)
        fitted = fit_committee(training_rows(pixels, labels), tiny_members(["network", "network_mined"]), folds=2)
        (verdict,) = fitted.leaderboard.verdicts
        assert (verdict.ap_member, verdict.ce_member) == ("network", "network_mined")
        network, mined = (fitted.score(ImageDataset(pixels), member=name) for name in ("network", "network_mined"))
        assert (network != mined).any()

    def test_members_of_a_fold_share_the_first_stage(self, monkeypatch):
        trained = []
        train_stage = network_members._train_stage

        def record(data, design, network, number, loss=None):
            trained.append((data.seed, number))
            return train_stage(data, design, network, number, loss)

        monkeypatch.setattr(network_members, "_train_stage", record)
        fit_committee(training_rows(*digits(40)), tiny_members(), folds=2)
        assert trained == [(0, 0), (0, 1), (0, 1), (1, 0), (1, 1), (1, 1)]

    def test_the_head_is_an_exact_fit_to_the_embeddings_of_the_cross_entropy_network(self):
        pixels, labels = digits(40)
        members = tiny_members(["head"])
        fitted = fit_committee(training_rows(pixels, labels), members, folds=2)
        network = fitted.folds[0].members["head"].network
        images = ImageDataset(pixels)
        features = embed(network, images).double().numpy()
        scores = fitted.folds[0].members["head"].score(images)
        expected = features @ network.fc.weight.detach().double().numpy()[0] + network.fc.bias.item()
        np.testing.assert_allclose(scores, expected, atol=1e-4)
        start = copy_of_first_stage(pixels, labels)
        assert torch.equal(start.layer4[0].conv2.weight, network.layer4[0].conv2.weight)
        assert not torch.equal(start.fc.weight, network.fc.weight)

    @pytest.mark.parametrize("anneal", [True, False])
    def test_annealed_networks_learn_from_all_rows_of_a_fold_and_others_hold_out_stopping_rows(
        self, anneal, monkeypatch
    ):
        seen = []
        fit = network_members.fit
        monkeypatch.setattr(
            network_members, "fit", lambda network, data, run: (seen.append(data), fit(network, data, run))[1]
        )
        pixels, labels = digits(60)
        numbered = pixels.copy()
        numbered[:, 0, 0, 0] = np.arange(60)  # a corner pixel tells which image it is
        half = np.arange(60) < 30
        folds = [(np.flatnonzero(half), np.flatnonzero(~half))]
        fit_committee(training_rows(numbered, labels), tiny_members(["network"], anneal=anneal), folds=folds)
        for data in seen:
            train = set(data.train.store.take(data.train.places)[:, 0, 0, 0].tolist())
            valid = set() if data.valid is None else set(data.valid.store.take(data.valid.places)[:, 0, 0, 0].tolist())
            assert train | valid == set(range(30))
            assert not train & valid
            assert bool(valid) != anneal
            assert data.train.augment == Augment(pad=1, flip=False)
            assert data.valid is None or data.valid.augment is None

    def test_labels_of_held_out_rows_do_not_change_the_models(self):
        pixels, labels = digits(40)
        folds = [(np.arange(20), np.arange(20, 40)), (np.arange(20, 40), np.arange(20))]
        other = labels.copy()
        other[20:] = 1 - other[20:]
        members = tiny_members(["network", "head"], anneal=False)
        one, two = (fit_committee(training_rows(pixels, each), members, folds=folds) for each in (labels, other))
        for name in one.table:
            first, second = (each.folds[0].members[name].score(ImageDataset(pixels)) for each in (one, two))
            np.testing.assert_array_equal(first, second)
            assert (
                one.folds[1].members[name].score(ImageDataset(pixels)).tolist()
                != two.folds[1].members[name].score(ImageDataset(pixels)).tolist()
            )

    def test_a_network_of_one_split_is_not_fitted_again(self):
        results = []
        fitted = fit_committee(training_rows(*digits(40)), tiny_members(["network"]), folds=1, on_result=results.append)
        assert [result.task.fold for result in results] == [0]
        assert not fitted.leaderboard.notes
        assert np.isfinite(fitted.score(ImageDataset(digits(10)[0]))).all()

    @pytest.mark.slow
    def test_later_times_are_scored_by_earlier_networks_and_the_last_fit_has_all_rows(self):
        pixels, labels = digits(40)
        results = []
        rows = training_rows(pixels, labels, times=np.arange(40.0))
        fitted = fit_committee(rows, tiny_members(["network", "head"]), folds=2, on_result=results.append)
        assert {result.task.fold for result in results} == {0, 1, -1}
        assert np.isnan(fitted.cross_fitted[0]).all()
        assert not np.isnan(fitted.cross_fitted[-1]).any()

    @pytest.mark.slow
    def test_processes_give_the_same_networks(self, monkeypatch):
        # The real recipe: other processes do not know that of these tests.
        monkeypatch.setattr("apmax.committee.image_networks.image_recipe", image_recipe)
        pixels, labels = digits(40)
        scores = [
            fit_committee(training_rows(pixels, labels), tiny_members(), folds=2, n_jobs=jobs).score(
                ImageDataset(pixels)
            )
            for jobs in (1, 2)
        ]
        np.testing.assert_array_equal(*scores)

    @pytest.mark.slow
    def test_processes_give_the_same_networks_of_a_builder(self, monkeypatch):
        monkeypatch.setattr("apmax.committee.image_networks.image_recipe", image_recipe)
        pixels, labels = digits(40)
        training = ImageTraining("mine", size=8, anneal=True, builder=partial(resnet10, **TINY))
        members = find_members(None, table=image_members(training))
        scores = [
            fit_committee(training_rows(pixels, labels), members, folds=2, n_jobs=jobs).score(ImageDataset(pixels))
            for jobs in (1, 2)
        ]
        np.testing.assert_array_equal(*scores)

    @pytest.mark.slow
    def test_best_averages_three_seeds(self):
        pixels, labels = digits(40)
        members = tiny_members(["network"], effort="best")
        fitted = fit_committee(training_rows(pixels, labels), members, folds=[(np.arange(20), np.arange(20, 40))])
        model = fitted.folds[0].members["network"]
        images = ImageDataset(pixels)
        parts = [part.score(images) for part in model.parts]
        assert len({each.tobytes() for each in parts}) == 3
        np.testing.assert_allclose(members["network"].read(model.to_bytes()).score(images), np.mean(parts, 0))


def copy_of_first_stage(pixels, labels):
    """Return the cross-entropy network of the first of two folds."""
    found = {}
    members = tiny_members(["network"])

    fit = members["network"].fit

    def fit_and_keep(data):
        model = fit(data)
        if data.seed == 0:
            found.update(data.shared)
        return model

    fit_committee(training_rows(pixels, labels), {"network": replace(members["network"], fit=fit_and_keep)}, folds=2)
    (start,) = found.values()
    return start.network


class TestSaving:
    def saved(self):
        design = ImageTraining("resnet10", TINY, size=8).design()
        return NetworkMember(design.architecture(None), resnet10(**TINY).eval(), (3, 1), design)

    def test_architecture_and_weights_are_read_again(self):
        member = self.saved()
        read = find_members(["network"], kind="images")["network"].read(member.to_bytes())
        assert read.architecture == {"name": "resnet10", "options": TINY}
        assert read.rounds == (3, 1)
        images = ImageDataset(digits(10)[0])
        np.testing.assert_array_equal(read.score(images), member.score(images))

    @pytest.mark.parametrize(
        "architecture",
        [
            {"name": "os:system", "options": {}},
            {"name": "timm:resnet18", "options": {}},
            {"name": "resnet10", "options": {"width": 2, "stem": "small", "channels": 1}},
            {"name": "resnet10", "options": {"width": 10**9, "stem": "small"}},
            {"name": "resnet34", "options": TINY},
            {"name": "resnet10"},
            [],
        ],
    )
    def test_another_architecture_is_refused_before_memory_is_taken(self, architecture):
        member, buffer = self.saved(), io.BytesIO()
        content = {"architecture": architecture, "rounds": [1, 1], "weights": member.network.state_dict()}
        torch.save(content, buffer)
        with pytest.raises(ValueError, match="not a network member"):
            find_members(["head"], kind="images")["head"].read(buffer.getvalue())

    def test_a_malicious_network_executes_nothing(self, tmp_path):
        mark = tmp_path / "executed"

        class Payload:
            def __reduce__(self):
                return (open, (str(mark), "w"))

        buffer = io.BytesIO()
        architecture = {"name": "resnet10", "options": TINY}
        torch.save({"architecture": architecture, "rounds": [], "weights": Payload()}, buffer)
        for content in (buffer.getvalue(), pickle.dumps(Payload()), b""):
            with pytest.raises(ValueError, match="not a network member"):
                find_members(["network"], kind="images")["network"].read(content)
        assert not mark.exists()


class TestPlan:
    def plan(self, rows=1300, **more):
        training = ImageTraining("resnet10", {"width": 16, "stem": "small"}, size=8, anneal=True)
        table = image_members(training, training.seconds_per_row(rows))
        size = {"rows": rows, "positives": 40, "columns": 1, "possible_folds": 4, **more}
        return plan_committee(kind="images", table=table, **size)

    def test_quick_is_the_network_alone(self):
        assert (self.plan(effort="quick").members, self.plan(effort="quick").folds) == (("network",), 1)

    def test_members_that_share_a_first_stage_go_before_the_network(self):
        whole = self.plan()
        assert whole.members == ("network", "network_ce", "head")
        cuts = [self.plan(time_limit=whole.seconds * share).members for share in (0.9, 0.48, 0.4, 0.01)]
        assert all("network" in names for names in cuts)
        assert all(len(later) <= len(earlier) for earlier, later in pairwise(cuts))

    def test_a_head_alone_costs_its_network_too(self):
        assert self.plan(members=["head"]).seconds > 0.8 * self.plan(members=["network"]).seconds

    def test_larger_networks_and_images_cost_more(self):
        small, wide, large = (
            ImageTraining(name, options, size=size).seconds_per_row(5000)
            for name, options, size in (
                ("resnet18", {"width": 16, "stem": "small"}, 32),
                ("resnet18", {"width": 32, "stem": "small"}, 32),
                ("resnet18", {}, 224),
            )
        )
        for less, more in ((small, wide), (wide, large)):
            assert more.scoring > less.scoring
        assert large.first > 10 * small.first
        assert NO_SECONDS.first == 0


def write_folder(folder, count=COUNT):
    """Write digits as images: ones in "target", zeros in "other"; every fourth is in "bright" of a table too."""
    pixels, labels = digits(count)
    lines = ["path,y,bright"]
    for number, (image, label) in enumerate(zip(pixels, labels, strict=True)):
        path = folder / ("target" if label else "other") / f"{number:03d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(image).save(path)
        bright = "" if number % 4 == 3 else int(image.mean() > 70)
        lines.append(f"{path.relative_to(folder)},{int(label)},{bright}")
    (folder / "t.csv").write_text("\n".join(lines) + "\n")
    return folder


@pytest.fixture(scope="module")
def committee(tmp_path_factory):
    """A folder of images, and the committee that was trained on it."""
    folder = tmp_path_factory.mktemp("committee")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APMAX_CACHE", str(folder / "cache"))
        patch.setattr("apmax.committee.image_networks.image_recipe", short_recipe)
        patch.setattr("apmax.workflows.data_types.images.small_image_options", lambda size, positives: TINY)
        images = write_folder(folder / "images")
        return images, train_job(job(images), out=folder / "run")


@pytest.fixture(autouse=True)
def _cache(committee, monkeypatch):
    monkeypatch.setenv("APMAX_CACHE", str(committee[0].parent / "cache"))


def job(images, **data):
    return {"data": {"train": str(images), "target": "target", "test_share": 0.2, **data}}


def test_a_committee_is_the_default_of_images(committee, tmp_path):
    images, _ = committee
    assert isinstance(plan_training(job(images)), CommitteeJob)
    (tmp_path / "w.pth").touch()
    begun = plan_training(job(images), Overrides(settings={"model.pretrained": str(tmp_path / "w.pth")}))
    assert begun.committee.pretrained == str(tmp_path / "w.pth")
    assert job_from_table(job_to_table(begun)) == begun
    assert isinstance(plan_training({**job(images), "model": {"pretrained": str(tmp_path / "w.pth")}}), CommitteeJob)
    for settings in ({"model.name": "resnet18"}, {"model.width": 8}, {"stages.0.epochs": 1}):
        assert isinstance(plan_training(job(images), Overrides(settings=settings)), JobPlan)
    for overrides in ({"loss": "ce"}, {"epochs": 2}, {"ensemble": 2}, {"head": "exact"}):
        assert isinstance(plan_training(job(images), Overrides(**overrides)), JobPlan)


def test_pretrained_networks_of_all_folds_begin_with_the_weights(tmp_path, monkeypatch):
    torch.manual_seed(1)
    given = resnet10(**TINY)
    torch.save(given.state_dict(), tmp_path / "w.pth")
    begun = []
    train_stage = network_members._train_stage

    def record(data, design, network, number, loss=None):
        begun.append((number, network.layer4[0].conv2.weight.detach().clone()))
        return train_stage(data, design, network, number, loss)

    monkeypatch.setattr(network_members, "_train_stage", record)
    training = ImageTraining("resnet10", TINY, size=8, anneal=True, pretrained=str(tmp_path / "w.pth"))
    members = find_members(["network"], table=image_members(training))
    fitted = fit_committee(training_rows(*digits(40)), members, folds=2)
    (tmp_path / "w.pth").unlink()
    first = [weight for number, weight in begun if number == 0]
    assert len(first) == 2
    assert all(torch.equal(weight, given.layer4[0].conv2.weight) for weight in first)
    model = fitted.folds[0].members["network"]
    images = ImageDataset(digits(10)[0])
    np.testing.assert_array_equal(members["network"].read(model.to_bytes()).score(images), model.score(images))


@pytest.mark.slow
def test_a_committee_begins_with_a_file_of_weights(committee, tmp_path):
    images, _ = committee
    torch.save(resnet18(1000, width=64).state_dict(), tmp_path / "w.pth")
    lines = []
    table = {**job(images), "model": {"pretrained": str(tmp_path / "w.pth")}, "committee": {"effort": "quick"}}
    result = train_job(table, out=tmp_path / "r", notify=lambda facts, warnings: lines.extend(facts))
    assert any(line.startswith("networks begin with 120 tensors from w.pth") for line in lines)
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


def test_the_committee_of_a_folder_is_complete(committee):
    images, result = committee
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


def digits_labels(images):
    files = sorted(path for name in ("other", "target") for path in (images / name).iterdir())
    return np.array([path.parent.name == "target" for path in files])


def test_test_rows_are_scored_as_new_files_are(committee):
    images, result = committee
    stored = load_scored_rows(images.parent / "run")["test"]
    every = result.model.score(images)
    np.testing.assert_allclose(np.sort(every[stored.rows]), np.sort(stored.scores.ravel()), atol=1e-5)


def test_an_interrupted_training_continues_to_the_same_scores(committee, tmp_path, monkeypatch):
    from apmax.workflows import committee_training

    images, result = committee
    monkeypatch.setattr(committee_training, "save_result", interrupted_after(4))
    with pytest.raises(KeyboardInterrupt):
        train_job(job(images), out=tmp_path / "r")
    monkeypatch.setattr(committee_training, "save_result", save_result)
    with pytest.raises(ValueError, match="augment was small"):
        train_job(job(images, augment="none"), out=tmp_path / "r", resume=True)
    again = train_job(job(images), out=tmp_path / "r", resume=True)
    np.testing.assert_array_equal(again.model.score(images), result.model.score(images))


def test_other_images_are_not_resumed(committee, tmp_path):
    images, _ = committee
    shutil.copytree(images.parent / "run", tmp_path / "run")
    shutil.copytree(images, tmp_path / "images")
    path = tmp_path / "images" / "other" / "001.png"
    Image.fromarray(255 - np.asarray(Image.open(path))).save(path)
    with pytest.raises(ValueError, match="was of other rows"):
        train_job(job(tmp_path / "images"), out=tmp_path / "run", resume=True)


@pytest.mark.slow
def test_several_targets_of_a_table_have_a_committee_each(committee, tmp_path):
    images, _ = committee
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
def test_the_command_line_trains_ranks_evaluates_and_decides(committee, tmp_path, capsys):
    images, _ = committee
    assert run("train", images, "--target", "target", "--effort", "quick", "--out", tmp_path / "r") == 0
    shown = capsys.readouterr().out
    for text in ("plan (quick): network on one split", "cross-fitted", "The best-ranked images"):
        assert text in shown
    assert run("predict", tmp_path / "r", images, "--sort", "--out", tmp_path / "s.csv", "--member", "network") == 0
    assert len(read_csv(tmp_path / "s.csv")) == COUNT
    assert run("evaluate", tmp_path / "r", images) == 0
    assert run("decide", tmp_path / "r", "--recall", "0.7") == 0
    assert run("report", tmp_path / "r", "--out", tmp_path / "r.html") == 0


OWN_BACKBONES = """
import pathlib

from torch import nn

pathlib.Path(__file__).with_suffix(".imported").touch()


class Small(nn.Module):
    def __init__(self, num_outputs):
        super().__init__()
        self.body = nn.Sequential(nn.Conv2d(3, 4, 3, stride=2), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten())
        self.last = nn.Linear(36, num_outputs)  # of 8x8 pixels only

    def forward(self, images):
        return self.last(self.body(images))


class Convolution(nn.Module):
    def __init__(self, num_outputs):
        super().__init__()
        self.convolution = nn.Conv2d(3, num_outputs, 3)

    def forward(self, images):
        return self.convolution(images).mean((2, 3))


def two_scores(num_outputs):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, num_outputs + 1))


def text(num_outputs):
    return "network"
"""


@pytest.fixture
def own_backbones(tmp_path, monkeypatch):
    """A module `own_backbones` that can be imported and has not been."""
    (tmp_path / "own_backbones.py").write_text(OWN_BACKBONES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    sys.modules.pop("own_backbones", None)


def with_backbone(images, name, **more):
    return {**job(images), "committee": {"backbone": name, **more}}


class TestBackbone:
    def test_an_own_network_is_the_network_of_all_members_of_all_folds(self, committee, own_backbones):
        images, lines = committee[0], []
        table = with_backbone(images, "own_backbones:Small")
        result = train_job(table, out="r", notify=lambda facts, warnings: lines.extend(facts))
        assert "networks are own_backbones:Small" in lines
        assert not any("no member" in line for line in lines)
        folds = result.model.committees[0].folds
        assert len(folds) == 4
        for fold in folds:
            assert {type(member.network).__name__ for member in fold.members.values()} == {"Small"}
            assert list(fold.members) == ["network", "network_ce", "head"]
        weights = [fold.members["network"].network.body[0].weight for fold in folds]
        assert not torch.equal(*weights[:2])

    def test_a_folder_alone_imports_nothing(self, committee, own_backbones):
        images = committee[0]
        expected = train_job(with_backbone(images, "own_backbones:Small"), out="r").model.score(images)
        own = sys.modules.pop("own_backbones").Small
        (own_backbones / "own_backbones.imported").unlink()
        with pytest.raises(ValueError, match=r"own_backbones:Small, which is code outside of apmax: .* \(model=own_"):
            load_model("r")
        with pytest.raises(ValueError, match="model must be 'own_backbones:Small'"):
            load_model("r", model="os:system")
        np.testing.assert_array_equal(load_model("r", model=own).score(images), expected)
        assert not (own_backbones / "own_backbones.imported").exists()
        np.testing.assert_array_equal(load_model("r", model="own_backbones:Small").score(images), expected)
        with pytest.raises(ValueError, match="does not hold a committee"):
            load_model("r", model=sys.modules["own_backbones"].Convolution)

    def test_a_network_without_a_last_linear_layer_has_no_head_and_says_so(self, committee, own_backbones):
        images, lines = committee[0], []
        table = with_backbone(images, "own_backbones:Convolution")
        with pytest.raises(ValueError, match="members: no member head: the scores of own_backbones:Convolution"):
            train_job(with_backbone(images, "own_backbones:Convolution", members=["head"]), out="r")
        assert not Path("r/run.toml").exists()
        result = train_job(table, out="r", notify=lambda facts, warnings: lines.extend(facts))
        note = "no member head: the scores of own_backbones:Convolution are not the output of a last linear layer"
        assert note in lines
        plan = json.loads((own_backbones / "r" / "plan.json").read_text())["plan"]
        assert (plan["members"], plan["notes"]) == (["network", "network_ce"], [note])
        loaded = load_model("r", model="own_backbones:Convolution")
        np.testing.assert_array_equal(loaded.score(images), result.model.score(images))

    @pytest.mark.parametrize(
        ("name", "message"),
        [
            ("no_such_module:build", "backbone: no_such_module:build cannot be loaded: No module named"),
            ("own_backbones:Missing", "backbone: own_backbones:Missing cannot be loaded: .* has no callable 'Missing'"),
            ("own_backbones:text", "backbone: own_backbones:text must return a torch.nn.Module, got str"),
            ("own_backbones:two_scores", r"backbone: .* must return scores of shape \(B,\) or \(B, 1\), got \(2, 2\)"),
            ("resnet19", "backbone must be one of resnet18, resnet34, resnet10"),
        ],
    )
    def test_what_is_no_network_for_images_is_refused_before_anything_is_written(
        self, committee, own_backbones, name, message
    ):
        with pytest.raises(ValueError, match=message):
            train_job(with_backbone(committee[0], name), out="r")
        assert not Path("r/run.toml").exists()

    def test_it_excludes_one_network_and_other_data(self, committee, tmp_path):
        table = with_backbone(committee[0], "resnet34")
        assert plan_training(table).committee.backbone == "resnet34"
        assert job_from_table(job_to_table(plan_training(table))) == plan_training(table)
        with pytest.raises(ValueError, match="backbone and model exclude each other"):
            plan_training({**table, "model": {"name": "resnet18"}})
        (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n")
        with pytest.raises(ValueError, match="backbone is for networks of images; these data are of kind table"):
            plan_training(
                {"data": {"train": str(tmp_path / "t.csv"), "target": "y"}, "committee": {"backbone": "resnet18"}}
            )

    def test_a_built_in_one_is_sized_by_the_images_and_loaded_without_its_name(self, committee, tmp_path):
        images = committee[0]
        result = train_job(with_backbone(images, "resnet18", effort="quick"), out=tmp_path / "r")
        member = result.model.committees[0].folds[0].members["network"]
        assert member.architecture == {"name": "resnet18", "options": TINY}
        for model in (None, "resnet18"):
            loaded = load_model(tmp_path / "r", model=model)
            np.testing.assert_array_equal(loaded.score(images), result.model.score(images))

    def test_own_networks_begin_with_a_file_of_weights(self, committee, own_backbones, monkeypatch):
        images, lines, begun = committee[0], [], []
        given = extras.load_callable("own_backbones:Small")(7)
        torch.save(given.state_dict(), "w.pth")
        train_stage = network_members._train_stage

        def record(data, design, network, number, loss=None):
            begun.append((number, network.body[0].weight.detach().clone(), network.last.weight.shape))
            return train_stage(data, design, network, number, loss)

        monkeypatch.setattr(network_members, "_train_stage", record)
        table = {**with_backbone(images, "own_backbones:Small"), "model": {"pretrained": "w.pth"}}
        train_job(table, out="r", notify=lambda facts, warnings: lines.extend(facts))
        assert any("from w.pth; its head of 7 outputs is replaced by a new one of 1" in line for line in lines)
        first = [(weight, shape) for number, weight, shape in begun if number == 0]
        assert len(first) == 4
        assert all(torch.equal(weight, given.body[0].weight) and shape == (1, 36) for weight, shape in first)
        torch.save(resnet10(**TINY).state_dict(), "other.pth")
        with pytest.raises(ValueError, match=r"other\.pth holds weights of another network"):
            train_job({**table, "model": {"pretrained": "other.pth"}}, out="s")

    @pytest.mark.slow
    def test_an_interrupted_training_continues_with_the_same_backbone_only(self, committee, own_backbones, monkeypatch):
        from apmax.workflows import committee_training

        images = committee[0]
        table = with_backbone(images, "own_backbones:Small")
        expected = train_job(table, out="whole").model.score(images)
        monkeypatch.setattr(committee_training, "save_result", interrupted_after(4))
        with pytest.raises(KeyboardInterrupt):
            train_job(table, out="r")
        monkeypatch.setattr(committee_training, "save_result", save_result)
        with pytest.raises(ValueError, match="backbone was own_backbones:Small in r and is resnet10 now"):
            train_job(with_backbone(images, "resnet10"), out="r", resume=True)
        np.testing.assert_array_equal(train_job(table, out="r", resume=True).model.score(images), expected)

    def test_the_command_line_names_it_to_train_and_to_predict(self, committee, own_backbones, capsys):
        images = committee[0]
        own = "own_backbones:Small"
        assert run("train", images, "--target", "target", "--backbone", own, "--effort", "quick", "--out", "r") == 0
        assert f"networks are {own}" in capsys.readouterr().out
        assert run("predict", "r", images, "--out", "s.csv") == 1
        assert f"--model {own}" in capsys.readouterr().err
        assert run("predict", "r", images, "--model", own, "--out", "s.csv") == 0
        assert len(read_csv(own_backbones / "s.csv")) == COUNT
        assert run("train", images, "--target", "target", "--backbone", "no_such:net", "--out", "t") == 1
        assert "--backbone: no_such:net cannot be loaded" in capsys.readouterr().err


def test_a_builder_that_is_given_is_not_imported_by_the_name_in_the_folder(committee, own_backbones):
    images = committee[0]
    table = {**job(images, size=8), "model": {"name": "own_backbones:Small"}}
    expected = train_job(table, Overrides(epochs=1, settings={"stages.0.epochs": 1}), out="r").model.score(images)
    own = sys.modules.pop("own_backbones").Small
    (own_backbones / "own_backbones.imported").unlink()

    def build(tasks):
        return own(tasks)

    np.testing.assert_array_equal(load_model("r", model=build).score(images), expected)
    assert not (own_backbones / "own_backbones.imported").exists()


def test_images_of_a_fold_are_embedded_once(monkeypatch):
    embedded = []
    real = network_members.embed
    monkeypatch.setattr(
        network_members,
        "embed",
        lambda network, rows, **more: (embedded.append(len(rows)), real(network, rows, **more))[1],
    )
    fit_committee(training_rows(*digits(40)), tiny_members(), folds=2)
    assert embedded == [20, 20]


def frozen_job(images, weights="w.pth", **committee):
    return {**job(images), "model": {"pretrained": str(weights)}, "committee": {"frozen": True, **committee}}


@pytest.fixture(scope="module")
def weights(committee):
    """A file of the weights of a ResNet-18."""
    torch.manual_seed(3)
    path = committee[0].parent / "w.pth"
    torch.save(resnet18(1000).state_dict(), path)
    return path


@pytest.fixture
def embedded(monkeypatch):
    """The numbers of images that a network was run on, a list that grows."""
    from apmax.train import embedding

    counts, real = [], embedding.head_inputs
    monkeypatch.setattr(
        embedding,
        "head_inputs",
        lambda module, head, dataset, **more: (counts.append(len(dataset)), real(module, head, dataset, **more))[1],
    )
    return counts


class TestFrozen:
    def test_members_are_heads_on_embeddings_that_one_pass_computes(self, committee, weights, embedded, tmp_path):
        images, lines = committee[0], []
        result = train_job(frozen_job(images, weights), out=tmp_path / "r", notify=lambda facts, _: lines.extend(facts))
        train, test = 48, 12
        assert embedded == [train, test]
        plan = json.loads((tmp_path / "r" / "plan.json").read_text())["plan"]
        assert (plan["members"], plan["folds"]) == (["linear", "linear_ce", "gbdt"], 5)
        assert any("in training they are unchanged" in line for line in lines)
        (verdict,) = result.leaderboards["target"].verdicts
        assert (verdict.ap_member, verdict.ce_member) == ("linear", "linear_ce")
        other = train_job({**frozen_job(images, weights), "seed": 0}, out=tmp_path / "s")
        assert embedded == [train, test, test], "the cache has those of the training images"
        np.testing.assert_array_equal(other.model.score(images), result.model.score(images))

    def test_the_folder_has_the_network_and_scores_without_the_file_of_weights(
        self, committee, weights, embedded, tmp_path
    ):
        images = committee[0]
        shutil.copy(weights, tmp_path / "w.pth")
        result = train_job(frozen_job(images, tmp_path / "w.pth"), out=tmp_path / "r")
        (tmp_path / "w.pth").unlink()
        embedded.clear()
        loaded = load_model(tmp_path / "r")
        scores = loaded.score(images)
        assert embedded == [COUNT], "one pass for all members and folds"
        np.testing.assert_array_equal(scores, result.model.score(images))
        assert average_precision_score(digits_labels(images), scores) > 0.8
        network = resnet18()
        network.load_state_dict(torch.load(tmp_path / "r" / "backbone.pt", weights_only=True))
        expected = torch.load(weights, weights_only=True)["layer4.1.conv2.weight"]
        assert torch.equal(network.layer4[1].conv2.weight, expected)
        files = sorted(path for name in ("other", "target") for path in (images / name).iterdir())
        pixels = ImageDataset(np.stack([np.asarray(Image.open(path)) for path in files]), normalise=IMAGENET)
        rows = embed(network, pixels).double().numpy()
        member = loaded.with_member("linear").score(images)
        by_hand = np.mean(
            [
                each.score_members(["linear"], loaded.committees[0].table, rows)["linear"]
                for each in loaded.committees[0].folds
            ],
            0,
        )
        assert loaded.committees[0].folds[0].features.sizes == [0] * 512
        np.testing.assert_allclose(member, by_hand, rtol=1e-3, atol=1e-3)

    def test_damaged_weights_are_refused(self, committee, weights, tmp_path):
        train_job(frozen_job(committee[0], weights, members=["linear_ce"]), out=tmp_path / "r")
        torch.save(resnet10().state_dict(), tmp_path / "r" / "backbone.pt")
        with pytest.raises(ValueError, match=r"backbone\.pt"):
            load_model(tmp_path / "r")
        renew_manifest(tmp_path / "r")
        with pytest.raises(ValueError, match=r"backbone\.pt does not hold the weights of the network in run.toml"):
            load_model(tmp_path / "r")

    def test_an_own_network_may_be_frozen_and_is_imported_only_by_name(self, committee, own_backbones):
        images = committee[0]
        table = with_backbone(images, "own_backbones:Small", frozen=True)
        expected = train_job(table, out="r").model.score(images)
        own = sys.modules.pop("own_backbones").Small
        (own_backbones / "own_backbones.imported").unlink()
        with pytest.raises(ValueError, match="own_backbones:Small, which is code outside of apmax"):
            load_model("r")
        assert not (own_backbones / "own_backbones.imported").exists()
        for model in (own, "own_backbones:Small"):
            np.testing.assert_array_equal(load_model("r", model=model).score(images), expected)
        with pytest.raises(ValueError, match=r"frozen: .* linear layer"):
            train_job(with_backbone(images, "own_backbones:Convolution", frozen=True), out="s")
        assert not Path("s/run.toml").exists()

    def test_several_targets_share_the_embeddings(self, committee, weights, embedded, tmp_path):
        images = committee[0]
        data = {"train": str(images / "t.csv"), "target": ["y", "bright"], "path": "path"}
        table = {**frozen_job(images, weights, members=["linear_ce", "gbdt"]), "data": data}
        result = train_job(table, out=tmp_path / "r")
        assert embedded == [COUNT]
        stored = load_scored_rows(tmp_path / "r")["cross-fitted"]
        assert stored.scores.shape == (COUNT, 2)
        known = ~np.isnan(stored.labels[:, 0])
        assert average_precision_score(stored.labels[known, 0], stored.scores[known, 0]) > 0.8
        np.testing.assert_array_equal(
            load_model(tmp_path / "r").score(images / "t.csv"), result.model.score(images / "t.csv")
        )

    @pytest.mark.slow
    def test_an_interrupted_training_continues(self, committee, weights, embedded, tmp_path, monkeypatch):
        from apmax.workflows import committee_training

        images, table = committee[0], frozen_job(committee[0], weights, members=["linear", "gbdt"])
        expected = train_job(table, out=tmp_path / "whole").model.score(images)
        monkeypatch.setattr(committee_training, "save_result", interrupted_after(3))
        with pytest.raises(KeyboardInterrupt):
            train_job(table, out=tmp_path / "r")
        monkeypatch.setattr(committee_training, "save_result", save_result)
        kept = weights.read_bytes()
        torch.save(resnet18(1000).state_dict(), weights)
        with pytest.raises(ValueError, match="its frozen network of other weights"):
            train_job(table, out=tmp_path / "r", resume=True)
        weights.write_bytes(kept)
        again = train_job(table, out=tmp_path / "r", resume=True)
        np.testing.assert_array_equal(again.model.score(images), expected)

    def test_what_cannot_be_frozen_is_refused(self, committee, weights):
        images = committee[0]
        for table in ({**job(images), "committee": {"frozen": True}}, with_backbone(images, "resnet18", frozen=True)):
            with pytest.raises(ValueError, match="frozen: the members would read a network with random weights"):
                plan_training(table)
        with pytest.raises(ValueError, match="frozen and augment exclude each other"):
            plan_training({**frozen_job(images, weights), **job(images, augment="small")})
        with pytest.raises(ValueError, match="members must be one of gbdt, forest, trees, linear"):
            plan_training(frozen_job(images, weights, members=["network"]))
        with pytest.raises(ValueError, match="frozen is for networks of images; these data are of kind table"):
            plan_training(
                {
                    "data": {"train": str(images / "t.csv"), "target": "y", "kind": "table"},
                    "committee": {"frozen": True},
                }
            )

    @pytest.mark.slow
    def test_the_command_line_trains_ranks_and_reports(self, committee, weights, tmp_path, capsys):
        images, folder = committee[0], tmp_path / "r"
        options = ["--pretrained", weights, "--frozen", "--effort", "quick", "--out", folder]
        assert run("train", images, "--target", "target", *options) == 0
        assert "plan (quick): linear on one split" in capsys.readouterr().out
        assert run("predict", folder, images, "--sort", "--out", tmp_path / "s.csv", "--member", "linear") == 0
        assert run("evaluate", folder, images) == 0
        assert run("report", folder, "--out", tmp_path / "r.html") == 0
        capsys.readouterr()
        assert run("train", images, "--target", "target", "--frozen", "--out", tmp_path / "t") == 1
        assert "--frozen: the members would read" in capsys.readouterr().err
