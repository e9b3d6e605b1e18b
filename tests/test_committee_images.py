"""Members of committees of images: fits, what they share, plan, and saved networks."""

from __future__ import annotations

import io
import pickle
from dataclasses import replace
from functools import partial
from itertools import pairwise

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")

from apmax.committee import (
    ImageFeatures,
    ImageTraining,
    TrainingRows,
    find_members,
    fit_committee,
    image_members,
    network_members,
    plan_committee,
)
from apmax.committee.image_networks import NO_SECONDS
from apmax.committee.network_members import NetworkMember
from apmax.data.images import Augment, ImageDataset
from apmax.models.images import resnet10
from apmax.train import embed, image_recipe
from small_image_committees import TINY, digits

pytestmark = pytest.mark.usefixtures("short_image_training")


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
        design = ImageTraining("resnet10", TINY, size=8)
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
