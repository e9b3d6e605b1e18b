"""Contracts of the batch samplers, and the defects of other samplers that these must not have."""

from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import ConcatDataset, DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from apmax.samplers import MultiTaskBatchSampler, PositiveBatchSampler, labels_of

NAN = float("nan")


def make_labels(positives, negatives, seed=0):
    return np.random.default_rng(seed).permutation([1] * positives + [0] * negatives)


def split(labels, batch):
    """The positives and the negatives of a batch."""
    return [row for row in batch if labels[row] == 1], [row for row in batch if labels[row] == 0]


def epoch_of(sampler, epoch):
    sampler.set_epoch(epoch)
    return list(sampler)


class OnlyItems(Dataset):
    """A data set that keeps its labels in its items alone."""

    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


@st.composite
def cases(draw):
    num_pos = draw(st.integers(1, 9))
    return {
        "positives": draw(st.integers(num_pos, 40)),
        "negatives": draw(st.integers(1, 60)),
        "batch_size": num_pos + draw(st.integers(1, 20)),
        "num_pos": num_pos,
        "seed": draw(st.integers(0, 5)),
        "epochs": draw(st.integers(1, 6)),
    }


def runs(case):
    """The labels, and the batches of each epoch of a run, as (positives, negatives)."""
    labels = make_labels(case["positives"], case["negatives"], case["seed"])
    sampler = PositiveBatchSampler(labels, case["batch_size"], num_pos=case["num_pos"], seed=case["seed"])
    return labels, [[split(labels, batch) for batch in sampler] for _ in range(case["epochs"])]


def spread(labels, batches):
    """By how much the most and the least frequent positive differ."""
    counts = Counter(row for positives, _ in batches for row in positives)
    frequencies = [counts[row] for row in np.flatnonzero(labels)]
    return max(frequencies) - min(frequencies)


each_case = settings(max_examples=100, deadline=None)


@each_case
@given(case=cases())
def test_an_epoch_is_one_pass_over_the_negatives(case):
    labels, epochs = runs(case)
    for batches in epochs:
        rows = sorted(row for _, negatives in batches for row in negatives)
        assert rows == np.flatnonzero(labels == 0).tolist()


@each_case
@given(case=cases())
def test_all_batches_but_the_last_are_full_and_all_have_their_positives(case):
    _, epochs = runs(case)
    for batches in epochs:
        assert all(len(positives) == case["num_pos"] for positives, _ in batches)
        assert all(len(negatives) == case["batch_size"] - case["num_pos"] for _, negatives in batches[:-1])


@each_case
@given(case=cases())
def test_no_row_comes_twice_in_a_batch(case):
    _, epochs = runs(case)
    for batches in epochs:
        assert all(len(set(positives)) == len(positives) for positives, _ in batches)


@each_case
@given(case=cases())
def test_positives_come_equally_often_in_every_epoch(case):
    labels, epochs = runs(case)
    assert all(spread(labels, batches) <= 1 for batches in epochs)


@each_case
@given(case=cases())
def test_positives_come_equally_often_over_the_run(case):
    labels, epochs = runs(case)
    assert spread(labels, [batch for batches in epochs for batch in batches]) <= 1


@pytest.mark.parametrize(("positives", "num_pos"), [(3000, 7), (41, 21), (7, 4), (6, 5), (5, 5), (1, 1)])
def test_positives_are_even_and_never_twice_in_a_batch_over_many_cycles(positives, num_pos):
    labels = make_labels(positives, 4000)
    sampler = PositiveBatchSampler(labels, num_pos + 1, num_pos=num_pos, seed=3)
    counts = Counter()
    for batch in sampler:
        found, _ = split(labels, batch)
        assert len(set(found)) == num_pos
        counts.update(found)
    assert len(counts) == positives
    assert max(counts.values()) - min(counts.values()) <= 1


def test_the_last_batch_holds_the_remaining_negatives():
    sampler = PositiveBatchSampler(make_labels(5, 25), batch_size=12, num_pos=2)
    assert [len(batch) for batch in sampler] == [12, 12, 7]


