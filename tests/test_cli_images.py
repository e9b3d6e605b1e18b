"""The commands on images: output, files and exit codes."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score

from commands import SHORT, SHORT_IMAGES, run
from model_folders import copy_model, renew_manifest
from small_files import IMAGES, POSITIVE_IMAGES, read_csv, write_xy

pytest.importorskip("PIL")
from PIL import Image

from apmax.data.images import decoding
from apmax.data.images.contact_sheet import FALSE, TRUE, UNKNOWN
from apmax.models.images import resnet10, resnet18, resnet34
from apmax.train import Terminated, predict
from apmax.workflows import load_model
from apmax.workflows.data_types import images as image_type
from apmax.workflows.prepare import ensemble_folds, prepare_data
from apmax.workflows.saved_model import SavedNetwork


def frames(path, count, tile=112):
    """Return the colours of the frames of a sheet's first images."""
    sheet = np.asarray(Image.open(path).convert("RGB"))
    places = [(38 + k // 8 * (tile + 35), 10 + k % 8 * (tile + 18)) for k in range(count)]
    return [tuple(int(value) for value in sheet[top + 1, left + 1]) for top, left in places]


def test_training_writes_validation_and_test_metrics(image_folder):
    results = json.loads((image_folder / "one" / "results.json").read_text())
    for part in ("valid", "test"):
        assert 0 <= results[part]["ap"]["low"] <= results[part]["ap"]["estimate"] <= results[part]["ap"]["high"] <= 1
    assert results["test"]["rows"] + results["valid"]["rows"] < IMAGES / 2


def test_training_draws_the_test_images_and_marks_the_true_ones(image_folder):
    test = json.loads((image_folder / "one" / "results.json").read_text())["test"]
    shown = frames(image_folder / "one" / "contact-sheet.png", test["rows"])
    assert (shown.count(TRUE), shown.count(FALSE)) == (test["positives"], test["rows"] - test["positives"])


def test_every_target_has_a_contact_sheet_with_unlabelled_images_in_grey(image_folder):
    results = json.loads((image_folder / "two" / "results.json").read_text())["valid"]["targets"]
    count = results["bad"]["rows"]
    for name in ("bad", "worse"):
        shown = frames(image_folder / "two" / f"contact-sheet-{name}.png", count)
        assert shown.count(TRUE) == results[name]["positives"]
        assert shown.count(UNKNOWN) == count - results[name]["rows"]


def test_images_that_cannot_be_read_are_named_in_training_and_listed(image_folder, tmp_path, capsys):
    assert (
        run(
            "train", image_folder / "images", "--target", "malignant", *SHORT_IMAGES, "--quiet", "--out", tmp_path / "r"
        )
        == 0
    )
    errors = capsys.readouterr().err
    assert f"1 of {IMAGES + 1} images cannot be read: row 60 '{image_folder}/images/benign/broken.png' (" in errors
    assert "1 file is no image by its name (.txt) and is passed over, such as" in errors
    (row,) = read_csv(tmp_path / "r" / "unreadable.csv")
    assert (row["file"], row["value"]) == ("images", f"{image_folder}/images/benign/broken.png")


def test_unreadable_image_stops_the_training_with_on_error_raise(image_folder, tmp_path, capsys):
    command = [
        "train",
        image_folder / "images",
        "--target",
        "malignant",
        "--on-error",
        "raise",
        "--out",
        tmp_path / "r",
    ]
    assert run(*command) == 1
    assert "broken.png' (" in capsys.readouterr().err
    assert not (tmp_path / "r").exists()


def test_run_file_repeats_the_training_bit_for_bit(image_folder, tmp_path):
    assert run("train", image_folder / "one" / "run.toml", "--quiet", "--out", tmp_path / "again") == 0
    for name in ("results.json", "run.toml", "encoder.json", "contact-sheet.png"):
        assert (tmp_path / "again" / name).read_bytes() == (image_folder / "one" / name).read_bytes()


@pytest.mark.slow
def test_resumed_training_ends_like_an_uninterrupted_one(image_folder, tmp_path):
    common = ["train", image_folder / "images", "--target", "malignant", "--loss", "ce", *SHORT_IMAGES[4:], "--quiet"]
    assert run(*common, "--epochs", 1, "--out", tmp_path / "a") == 0
    assert run(*common, "--epochs", 2, "--out", tmp_path / "a", "--resume") == 0
    assert run(*common, "--epochs", 2, "--out", tmp_path / "b") == 0
    assert (tmp_path / "a" / "results.json").read_text() == (tmp_path / "b" / "results.json").read_text()


def test_resuming_at_another_size_is_refused_and_changes_nothing(image_folder, tmp_path, capsys):
    shutil.copytree(image_folder / "one", tmp_path / "r")
    before = {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir()}
    command = [
        "train",
        image_folder / "images",
        "--target",
        "malignant",
        "--test-share",
        0.2,
        *SHORT_IMAGES,
        "--size",
        16,
    ]
    assert run(*command, "--resume", "--out", tmp_path / "r") == 1
    assert "--size was 20 in" in capsys.readouterr().err
    assert {path.name: path.read_bytes() for path in (tmp_path / "r").iterdir()} == before


def test_top_of_a_folder_is_the_best_first_of_the_images_that_can_be_read(image_folder, tmp_path, capsys):
    assert run("predict", image_folder / "one", image_folder / "unsorted", "--out", tmp_path / "all.csv") == 0
    assert (
        run("predict", image_folder / "one", image_folder / "unsorted", "--top", 7, "--out", tmp_path / "top.csv") == 0
    )
    everything, top = read_csv(tmp_path / "all.csv"), read_csv(tmp_path / "top.csv")
    assert [row["path"] for row in everything] == [f"{image_folder}/unsorted/{number:03d}.png" for number in range(40)]
    assert top == sorted(everything, key=lambda row: -float(row["score"]))[:7]
    assert "1 that cannot be read in" in capsys.readouterr().out
    (error,) = read_csv(tmp_path / "top.errors.csv")
    assert (error["row"], error["value"]) == ("40", f"{image_folder}/unsorted/cut.jpg")


def test_scores_do_not_depend_on_batches_or_on_the_source_of_the_paths(image_folder, tmp_path, monkeypatch):
    (tmp_path / "list.csv").write_text("\n".join(["file", *(f"{number:03d}" for number in range(40))]) + "\n")
    assert run("predict", image_folder / "one", image_folder / "unsorted", "--out", tmp_path / "whole.csv") == 0
    monkeypatch.setattr(decoding, "IMAGES_PER_CHUNK", 4)
    monkeypatch.setattr(image_type, "images_at_a_time", lambda size: 12)
    largest, score_encoded = [], SavedNetwork._score_encoded

    def record_size(model, encoded, table):
        largest.append(len(encoded.dataset))
        return score_encoded(model, encoded, table)

    monkeypatch.setattr(SavedNetwork, "_score_encoded", record_size)
    where = ["--path", "file", "--root", image_folder / "unsorted", "--ending", ".png"]
    assert run("predict", image_folder / "one", tmp_path / "list.csv", *where, "--out", tmp_path / "cut.csv") == 0
    assert max(largest) <= 12
    whole, cut = ([float(row["score"]) for row in read_csv(tmp_path / f"{name}.csv")] for name in ("whole", "cut"))
    assert cut == pytest.approx(whole, abs=1e-5)
    assert len(set(whole)) > 30


def test_prediction_leaves_no_decoded_images_behind(image_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    assert run("predict", image_folder / "one", image_folder / "unsorted", "--out", tmp_path / "o.csv") == 0
    assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize("order", [[], ["--sort"], ["--top", 5]])
def test_contact_sheet_of_a_prediction_marks_the_best_by_their_folder(image_folder, tmp_path, order):
    command = [
        "predict",
        image_folder / "one",
        image_folder / "images",
        *order,
        "--contact-sheet",
        tmp_path / "new" / "s.png",
    ]
    assert run(*command, "--out", tmp_path / "o.csv") == 0
    best = sorted(read_csv(tmp_path / "o.csv"), key=lambda row: -float(row["score"]))[:5]
    expected = [TRUE if row["malignant"] == "1" else FALSE for row in best]
    assert [row["path"].split("/")[-2] == "malignant" for row in best] == [frame == TRUE for frame in expected]
    assert frames(tmp_path / "new" / "s.png", 5) == expected


def test_contact_sheet_of_images_without_labels_is_grey(image_folder, tmp_path):
    command = ["predict", image_folder / "one", image_folder / "unsorted", "--contact-sheet", tmp_path / "s.png"]
    assert run(*command, "--out", tmp_path / "o.csv") == 0
    assert set(frames(tmp_path / "s.png", 40)) == {UNKNOWN}


def test_several_targets_have_a_score_each_and_are_drawn_by_one(image_folder, tmp_path):
    where = ["--root", image_folder / "images", "--by", "worse", "--contact-sheet", tmp_path / "s.png", "--sort"]
    assert (
        run("predict", image_folder / "two", image_folder / "tables" / "a.csv", *where, "--out", tmp_path / "o.csv")
        == 0
    )
    rows = read_csv(tmp_path / "o.csv")
    assert list(rows[0]) == ["name", "bad", "worse", "score bad", "score worse"]
    marks = {"": UNKNOWN, "0": FALSE, "1": TRUE}
    assert frames(tmp_path / "s.png", 48) == [marks[row["worse"]] for row in rows[:48]]


def test_evaluation_of_a_folder_agrees_with_the_test_metrics_of_the_training(image_folder, tmp_path, capsys):
    shutil.copytree(image_folder / "images" / "malignant", tmp_path / "later" / "malignant")
    shutil.copytree(image_folder / "images" / "benign", tmp_path / "later" / "fine")
    (tmp_path / "later" / "fine" / "broken.png").unlink()
    command = [
        "train",
        image_folder / "images",
        "--target",
        "malignant",
        "--test",
        tmp_path / "later",
        *SHORT_IMAGES,
        "--quiet",
    ]
    assert run(*command, "--out", tmp_path / "r") == 0
    capsys.readouterr()
    assert run("evaluate", tmp_path / "r", tmp_path / "later", "--json") == 0
    found = json.loads(capsys.readouterr().out)
    reported = json.loads((tmp_path / "r" / "results.json").read_text())["test"]
    assert (found["rows"], found["positives"]) == (IMAGES, POSITIVE_IMAGES)
    assert found["ap"]["estimate"] == pytest.approx(reported["ap"]["estimate"], abs=1e-9)


def test_options_reach_the_job(image_folder, tmp_path):
    command = [
        "train",
        image_folder / "images",
        "--target",
        "malignant",
        *SHORT_IMAGES,
        "--model",
        "resnet34",
        "--stem",
        "small",
    ]
    command += ["--size", 12, "--augment", "large", "--set", "data.fit=crop", "--set", "data.upside_down=true"]
    assert run(*command, "--quiet", "--out", tmp_path / "r") == 0
    job = load_model(tmp_path / "r").job
    assert (job.model.name, dict(job.model.options)) == ("resnet34", {"width": 2, "stem": "small"})
    assert (job.data.size, job.data.fit, job.data.augment, job.data.upside_down) == (12, "crop", "large", True)


def test_training_starts_from_pretrained_weights_and_does_not_need_the_file_later(image_folder, tmp_path, capsys):
    torch.save(resnet18(1000, width=2).state_dict(), tmp_path / "w.pth")
    command = ["train", image_folder / "images", "--target", "malignant", *SHORT_IMAGES, "--pretrained", "w.pth"]
    assert run(*command, "--data-dir", tmp_path, "--out", tmp_path / "r") == 0
    assert "begins with 120 tensors from w.pth; its head of 1000 outputs is replaced" in capsys.readouterr().out
    (tmp_path / "w.pth").unlink()
    assert run("predict", tmp_path / "r", image_folder / "unsorted", "--out", tmp_path / "o.csv") == 0


def test_a_network_is_resumed_with_weights_of_the_same_content_only_wherever_they_are(image_folder, tmp_path, capsys):
    torch.save(resnet18(1000, width=2).state_dict(), tmp_path / "w.pth")
    command = ["train", image_folder / "images", "--target", "malignant", *SHORT_IMAGES, "--quiet"]
    command += ["--out", tmp_path / "r", "--resume", "--pretrained"]
    assert run(*command, tmp_path / "w.pth") == 0
    (tmp_path / "w.pth").rename(tmp_path / "moved.pth")
    assert run(*command, tmp_path / "moved.pth") == 0
    capsys.readouterr()
    for path in ("w.pth", "moved.pth"):
        torch.save(resnet18(1000, width=2).state_dict(), tmp_path / path)
        before = {file: file.read_bytes() for file in (tmp_path / "r").iterdir() if file.is_file()}
        assert run(*command, tmp_path / path) == 1
        assert "--pretrained was a file of SHA-256" in capsys.readouterr().err
        assert {file: file.read_bytes() for file in (tmp_path / "r").iterdir() if file.is_file()} == before


def test_a_network_of_version_0_2_is_resumed_with_the_file_of_weights_at_the_same_path(image_folder, tmp_path, capsys):
    torch.save(resnet18(1000, width=2).state_dict(), tmp_path / "w.pth")
    command = ["train", image_folder / "images", "--target", "malignant", *SHORT_IMAGES, "--quiet"]
    command += ["--out", tmp_path / "r", "--resume", "--pretrained"]
    assert run(*command, tmp_path / "w.pth") == 0
    facts = json.loads((tmp_path / "r" / "run.json").read_text())
    del facts["pretrained_sha256"]  # which it did not write
    (tmp_path / "r" / "run.json").write_text(json.dumps(facts))
    assert run(*command, tmp_path / "w.pth") == 0
    shutil.copy(tmp_path / "w.pth", tmp_path / "copy.pth")
    assert run(*command, tmp_path / "copy.pth") == 1
    assert "--pretrained was" in capsys.readouterr().err


def test_head_alone_is_trained_on_cached_embeddings(image_folder, tmp_path, monkeypatch):
    monkeypatch.setenv("APMAX_CACHE", str(tmp_path / "cache"))
    torch.manual_seed(0)
    network = resnet18(1000, width=2)
    torch.save(network.state_dict(), tmp_path / "w.pth")
    command = ["train", image_folder / "images", "--target", "malignant", "--width", 2, "--pretrained", "w.pth"]
    command += ["--data-dir", tmp_path, "--head", "only", "--quiet", "--set", "accelerator=cpu"]
    assert run(*command, "--out", tmp_path / "r") == 0
    model = load_model(tmp_path / "r").network
    assert torch.equal(model.layer4[1].conv2.weight, network.layer4[1].conv2.weight)
    cached = list((tmp_path / "cache").glob("embeddings-*"))
    assert len(cached) == 2
    times = [folder.stat().st_mtime_ns for folder in cached]
    assert run(*command, "--set", "stages.0.margin=0.5", "--out", tmp_path / "again") == 0
    assert [folder.stat().st_mtime_ns for folder in cached] == times
    assert len(list((tmp_path / "cache").glob("embeddings-*"))) == 2


def test_validation_of_an_ensemble_is_by_networks_that_have_not_seen_the_row(image_folder, tmp_path, capsys):
    command = ["train", image_folder / "images", "--target", "malignant", *SHORT_IMAGES, "--ensemble", 2]
    assert run(*command, "--set", "data.share=0.5", "--out", tmp_path / "r") == 0
    lines = capsys.readouterr().out
    results = json.loads((tmp_path / "r" / "results.json").read_text())["valid"]
    assert f"each of the 2 networks is chosen by another part of {results['rows']} rows" in lines
    assert results["rows"] == IMAGES
    model = load_model(tmp_path / "r")
    prepared = prepare_data(model.job.data, seed=0)
    folds = ensemble_folds(prepared, 2, seed=0)
    scores = np.empty(results["rows"])
    for member, data, rows in zip(model.network.members, folds.data, folds.held_out, strict=True):
        scores[rows] = predict(member, data.valid).numpy()
    expected = average_precision_score(folds.rows.labels, scores)
    assert results["ap"]["estimate"] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            ["train", "IMAGES", "--target", "malignant", "--head", "only"],
            "give weights that it begins with (--pretrained",
        ),
        (["train", "IMAGES"], "--target: name the column to predict (of a folder of images: the class)"),
        (["train", "IMAGES", "--target", "bad"], "has no folder 'bad' of that class; its folders are 'benign', 'mal"),
        (["train", "UNSORTED", "--target", "bad"], "sort the images into a folder per class, or list them in a csv"),
        (["train", "EMPTY", "--target", "bad"], "has no images: no file in it ends in .jpg"),
        (["train", "CSV", "--target", "bad", "--path", "name"], "say where paths begin (--root DIR)"),
        (["train", "CSV", "--target", "bad", "--path", "file"], "has no column 'file'; its columns are 'name'"),
        (["train", "CSV", "--target", "bad", "--size", "16"], "--size is for data of kind images"),
        (["train", "CSV", "--target", "bad", "--pretrained", "W34"], "--pretrained is for networks of images"),
        (["train", "IMAGES", "--target", "malignant", "--path", "name"], "is a folder and has no column 'name'"),
        (["train", "IMAGES", "--target", "malignant", "--kind", "table"], "is a folder, and data of kind table"),
        (["train", "IMAGES", "--target", "malignant", "--stem", "tiny"], "stem must be one of imagenet, small"),
        (["train", "IMAGES", "--target", "malignant", "--augment", "much"], "must be one of none, small, large"),
        (["train", "IMAGES", "--target", "malignant", "--pretrained", "W34"], "is it the same depth?"),
        (["train", "IMAGES", "--target", "malignant", "--pretrained", "JUNK"], "not a file of plain weights"),
        (["train", "IMAGES", "--target", "malignant", "--pretrained", "no.pth"], "no such file: no.pth"),
        (
            ["train", "IMAGES", "--target", "malignant", "--pretrained", "W34", "--ensemble", "2"],
            "--pretrained and --ensemble exclude each other",
        ),
        (["train", "IMAGES", "--target", "malignant", "--pretrained", "IMAGES"], "--pretrained: no file of weights at"),
        (["train", "IMAGES", "--target", "malignant", "--group", "patient"], "is a folder and has no column 'patient'"),
        (["train", "HOLLOW", "--target", "malignant"], "--target: the folder 'malignant' of "),
        (["train", "HOLLOW", "--target", "benign"], "has images of 'benign' only; put the negatives into another"),
        (["train", "CSV", "--target", "bad", "--target", "worse"], "images (--path COLUMN) may have several"),
        (["train", "IMAGES", "--target", "malignant", "--on-error", "raise"], "--on-error skip"),
        (["predict", "ONE", "EMPTY"], "has no images"),
        (["predict", "ONE", "CSV"], "has no column 'path'; its columns are 'name', 'bad', 'worse'"),
        (["predict", "ONE", "CSV", "--path", "name"], "none of the 72 images of column 'name' can be read"),
        (["predict", "ONE", "UNSORTED", "--on-error", "raise"], "row 40 cannot be read: "),
        (["predict", "ONE", "UNSORTED", "--contact-sheet", "s.jpg"], "--contact-sheet must name a .png file"),
        (["predict", "TWO", "UNSORTED", "--contact-sheet", "s.png"], "--by: there are several targets"),
        (["predict", "ONE", "UNSORTED", "--smiles", "name"], "--smiles is for models of molecules"),
        (["evaluate", "ONE", "UNSORTED"], "has no folder 'malignant' of that class"),
    ],
)
def test_mistake_is_one_line_and_leaves_nothing(image_folder, tmp_path, monkeypatch, capsys, arguments, message):
    places = {
        "IMAGES": "images",
        "UNSORTED": "unsorted",
        "CSV": "tables/a.csv",
        "ONE": "one",
        "TWO": "two",
        "EMPTY": "empty",
    }
    places |= {"W34": "w34.pth", "JUNK": "junk.pth", "HOLLOW": "hollow"}
    if not (image_folder / "w34.pth").exists():
        (image_folder / "empty").mkdir()
        (image_folder / "hollow" / "malignant").mkdir(parents=True)
        shutil.copytree(image_folder / "images" / "benign", image_folder / "hollow" / "benign")
        torch.save(resnet34(width=64).state_dict(), image_folder / "w34.pth")
        (image_folder / "junk.pth").write_bytes(b"junk")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    capsys.readouterr()
    out = [] if arguments[0] == "evaluate" else ["--out", "o.csv" if arguments[0] == "predict" else "r"]
    assert run(*[image_folder / places[word] if word in places else word for word in arguments], *out) == 1
    errors = capsys.readouterr().err
    assert message in errors
    assert errors.count("\n") == 1
    assert list((tmp_path / "here").iterdir()) == []


