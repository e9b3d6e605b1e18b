"""From folders and tables of images to training and validation rows."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("PIL")
from PIL import Image

from apmax.data.images import ImageFolder
from apmax.data.images.augmentation import LARGE_IMAGES, SMALL_IMAGES
from apmax.workflows.rows import prepare
from apmax.workflows.spec import DataSpec, data_spec, dumps, loads, resolve
from apmax.workflows.wishes import Wishes


def flat(path, value, size=(10, 12)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.full((size[1], size[0], 3), value, np.uint8)).save(path)


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """Twenty images: those of a class "a" have shades above 100."""
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    for number in range(20):
        name = "a" if number % 4 == 0 else "b" if number % 4 < 3 else "c"
        flat(tmp_path / "images" / name / "deep" / f"{number}.png", number + 100 * (name == "a"))
    return tmp_path / "images"


def spec(folder, target="a", **more):
    return DataSpec(train=str(folder), target=target, kind="images", **more)


def shades(data):
    return data.store.take(data.places)[:, 0, 0, 0]


def test_folder_reads_as_a_table_of_paths_and_classes(folder):
    flat(folder / "loose.png", 7)
    (folder / ".hidden").mkdir()
    flat(folder / ".hidden" / "no.png", 7)
    source = ImageFolder(folder, ["c", "nothing"])
    table = source.read()
    assert source.columns == table.column_names == ["path", "c"]
    paths, labels = table.column("path").to_pylist(), table.column("c").to_pylist()
    assert [path.removeprefix(f"{folder}/") for path in paths[:2]] == ["loose.png", "a/deep/0.png"]
    assert labels == [None, *(int("/c/" in path) for path in paths[1:])]
    assert len(paths) == 21


def test_folder_cut_into_chunks_holds_the_same(folder, monkeypatch):
    whole = ImageFolder(folder, ["a"]).read()
    monkeypatch.setattr("apmax.data.images.folder.CHUNK_ROWS", 3)
    source = ImageFolder(folder, ["a"])
    assert max(chunk.num_rows for chunk in source.chunks()) == 3
    assert source.read().to_pylist() == whole.to_pylist()
    assert source.read(["a"]).column_names == ["a"]


def test_labels_follow_their_images_through_the_split(folder):
    prepared = prepare(spec(folder, test_share=0.2, share=0.2), seed=1)
    parts = [
        (prepared.data.train, prepared.data.labels),
        (prepared.data.valid, prepared.data.valid_labels),
        (prepared.test.dataset, prepared.test.labels),
    ]
    for data, labels in parts:
        assert (shades(data) >= 100).tolist() == (labels == 1).tolist()
    assert sorted(np.concatenate([shades(data) % 100 for data, _ in parts])) == list(range(20))


def test_only_training_images_are_augmented_by_the_runs_seed(folder):
    for seed in (0, 5):
        prepared = prepare(spec(folder), seed=seed)
        assert (prepared.data.train.augment, prepared.data.train.seed) == (SMALL_IMAGES, seed)
        assert prepared.data.valid.augment is None
    assert prepare(spec(folder, augment="large"), seed=0).data.train.augment == LARGE_IMAGES
    assert prepare(spec(folder, augment="none"), seed=0).data.train.augment is None
    assert prepare(spec(folder, upside_down=True), seed=0).data.train.augment.upside_down


@pytest.mark.parametrize(("size", "expected"), [((30, 40), (30, "small")), ((500, 300), (224, "large"))])
def test_size_is_the_images_own_up_to_224(tmp_path, monkeypatch, size, expected):
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    for number in range(8):
        flat(tmp_path / "i" / "ab"[number % 2] / f"{number}.png", number, size)
    found = prepare(spec(tmp_path / "i", share=0.4), seed=0).spec
    assert (found.size, found.augment) == expected


def test_paths_of_a_table_begin_at_its_folder_if_nothing_is_said(folder, tmp_path):
    lines = [f"{name}/deep/{number},{int(name == 'a')}" for number, name in enumerate("abbc" * 5)]
    (folder / "t.csv").write_text("\n".join(["path,y", *lines]) + "\n")
    prepared = prepare(spec(folder / "t.csv", "y", ending=".png"), seed=0)
    (tmp_path / "t.csv").write_text("\n".join(["path,y", *lines]) + "\n")
    rooted = prepare(spec(tmp_path / "t.csv", "y", ending=".png", root=str(folder)), seed=0)
    assert prepared.data.train.names == rooted.data.train.names
    assert (shades(prepared.data.train) >= 100).tolist() == (prepared.data.labels == 1).tolist()


def test_images_without_a_class_are_left_out_and_counted(folder):
    flat(folder / "loose.png", 7)
    prepared = prepare(spec(folder), seed=0)
    assert prepared.train_rows + len(prepared.data.valid) == 20
    assert "1 image has no label: left out" in prepared.warnings


def test_rows_of_images_that_cannot_be_read_keep_labels_in_place(folder):
    (folder / "b" / "deep" / "1.png").write_text("none")
    prepared = prepare(spec(folder), seed=0)
    assert (shades(prepared.data.train) >= 100).tolist() == (prepared.data.labels == 1).tolist()
    (refused,) = prepared.refused["images"]
    assert refused.value == ImageFolder(folder).read().column("path")[refused.row].as_py()


def test_kind_is_told_by_a_folder_or_by_a_column_of_files(folder, tmp_path):
    def kind(**data):
        return data_spec({"data": {"target": "a", **data}}, Wishes(), [tmp_path]).kind

    assert kind(train=str(folder)) == kind(train="images") == kind(train="t.csv", path="file") == "images"
    assert kind(train="t.csv") == "table"


def test_job_of_images_survives_toml():
    data = DataSpec("i", ["x", "y"], kind="images", size=64, fit="crop", augment="none", root="r", ending=".jpg")
    table = {"model": {"name": "resnet34", "width": 8, "pretrained": "w.pth"}}
    job = resolve(table, Wishes(), data, rows=1000, positives=10)
    assert job.model.pretrained == "w.pth"
    assert loads(dumps(job)) == job


def test_large_images_are_scored_few_at_a_time():
    sizes = {}
    for size in (32, 224, 384):
        data = DataSpec("i", "x", kind="images", size=size)
        sizes[size] = resolve({}, Wishes(), data, rows=1000, positives=10).run.eval_batch_size
    assert sizes == {32: 1024, 224: 41, 384: 16}
    own = resolve({"eval_batch_size": 5}, Wishes(), DataSpec("i", "x", kind="images"), rows=1000, positives=10)
    assert own.run.eval_batch_size == 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 4}, "data.size must be"),
        ({"fit": "pad"}, "data.fit must be one of stretch, crop"),
        ({"upside_down": True, "augment": "none"}, "leaves them as they are"),
        ({"kind": "table", "fit": "crop"}, "data.fit is for data of kind images; these are of kind table"),
        ({"kind": "molecules", "path": "p"}, "--path is for data of kind images"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        DataSpec(**{"train": "i", "target": "y", "kind": "images", **fields})


def test_class_called_like_the_column_of_files_is_refused(folder):
    with pytest.raises(ValueError, match="a class cannot be called 'path'"):
        ImageFolder(folder, ["path"])


@pytest.mark.parametrize("seed", range(5))
def test_every_one_of_several_targets_has_its_share_to_choose_by(folder, seed):
    prepared = prepare(spec(folder, target=["a", "c"], test_share=0.2), seed=seed)
    positives = [(part == 1).sum(0).tolist() for part in (prepared.data.labels, prepared.valid.labels)]
    assert positives == [[3, 3], [1, 1]]
    assert (prepared.test.labels == 1).sum(0).tolist() == [1, 1]
    assert prepared.warnings == []


def test_all_classes_of_a_folder_can_be_targets(folder):
    prepared = prepare(spec(folder, target=["a", "b", "c"]), seed=0)
    assert (prepared.valid.labels == 1).sum(0).tolist() == [1, 2, 1]


def test_target_that_is_not_among_the_rows_to_choose_by_is_named(folder, tmp_path):
    names = [str(path) for path in sorted(folder.rglob("*.png"))]
    rows = [f"{name},{int('/a/' in name)},{int(k == 7)}" for k, name in enumerate(names)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,a,rare", *rows]) + "\n")
    prepared = prepare(spec(table, target=["a", "rare"], split="random", share=0.3), seed=1)
    missing = [line for line in prepared.warnings if line.startswith("'rare' has no positive row ")]
    assert len(missing) == 1
    assert "hold out more (--share), or in another way" in missing[0]
