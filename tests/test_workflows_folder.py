"""Model folders: damage is found before anything is loaded, and one training at a time writes to a folder."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest

from apmax.folders import FolderError, read_manifest
from apmax.workflows import Overrides, load_model, train_job, training
from commands import SHORT, run
from model_folders import copy_model, renew_manifest
from small_files import read_csv, write_xy

QUICK = Overrides(epochs=1, settings={"stages.0.epochs": 1, "accelerator": "cpu"})


@pytest.fixture(scope="module")
def ensemble(client_folder, tmp_path_factory):
    """A model of two members."""
    folder = tmp_path_factory.mktemp("ensemble") / "r"
    table = {"data": {"train": str(client_folder / "train.csv"), "target": "bought"}}
    train_job(table, Overrides(**{**vars(QUICK), "ensemble": 2}), out=folder)
    return folder


def content(folder):
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_manifest_lists_every_file_that_loading_needs(client_folder, ensemble, tmp_path):
    weights = {"member-0/model.pt", "member-1/model.pt"}
    assert {"run.toml", "encoder.json", *weights} <= set(read_manifest(ensemble, kind="model").files)
    # The copy has only the files of the manifest.
    copy_model(ensemble, tmp_path)
    file = client_folder / "test.csv"
    np.testing.assert_array_equal(load_model(tmp_path).score(file), load_model(ensemble).score(file))


def test_damaged_model_is_always_refused(ensemble, tmp_path):
    names = ["manifest.json", *copy_model(ensemble, tmp_path).files]
    generator = random.Random(0)
    for name in names:
        whole = (tmp_path / name).read_bytes()
        flips = [0, len(whole) - 1, *(generator.randrange(len(whole)) for _ in range(40))]
        damaged = [whole[:k] + bytes([whole[k] ^ (1 << generator.randrange(8))]) + whole[k + 1 :] for k in flips]
        damaged += [whole[: generator.randrange(len(whole))] for _ in range(10)] + [b"", whole + b"\0"]
        for each in damaged:
            (tmp_path / name).write_bytes(each)
            with pytest.raises(FolderError, match=r"is damaged|not written by apmax|newer") as caught:
                load_model(tmp_path)
            assert name in str(caught.value) or "newer" in str(caught.value)
        (tmp_path / name).unlink()
        with pytest.raises((FolderError, FileNotFoundError), match=name):
            load_model(tmp_path)
        (tmp_path / name).write_bytes(whole)
    load_model(tmp_path)


def test_damaged_model_is_one_line_in_every_command(client_folder, tmp_path, capsys):
    copy_model(client_folder / "run", tmp_path / "r")
    (tmp_path / "r" / "model.pt").write_bytes((tmp_path / "r" / "model.pt").read_bytes()[:-1])
    for command in (["predict", "--out", tmp_path / "o.csv"], ["evaluate"]):
        assert run(command[0], tmp_path / "r", client_folder / "test.csv", *command[1:]) == 1
        error = capsys.readouterr().err
        assert "is damaged: model.pt has changed since it was written" in error
        assert error.count("\n") == 1
    assert not (tmp_path / "o.csv").exists()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda table: table.pop("version"), "has no version"),
        (lambda table: table.update(version="3"), "has no version"),
        (lambda table: table.update(version=99), "newer apmax"),
        (lambda table: table.update(version=1), "older apmax"),
        (lambda table: table.update(kind=5), "kind must be one of"),
        (lambda table: table.pop("kind"), "kind must be one of"),
        (lambda table: table.update(targets=5), "targets cannot be read"),
        (lambda table: table.update(targets=[{"name": "x"}]), "targets cannot be read"),
        (lambda table: table.pop("encoder"), "encoder cannot be read"),
        (lambda table: table.update(encoder=[1]), "encoder cannot be read"),
        (lambda table: table["encoder"]["columns"][0].pop("kind"), "encoder cannot be read"),
        (lambda table: table["encoder"]["columns"][0].update(surplus=1), "encoder cannot be read"),
    ],
)
def test_foreign_encoder_is_a_clear_error(client_folder, tmp_path, change, message):
    copy_model(client_folder / "run", tmp_path)
    table = json.loads((tmp_path / "encoder.json").read_text())
    change(table)
    (tmp_path / "encoder.json").write_text(json.dumps(table))
    renew_manifest(tmp_path)
    with pytest.raises(ValueError, match=message):
        load_model(tmp_path)


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '"x"', "[" * 100_000])
def test_encoder_of_another_form_is_a_clear_error(client_folder, tmp_path, text):
    copy_model(client_folder / "run", tmp_path)
    (tmp_path / "encoder.json").write_text(text)
    renew_manifest(tmp_path)
    with pytest.raises(ValueError, match=r"encoder\.json"):
        load_model(tmp_path)


@pytest.fixture
def job(tmp_path):
    """A small job."""
    return {"data": {"train": str(write_xy(tmp_path / "a.csv")), "target": "y"}}


@pytest.mark.parametrize("name", ["run.toml", "encoder.json", "manifest.json"])
def test_resuming_a_damaged_folder_is_refused_and_changes_nothing(job, tmp_path, name):
    train_job(job, QUICK, out=tmp_path / "r")
    whole = (tmp_path / "r" / name).read_bytes()
    (tmp_path / "r" / name).write_bytes(whole.replace(b"0", b"1", 1))
    before = content(tmp_path / "r")
    with pytest.raises(FolderError, match=f"{name} has changed"):
        train_job(job, QUICK, out=tmp_path / "r", resume=True)
    assert content(tmp_path / "r") == before


def test_resuming_a_checkpoint_without_a_manifest_is_refused(job, tmp_path):
    train_job(job, QUICK, out=tmp_path / "r")
    (tmp_path / "r" / "manifest.json").unlink()
    with pytest.raises(FolderError, match=r"holds a checkpoint and no manifest\.json"):
        train_job(job, QUICK, out=tmp_path / "r", resume=True)


@pytest.mark.slow
@pytest.mark.parametrize("resumed", [False, True])
def test_training_that_stops_anywhere_between_two_files_can_be_resumed(job, tmp_path, monkeypatch, resumed):
    train_job(job, QUICK, out=tmp_path / "whole")
    longer = Overrides(**{**vars(QUICK), "epochs": 2})
    if resumed:
        train_job(job, longer, out=tmp_path / "whole", resume=True)

    from apmax import folders

    write, count, stopped = folders.write_beside, 0, 0
    while True:
        count += 1
        folder, left = tmp_path / f"r{count}", [count]

        def stop(path, content, left=left):
            left[0] -= 1
            if not left[0]:
                raise KeyboardInterrupt
            return write(path, content)

        if resumed:
            train_job(job, QUICK, out=folder)
        with monkeypatch.context() as patch:
            patch.setattr(folders, "write_beside", stop)
            try:
                train_job(job, longer if resumed else QUICK, out=folder, resume=resumed)
                break
            except KeyboardInterrupt:
                stopped += 1
        train_job(job, longer if resumed else QUICK, out=folder, resume=True)
        for name in ("run.toml", "encoder.json", "results.json"):
            assert (folder / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
        load_model(folder)
    assert stopped > 8


def test_refused_or_interrupted_resuming_leaves_the_finished_model(job, tmp_path, monkeypatch):
    train_job(job, QUICK, out=tmp_path / "r")
    before = content(tmp_path / "r")

    def stop(*_, **__):
        with pytest.raises(FileNotFoundError, match="is not finished"):
            load_model(tmp_path / "r")
        raise KeyboardInterrupt

    monkeypatch.setattr(training, "fit", stop)
    with pytest.raises(KeyboardInterrupt):
        train_job(job, QUICK, out=tmp_path / "r", resume=True)
    assert content(tmp_path / "r") == before


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("step", ["prepare_data", "fit"])
def test_second_training_into_one_folder_is_refused_and_touches_nothing(job, tmp_path, monkeypatch, step, resume):
    original, refused = getattr(training, step), []

    def with_second(*arguments, **options):
        before = content(tmp_path / "r")
        with monkeypatch.context() as patch:
            patch.setattr(training, "prepare_data", lambda *_, **__: pytest.fail("data were read"))
            with pytest.raises(FileExistsError, match=r"another training is running|is not empty"):
                train_job(job, QUICK, out=tmp_path / "r", resume=resume)
        assert content(tmp_path / "r") == before
        refused.append(step)
        return original(*arguments, **options)

    monkeypatch.setattr(training, step, with_second)
    train_job(job, QUICK, out=tmp_path / "r")
    assert refused == [step]
    load_model(tmp_path / "r")


def test_failed_training_leaves_no_folder(job, tmp_path):
    job["data"]["target"] = "z"
    with pytest.raises(ValueError, match="has no column 'z'"):
        train_job(job, QUICK, out=tmp_path / "new" / "r")
    assert not (tmp_path / "new").exists()


def command_line(*words):
    return [sys.executable, "-m", "apmax", *map(str, words)]


@pytest.mark.slow
def test_killed_training_gives_up_its_lock(tmp_path, capsys):
    write_xy(tmp_path / "a.csv", 4000)
    folder = tmp_path / "r"
    data = [tmp_path / "a.csv", "--target", "y", "--loss", "ce", "--set", "accelerator=cpu", "--out", folder]
    long = command_line("train", *data, "--epochs", 10**6, "--set", "stages.0.patience=1000000")
    process = subprocess.Popen(long, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 120
        while not (folder / "checkpoint.pt").exists():
            assert process.poll() is None
            assert time.monotonic() < deadline
            time.sleep(0.05)
        assert run("train", *data, "--resume") == 1
        assert "another training is running in" in capsys.readouterr().err
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert run("train", *data, "--resume", "--quiet", "--epochs", 1) == 0
    load_model(folder)


@pytest.mark.slow
def test_two_processes_of_one_training_share_the_lock(tmp_path):
    write_xy(tmp_path / "a.csv")
    data = [tmp_path / "a.csv", "--target", "y", *SHORT, "--out", tmp_path / "r", "--devices", 2]
    for words in (["train", *data], ["train", *data, "--epochs", 3, "--resume"]):
        ended = subprocess.run(command_line(*words), capture_output=True, text=True, timeout=300, check=False)
        assert ended.returncode == 0, ended.stderr[-2000:]
    assert run("predict", tmp_path / "r", tmp_path / "a.csv", "--out", tmp_path / "o.csv") == 0
    assert len(read_csv(tmp_path / "o.csv")) == 80