def test_len_is_right_before_iterating():
    assert len(PositiveBatchSampler(make_labels(5, 25), batch_size=12, num_pos=2)) == 3
    assert len(PositiveBatchSampler(make_labels(5, 20), batch_size=12, num_pos=2)) == 2


def test_batches_are_lists_of_python_ints():
    batch = next(iter(PositiveBatchSampler(make_labels(5, 25), 8, num_pos=2)))
    assert isinstance(batch, list)
    assert all(type(row) is int for row in batch)


def test_positives_come_first_in_a_batch():
    labels = make_labels(9, 50)
    for batch in PositiveBatchSampler(labels, 10, num_pos=3):
        assert labels[batch].tolist() == [1] * 3 + [0] * (len(batch) - 3)


def test_small_data_gives_a_batch_and_not_silently_none():
    assert [len(batch) for batch in PositiveBatchSampler([1, 0, 0], batch_size=64, num_pos=1)] == [3]


def test_two_labels_give_rows_zero_and_one():
    assert list(PositiveBatchSampler([0, 1], batch_size=2, num_pos=1)) == [[1, 0]]


def test_iterating_goes_on_to_the_next_epoch():
    labels = make_labels(20, 100)
    sampler = PositiveBatchSampler(labels, 16)
    first, second = list(sampler), list(sampler)
    assert first != second
    assert epoch_of(sampler, 0) == first
    assert list(sampler) == second


def test_breaking_off_early_does_not_repeat_the_epoch():
    sampler = PositiveBatchSampler(make_labels(20, 100), 16)
    assert next(iter(sampler)) != next(iter(sampler))


def test_an_iterator_that_is_never_used_does_not_cost_an_epoch():
    sampler = PositiveBatchSampler(make_labels(20, 100), 16)
    iter(sampler)
    assert list(sampler) == epoch_of(sampler, 0)


def test_seed_decides_the_batches():
    labels = make_labels(20, 100)
    assert list(PositiveBatchSampler(labels, 16, seed=1)) == list(PositiveBatchSampler(labels, 16, seed=1))
    assert list(PositiveBatchSampler(labels, 16, seed=1)) != list(PositiveBatchSampler(labels, 16, seed=2))


def test_consecutive_batches_of_positives_are_not_repeated_patterns():
    labels = make_labels(12, 3000)
    sampler = PositiveBatchSampler(labels, 10, num_pos=4, seed=0)
    groups = {frozenset(split(labels, batch)[0]) for batch in sampler}
    assert len(groups) > 250, "12 positives make 495 groups of 4, and 500 batches should reach most of them"


@pytest.mark.parametrize(("positives", "num_pos"), [(40, 4), (9, 8), (5, 5), (2500, 3)])
def test_a_position_restarts_at_its_batch(positives, num_pos):
    labels = make_labels(positives, 3000)
    sampler = PositiveBatchSampler(labels, num_pos + 3, num_pos=num_pos, seed=7)
    for epoch in (0, 3):
        batches = epoch_of(sampler, epoch)
        for batch in (0, 1, 500, len(sampler) - 1, len(sampler)):
            fresh = PositiveBatchSampler(labels, num_pos + 3, num_pos=num_pos, seed=7)
            fresh.set_position(epoch, batch)
            assert list(fresh) == batches[batch:]


def test_the_epoch_after_a_restarted_one_is_whole():
    sampler = PositiveBatchSampler(make_labels(20, 100), 16)
    expected = epoch_of(sampler, 3)
    sampler.set_position(2, 5)
    list(sampler)
    assert list(sampler) == expected


def test_a_late_position_costs_no_replay(monkeypatch):
    labels = make_labels(4000, 40_000)
    sampler = PositiveBatchSampler(labels, 8, num_pos=4)
    drawn = []
    original = np.random.default_rng
    monkeypatch.setattr(np.random, "default_rng", lambda key: drawn.append(key) or original(key))
    sampler.set_position(1_000_000, len(sampler) - 1)
    assert len(list(sampler)) == 1
    assert len(drawn) <= 6


