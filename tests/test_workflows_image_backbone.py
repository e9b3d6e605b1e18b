"""Committees of images with a network of one's own, and with a frozen one."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

pytest.importorskip("PIL")
from PIL import Image

from apmax import extras
from apmax.committee import (
    network_members,
    save_result,
)
from apmax.data.images import IMAGENET, ImageDataset
from apmax.models.images import resnet10, resnet18
from apmax.train import embed
from apmax.workflows import (
    Overrides,
    load_model,
    load_scored_rows,
    plan_training,
    train_job,
)
from apmax.workflows.job import job_from_table, job_to_table
from commands import interrupted_after, run
from model_folders import renew_manifest
from small_files import read_csv
from small_image_committees import COUNT, TINY, digits_job, digits_labels

pytestmark = pytest.mark.usefixtures("short_image_training", "image_committee_cache")


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
    return {**digits_job(images), "committee": {"backbone": name, **more}}


class TestBackbone:
    def test_an_own_network_is_the_network_of_all_members_of_all_folds(self, image_committee, own_backbones):
        images, lines = image_committee[0], []
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

    def test_a_folder_alone_imports_nothing(self, image_committee, own_backbones):
        images = image_committee[0]
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

    def test_a_network_without_a_last_linear_layer_has_no_head_and_says_so(self, image_committee, own_backbones):
        images, lines = image_committee[0], []
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
        self, image_committee, own_backbones, name, message
    ):
        with pytest.raises(ValueError, match=message):
            train_job(with_backbone(image_committee[0], name), out="r")
        assert not Path("r/run.toml").exists()

    def test_it_excludes_one_network_and_other_data(self, image_committee, tmp_path):
        table = with_backbone(image_committee[0], "resnet34")
        assert plan_training(table).committee.backbone == "resnet34"
        assert job_from_table(job_to_table(plan_training(table))) == plan_training(table)
        with pytest.raises(ValueError, match="backbone and model exclude each other"):
            plan_training({**table, "model": {"name": "resnet18"}})
        (tmp_path / "t.csv").write_text("a,y\n1,0\n2,1\n")
        with pytest.raises(ValueError, match="backbone is for networks of images; these data are of kind table"):
            plan_training(
                {"data": {"train": str(tmp_path / "t.csv"), "target": "y"}, "committee": {"backbone": "resnet18"}}
            )

    def test_a_built_in_one_is_sized_by_the_images_and_loaded_without_its_name(self, image_committee, tmp_path):
        images = image_committee[0]
        result = train_job(with_backbone(images, "resnet18", effort="quick"), out=tmp_path / "r")
        member = result.model.committees[0].folds[0].members["network"]
        assert member.architecture == {"name": "resnet18", "options": TINY}
        for model in (None, "resnet18"):
            loaded = load_model(tmp_path / "r", model=model)
            np.testing.assert_array_equal(loaded.score(images), result.model.score(images))

    def test_own_networks_begin_with_a_file_of_weights(self, image_committee, own_backbones, monkeypatch):
        images, lines, begun = image_committee[0], [], []
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
    def test_an_interrupted_training_continues_with_the_same_backbone_only(
        self, image_committee, own_backbones, monkeypatch
    ):
        from apmax.workflows import committee_training

        images = image_committee[0]
        table = with_backbone(images, "own_backbones:Small")
        expected = train_job(table, out="whole").model.score(images)
        monkeypatch.setattr(committee_training, "save_result", interrupted_after(4))
        with pytest.raises(KeyboardInterrupt):
            train_job(table, out="r")
        monkeypatch.setattr(committee_training, "save_result", save_result)
        with pytest.raises(ValueError, match="backbone was own_backbones:Small in r and is resnet10 now"):
            train_job(with_backbone(images, "resnet10"), out="r", resume=True)
        np.testing.assert_array_equal(train_job(table, out="r", resume=True).model.score(images), expected)

    def test_the_command_line_names_it_to_train_and_to_predict(self, image_committee, own_backbones, capsys):
        images = image_committee[0]
        own = "own_backbones:Small"
        assert run("train", images, "--target", "target", "--backbone", own, "--effort", "quick", "--out", "r") == 0
        shown = capsys.readouterr().out
        assert f"networks are {own}" in shown
        assert f"apmax predict r DATA --model {own} --sort --out ranked.csv" in shown
        assert run("predict", "r", images, "--out", "s.csv") == 1
        assert f"--model {own}" in capsys.readouterr().err
        assert run("predict", "r", images, "--model", own, "--out", "s.csv") == 0
        assert len(read_csv(own_backbones / "s.csv")) == COUNT
        assert run("train", images, "--target", "target", "--backbone", "no_such:net", "--out", "t") == 1
        assert "--backbone: no_such:net cannot be loaded" in capsys.readouterr().err


def test_a_builder_that_is_given_is_not_imported_by_the_name_in_the_folder(image_committee, own_backbones):
    images = image_committee[0]
    table = {**digits_job(images, size=8), "model": {"name": "own_backbones:Small"}}
    expected = train_job(table, Overrides(epochs=1, settings={"stages.0.epochs": 1}), out="r").model.score(images)
    own = sys.modules.pop("own_backbones").Small
    (own_backbones / "own_backbones.imported").unlink()

    def build(tasks):
        return own(tasks)

    np.testing.assert_array_equal(load_model("r", model=build).score(images), expected)
    assert not (own_backbones / "own_backbones.imported").exists()


def frozen_job(images, weights="w.pth", **committee):
    return {**digits_job(images), "model": {"pretrained": str(weights)}, "committee": {"frozen": True, **committee}}


@pytest.fixture(scope="module")
def weights(image_committee):
    """A file of the weights of a ResNet-18."""
    torch.manual_seed(3)
    path = image_committee[0].parent / "w.pth"
    torch.save(resnet18(1000).state_dict(), path)
    return path


def count_embedded(patch):
    """Return the numbers of images that a network is run on from now on, a list that grows."""
    from apmax.train import embedding

    counts, real = [], embedding.head_inputs
    patch.setattr(
        embedding,
        "head_inputs",
        lambda module, head, dataset, **more: (counts.append(len(dataset)), real(module, head, dataset, **more))[1],
    )
    return counts


@pytest.fixture
def embedded(monkeypatch):
    return count_embedded(monkeypatch)


@pytest.fixture(scope="module")
def frozen(image_committee, weights):
    """A committee on frozen embeddings: its folder, its result, its lines and the numbers of images embedded.

    Its file of weights is no longer there.
    """
    images, lines = image_committee[0], []
    folder, own = images.parent / "frozen", images.parent / "frozen.pth"
    shutil.copy(weights, own)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("APMAX_CACHE", str(images.parent / "cache"))
        counts = count_embedded(patch)
        result = train_job(frozen_job(images, own), out=folder, notify=lambda facts, _: lines.extend(facts))
    own.unlink()
    return SimpleNamespace(folder=folder, result=result, lines=lines, embedded=tuple(counts))


class TestFrozen:
    def test_members_are_heads_on_embeddings_that_one_pass_computes(
        self, image_committee, weights, frozen, embedded, tmp_path
    ):
        images, (train, test) = image_committee[0], (48, 12)
        assert frozen.embedded == (train, test)
        plan = json.loads((frozen.folder / "plan.json").read_text())["plan"]
        assert (plan["members"], plan["folds"]) == (["linear", "linear_ce", "gbdt"], 5)
        assert any("in training they are unchanged" in line for line in frozen.lines)
        (verdict,) = frozen.result.leaderboards["target"].verdicts
        assert (verdict.ap_member, verdict.ce_member) == ("linear", "linear_ce")
        other = train_job(frozen_job(images, weights, members=["linear_ce"]), out=tmp_path / "s")
        assert embedded == [test], "the cache has those of the training images"
        found, expected = (each.model.with_member("linear_ce").score(images) for each in (other, frozen.result))
        np.testing.assert_array_equal(found, expected)

    def test_the_folder_has_the_network_and_scores_without_the_file_of_weights(
        self, image_committee, weights, frozen, embedded
    ):
        images = image_committee[0]
        loaded = load_model(frozen.folder)
        scores = loaded.score(images)
        assert embedded == [COUNT], "one pass for all members and folds"
        np.testing.assert_array_equal(scores, frozen.result.model.score(images))
        assert average_precision_score(digits_labels(images), scores) > 0.8
        network = resnet18()
        network.load_state_dict(torch.load(frozen.folder / "backbone.pt", weights_only=True))
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

    def test_damaged_weights_are_refused(self, frozen, tmp_path):
        shutil.copytree(frozen.folder, tmp_path / "r")
        torch.save(resnet10().state_dict(), tmp_path / "r" / "backbone.pt")
        with pytest.raises(ValueError, match=r"backbone\.pt"):
            load_model(tmp_path / "r")
        renew_manifest(tmp_path / "r")
        with pytest.raises(ValueError, match=r"backbone\.pt does not hold the weights of the network in run.toml"):
            load_model(tmp_path / "r")

    def test_an_own_network_may_be_frozen_and_is_imported_only_by_name(self, image_committee, own_backbones):
        images = image_committee[0]
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

    def test_several_targets_share_the_embeddings(self, image_committee, weights, embedded, tmp_path):
        images = image_committee[0]
        data = {"train": str(images / "t.csv"), "target": ["y", "bright"], "path": "path"}
        table = {**frozen_job(images, weights, members=["linear_ce"]), "data": data}
        result = train_job(table, out=tmp_path / "r")
        assert embedded == [COUNT]
        stored = load_scored_rows(tmp_path / "r")["cross-fitted"]
        assert stored.scores.shape == (COUNT, 2)
        known = ~np.isnan(stored.labels[:, 0])
        assert average_precision_score(stored.labels[known, 0], stored.scores[known, 0]) > 0.8
        np.testing.assert_array_equal(
            load_model(tmp_path / "r").score(images / "t.csv"), result.model.score(images / "t.csv")
        )

    def test_another_file_of_weights_is_named_and_changes_nothing(self, image_committee, weights, tmp_path, capsys):
        own = shutil.copy(weights, tmp_path / "own.pth")
        files = [image_committee[0], "--target", "target", "--pretrained", own, "--frozen", "--member", "linear_ce"]
        data = [*files, "--quiet", "--no-report", "--out", tmp_path / "r"]
        assert run("train", *data) == 0
        before = {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()}
        torch.save(resnet18(1000).state_dict(), own)
        capsys.readouterr()
        assert run("train", *data, "--resume") == 1
        message = f"the training in {tmp_path / 'r'} was of other weights (--pretrained {own}): their fingerprint"
        assert message in " ".join(capsys.readouterr().err.split())
        assert {path: path.read_bytes() for path in (tmp_path / "r").rglob("*") if path.is_file()} == before

    @pytest.mark.slow
    def test_an_interrupted_training_continues(self, image_committee, weights, embedded, tmp_path, monkeypatch):
        from apmax.workflows import committee_training

        images, table = image_committee[0], frozen_job(image_committee[0], weights, members=["linear", "gbdt"])
        expected = train_job(table, out=tmp_path / "whole").model.score(images)
        monkeypatch.setattr(committee_training, "save_result", interrupted_after(3))
        with pytest.raises(KeyboardInterrupt):
            train_job(table, out=tmp_path / "r")
        monkeypatch.setattr(committee_training, "save_result", save_result)
        kept = weights.read_bytes()
        torch.save(resnet18(1000).state_dict(), weights)
        with pytest.raises(ValueError, match=r"was of other weights \(pretrained="):
            train_job(table, out=tmp_path / "r", resume=True)
        weights.write_bytes(kept)
        again = train_job(table, out=tmp_path / "r", resume=True)
        np.testing.assert_array_equal(again.model.score(images), expected)

    def test_what_cannot_be_frozen_is_refused(self, image_committee, weights):
        images = image_committee[0]
        for table in (
            {**digits_job(images), "committee": {"frozen": True}},
            with_backbone(images, "resnet18", frozen=True),
        ):
            with pytest.raises(ValueError, match="frozen: the members would read a network with random weights"):
                plan_training(table)
        with pytest.raises(ValueError, match="frozen and augment exclude each other"):
            plan_training({**frozen_job(images, weights), **digits_job(images, augment="small")})
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
    def test_the_command_line_trains_ranks_and_reports(self, image_committee, weights, tmp_path, capsys):
        images, folder = image_committee[0], tmp_path / "r"
        options = ["--pretrained", weights, "--frozen", "--effort", "quick", "--out", folder]
        assert run("train", images, "--target", "target", *options) == 0
        assert "plan (quick): linear on one split" in capsys.readouterr().out
        assert run("predict", folder, images, "--sort", "--out", tmp_path / "s.csv", "--member", "linear") == 0
        assert run("evaluate", folder, images) == 0
        assert run("report", folder, "--out", tmp_path / "r.html") == 0
        capsys.readouterr()
        assert run("train", images, "--target", "target", "--frozen", "--out", tmp_path / "t") == 1
        assert "--frozen: the members would read" in capsys.readouterr().err
