"""Jobs of images: preparation of the data and settings."""

from __future__ import annotations

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pyarrow as pa
import pytest
from benchmarks import small_images

pytest.importorskip("PIL")
from PIL import Image

from apmax.data.images import ImageFolder
from apmax.data.images.augmentation import LARGE_IMAGES, SMALL_IMAGES, Augment
from apmax.train import Run
from apmax.workflows import ImageData, Job, ModelConfig, Overrides, plan_job
from apmax.workflows.contact_sheets import ContactSheet, sheet_suffixes
from apmax.workflows.job import job_from_table, job_to_table, read_data_config
from apmax.workflows.prepare import ensemble_folds, prepare_data


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


def prepare(folder, target="a", seed=0, **more):
    return prepare_data(ImageData(str(folder), target, **more), seed=seed)


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


def test_chunks_of_a_folder_have_the_same_rows(folder, monkeypatch):
    whole = ImageFolder(folder, ["a"]).read()
    monkeypatch.setattr("apmax.data.images.folder.FILES_PER_CHUNK", 3)
    source = ImageFolder(folder, ["a"])
    assert max(chunk.num_rows for chunk in source.chunks()) == 3
    assert source.read().to_pylist() == whole.to_pylist()
    assert source.read(["a"]).column_names == ["a"]


def test_networks_of_an_ensemble_hold_out_different_rows(folder):
    prepared = prepare(folder, test_share=0.2, share=0.2, seed=1)
    test = set(shades(prepared.test.dataset).tolist())
    folds = ensemble_folds(prepared, 6, seed=1)
    held_out = [set(shades(data.valid).tolist()) for data in folds.data]
    pool = set.union(*held_out)
    assert len(pool) == len(folds.rows.labels) == 16
    assert not pool & test
    assert sum(map(len, held_out[:4])) == 16
    assert held_out[4:] == held_out[:2]
    for data, valid, rows in zip(folds.data, held_out, folds.held_out, strict=True):
        assert set(shades(data.train).tolist()) == pool - valid
        assert (shades(data.train) >= 100).tolist() == (data.labels == 1).tolist()
        assert (shades(data.valid) >= 100).tolist() == (data.valid_labels == 1).tolist()
        assert shades(folds.rows.dataset)[rows].tolist() == shades(data.valid).tolist()
        assert (data.train.augment, data.valid.augment) == (prepared.data.train.augment, None)


def test_folds_keep_groups_whole_and_need_rows_that_may_be_divided(folder):
    lines = [
        f"{name}/deep/{number},{int(name == 'a')},{number % 10},{number}" for number, name in enumerate("abbc" * 5)
    ]
    table = folder / "t.csv"
    table.write_text("\n".join(["path,y,group,day", *lines]) + "\n")

    def folds(**more):
        return ensemble_folds(prepare(table, "y", ending=".png", seed=0, **more), 3, seed=0)

    found = folds(group="group", share=0.4)
    groups = [{number % 10 for number in (shades(data.valid) % 100).tolist()} for data in found.data]
    others = [{number % 10 for number in (shades(data.train) % 100).tolist()} for data in found.data]
    assert all(not own & rest for own, rest in zip(groups, others, strict=True))
    assert folds(time="day", share=0.4) is None
    assert folds(valid=str(table)) is None
    assert ensemble_folds(prepare(folder), 1, seed=0) is None
    assert ensemble_folds(prepare(folder, share=0.1), 4, seed=0) is None  # ten parts, five positives


def test_labels_follow_their_images_through_the_split(folder):
    prepared = prepare(folder, test_share=0.2, share=0.2, seed=1)
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
        prepared = prepare(folder, seed=seed, size=32)
        assert (prepared.data.train.augment, prepared.data.train.seed) == (SMALL_IMAGES, seed)
        assert prepared.data.valid.augment is None
    assert prepare(folder, augment="large", size=32).data.train.augment == LARGE_IMAGES
    assert prepare(folder, augment="none").data.train.augment is None
    assert prepare(folder, upside_down=True).data.train.augment.upside_down