@pytest.mark.parametrize("world_size", [2, 3, 4])
def test_ranks_take_turns_in_the_joined_batch(world_size):
    labels = make_labels(30, 203)
    joined = list(PositiveBatchSampler(labels, 17, num_pos=5, seed=4))
    shares = [
        list(PositiveBatchSampler(labels, 17, num_pos=5, seed=4, rank=rank, world_size=world_size))
        for rank in range(world_size)
    ]
    for rank, share in enumerate(shares):
        assert share == [batch[rank::world_size] for batch in joined]


def test_positives_are_spread_evenly_over_ranks():
    labels = make_labels(30, 203)
    for rank, expected in enumerate([3, 3, 2]):
        for batch in PositiveBatchSampler(labels, 20, num_pos=8, rank=rank, world_size=3):
            assert len(split(labels, batch)[0]) == expected


def test_a_rank_meets_all_positives_where_nearly_all_are_in_every_batch():
    labels = make_labels(6, 400)
    share = PositiveBatchSampler(labels, 10, num_pos=6, rank=0, world_size=3)
    assert {row for batch in share for row in split(labels, batch)[0]} == set(np.flatnonzero(labels))


def test_the_last_batch_too_small_for_all_ranks_is_an_error():
    with pytest.raises(ValueError, match=r"last batch has 2 row.*world_size=3.*batch_size"):
        PositiveBatchSampler(make_labels(5, 21), batch_size=11, num_pos=1, world_size=3)


def test_global_generators_are_neither_read_nor_written():
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    before = np.random.get_state()[1].copy(), torch.get_rng_state()  # noqa: NPY002
    first = list(PositiveBatchSampler(make_labels(9, 50), 8))
    np.random.seed(1)  # noqa: NPY002
    torch.manual_seed(1)
    assert list(PositiveBatchSampler(make_labels(9, 50), 8)) == first
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    list(PositiveBatchSampler(make_labels(9, 50), 8))
    assert (np.random.get_state()[1] == before[0]).all()  # noqa: NPY002
    assert torch.equal(torch.get_rng_state(), before[1])


def test_labels_are_not_mutated_and_not_kept():
    labels = make_labels(9, 50)
    copy = labels.copy()
    sampler = PositiveBatchSampler(labels, 8)
    first = list(sampler)
    assert (labels == copy).all()
    labels[:] = 1 - labels
    assert epoch_of(sampler, 0) == first


LABELS = [0, 1, 0, 0, 1, 0, 0, 1, 0, 0]
ITEMS = [(torch.zeros(2), label) for label in LABELS]


class WithAttribute(OnlyItems):
    def __init__(self, name, value):
        super().__init__(ITEMS)
        setattr(self, name, value)

    def __getitem__(self, row):
        raise AssertionError("no item needs to be read")


class Graph:
    def __init__(self, y):
        self.y = torch.tensor([float(y)])


@pytest.mark.parametrize(
    "source",
    [
        LABELS,
        tuple(LABELS),
        np.array(LABELS),
        np.array(LABELS, dtype=bool),
        torch.tensor(LABELS),
        torch.tensor(LABELS, dtype=torch.float64)[:, None],
        TensorDataset(torch.zeros(10, 2), torch.tensor(LABELS)),
        ConcatDataset([TensorDataset(torch.zeros(5, 2), torch.tensor(half)) for half in (LABELS[:5], LABELS[5:])]),
        WithAttribute("labels", LABELS),
        WithAttribute("targets", np.array(LABELS)),
        WithAttribute("y", torch.tensor(LABELS)),
        OnlyItems(ITEMS),
        OnlyItems([{"x": 0, "label": label} for label in LABELS]),
        OnlyItems([Graph(label) for label in LABELS]),
        [Graph(label) for label in LABELS],
        [(torch.zeros(2), label) for label in LABELS],
        [("CCO", torch.tensor(label)) for label in LABELS],
    ],
    ids=lambda source: type(source).__name__,
)
def test_labels_come_from_anything_that_has_them(source):
    assert list(PositiveBatchSampler(source, 4, num_pos=1)) == list(PositiveBatchSampler(LABELS, 4, num_pos=1))


@pytest.mark.parametrize("number", [int, np.float32, torch.tensor])
def test_a_list_of_tuples_of_numbers_is_a_table_of_labels(number):
    assert labels_of([(number(0), number(1)), (number(1), number(0))]).tolist() == [[0, 1], [1, 0]]


