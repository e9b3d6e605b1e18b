"""A state taken apart and put together again is the same state."""

from collections import OrderedDict

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from apmax.checkpoint import CheckpointError
from apmax.checkpoint.packing import MARK, MOST, packed, unpacked

DTYPES = [torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool]


@st.composite
def tensors(draw):
    shape = draw(st.lists(st.integers(0, 3), max_size=3))
    values = torch.arange(torch.Size(shape).numel()).reshape(shape).to(draw(st.sampled_from(DTYPES)))
    return values.transpose(0, -1) if shape and draw(st.booleans()) else values


atoms = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.binary(max_size=5)
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


def same(one, other):
    if isinstance(one, torch.Tensor):
        alike = isinstance(other, torch.Tensor) and (one.dtype, one.shape) == (other.dtype, other.shape)
        return alike and one.is_contiguous() == other.is_contiguous() and torch.equal(one, other)
    if type(one) is not type(other):
        return False
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, (list, tuple)):
        return len(one) == len(other) and all(map(same, one, other))
    return one == other or (one != one and other != other)


@given(states)
def test_what_is_taken_apart_is_put_together_again(state):
    assert same(unpacked(*packed(state)), state)


def test_a_vector_holds_all_small_tensors_of_its_type():
    state = {"a": torch.ones(3), "b": (torch.zeros(2, 2), torch.ones(1, dtype=torch.int64)), "c": torch.tensor(7.0)}
    outline, vectors = packed(state)
    assert [vector.tolist() for vector in vectors] == [[1, 1, 1, 0, 0, 0, 0, 7], [1]]
    assert outline["b"][0] == f"{MARK} 0 3 2 2"
    assert outline["c"] == f"{MARK} 0 7"


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


def test_what_other_tensors_are_is_kept():
    sparse = torch.eye(3).to_sparse()
    assert packed({"sparse": sparse})[0]["sparse"].layout == torch.sparse_coo


def test_weights_are_written_as_tensors_and_mappings_as_dicts():
    outline, vectors = packed({"model": OrderedDict(w=torch.nn.Parameter(torch.ones(2)))})
    assert type(outline["model"]) is dict
    assert not vectors[0].requires_grad


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ({"model": {"extra": [0, {1}]}}, r"state\.model\.extra\[1\] is a set"),
        ({"model": {(1, {2}.pop, 3): 1}}, r"state\.model's key .* is a builtin_function"),
        ({"tuple": (1, object())}, r"state\.tuple\[1\] is a object"),
        ({"deep": [MARK]}, r"state\.deep\[0\] begins with 'apmax\.packed'"),
        ({MARK: 1}, r"state's key 'apmax\.packed' begins"),
    ],
)
def test_what_cannot_be_read_back_is_named(state, message):
    with pytest.raises(CheckpointError, match=message):
        packed(state)