def test_tiny_images_are_shifted_a_little_and_mirrored_only_if_asked_for(folder):
    tiny = Augment(pad=1, flip=False)
    prepared = prepare(folder)
    assert (prepared.config.size, prepared.config.augment, prepared.config.mirror) == (10, "small", False)
    assert prepared.data.train.augment == tiny
    assert "images become 10×10 (stretch); in training they are shifted by up to 1 pixel" in prepared.facts
    assert prepare(folder, mirror=True).data.train.augment == replace(tiny, flip=True)
    assert prepare(folder, mirror=False, size=40).data.train.augment == replace(SMALL_IMAGES, flip=False)
    assert prepare(folder, size=28).data.train.augment == Augment(pad=3, flip=False)


def resolved(folder, size, *, positives=30, rows=1000, **model):
    plan = plan_job({"data": {"train": str(folder), "target": "a", "size": size}, "model": model})
    return plan.resolve(plan.data, rows=rows, positives=positives)


@pytest.mark.parametrize(
    ("size", "positives", "expected"),
    [
        (8, 30, {"width": 16, "stem": "small"}),
        (16, 500, {"width": 32, "stem": "small"}),
        (32, 500, {"width": 16, "stem": "small"}),
        (33, 30, {"width": 16, "stem": "imagenet"}),
        (64, 500, {"width": 32, "stem": "imagenet"}),
        (65, 30, {}),
    ],
)
def test_width_and_stem_follow_from_the_size_and_the_number_of_positives(folder, size, positives, expected):
    assert resolved(folder, size, positives=positives).model.options == expected


@pytest.mark.parametrize(
    ("size", "positives", "name", "anneal"),
    [(8, 30, "resnet10", True), (64, 99, "resnet10", True), (8, 100, "resnet18", False), (65, 30, "resnet18", False)],
)
def test_small_images_with_few_positives_have_an_annealed_network(folder, size, positives, name, anneal):
    job = resolved(folder, size, positives=positives)
    first, second = job.run.stages
    assert (job.model.name, job.run.ensemble) == (name, 1)
    assert (first.schedule.name, first.patience is None) == (("cosine", True) if anneal else ("constant", False))
    assert second.optimizer.lr == pytest.approx(first.optimizer.lr / (10 if anneal else 3))


def test_network_and_number_of_networks_give_way_to_the_users(folder, tmp_path):
    def chosen(overrides=None, settings=None, **table):
        plan = plan_job({"data": {"train": str(folder), "target": "a", "size": 8}, **table}, overrides)
        job = plan.resolve(plan.data, rows=1000, positives=30, settings=settings)
        return job.model.name, job.run.ensemble, job.run.stages[0].schedule.name

    (tmp_path / "w.pth").touch()
    assert chosen(Overrides(ensemble=4)) == chosen(ensemble=4) == ("resnet10", 4, "cosine")
    assert chosen(model={"name": "resnet18"}) == ("resnet18", 1, "cosine")
    assert chosen(settings={"model.name": "resnet18"}) == ("resnet18", 1, "cosine")
    assert chosen(model={"name": "apmax.models.images:resnet10"})[1:] == (1, "constant")
    assert chosen(model={"pretrained": str(tmp_path / "w.pth")}) == ("resnet18", 1, "constant")
    assert chosen(recipe="default")[1:] == (1, "constant")


def test_further_settings_keep_the_weights_that_another_setting_names(folder, tmp_path):
    weights = tmp_path / "w.pth"
    weights.touch()
    overrides = Overrides(settings={"model.pretrained": str(weights), "model.width": 8})
    plan = plan_job({"data": {"train": str(folder), "target": "a", "size": 8}}, overrides)
    model = plan.resolve(plan.data, rows=1000, positives=30, settings={"stages.0.lr": 0.1, "model.stem": "small"}).model
    assert (model.pretrained, model.options) == (str(weights), {"width": 8, "stem": "small"})
    # A search among files of weights would need to find them.
    with pytest.raises(ValueError, match="unknown key 'pretrained'"):
        plan.resolve(plan.data, rows=1000, positives=30, settings={"model.pretrained": str(weights)})


