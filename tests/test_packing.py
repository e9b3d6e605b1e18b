"""A state taken apart and put together again is the same state."""

import math
import tempfile
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest
import torch
from apmax.train.checkpoints.packing import MARK, MOST, packed, unpacked
from hypothesis import given
from hypothesis import strategies as st

from apmax.train import checkpoints as checkpoint
from apmax.train.checkpoints import CheckpointError

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]
DTYPES += [torch.complex64, torch.float8_e4m3fn]
FLOATS = [0.0, -0.0, 1.5, math.nan, math.inf]


@st.composite
def tensors(draw):
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
        atoms | tensors(),
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
        alike = isinstance(other, torch.Tensor) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and one.is_contiguous() == other.is_contiguous() and bits(one) == bits(other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@given(states)
def test_what_is_written_is_read_again_to_the_bit(state):
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "checkpoint.pt"
        checkpoint.save(path, state)
        assert same(checkpoint.load(path), state)


def test_a_vector_holds_all_small_tensors_of_its_type():
    state = {"a": torch.ones(3), "b": (torch.zeros(2, 2), torch.ones(1, dtype=torch.int64)), "c": torch.tensor(7.0)}
    outline, vectors = packed(state)
    assert [vector.tolist() for vector in vectors] == [[1, 1, 1, 0, 0, 0, 0, 7], [1]]
    assert outline["b"][0] == f"{MARK}0 3 2 2"
    assert outline["c"] == f"{MARK}0 7"


def test_a_large_tensor_is_neither_copied_nor_laid_with_others():
    large = torch.zeros(MOST + 1)
    outline, vectors = packed({"large": large, "small": torch.zeros(MOST)})
    assert outline["large"].data_ptr() == large.data_ptr()
    assert [len(vector) for vector in vectors] == [MOST]


@pytest.mark.parametrize("length", [2, MOST + 1])
def test_what_is_tied_stays_one_and_what_is_equal_does_not_become_one(length):
    weight = torch.ones(length)
    state = unpacked(*packed({"model": {"a": weight, "b": weight}, "other": torch.ones(length)}))
    assert state["model"]["a"] is state["model"]["b"]
    assert state["model"]["a"] is not state["other"]
    state["other"].zero_()
    assert state["model"]["a"].all()


def test_each_tensor_has_memory_of_its_own():
    state = unpacked(*packed({"a": torch.ones(3), "b": torch.ones(4)}))
    assert [state[name].untyped_storage().nbytes() for name in ("a", "b")] == [12, 16]


@pytest.mark.parametrize("shape", [(MOST + 1,), (3, 2)])
def test_a_part_of_a_larger_tensor_is_written_without_the_rest(shape):
    whole = torch.zeros(4 * MOST)
    part = whole.as_strided(shape, (2,) if len(shape) == 1 else (1, 3))
    outline, _ = packed({"part": part})
    assert outline["part"].untyped_storage().nbytes() <= 2 * part.numel() * part.element_size()
    assert torch.equal(outline["part"], part)


@pytest.mark.filterwarnings("ignore::UserWarning")  # torch's own, of quantised tensors
def test_tensors_that_are_more_than_their_numbers_stay_what_they_are(tmp_path):
    scales = {"fine": 0.1, "coarse": 1.0}
    quantised = {n: torch.quantize_per_tensor(torch.arange(3.0), s, 0, torch.qint8) for n, s in scales.items()}
    checkpoint.save(tmp_path / "checkpoint.pt", {"sparse": torch.eye(3).to_sparse(), **quantised})
    loaded = checkpoint.load(tmp_path / "checkpoint.pt")
    assert loaded["sparse"].layout == torch.sparse_coo
    assert torch.equal(loaded["sparse"].to_dense(), torch.eye(3))
    assert {name: loaded[name].q_scale() for name in scales} == scales
    assert loaded["coarse"].dequantize().tolist() == [0, 1, 2]


def test_tensors_that_are_made_when_asked_for_are_not_taken_for_one_another():
    class Lazy(Mapping):
        def __getitem__(self, key):
            return torch.full((2,), float(key))

        def __iter__(self):
            return iter("123456")

        def __len__(self):
            return 6

    with torch.inference_mode():
        state = unpacked(*packed({"lazy": Lazy()}))
    assert [value[0].item() for value in state["lazy"].values()] == [1, 2, 3, 4, 5, 6]


def test_weights_are_written_as_tensors_and_mappings_as_dicts():
    outline, vectors = packed({"model": OrderedDict(w=torch.nn.Parameter(torch.ones(2)))})
    assert type(outline["model"]) is dict
    assert not vectors[0].requires_grad


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"model": {"extra": [0, {1}]}}, r"state\.model\.extra\[1\] is a set"),
        ({"model": {(1, {2}.pop, 3): 1}}, r"state\.model's key .* is a builtin_function"),
        ({"flag": np.bool_(True)}, r"state\.flag is a numpy\.bool"),
        ({"bytes": b"x"}, r"state\.bytes is a bytes"),
        ({"tuple": (1, object())}, r"state\.tuple\[1\] is a object"),
        ({"deep": [MARK]}, r"state\.deep\[0\] begins with 'apmax\.packed '"),
        ({MARK: 1}, r"state's key 'apmax\.packed ' begins"),
    ],
)
def test_what_cannot_be_read_back_is_named(state, message):
    with pytest.raises(CheckpointError, match=message):
        packed(state)