def test_rows_without_a_file_are_listed_with_their_reason(image_folder, tmp_path):
    lines = (image_folder / "tables" / "a.csv").read_text().splitlines()
    (tmp_path / "a.csv").write_text("\n".join([*lines, "gone,0,", ",0,", "album,0,"]) + "\n")
    shutil.copytree(image_folder / "images", tmp_path / "own")
    (tmp_path / "own" / "album.png").mkdir()
    where = ["--path", "name", "--root", tmp_path / "own", "--ending", ".png", "--target", "bad"]
    assert run("train", tmp_path / "a.csv", *where, *SHORT_IMAGES, "--quiet", "--out", tmp_path / "r") == 0
    reasons = {row["row"]: row["reason"] for row in read_csv(tmp_path / "r" / "unreadable.csv")}
    expected = ["no such file", "no path: the cell is empty", "a folder, not a file"]
    assert reasons == {str(IMAGES + k): reason for k, reason in enumerate(expected)}


def test_table_with_a_column_of_image_files_suggests_the_option_path(image_folder, tmp_path, capsys):
    rows = [f"{number}.png,{number % 5},{int(number % 10 == 0)}" for number in range(80)]
    (tmp_path / "a.csv").write_text("\n".join(["file,x,y", *rows]) + "\n")
    short = ["--set", "stages.0.epochs=1", "--epochs", 1, "--quiet"]
    assert run("train", tmp_path / "a.csv", "--target", "y", *short, "--out", tmp_path / "r") == 0
    assert "column 'file' names images, which a table does not read: --path file does" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["keratosis", "a_name_that_is_longer_than_its_column"])
