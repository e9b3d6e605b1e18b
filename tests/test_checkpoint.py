"""Checkpoints: whole or refused, and never code."""

import itertools
import os
import pickle
import zipfile
from collections import OrderedDict

import pytest
import torch
from apmax.train.checkpoints.packing import MARK

from apmax.train import checkpoints as checkpoint
from apmax.train.checkpoints import CheckpointError, content

STATE = {
    "model": OrderedDict(w=torch.arange(6.0).reshape(2, 3)),
    "steps": [1, 2],
    "lr": 0.1,
    "name": "x",
    "none": None,
    "betas": (0.9, 0.999),
}


@pytest.fixture
def path(tmp_path):
    return tmp_path / "checkpoint.pt"


def test_what_is_saved_comes_back(path):
    checkpoint.save(path, STATE)
    loaded = checkpoint.load(path)
    assert torch.equal(loaded["model"]["w"], STATE["model"]["w"])
    assert {k: v for k, v in loaded.items() if k != "model"} == {k: v for k, v in STATE.items() if k != "model"}


def test_plain_torch_load_reads_it_with_weights_only(path):
    checkpoint.save(path, STATE)
    assert torch.load(path, weights_only=True)["state"]["steps"] == [1, 2]


def test_the_previous_checkpoint_is_kept(path):
    checkpoint.save(path, {"step": 1})
    checkpoint.save(path, {"step": 2})
    checkpoint.save(path, {"step": 3})
    assert checkpoint.load(path)["step"] == 3
    assert checkpoint.load(checkpoint.previous(path))["step"] == 2