def test_head_adds_a_stage_or_is_the_only_one(folder, tmp_path):
    def stages(head, **table):
        plan = plan_job({"data": {"train": str(folder), "target": "a", "size": 8}, **table}, Overrides(head=head))
        run = plan.resolve(plan.data, rows=1000, positives=30).run
        return [(stage.name, getattr(stage, "cache", None)) for stage in run.stages]

    (tmp_path / "w.pth").touch()
    pretrained = {"pretrained": str(tmp_path / "w.pth")}
    assert stages("exact") == [("ce", None), ("ap + ce", None), ("exact head", False)]
    assert stages("exact", stage=[{"loss": "ce"}, {"kind": "exact_head"}]) == [("ce", None), ("exact head", False)]
    assert stages("only", model=pretrained) == [("exact head", True)]
    with pytest.raises(ValueError, match=r"head: only the last layer would be trained, on a network with random"):
        stages("only")
    with pytest.raises(ValueError, match=r"head must be one of exact, only"):
        stages("linear")
    table = {"data": {"train": str(folder), "target": "a"}, "model": pretrained}
    with pytest.raises(ValueError, match=r"head and loss exclude each other"):
        plan_job(table, Overrides(head="only", loss="ap"))


def test_chosen_width_and_stem_give_way_to_the_users(folder, tmp_path):
    assert resolved(folder, 8, width=5).model.options == {"width": 5, "stem": "small"}
    assert resolved(folder, 8, name="resnet34", stem="imagenet").model.options == {"width": 16, "stem": "imagenet"}
    assert resolved(folder, 8, name="apmax.models.images:resnet18").model.options == {}
    (tmp_path / "w.pth").touch()
    assert resolved(folder, 8, pretrained=str(tmp_path / "w.pth")).model.options == {}


@pytest.mark.slow
def test_small_images_with_few_positives_are_ranked_better_than_by_their_pixels(tmp_path, monkeypatch):
    pytest.importorskip("sklearn")
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    pixels, network, _ = small_images.compare(8, 103, tmp_path)  # a split that no table of docs/guide/images.md has
    assert network > pixels + 0.1


def test_training_of_small_images_has_a_bounded_number_of_steps(folder):
    for size, most in ((8, 13_000), (32, 5500), (64, 5500)):
        stages = resolved(folder, size, rows=20_000, positives=600).run.stages
        assert sum(stage.epochs for stage in stages) * (20_000 // 64) < most


@pytest.mark.parametrize(
    ("size", "expected"),
    [((30, 40), (30, "small", False)), ((50, 40), (40, "small", True)), ((500, 300), (224, "large", True))],
)
def test_size_is_the_images_own_up_to_224(tmp_path, monkeypatch, size, expected):
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    for number in range(8):
        flat(tmp_path / "i" / "ab"[number % 2] / f"{number}.png", number, size)
    found = prepare(tmp_path / "i", share=0.4, seed=0).config
    assert (found.size, found.augment, found.mirror) == expected


def test_paths_of_a_table_begin_at_its_folder_by_default(folder, tmp_path):
    lines = [f"{name}/deep/{number},{int(name == 'a')}" for number, name in enumerate("abbc" * 5)]
    (folder / "t.csv").write_text("\n".join(["path,y", *lines]) + "\n")
    prepared = prepare(folder / "t.csv", "y", ending=".png", seed=0)
    (tmp_path / "t.csv").write_text("\n".join(["path,y", *lines]) + "\n")
    rooted = prepare(tmp_path / "t.csv", "y", ending=".png", root=str(folder), seed=0)
    assert prepared.data.train.names == rooted.data.train.names
    assert (shades(prepared.data.train) >= 100).tolist() == (prepared.data.labels == 1).tolist()


def test_images_without_a_class_are_left_out_and_counted(folder):
    flat(folder / "loose.png", 7)
    prepared = prepare(folder, seed=0)
    assert prepared.train_rows + len(prepared.data.valid) == 20
    assert "1 image has no label: left out" in prepared.warnings


def test_rows_of_images_that_cannot_be_read_keep_labels_in_place(folder):
    (folder / "b" / "deep" / "1.png").write_text("none")
    prepared = prepare(folder, seed=0)
    assert (shades(prepared.data.train) >= 100).tolist() == (prepared.data.labels == 1).tolist()
    (unreadable,) = prepared.unreadable["images"]
    assert unreadable.value == ImageFolder(folder).read().column("path")[unreadable.row].as_py()


def test_data_type_follows_from_a_folder_or_a_column_of_files(folder, tmp_path):
    def kind(**data):
        return read_data_config({"data": {"target": "a", **data}}, folders=[tmp_path]).kind

    assert kind(train=str(folder)) == kind(train="images") == kind(train="t.csv", path="file") == "images"
    assert kind(train="t.csv") == "table"


def test_job_of_images_survives_its_plain_table():
    data = ImageData("i", ["x", "y"], size=64, fit="crop", augment="none", root="r", ending=".jpg")
    job = Job(data, ModelConfig("resnet34", {"width": 8}, pretrained="w.pth"), Run())
    assert job_from_table(job_to_table(job)) == job


def test_large_images_are_scored_few_at_a_time(folder):
    def batch_size(**table):
        plan = plan_job({**table, "data": {"train": str(folder), "target": "a", **table.get("data", {})}})
        return plan.resolve(plan.data, rows=1000, positives=10).run.eval_batch_size

    assert [batch_size(data={"size": size}) for size in (32, 224, 384)] == [1024, 41, 16]
    assert batch_size(eval_batch_size=5) == 5


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"size": 4}, "size must be"),
        ({"fit": "pad"}, "fit must be one of stretch, crop"),
        ({"upside_down": True, "augment": "none"}, "upside_down mirrors .* leaves them as they are"),
        ({"mirror": True, "augment": "none"}, "mirror mirrors .* leaves them as they are"),
    ],
)
def test_settings_that_do_not_fit_are_refused_by_name(fields, message):
    with pytest.raises(ValueError, match=message):
        ImageData("i", "y", **fields)


