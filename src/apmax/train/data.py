"""Training data: datasets with labels and weights, batches of rows, and seeded loading."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset, default_collate

from apmax import validation
from apmax.samplers import MinedBatchSampler, MultiTaskBatchSampler, PositiveBatchSampler, labels_of
from apmax.train.randomness import mix_seed, seed_example


@dataclass(frozen=True)
class Data:
    """The training and validation data of a run. There is no test split: it must not take part in selection.

    Args:
        train: A map-style dataset. An item is an input, or a tuple that begins with it; the model is called with
            the collated input alone.
        valid: The same for validation; without it the last epoch is selected.
        labels: Training labels, (n,) or (n, tasks); read from the dataset if not given.
        valid_labels: The same for validation.
        collate: Function that joins a list of items to a batch. Default: the dataset's own `collate`, or torch's.
        sample_weight: (n,) weights of the training rows in the loss and in the training metrics. They do not change
            how often a row is drawn.
        valid_sample_weight: The same for the validation metrics, and so for the selection among epochs.

    Random numbers in a dataset are reproducible: torch's, numpy's and Python's generators are seeded by (seed, epoch,
    row) before each item is read. A dataset that has its own generators, or reads whole batches (`__getitems__`),
    receives the epoch through its method `set_epoch(epoch)`, if it has one.
    """

    train: Any
    valid: Any = None
    labels: Any = None
    valid_labels: Any = None
    collate: Callable[[list[Any]], Any] | None = None
    sample_weight: Any = None
    valid_sample_weight: Any = None

    def label_tensors(self) -> tuple[Tensor, Tensor | None]:
        """Return the labels of both splits, checked against the number of rows.

        Raises:
            ValueError: The number of labels differs from the number of rows, or a split has no positives.
        """
        train = _check_labels("labels", self.train, self.labels)
        return train, None if self.valid is None else _check_labels("valid_labels", self.valid, self.valid_labels)

    def weight_tensors(self, labels: Tensor, valid_labels: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return the weights of both splits, checked against their labels; None where there are none.

        Raises:
            ValueError: Not one weight per row, negative or infinite weights, or no positive of positive weight.
        """
        if valid_labels is None and self.valid_sample_weight is not None:
            raise ValueError("valid_sample_weight was given without valid")
        weight = _check_weight("sample_weight", self.sample_weight, labels)
        if valid_labels is None:
            return weight, None
        return weight, _check_weight("valid_sample_weight", self.valid_sample_weight, valid_labels)


def _check_labels(name: str, dataset: Any, given: Any) -> Tensor:
    labels = labels_of(dataset) if given is None else validation.label_array(given, name)
    if len(labels) != len(dataset):
        raise ValueError(f"{name} must have one row per example, got {len(labels)} for {len(dataset)} examples")
    if not has_positive(labels):
        raise ValueError(f"{name} must hold at least one positive: average precision is undefined without")
    return labels.cpu()


def _check_weight(name: str, given: Any, labels: Tensor) -> Tensor | None:
    if given is None:
        return None
    weight = validation.weights(given, labels.shape[:1], name).cpu()
    if not has_positive(labels, weight):
        raise ValueError(f"{name} must leave at least one positive a weight above 0")
    return weight


def has_positive(labels: Tensor, sample_weight: Tensor | None = None) -> bool:
    """Return whether there is a positive, of weight above 0 if weights are given.

    >>> labels = torch.tensor([1.0, 0.0])
    >>> has_positive(labels), has_positive(labels, torch.tensor([0.0, 1.0]))
    (True, False)
    """
    return bool((labels == 1 if sample_weight is None else labels[sample_weight > 0] == 1).any())


