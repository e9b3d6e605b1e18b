"""Training data: batches, labels, seeded randomness."""

import random

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import Dataset, Subset, TensorDataset

from apmax.train import Data, Optimizer, Stage, compute_metrics, epochs, predict
from apmax.train.data import ShuffledBatches, load_batches
from apmax.train.randomness import mix_seed
from small_training import TRAIN, VALID, network, run_of, same, train, weights


@pytest.mark.parametrize("workers", [0, pytest.param(2, marks=pytest.mark.slow)])
def test_random_numbers_of_an_example_depend_on_seed_epoch_and_row_alone(workers):
    def drawn(order, epoch, seed=3):
        loader = load_batches(Noise(), order, seed=seed, epoch=epoch, workers=workers)
        return {
            row: value for inputs, rows in loader for row, value in zip(rows.tolist(), inputs.tolist(), strict=True)
        }

    one, other = drawn([[0, 1, 2], [3]], epoch=1), drawn([[3, 2], [0], [1]], epoch=1)
    assert one == other
    assert len({tuple(value) for value in one.values()}) == 4
    assert all(drawn([[0, 1, 2, 3]], epoch=2)[row] != one[row] for row in range(4))
    assert all(drawn([[0, 1, 2, 3]], epoch=1, seed=4)[row] != one[row] for row in range(4))


class Noise(Dataset):
    def __getitem__(self, row):
        return torch.tensor([torch.rand(()).item(), np.random.rand(), random.random()])  # noqa: NPY002

    def __len__(self):
        return 4


def test_a_subset_of_a_random_dataset_is_seeded_by_row_too():
    values = [next(load_batches(Subset(Noise(), [2, 0, 1]), [rows], seed=0, epoch=0))[0] for rows in ([0, 1], [1, 0])]
    assert torch.equal(values[0], values[1].flip(0))


@pytest.mark.parametrize("workers", [0, pytest.param(1, marks=pytest.mark.slow)])
def test_a_subset_gives_the_inputs_and_rows_of_the_subset(workers):
    subset = Subset(Subset(TRAIN, range(10, 60)), [5, 7, 9])
    ((inputs, rows),) = load_batches(subset, [[2, 0]], seed=0, epoch=0, workers=workers)
    assert torch.equal(inputs, TRAIN.tensors[0][[19, 15]])
    assert rows.tolist() == [2, 0]


def test_set_epoch_of_a_dataset_is_called_with_each_epoch():
    class WithEpoch(Dataset):
        received = ()

        def set_epoch(self, epoch):
            self.received = (*self.received, epoch)

        def __getitem__(self, row):
            return TRAIN[row]

        def __len__(self):
            return len(TRAIN)

    data = WithEpoch()
    train(network(), run_of(), data=Data(data, None, labels=TRAIN.tensors[1]))
    assert data.received == (0, 1)


def test_global_generators_are_unchanged_for_the_caller():
    labels = TRAIN.tensors[1]
    model, data = network(dropout=0.5), Data(Items(), Items(), labels=labels, valid_labels=labels)
    states = torch.get_rng_state(), np.random.get_state()[1].copy(), random.getstate()  # noqa: NPY002
    for _ in epochs(model, data, run_of(Stage(epochs=2), Stage(epochs=1, reset=("head",)))):
        assert torch.equal(torch.get_rng_state(), states[0])
    assert torch.equal(torch.get_rng_state(), states[0])
    assert np.array_equal(np.random.get_state()[1], states[1])  # noqa: NPY002
    assert random.getstate() == states[2]


class Items(Dataset):
    def __getitem__(self, row):
        return TRAIN.tensors[0][row] + torch.rand(())

    def __len__(self):
        return len(TRAIN)


def test_the_same_seed_gives_the_same_weights_and_another_gives_others():
    results = []
    for seed in (1, 1, 2):
        model = network(dropout=0.5)
        train(model, run_of(seed=seed))
        results.append(weights(model))
    assert same(results[0], results[1])
    assert not same(results[0], results[2])


@given(st.integers(1, 50), st.integers(1, 20), st.integers(0, 3), st.integers(1, 3))
def test_shuffled_batches_cover_every_row_once_and_do_not_depend_on_the_processes(rows, size, epoch, world):
    alone = ShuffledBatches(rows, size, seed=1)
    alone.set_epoch(epoch)
    joined = list(alone)
    assert sorted(row for batch in joined for row in batch) == list(range(rows))
    assert max(map(len, joined)) - min(map(len, joined)) <= 1
    assert max(map(len, joined)) <= size
    assert len(joined) == len(alone)
    if min(map(len, joined)) >= world:
        for rank in range(world):
            share = ShuffledBatches(rows, size, seed=1, rank=rank, world_size=world)
            share.set_position(epoch, 1)
            assert list(share) == [batch[rank::world] for batch in joined[1:]]


def test_mixed_seeds_differ_if_any_part_differs():
    seeds = [mix_seed(a, b, c) for a in range(10) for b in range(10) for c in range(10)]
    assert len(set(seeds)) == 1000
    assert all(0 <= seed < 2**63 for seed in seeds)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (Data(TRAIN, VALID, labels=[0, 1]), "labels must have one row per example, got 2 for 200"),
        (Data(TRAIN, VALID, valid_labels=[0] * 120), "valid_labels must hold at least one positive"),
    ],
)
def test_mismatched_labels_are_refused_before_anything_is_written(data, message, tmp_path):
    with pytest.raises(ValueError, match=message):
        epochs(network(), data, run_of(), directory=tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_labels_given_to_data_replace_those_of_the_dataset():
    flipped = 1 - TRAIN.tensors[1]
    model = network()
    stage = Stage(epochs=6, optimizer=Optimizer(lr=0.02))
    train(model, run_of(stage), data=Data(TRAIN, TRAIN, labels=flipped, valid_labels=flipped))
    assert compute_metrics(predict(model, TRAIN), flipped).auroc > 0.8


def test_predict_does_not_change_the_mode_of_any_module():
    model = network(dropout=0.5).train()
    model[1].eval()
    predict(model, VALID)
    assert (model.training, model[1].training, model[3].training) == (True, False, True)


class Doubled(TensorDataset):
    def __getitem__(self, row):
        inputs, label = super().__getitem__(row)
        return 2 * inputs, label


class Shifted(Subset):
    def __getitem__(self, row):
        inputs, label = super().__getitem__(row)
        return inputs + 1, label

    def __getitems__(self, rows):
        return [self[row] for row in rows]


class Joined(TensorDataset):
    @staticmethod
    def collate(items):
        return torch.stack([inputs for inputs, _ in items]) + 5, torch.stack([label for _, label in items])


@pytest.mark.parametrize(
    ("dataset", "expected"),
    [
        (Doubled(*TRAIN.tensors), 2 * TRAIN.tensors[0]),
        (Subset(Doubled(*TRAIN.tensors), range(len(TRAIN))), 2 * TRAIN.tensors[0]),
        (Shifted(TRAIN, range(len(TRAIN))), TRAIN.tensors[0] + 1),
        (Joined(*TRAIN.tensors), TRAIN.tensors[0] + 5),
        (Subset(TRAIN, range(len(TRAIN))), TRAIN.tensors[0]),
    ],
)
def test_items_of_own_classes_are_read_as_they_are(dataset, expected):
    ((inputs, rows),) = load_batches(dataset, [list(range(len(TRAIN)))], seed=0, epoch=0, workers=0)
    assert torch.equal(inputs, expected[rows])
