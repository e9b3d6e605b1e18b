"""Checkpoints: format, refusal of damaged and foreign files, atomic writing."""

import itertools
import math
import os
import pickle
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from apmax.train import CheckpointError, checkpoints, load_checkpoint, previous_checkpoint, save_checkpoint
from apmax.train.checkpoints import encode_checkpoint

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


def test_a_saved_state_is_loaded(path):
    save_checkpoint(path, STATE)
    loaded = load_checkpoint(path)
    assert torch.equal(loaded["model"]["w"], STATE["model"]["w"])
    assert {k: v for k, v in loaded.items() if k != "model"} == {k: v for k, v in STATE.items() if k != "model"}


def test_plain_torch_load_reads_it_with_weights_only(path):
    save_checkpoint(path, STATE)
    assert torch.load(path, weights_only=True)["state"]["steps"] == [1, 2]


def test_the_previous_checkpoint_is_kept(path):
    save_checkpoint(path, {"step": 1})
    save_checkpoint(path, {"step": 2})
    save_checkpoint(path, {"step": 3})
    assert load_checkpoint(path)["step"] == 3
    assert load_checkpoint(previous_checkpoint(path))["step"] == 2


def test_no_temporary_file_is_left(path):
    save_checkpoint(path, {"step": 1})
    save_checkpoint(path, {"step": 2})
    assert sorted(p.name for p in path.parent.iterdir()) == ["checkpoint.previous.pt", "checkpoint.pt"]


@pytest.mark.parametrize("part", [0.0, 0.1, 0.5, 0.99])
def test_a_truncated_checkpoint_is_refused_and_the_error_names_the_previous_one(path, part):
    save_checkpoint(path, STATE)
    save_checkpoint(path, STATE)
    content = path.read_bytes()
    path.write_bytes(content[: int(part * len(content))])
    with pytest.raises(CheckpointError, match=r"truncated.*checkpoint\.previous\.pt"):
        load_checkpoint(path)


def test_any_changed_byte_of_the_weights_is_detected(path):
    save_checkpoint(path, STATE)
    content = path.read_bytes()
    weights = content.index(STATE["model"]["w"].numpy().tobytes())
    for offset in range(24):
        damaged = bytearray(content)
        damaged[weights + offset] ^= 1
        path.write_bytes(damaged)
        with pytest.raises(CheckpointError, match="damaged"):
            load_checkpoint(path)


def test_a_foreign_torch_file_is_refused(path):
    torch.save({"model": torch.zeros(2)}, path)
    with pytest.raises(CheckpointError, match="not written by apmax"):
        load_checkpoint(path)


def test_a_text_file_is_refused(path):
    path.write_text("hello")
    with pytest.raises(CheckpointError, match="truncated or not a checkpoint"):
        load_checkpoint(path)


def test_a_newer_format_is_refused_with_advice_to_upgrade(path, monkeypatch):
    monkeypatch.setattr(checkpoints, "CHECKPOINT_VERSION", checkpoints.CHECKPOINT_VERSION + 1)
    save_checkpoint(path, STATE)
    monkeypatch.undo()
    with pytest.raises(CheckpointError, match="upgrade apmax"):
        load_checkpoint(path)


class Harmful:
    def __reduce__(self):
        return os.mkdir, ("harm-was-done",)