class ShuffledBatches(Sampler[list[int]]):
    """A batch sampler with a new permutation each epoch, cut into equal batches (±1 row) of at most `batch_size`.

    With equal batches there is no tiny last one, whose gradient would count as much as the others'. Sizes are global,
    and the joined batches do not depend on `world_size`: rank r takes every world_size-th row of each.

    >>> sampler = ShuffledBatches(10, 4)
    >>> len(sampler), [len(rows) for rows in sampler]
    (3, [4, 3, 3])
    """

    def __init__(self, num_rows: int, batch_size: int, *, seed: int = 0, rank: int = 0, world_size: int = 1) -> None:
        self.num_rows = validation.whole("num_rows", num_rows, 1)
        self.batches = -(-num_rows // validation.whole("batch_size", batch_size, 1))
        if num_rows // self.batches < world_size:
            raise ValueError(f"batch_size {batch_size} leaves some of {world_size} processes without a row")
        self.seed, self.rank, self.world_size = seed, rank, world_size
        self.epoch = self.first = 0

    def set_epoch(self, epoch: int) -> None:
        """Start at the first batch of `epoch`."""
        self.set_position(epoch, 0)

    def set_position(self, epoch: int, batch: int) -> None:
        """Start at `batch` of `epoch`."""
        self.epoch, self.first = epoch, batch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(mix_seed(self.seed, self.epoch))
        order = torch.randperm(self.num_rows, generator=generator)
        for rows in order.tensor_split(self.batches)[self.first :]:
            yield rows[self.rank :: self.world_size].tolist()


BatchSampler = PositiveBatchSampler | MinedBatchSampler | MultiTaskBatchSampler | ShuffledBatches


def load_batches(
    dataset: Any,
    sampler: Iterable[list[int]],
    *,
    seed: int,
    epoch: int,
    workers: int = 0,
    collate: Callable[[list[Any]], Any] | None = None,
    pin: bool = False,
) -> Iterator[tuple[Any, Tensor]]:
    """Yield (input, rows) for every list of rows that `sampler` yields.

    Workers are started for each call, so that their copy of the dataset has received `set_epoch`.
    """
    _set_epoch(dataset, epoch)
    collate = collate or getattr(dataset, "collate", None)
    read = _tensor_reader(dataset) if workers == 0 and collate is None else None
    if read is not None:
        for rows in sampler:
            index = torch.tensor(rows)
            yield read(index), index
        return
    yield from DataLoader(
        _SeededDataset(dataset, seed=seed, epoch=epoch),
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=_CollateWithRows(collate or default_collate),
        pin_memory=pin,
        generator=torch.Generator().manual_seed(mix_seed(seed, epoch)),
    )


class _SeededDataset(Dataset[Any]):
    """A dataset that seeds the generators by (seed, epoch, row) before it reads an item, and returns the row too."""

    def __init__(self, dataset: Any, *, seed: int, epoch: int) -> None:
        self.dataset, self.seed, self.epoch = dataset, seed, epoch
        self.by_batch = _reads_batches(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> tuple[int, Any]:
        seed_example(mix_seed(self.seed, self.epoch, row))
        return row, self.dataset[row]

    def __getitems__(self, rows: list[int]) -> tuple[list[int], Any]:
        """Read a whole batch at once if the dataset supports it, item by item otherwise."""
        if self.by_batch:
            seed_example(mix_seed(self.seed, self.epoch, rows[0]))
            return rows, self.dataset.__getitems__(rows)
        return rows, [self[row][1] for row in rows]


def _reads_batches(dataset: Any) -> bool:
    """Return whether the dataset, or the one a `Subset` is a view of, reads whole batches."""
    if isinstance(dataset, Subset):
        return _reads_batches(dataset.dataset)
    return hasattr(dataset, "__getitems__")


@dataclass(frozen=True)
class _CollateWithRows:
    """Collate function that keeps the rows; a class, because workers may be started by pickling."""

    collate: Callable[[Any], Any]

    def __call__(self, fetched: Any) -> tuple[Any, Tensor]:
        rows, items = fetched
        batch = self.collate(items)
        return batch[0] if isinstance(batch, (tuple, list)) else batch, torch.tensor(rows)


def _tensor_reader(dataset: Any) -> Callable[[Tensor], Tensor] | None:
    """Return a function that indexes the inputs of a `TensorDataset`, or of a `Subset` of one; else None.

    It avoids splitting such data into items and collating them, which costs more than a small network's step.
    """
    # A subclass may change what an item is.
    if type(dataset) is Subset:
        inner, indices = _tensor_reader(dataset.dataset), torch.as_tensor(dataset.indices)
        return None if inner is None else lambda rows: inner(indices[rows])
    if isinstance(dataset, TensorDataset) and type(dataset).__getitem__ is TensorDataset.__getitem__:
        return dataset.tensors[0].__getitem__
    return None


def _set_epoch(dataset: Any, epoch: int) -> None:
    """Call `set_epoch` of the dataset, or of the one it is a view of, if it has such a method."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)
    elif hasattr(dataset, "dataset"):
        _set_epoch(dataset.dataset, epoch)