def test_class_called_like_the_column_of_files_is_refused(folder):
    with pytest.raises(ValueError, match="a class cannot be called 'path'"):
        ImageFolder(folder, ["path"])


@pytest.mark.parametrize("seed", range(5))
def test_every_one_of_several_targets_has_its_share_of_validation_rows(folder, seed):
    prepared = prepare(folder, target=["a", "c"], test_share=0.2, seed=seed)
    positives = [(part == 1).sum(0).tolist() for part in (prepared.data.labels, prepared.valid.labels)]
    assert positives == [[3, 3], [1, 1]]
    assert (prepared.test.labels == 1).sum(0).tolist() == [1, 1]
    assert prepared.warnings == []


def test_all_classes_of_a_folder_can_be_targets(folder):
    prepared = prepare(folder, target=["a", "b", "c"], seed=0)
    assert (prepared.valid.labels == 1).sum(0).tolist() == [1, 2, 1]


def test_target_without_validation_positives_is_named(folder, tmp_path):
    names = [str(path) for path in sorted(folder.rglob("*.png"))]
    rows = [f"{name},{int('/a/' in name)},{int(k == 7)}" for k, name in enumerate(names)]
    table = tmp_path / "t.csv"
    table.write_text("\n".join(["path,a,rare", *rows]) + "\n")
    prepared = prepare(table, target=["a", "rare"], split="random", share=0.3, seed=1)
    missing = [line for line in prepared.warnings if line.startswith("'rare' has no positive row ")]
    assert len(missing) == 1
    assert "hold out another share, or in another way" in missing[0]


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (["IC50 > 10"], [""]),
        (["a", "b c"], ["-a", "-b_c"]),
        (["IC50 > 10", "x", "IC50 < 10"], ["-IC50_10-1", "-x", "-IC50_10-3"]),
        (["a b", "a-b", "a+b", "a_b-1"], ["-a_b-1-1", "-a-b", "-a_b-3", "-a_b-1"]),
        (["Bad", "bad"], ["-Bad-1", "-bad-2"]),
    ],
)
def test_every_target_has_a_contact_sheet_of_its_own_name(targets, expected):
    assert sheet_suffixes(targets) == expected


@pytest.mark.parametrize("shape", [(0,), (0, 1), (0, 2)])
def test_contact_sheet_takes_a_part_without_rows(shape):
    paths = SimpleNamespace(files=lambda table: table.column("path").to_pylist())
    sheet = object.__new__(ContactSheet)
    sheet.encoder, sheet.column, sheet.target = SimpleNamespace(paths=paths), 0, SimpleNamespace(name="y")
    sheet.known = sheet.positives = 0
    for files in ([], ["a.png"]):
        sheet.files = files
        sheet.scores = sheet.labels = np.ones(len(files), np.float32)
        sheet.add(pa.table({"path": pa.array([], pa.string())}), np.empty(shape, np.float32))
        assert sheet.files == files