def test_reading_never_executes_code(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    torch.save({"format": checkpoints.CHECKPOINT_FORMAT, "version": 1, "apmax": "0", "state": Harmful()}, path)
    with zipfile.ZipFile(path) as archive:
        assert b"harm-was-done" in archive.read(next(n for n in archive.namelist() if n.endswith("data.pkl")))
    with pytest.raises(CheckpointError, match="not written by apmax"):
        load_checkpoint(path)
    assert not (tmp_path / "harm-was-done").exists()


def test_a_bare_pickle_is_refused(path):
    path.write_bytes(pickle.dumps({"format": checkpoints.CHECKPOINT_FORMAT}))
    with pytest.raises(CheckpointError):
        load_checkpoint(path)


def test_a_state_that_is_not_plain_is_refused_and_the_old_checkpoint_kept(path):
    save_checkpoint(path, {"step": 1})
    with pytest.raises(CheckpointError, match=r"state\.model\.extra is a set"):
        save_checkpoint(path, {"model": {"extra": {1}}})
    assert load_checkpoint(path)["step"] == 1


class Crash(BaseException):
    """Simulates a crash of the program."""


def try_to_load(path):
    try:
        return load_checkpoint(path)
    except (CheckpointError, FileNotFoundError):
        return None


# Without hard links a damaged checkpoint replaces the previous one before the new one is in place.
@pytest.mark.parametrize(("links", "damaged"), [(True, False), (True, True), (False, False)])
def test_after_a_crash_at_any_moment_one_of_the_two_is_intact(path, monkeypatch, links, damaged):
    calls = [(os, "fsync"), (os, "link"), (type(path), "unlink"), (type(path), "replace")]
    for moment in itertools.count():
        for each in path.parent.iterdir():
            each.unlink()
        for step in (1, 2):
            save_checkpoint(path, {"step": step})
        if damaged:
            path.write_bytes(path.read_bytes()[:100])
        count = 0

        def crashing(function, call):
            def called(*arguments, **options):
                nonlocal count
                count += 1
                if count > moment:  # noqa: B023 - called within this iteration
                    raise Crash
                if call == "link" and not links:
                    raise OSError("no links here")
                return function(*arguments, **options)

            return called

        with monkeypatch.context() as patch:
            for owner, call in calls:
                patch.setattr(owner, call, crashing(getattr(owner, call), call))
            try:
                save_checkpoint(path, {"step": 3})
                break
            except Crash:
                pass
        found = try_to_load(path) or try_to_load(previous_checkpoint(path))
        assert found is not None
        assert found["step"] in ((1, 3) if damaged else (2, 3))
        save_checkpoint(path, {"step": 4})
        assert load_checkpoint(path)["step"] == 4
    assert moment >= 4
    assert load_checkpoint(path)["step"] == 3
    if not damaged:
        assert load_checkpoint(previous_checkpoint(path))["step"] == 2


def test_without_hard_links_a_crash_between_the_renames_leaves_the_previous_one(path, monkeypatch):
    save_checkpoint(path, {"step": 1})
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
            save_checkpoint(path, {"step": 2})
    assert not path.exists()
    assert load_checkpoint(path)["step"] == 1


def test_a_crash_while_writing_leaves_the_old_checkpoint(path, monkeypatch):
    save_checkpoint(path, {"step": 1})
    monkeypatch.setattr(os, "fsync", lambda _: (_ for _ in ()).throw(OSError("no space left")))
    with pytest.raises(OSError, match="no space"):
        save_checkpoint(path, {"step": 2})
    monkeypatch.undo()
    assert load_checkpoint(path)["step"] == 1


def test_the_file_is_synced_before_it_is_renamed_and_the_directory_after(path, monkeypatch):
    calls = []
    fsync, replace = os.fsync, type(path).replace
    monkeypatch.setattr(os, "fsync", lambda fd: (calls.append("sync"), fsync(fd)))
    monkeypatch.setattr(type(path), "replace", lambda self, to: (calls.append("rename"), replace(self, to))[1])
    save_checkpoint(path, {"step": 1})
    assert calls == ["sync", "rename", "sync"]


def test_a_missing_checkpoint_is_a_file_not_found_error(path):
    with pytest.raises(FileNotFoundError, match="no checkpoint"):
        load_checkpoint(path)


def test_encoded_bytes_do_not_change_with_the_state():
    weights, large = torch.zeros(2), torch.zeros(2**17)
    content = encode_checkpoint({"weights": weights, "large": large})
    before = bytes(content)
    weights.add_(1)
    large.add_(1)
    assert bytes(content) == before


@pytest.mark.parametrize(
    "parts",
    [{}, {"version": 1}, {"version": "1", "state": {}}, {"version": 1, "state": 5}, {"version": None, "state": {}}],
)
def test_a_file_without_version_or_state_is_refused(path, parts):
    torch.save({"format": checkpoints.CHECKPOINT_FORMAT, **parts}, path)
    with pytest.raises(CheckpointError, match=r"was not written by apmax: .* but no (version|state)"):
        load_checkpoint(path)


@pytest.mark.parametrize("state", [[1, 2], None, torch.ones(2)])
def test_a_state_that_is_no_mapping_is_refused_and_the_old_checkpoint_kept(path, state):
    save_checkpoint(path, {"step": 1})
    with pytest.raises(CheckpointError, match="state must be a mapping"):
        save_checkpoint(path, state)
    assert load_checkpoint(path)["step"] == 1


def test_a_record_marked_as_a_directory_counts_as_damage(path):
    # torch would skip it and return uninitialised memory
    save_checkpoint(path, {"weights": torch.ones(4)})
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
        load_checkpoint(path)


def test_a_damaged_byte_anywhere_never_gives_another_state(path):
    state = {"weights": torch.arange(4.0), "name": "x"}
    save_checkpoint(path, state)
    whole = path.read_bytes()
    for position in range(0, len(whole), 7):
        raw = bytearray(whole)
        raw[position] ^= 0x55
        path.write_bytes(raw)
        found = try_to_load(path)
        assert found is None or (found["name"] == "x" and torch.equal(found["weights"], state["weights"]))


def test_a_path_that_cannot_be_opened_is_not_called_damaged(path):
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        load_checkpoint(path)


DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.float8_e4m3fn]
FLOATS = [0.0, -0.0, 1.5, math.nan, math.inf]