def test_table_of_several_targets_fits_eighty_columns_with_all_of_their_names(
    image_folder, tmp_path, capsys, monkeypatch, name
):
    monkeypatch.setenv("COLUMNS", "80")
    where = ["--path", "name", "--root", image_folder / "images", "--ending", ".png"]
    targets = ["--target", "bad", "--target", name]
    text = (image_folder / "tables" / "a.csv").read_text().replace("worse", name)
    (tmp_path / "a.csv").write_text(text)
    assert run("train", tmp_path / "a.csv", *where, *targets, *SHORT_IMAGES, "--quiet", "--out", tmp_path / "r") == 0
    lines = [line.rstrip() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert max(map(len, lines)) <= 80
    assert "".join(line.split()[0] for line in lines[1:] if "95 %" not in line) == f"validationbad{name}mean"


def test_prediction_names_the_columns_of_several_targets(image_folder, tmp_path, capsys):
    assert run("predict", image_folder / "two", image_folder / "unsorted", "--out", tmp_path / "o.csv") == 0
    assert "40 rows with 'score bad' and 'score worse' in" in capsys.readouterr().out


@pytest.mark.parametrize(("signal", "code", "word"), [("INT", 130, "interrupted"), ("TERM", 143, "terminated")])
def test_training_ended_by_a_signal_says_how_to_continue(image_folder, monkeypatch, capsys, signal, code, word):
    def stop(*_, **__):
        raise KeyboardInterrupt if signal == "INT" else Terminated

    monkeypatch.setattr("apmax.workflows.train_job", stop)
    capsys.readouterr()
    assert run("train", image_folder / "images", "--target", "malignant", "--out", "r") == code
    assert capsys.readouterr().err == f"apmax: {word}; the same command with --resume continues\n"


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (
            lambda place: torch.save(resnet10(width=3).state_dict(), place / "model.pt"),
            "(resnet10, width = 2, stem = small): size",
        ),
        (lambda place: (place / "model.pt").write_bytes(b"junk"), "does not hold the weights of the network"),
        (
            lambda place: (place / "encoder.json").write_text(
                (place / "encoder.json").read_text().replace(f'"decoder": {decoding.DECODER_VERSION}', '"decoder": 0')
            ),
            "version 0 of the decoder",
        ),
    ],
)
def test_model_that_does_not_fit_its_directory_is_refused(image_folder, tmp_path, capsys, spoil, message):
    copy_model(image_folder / "one", tmp_path)
    spoil(tmp_path)
    renew_manifest(tmp_path)
    assert run("predict", tmp_path, image_folder / "unsorted", "--out", tmp_path / "o.csv") == 1
    assert message in capsys.readouterr().err
    assert not (tmp_path / "o.csv").exists()


def test_contact_sheet_is_no_option_of_a_model_of_tables(tmp_path, capsys):
    write_xy(tmp_path / "a.csv")
    assert run("train", tmp_path / "a.csv", "--target", "y", *SHORT, "--quiet", "--out", tmp_path / "r") == 0
    command = ["predict", tmp_path / "r", tmp_path / "a.csv", "--contact-sheet", tmp_path / "s.png"]
    assert run(*command, "--out", tmp_path / "o.csv") == 1
    assert "--contact-sheet is for models of images; this one is of kind table" in capsys.readouterr().err
