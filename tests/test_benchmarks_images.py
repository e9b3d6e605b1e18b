"""Comparison of committees of images with other methods: splits and fits."""

from __future__ import annotations

import json
import os
import sys

import numpy as np
import pytest
import torch

pytest.importorskip("PIL")
pytest.importorskip("lightgbm")

from benchmarks.committees.images import problems
from benchmarks.committees.images.methods import IMAGE_SUITE, LOGISTIC, NETWORKS
from benchmarks.committees.images.page import IMAGE_PAGE
from benchmarks.committees.images.problems import ImageSplit, load_image_split
from benchmarks.committees.ranks import read_ranks
from benchmarks.committees.runner import Suite
from benchmarks.committees.suite_command import run_suite_command

from apmax.data.images.cifar import AUTHORS_FILE
from apmax.data.images.sets import HAM10000_FILE
from apmax.data.splits import split_by_group

LESIONS = np.repeat(np.arange(100), 2)


@pytest.fixture(autouse=True)
def _folder(tmp_path, monkeypatch):
    """Sets whose first pixel is the number of the image; every fifth lesion is a dermatofibroma."""
    monkeypatch.setenv("APMAX_DATA", str(tmp_path))
    for read in (problems._read_cifar10, problems._read_ham10000):
        read.cache_clear()
    for file in (AUTHORS_FILE, HAM10000_FILE):
        (tmp_path / file).parent.mkdir()
    arrays = {f"x_{part}": images(10, 10 * k) for k, part in enumerate(("train", "valid", "test"))}
    arrays |= {f"y_{part}": (np.arange(10) % 3 == 0).astype(np.uint8) for part in ("train", "valid", "test")}
    np.savez(tmp_path / AUTHORS_FILE, **arrays)
    np.savez(
        tmp_path / HAM10000_FILE,
        x=images(200),
        y=(LESIONS % 5 == 0).astype(np.uint8),
        class_names=np.array(["nv", "df"]),
        lesion=LESIONS.astype(np.int32),
        split=(LESIONS % 10 // 5 * (1 + LESIONS % 2)).astype(np.uint8),
        image_id=np.array([f"ISIC_{number}" for number in range(200)]),
    )


def images(count, first=0):
    pixels = np.zeros((count, 32, 32, 3), np.uint8)
    pixels[:, 0, 0, 0] = first + np.arange(count)
    return pixels


def numbers(rows):
    return rows[:, 0].tolist()


def test_training_and_validation_parts_are_trained_on():
    split = load_image_split("cifar10", 0)
    assert numbers(split.train) == list(range(20))
    assert numbers(split.test) == list(range(20, 30))
    assert split.test_labels.tolist() == [1, 0, 0] * 3 + [1]
    assert split.train_groups is None
    assert split.test_units.tolist() == list(range(20, 30))
    assert split.size == 32


def test_images_of_a_lesion_keep_its_number_and_its_part():
    split = load_image_split("ham10000_df", 0)
    assert (split.train_groups == LESIONS[numbers(split.train)]).all()
    assert (split.train_labels == (split.train_groups % 5 == 0)).all()
    assert not set(split.train_groups) & set(LESIONS[numbers(split.test)])
    assert len(split.train) + len(split.test) == 200
    assert (split.test_units == LESIONS[numbers(split.test)]).all()


def test_resplits_hold_out_a_fifth_of_both_classes_in_whole_lesions():
    first, second = (load_image_split("ham10000_df_resplit", number) for number in range(2))
    for split in (first, second):
        assert not set(split.train_groups) & set(LESIONS[numbers(split.test)])
        assert split.test_labels.sum() == 8
        assert len(split.test) == 40
    assert numbers(first.test) != numbers(second.test)


def test_data_that_are_not_named_end_the_command(monkeypatch):
    monkeypatch.delenv("APMAX_DATA")
    with pytest.raises(SystemExit, match="APMAX_DATA"):
        load_image_split("cifar10", 0)


def digits(count=600):
    """Return 8×8 digits, ones against others, in groups of two images of one label."""
    from sklearn.datasets import load_digits

    data = load_digits()
    rows = np.argsort(data.target == 1, kind="stable")[-600:][:: 600 // count]
    labels = (data.target[rows] == 1).astype(np.float64)
    pairs = np.arange(count) // 2
    pixels = np.repeat((data.images[rows] * 255 / 16).astype(np.uint8).reshape(count, 64, 1), 3, 2).reshape(count, -1)
    train, test = split_by_group(labels, pairs, 0.3, seed=0)
    return ImageSplit(pixels[train], labels[train], pairs[train], pixels[test], labels[test], pairs[test])


def test_logistic_regression_scores_test_images_with_a_chosen_strength():
    split = digits()
    scored = IMAGE_SUITE.fit(split, LOGISTIC, 0, None, None)
    assert scored.scores.shape == split.test_labels.shape
    assert scored.facts["crossfit_ap"] > 0.9
    assert scored.scores[split.test_labels == 1].mean() > scored.scores[split.test_labels == 0].mean()


@pytest.mark.slow
@pytest.mark.parametrize("method", ["resnet18_narrow_ce", "quick"])
def test_networks_are_trained_by_the_command_with_whole_groups(method, monkeypatch):
    monkeypatch.setitem(NETWORKS, "resnet18_narrow_ce", (*NETWORKS["resnet18_narrow_ce"], "--epochs", "4"))
    split = digits()
    few = np.flatnonzero((split.train_groups % 4 == 0) | (split.train_labels == 0))
    split = ImageSplit(
        split.train[few],
        split.train_labels[few],
        split.train_groups[few],
        split.test,
        split.test_labels,
        split.test_units,
    )
    scored = IMAGE_SUITE.fit(split, method, 0, None, None)
    assert scored.scores.shape == split.test_labels.shape
    assert scored.scores[split.test_labels == 1].mean() > scored.scores[split.test_labels == 0].mean()
    assert scored.facts["seconds"] > 0
    assert ("valid_ap" in scored.facts) == (method in NETWORKS)


def test_a_command_runs_what_has_no_line_yet_and_reports_finished_problems(tmp_path, monkeypatch):
    fitted, scored = [], IMAGE_SUITE.fit(digits(100), LOGISTIC, 0, None, None)

    def fit(split, method, seed, limit, autogluon):
        fitted.append((method, seed))
        return scored

    suite = Suite(("a", "b"), lambda name, resplit: digits(100), fit, ("numpy",))
    # The command sets the threads of its process, which other tests share.
    monkeypatch.setattr(torch, "set_num_threads", lambda count: None)
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    cores = str(len(os.sched_getaffinity(0)))

    def command(*words):
        monkeypatch.setattr(sys, "argv", ["imaging", "--out", str(tmp_path / "out"), *words])
        run_suite_command("", suite, IMAGE_PAGE)

    command("run", "--problems", "cifar10", "--methods", "a", "--cores", cores)
    command("run", "--problems", "cifar10", "ham10000_df_resplit", "--resplits", "0", "--cores", cores)
    assert fitted == [("a", 0), ("b", 0), ("a", 0), ("b", 0)]
    lines = [json.loads(line) for line in (tmp_path / "out" / "images.jsonl").read_text().splitlines()]
    assert [(line["table"], line["method"]) for line in lines[:2]] == [("cifar10", "a"), ("cifar10", "b")]
    with pytest.raises(SystemExit):
        command("run", "--cores", "9999")
    command("report")
    page = (tmp_path / "out" / "images.md").read_text()
    assert "cifar10" in page
    assert "| cifar10 | 1 split |" in page
    assert "### ham10000_df_resplit" not in page
    ranks = read_ranks(tmp_path / "out" / "images-ranks" / "cifar10-0.npz")
    assert set(ranks) == {"units", "labels", "a", "b"}
    assert (ranks["units"] == digits(100).test_units).all()