@st.composite
def random_tensors(draw):
    shape, dtype = draw(st.lists(st.integers(0, 3), max_size=3)), draw(st.sampled_from(DTYPES))
    count = torch.Size(shape).numel()
    number = st.sampled_from(FLOATS) if dtype.is_floating_point else st.integers(-9, 9)
    numbers = draw(st.lists(number, min_size=count, max_size=count))
    values = torch.tensor(numbers).to(dtype).reshape(shape)
    return values.transpose(0, -1) if shape and draw(st.booleans()) else values


atoms = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
states = st.dictionaries(
    st.text(max_size=3),
    st.recursive(
        atoms | random_tensors(),
        lambda parts: (
            st.lists(parts, max_size=3)
            | st.lists(parts, max_size=3).map(tuple)
            | st.dictionaries(st.text(max_size=3) | st.integers(), parts, max_size=3)
        ),
        max_leaves=12,
    ),
    max_size=4,
)


def bits(values):
    return values.contiguous().view(-1).view(torch.uint8).tolist() if values.numel() else []


def same(one, other):
    if isinstance(one, torch.Tensor):
        same_kind = isinstance(other, torch.Tensor) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return same_kind and one.is_contiguous() == other.is_contiguous() and bits(one) == bits(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@settings(max_examples=40)
@given(states)
def test_a_loaded_state_is_bit_for_bit_the_saved_one(state):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkpoint.pt"
        path.write_bytes(encode_checkpoint(state))
        assert same(load_checkpoint(path), state)


def saved_and_loaded(path, state):
    save_checkpoint(path, state)
    return load_checkpoint(path)


def test_tied_tensors_stay_tied_and_equal_ones_separate(path):
    weight = torch.ones(2)
    state = saved_and_loaded(path, {"model": {"a": weight, "b": weight}, "other": torch.ones(2)})
    assert state["model"]["a"] is state["model"]["b"]
    state["other"].zero_()
    assert state["model"]["a"].all()


def test_loaded_tensors_have_their_own_memory(path):
    state = saved_and_loaded(path, {"a": torch.ones(3), "b": torch.ones(4)})
    assert [state[name].untyped_storage().nbytes() for name in ("a", "b")] == [12, 16]


@pytest.mark.parametrize(("shape", "stride"), [((1000,), (1,)), ((1000,), (2,)), ((3, 2), (1, 3))])
def test_a_view_of_a_large_tensor_is_saved_without_the_rest(path, shape, stride):
    part = torch.arange(100_000.0).as_strided(shape, stride)
    assert torch.equal(saved_and_loaded(path, {"part": part})["part"], part)
    assert path.stat().st_size < 20_000


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, of quantised tensors
def test_sparse_and_quantised_tensors_keep_their_layout(path):
    scales = {"fine": 0.1, "coarse": 1.0}
    quantised = {n: torch.quantize_per_tensor(torch.arange(3.0), s, 0, torch.qint8) for n, s in scales.items()}
    loaded = saved_and_loaded(path, {"sparse": torch.eye(3).to_sparse(), **quantised})
    assert loaded["sparse"].layout == torch.sparse_coo
    assert torch.equal(loaded["sparse"].to_dense(), torch.eye(3))
    assert {name: loaded[name].q_scale() for name in scales} == scales
    assert loaded["coarse"].dequantize().tolist() == [0, 1, 2]


def test_tensors_created_during_saving_are_not_mistaken_for_each_other(path):
    class Lazy(Mapping):
        def __getitem__(self, key):
            return torch.full((2,), float(key))

        def __iter__(self):
            return iter("123456")

        def __len__(self):
            return 6

    state = saved_and_loaded(path, {"lazy": Lazy()})
    assert [value[0].item() for value in state["lazy"].values()] == [1, 2, 3, 4, 5, 6]


def test_parameters_are_loaded_as_tensors_and_mappings_as_dicts(path):
    model = saved_and_loaded(path, {"model": OrderedDict(w=torch.nn.Parameter(torch.ones(2)))})["model"]
    assert type(model) is dict
    assert type(model["w"]) is torch.Tensor
    assert not model["w"].requires_grad


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"model": {"extra": [0, {1}]}}, r"state\.model\.extra\[1\] is a set"),
        ({"model": {(1, {2}.pop, 3): 1}}, r"state\.model's key .* is a builtin_function"),
        ({"flag": np.bool_(True)}, r"state\.flag is a numpy\.bool"),
        ({"bytes": b"x"}, r"state\.bytes is a bytes"),
        ({"tuple": (1, object())}, r"state\.tuple\[1\] is a object"),
    ],
)
def test_the_error_names_the_place_of_a_value_that_is_not_plain(state, message):
    with pytest.raises(CheckpointError, match=message):
        encode_checkpoint(state)
