"""Indexed: what each kind of item becomes, and that rows survive loaders, workers and other libraries' collate."""

import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset, IterableDataset, Subset, TensorDataset

from apmax.data import Indexed
from apmax.samplers import PositiveBatchSampler, labels_of

LABELS = torch.tensor([0, 1, 0, 0, 1, 0])
DATA = TensorDataset(torch.arange(6) * 10.0, LABELS)


class Items(Dataset):
    def __init__(self, items):
        self.items = items

    def __len__(self):
        return len(self.items)

    def __getitem__(self, row):
        return self.items[row]


class ByBatch(Items):
    """Reads whole batches, and refuses to be read item by item."""

    def __getitem__(self, row):
        raise AssertionError("the batch is to be read at once")

    def __getitems__(self, rows):
        return [self.items[row] for row in rows]


class Stream(IterableDataset):
    def __iter__(self):
        return iter([1, 2])


def test_a_tuple_gets_its_row_at_the_end():
    x, y, row = Indexed(DATA)[4]
    assert (x.item(), y.item(), row) == (40.0, 1, 4)


def test_a_dict_is_copied_and_gets_the_key_index():
    item = {"x": 1.0, "y": 0}
    assert Indexed(Items([item]))[0] == {"x": 1.0, "y": 0, "index": 0}
    assert "index" not in item


def test_any_other_item_becomes_a_pair():
    pixels = np.zeros((2, 2))
    item, row = Indexed(Items([None, pixels]))[1]
    assert item is pixels
    assert row == 1


@pytest.mark.parametrize("make", [torch.tensor, np.array, list])
def test_tensors_arrays_and_lists_are_single_items(make):
    item, row = Indexed(Items([make([3.0, 4.0])]))[0]
    assert list(item) == [3.0, 4.0]
    assert row == 0


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_delivers_rows_as_a_tensor(workers):
    loader = DataLoader(Indexed(DATA), batch_sampler=[[5, 0], [3, 1, 2]], num_workers=workers)
    for (x, y, index), expected in zip(loader, ([5, 0], [3, 1, 2]), strict=True):
        assert index.dtype == torch.int64
        assert index.tolist() == expected
        assert torch.equal(x, index * 10.0)
        assert torch.equal(y, LABELS[index])


@pytest.mark.skipif(not torch.cuda.is_available(), reason="pinning needs CUDA")
def test_rows_are_pinned_with_the_rest():
    _, _, index = next(iter(DataLoader(Indexed(DATA), batch_size=2, pin_memory=True)))
    assert index.is_pinned()


def test_a_dict_batch_carries_its_rows():
    items = [{"x": float(row), "y": row % 2} for row in range(4)]
    batch = next(iter(DataLoader(Indexed(Items(items)), batch_sampler=[[3, 1]])))
    assert batch["index"].tolist() == batch["x"].tolist() == [3, 1]


def test_a_data_set_that_reads_batches_at_once_is_read_at_once():
    data = Indexed(ByBatch([(10.0 * row, row % 2) for row in range(4)]))
    x, _, index = next(iter(DataLoader(data, batch_sampler=[[3, 1]])))
    assert x.tolist() == [30.0, 10.0]
    assert index.tolist() == [3, 1]


def test_rows_count_within_a_wrapped_subset():
    data = Indexed(Subset(DATA, [4, 2]))
    assert [(x.item(), row) for x, _, row in (data[0], data[1])] == [(40.0, 0), (20.0, 1)]
    assert data.labels.tolist() == [1, 0]


def test_rows_count_within_all_data_in_a_subset_of_indexed():
    subset = Subset(Indexed(DATA), [4, 2])
    loader = DataLoader(subset, batch_size=2)
    x, _, index = next(iter(loader))
    assert x.tolist() == [40.0, 20.0]
    assert index.tolist() == [4, 2]
    assert labels_of(subset).tolist() == [1, 0]


def test_a_row_from_the_end_is_named_by_its_row():
    assert Indexed(DATA)[-1][2] == 5
    assert Indexed(DATA)[np.int64(-6)][2] == 0


@pytest.mark.parametrize("row", [6, -7])
def test_a_row_out_of_range_is_an_index_error(row):
    with pytest.raises(IndexError, match="of 6 rows"):
        Indexed(DATA)[row]


@pytest.mark.parametrize("batch_size", [None, 8])
def test_a_batch_sampler_in_the_place_of_a_sampler_is_called_that(batch_size):
    data = TensorDataset(torch.arange(20.0), (torch.arange(20) % 5 == 0).float())
    sampler = PositiveBatchSampler(data, batch_size=8, num_pos=2)
    loader = DataLoader(Indexed(data), sampler=sampler, batch_size=batch_size)
    with pytest.raises(TypeError, match=r"a row must be a whole number, got list: .* is the batch_sampler of a Data"):
        next(iter(loader))


def test_length_is_that_of_the_data_set():
    assert len(Indexed(DATA)) == 6


def test_labels_are_those_of_the_data_set():
    assert torch.equal(Indexed(DATA).labels, LABELS.float())


def test_a_sampler_takes_an_indexed_data_set_with_or_without_known_labels():
    expected = list(PositiveBatchSampler(LABELS, 3, num_pos=1))
    assert list(PositiveBatchSampler(Indexed(DATA), 3, num_pos=1)) == expected
    unknown = Indexed(Items([(0.0, int(label)) for label in LABELS]))
    assert not hasattr(unknown, "labels")
    assert list(PositiveBatchSampler(unknown, 3, num_pos=1)) == expected


def test_an_iterable_data_set_is_an_error():
    with pytest.raises(TypeError, match=r"map-style.*got Stream"):
        Indexed(Stream())


def test_a_key_that_is_taken_is_an_error():
    with pytest.raises(ValueError, match="item 0 has a key 'index' already"):
        Indexed(Items([{"index": 7}]))[0]


def make_graphs(nodes=(3, 1, 4, 2)):
    data = pytest.importorskip("torch_geometric.data")
    edge = torch.tensor([[0], [0]])
    return [
        data.Data(x=torch.full((count, 2), float(row)), edge_index=edge, y=torch.tensor([float(row % 2)]))
        for row, count in enumerate(nodes)
    ]


def test_graphs_carry_their_rows_through_pyg_collate():
    loader = pytest.importorskip("torch_geometric.loader")
    batch = next(iter(loader.DataLoader(Indexed(make_graphs()), batch_sampler=[[2, 0, 3]])))
    assert batch.row.tolist() == [2, 0, 3]
    assert batch.x[batch.ptr[:-1], 0].tolist() == [2.0, 0.0, 3.0]
    assert batch.edge_index[0].tolist() == [0, 4, 7]


def test_graphs_are_copied_and_share_their_tensors():
    graphs = make_graphs()
    item = Indexed(graphs)[1]
    assert item.row == 1
    assert "row" not in graphs[1]
    assert item.x is graphs[1].x


def test_a_graph_attribute_that_is_taken_is_an_error():
    graphs = make_graphs()
    graphs[0].row = torch.tensor([0])
    with pytest.raises(ValueError, match="item 0 has an attribute 'row' already"):
        Indexed(graphs)[0]


def test_a_sampler_takes_indexed_graphs():
    sampler = PositiveBatchSampler(Indexed(make_graphs()), 2, num_pos=1)
    assert all(batch[0] in (1, 3) and batch[1] in (0, 2) for batch in sampler)