def test_a_label_of_none_does_not_make_a_table_of_labels_a_data_set():
    with pytest.raises(ValueError, match="labels must be an array, tensor or list of 0 and 1"):
        labels_of([(None, 1), (1, 0)])


def test_items_are_read_where_one_of_joined_data_sets_knows_no_labels():
    known = TensorDataset(torch.zeros(5, 2), torch.tensor(LABELS[:5]))
    assert labels_of(ConcatDataset([known, OnlyItems(ITEMS[5:])])).tolist() == list(LABELS)


@pytest.mark.parametrize("whole", [TensorDataset(torch.zeros(10), torch.tensor(LABELS)), OnlyItems(ITEMS)])
def test_rows_count_within_a_nested_subset(whole):
    subset = Subset(Subset(whole, [9, 7, 5, 4, 3, 1]), torch.tensor([1, 2, 3, 0]))
    assert labels_of(subset).tolist() == [1, 0, 1, 0]
    for positive, negative in PositiveBatchSampler(subset, 2, num_pos=1):
        assert (subset[positive][1], subset[negative][1]) == (1, 0)


@pytest.mark.slow
def test_a_loader_yields_the_sampled_batches():
    data = TensorDataset(torch.arange(10), torch.tensor(LABELS))
    sampler = PositiveBatchSampler(data, 4, num_pos=1)
    loader = DataLoader(data, batch_sampler=sampler, num_workers=2, persistent_workers=True)
    for epoch in range(2):
        rows = [x.tolist() for x, _ in loader]
        assert rows == list(epoch_of(PositiveBatchSampler(data, 4, num_pos=1), epoch))


class Stream(IterableDataset):
    def __iter__(self):
        return iter(ITEMS)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"labels": [0, 1, 1, 0], "num_pos": 3}, r"2 positive.*num_pos=3"),
        ({"labels": [0, 0, 0]}, r"0 positive"),
        ({"labels": [1, 1, 1, 1]}, r"no negatives among 4 rows"),
        ({"labels": LABELS, "batch_size": 2, "num_pos": 2}, r"batch_size must be larger than num_pos.*2 and 2"),
        ({"labels": [0.0, 1.0, NAN]}, r"labels must be 0 or 1, got nan"),
        ({"labels": [0, 1, 2]}, r"labels must be 0 or 1, got 2"),
        ({"labels": [[0, 1], [1, 0]]}, r"shape \(n,\).*MultiTaskBatchSampler"),
        ({"labels": LABELS, "num_pos": 0}, r"num_pos must be at least 1"),
        ({"labels": LABELS, "num_pos": 1, "seed": -1}, r"seed must be at least 0"),
        ({"labels": LABELS, "num_pos": 1, "rank": 2, "world_size": 2}, r"rank must lie in 0 to 1"),
        ({"labels": WithAttribute("labels", LABELS[:-1])}, r"10 rows but 9 labels"),
        ({"labels": OnlyItems([torch.zeros(2)])}, r"item 0 .* not a number"),
        ({"labels": Stream()}, r"map-style data set, got Stream"),
    ],
)
def test_a_user_error_names_the_value(arguments, message):
    with pytest.raises(ValueError, match=message):
        PositiveBatchSampler(**arguments)


def test_a_misspelt_argument_is_an_error():
    with pytest.raises(TypeError):
        PositiveBatchSampler(LABELS, num_positives=1)


def test_a_position_outside_the_epoch_is_an_error_and_changes_nothing():
    sampler = PositiveBatchSampler(LABELS, 4, num_pos=1)
    sampler.set_position(1, 2)
    with pytest.raises(ValueError, match=r"batch must lie in 0 to 3"):
        sampler.set_position(5, 4)
    assert list(sampler) == epoch_of(sampler, 1)[2:]


@pytest.mark.parametrize("sampler", [PositiveBatchSampler, MultiTaskBatchSampler])
def test_all_but_labels_and_batch_size_are_keywords(sampler):
    with pytest.raises(TypeError, match="positional"):
        sampler([0, 1, 0], 2, 1)