def test_nothing_is_left_beside_it(path):
    checkpoint.save(path, {"step": 1})
    checkpoint.save(path, {"step": 2})
    assert sorted(p.name for p in path.parent.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_checkpoint_is_refused_and_names_the_one_before(path, part):
    checkpoint.save(path, STATE)
    checkpoint.save(path, STATE)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(CheckpointError, match=r"truncated.*checkpoint\.previous\.pt"):
        checkpoint.load(path)


def test_any_flipped_byte_of_the_weights_is_noticed(path):
    checkpoint.save(path, STATE)
    content = path.read_bytes()
    weights = content.index(STATE["model"]["w"].numpy().tobytes())
    for offset in range(24):
        damaged = bytearray(content)
        damaged[weights + offset] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged"):
            checkpoint.load(path)


def test_a_foreign_torch_file_is_refused(path):
    torch.save({"model": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="not written by apmax"):
        checkpoint.load(path)


def test_a_text_file_is_refused(path):
    path.write_text("hello")
    with pytest.raises(CheckpointError, match="truncated or not a checkpoint"):
        checkpoint.load(path)


def test_a_newer_checkpoint_is_refused_and_says_to_upgrade(path, monkeypatch):
    monkeypatch.setattr(content, "VERSION", content.VERSION + 1)
    checkpoint.save(path, STATE)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="upgrade apmax"):
        checkpoint.load(path)


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm-was-done",)


def test_reading_never_executes_code(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": content.FORMAT, "version": 1, "apmax": "0", "state": Harmful()}, path)
    with zipfile.ZipFile(path) as archive:
        assert b"harm-was-done" in archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
    with pytest.raises(CheckpointError, match="not written by apmax"):
        checkpoint.load(path)
    assert not (tmp_path / "harm-was-done").exists()


def test_a_bare_pickle_is_refused(path):
    path.write_bytes(pickle.dumps({"format": content.FORMAT}))
    with pytest.raises(CheckpointError):
        checkpoint.load(path)


def test_state_that_could_only_be_read_by_executing_code_is_not_written(path):
    checkpoint.save(path, {"step": 1})
    with pytest.raises(CheckpointError, match=r"state\.model\.extra is a set"):
        checkpoint.save(path, {"model": {"extra": {1}}})
    assert checkpoint.load(path)["step"] == 1


class Crash(BaseException):
    """Ends a program at once."""


def loads(path):
    try:
        return checkpoint.load(path)
    except (CheckpointError, FileNotFoundError):
        return None


# Where a file can have one name only, a damaged one is moved over the one before.
@pytest.mark.parametrize(("links", "damaged"), [(True, False), (True, True), (False, False)])
def test_whenever_a_crash_comes_one_of_the_two_is_whole(path, monkeypatch, links, damaged):
    calls = [(os, "fsync"), (os, "link"), (type(path), "unlink"), (type(path), "replace")]
    for moment in itertools.count():
        for each in path.parent.iterdir():
            each.unlink()
        for step in (1, 2):
            checkpoint.save(path, {"step": step})
        if damaged:
            path.write_bytes(path.read_bytes()[:100])
        count = 0

        def crashing(function, call):
            def called(*arguments, **options):
                nonlocal count
                count += 1
                if count > moment:  # noqa: B023 - called within this turn
                    raise Crash
                if call == "link" and not links:
                    raise OSError("no links here")
                return function(*arguments, **options)

            return called

        with monkeypatch.context() as patch:
            for owner, call in calls:
                patch.setattr(owner, call, crashing(getattr(owner, call), call))
            try:
                checkpoint.save(path, {"step": 3})
                break
            except Crash:
                pass
        found = loads(path) or loads(checkpoint.previous(path))
        assert found is not None
        assert found["step"] in ((1, 3) if damaged else (2, 3))
        checkpoint.save(path, {"step": 4})
        assert checkpoint.load(path)["step"] == 4
    assert moment >= 4
    assert checkpoint.load(path)["step"] == 3
    if not damaged:
        assert checkpoint.load(checkpoint.previous(path))["step"] == 2


def test_without_links_a_crash_between_the_renames_leaves_the_one_before(path, monkeypatch):
    checkpoint.save(path, {"step": 1})
    replace = type(path).replace

    def crash_at_second(self, target):
        if self.name.endswith(".writing"):
            raise Crash
        return replace(self, target)

    def no_links(*_):
        raise OSError("no links here")

    with monkeypatch.context() as patch:
        patch.setattr(os, "link", no_links)
        patch.setattr(type(path), "replace", crash_at_second)
        with pytest.raises(Crash):
            checkpoint.save(path, {"step": 2})
    assert not path.exists()
    assert checkpoint.load(path)["step"] == 1


def test_a_crash_while_writing_leaves_the_old_checkpoint(path, monkeypatch):
    checkpoint.save(path, {"step": 1})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        checkpoint.save(path, {"step": 2})
    monkeypatch.undo()
    assert checkpoint.load(path)["step"] == 1


def test_the_file_is_synced_before_it_is_renamed_and_the_directory_after(path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, type(path).replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("sync"), fsync(fd)))
    monkeypatch.setattr(type(path), "replace", lambda self, to: (calls.append("rename"), replace(self, to))[1])
    checkpoint.save(path, {"step": 1})
    assert calls == ["sync", "rename", "sync"]


def test_a_missing_checkpoint_is_a_file_not_found_error(path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        checkpoint.load(path)


@pytest.mark.parametrize("version", [1, 2])
def test_checkpoints_of_older_formats_are_read(path, version):
    torch.save({"format": content.FORMAT, "version": version, "apmax": "0.1", "state": STATE}, path)
    loaded = checkpoint.load(path)
    assert torch.equal(loaded["model"]["w"], STATE["model"]["w"])
    assert loaded["betas"] == STATE["betas"]


@pytest.mark.parametrize(
    "parts",
    [
        {"state": {"w": f"{MARK}0 0 3"}, "vectors": [torch.ones(2)]},
        {"state": {"w": f"{MARK}1 0 1"}, "vectors": [torch.ones(2)]},
        {"state": {"w": f"{MARK}0 0 -1"}, "vectors": [torch.ones(2)]},
        {"state": {"w": f"{MARK}0 -1 1"}, "vectors": [torch.ones(2)]},
        {"state": {"w": f"{MARK}-1 0 1"}, "vectors": [torch.ones(2)]},
        {"state": {"w": f"{MARK}0 0 x"}, "vectors": [torch.ones(2)]},
        {"state": {"w": MARK}, "vectors": [torch.ones(2)]},
        {"state": {"w": f"{MARK}0 0 1"}, "vectors": [1]},
        {"state": {"w": 1}},
    ],
)
def test_a_file_whose_marks_do_not_fit_is_refused(path, parts):
    torch.save({"format": content.FORMAT, "version": 3, "apmax": "0", **parts}, path)
    with pytest.raises(CheckpointError, match=r"checkpoint\.pt was not written by apmax \(."):
        checkpoint.load(path)


def test_small_tensors_lie_together_in_the_file(path):
    checkpoint.save(path, {"model": {str(n): torch.full((n,), float(n)) for n in range(1, 100)}})
    with zipfile.ZipFile(path) as archive:
        assert len([name for name in archive.namelist() if "/data/" in name]) == 1
    loaded = checkpoint.load(path)["model"]
    assert all(torch.equal(loaded[str(n)], torch.full((n,), float(n))) for n in range(1, 100))


def test_the_content_does_not_change_with_the_state():
    weights, large = torch.zeros(2), torch.zeros(2**17)
    content = checkpoint.encoded({"weights": weights, "large": large})
    before = bytes(content)
    weights.add_(1)
    large.add_(1)
    assert bytes(content) == before


@pytest.mark.parametrize(
    "parts",
    [{}, {"version": 3}, {"version": "3", "state": {}}, {"version": 2, "state": 5}, {"version": None, "state": {}}],
)
def test_a_file_without_version_and_state_is_refused(path, parts):
    torch.save({"format": content.FORMAT, **parts}, path)
    with pytest.raises(CheckpointError, match="no version and state"):
        checkpoint.load(path)


@pytest.mark.parametrize("state", [[1, 2], None, torch.ones(2)])
def test_a_state_without_names_is_refused_and_changes_nothing(path, state):
    checkpoint.save(path, {"step": 1})
    with pytest.raises(CheckpointError, match="state must be a mapping"):
        checkpoint.save(path, state)
    assert checkpoint.load(path)["step"] == 1


def test_a_record_that_is_marked_as_a_directory_is_damage(path):
    # torch would skip it and return whatever stood in memory
    checkpoint.save(path, {"weights": torch.ones(4)})
    raw = bytearray(path.read_bytes())
    with zipfile.ZipFile(path) as archive:
        start, names = archive.start_dir, archive.namelist()
    for name in names:
        if name.endswith("data/0"):
            break
        start += 46 + sum(int.from_bytes(raw[start + at : start + at + 2], "little") for at in (28, 30, 32))
    raw[start + 38] |= 0x10
    path.write_bytes(raw)
    with pytest.raises(CheckpointError, match=r"damaged: .*data/0"):
        checkpoint.load(path)


def test_whichever_byte_is_damaged_no_other_state_is_read(path):
    state = {"weights": torch.arange(4.0), "name": "x"}
    checkpoint.save(path, state)
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        raw = bytearray(whole)
        raw[position] ^= 0x55
        path.write_bytes(raw)
        found = loads(path)
        assert found is None or (found["name"] == "x" and torch.equal(found["weights"], state["weights"]))


def test_what_cannot_be_opened_is_not_called_damaged(path):
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        checkpoint.load(path)
