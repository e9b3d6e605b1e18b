"""From rows to batches: plain shuffling, loading by workers, and a seed for every example."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Sampler, Subset, TensorDataset, default_collate

from apmax import validation
from apmax.samplers import labels_of
from apmax.train.randomness import mix, seed_example


@dataclass(frozen=True)
class Data:
    """What a run trains on and what it selects by. There is no place for a test split.

    Args:
        train: Any map-style dataset. An item is an input, or a tuple that begins with it; the model is called with
            the collated input alone.
        valid: The same for validation; None leaves the choice to the last epoch.
        labels: Training labels, (n,) or (n, tasks); read from the dataset if not given.
        valid_labels: The same for validation.
        collate: Joins a list of items to a batch. By default the dataset's own `collate`, or torch's.
        sample_weight: (n,) what each training row weighs in the loss and in the training metrics. How often a row is
            drawn does not depend on it.
        valid_sample_weight: The same for the metrics of validation, and so for the choice among epochs.

    A dataset that draws random numbers needs to do nothing: torch's, numpy's and Python's generators are seeded by
    (seed, epoch, row) before each item is read. One that has own generators, or reads whole batches
    (`__getitems__`), is told the epoch through its method `set_epoch(epoch)`, if it has one.
    """

    train: Any
    valid: Any = None
    labels: Any = None
    valid_labels: Any = None
    collate: Callable[[list[Any]], Any] | None = None
    sample_weight: Any = None
    valid_sample_weight: Any = None

    def tables(self) -> tuple[Tensor, Tensor | None]:
        """Return the labels of both splits, checked against the number of rows.

        Raises:
            ValueError: A number of labels that differs from the rows, or a split without positives.
        """
        train = _table("labels", self.train, self.labels)
        return train, None if self.valid is None else _table("valid_labels", self.valid, self.valid_labels)

    def weights(self, labels: Tensor, valid_labels: Tensor | None) -> tuple[Tensor | None, Tensor | None]:
        """Return the weights of both splits, checked against their labels; None where every row weighs the same.

        Raises:
            ValueError: Not one weight per row, negative or infinite ones, or weights that leave no positive.
        """
        if valid_labels is None and self.valid_sample_weight is not None:
            raise ValueError("valid_sample_weight was given without valid: there are no rows to weigh")
        valid = None if valid_labels is None else _weight("valid_sample_weight", self.valid_sample_weight, valid_labels)
        return _weight("sample_weight", self.sample_weight, labels), valid


def _table(name: str, dataset: Any, given: Any) -> Tensor:
    labels = labels_of(dataset) if given is None else validation.label_array(given, name)
    if len(labels) != len(dataset):
        raise ValueError(f"{name} must have one row per example, got {len(labels)} for {len(dataset)} examples")
    if not has_positive(labels):
        raise ValueError(f"{name} must hold at least one positive: average precision is undefined without")
    return labels.cpu()


def _weight(name: str, given: Any, labels: Tensor) -> Tensor | None:
    if given is None:
        return None
    weight = validation.weights(given, labels.shape[:1], name).cpu()
    if not has_positive(labels, weight):
        raise ValueError(f"{name} must leave at least one positive a weight above 0: without, nothing can be ranked")
    return weight


def has_positive(labels: Tensor, sample_weight: Tensor | None = None) -> bool:
    """Tell whether a positive counts.

    >>> labels = torch.tensor([1.0, 0.0])
    >>> has_positive(labels), has_positive(labels, torch.tensor([0.0, 1.0]))
    (True, False)
    """
    return bool((labels == 1 if sample_weight is None else labels[sample_weight > 0] == 1).any())


class ShuffledBatches(Sampler[list[int]]):
    """A new permutation each epoch, cut into equal batches (±1 row) of at most `batch_size`.

    Equal batches leave no tiny last one, whose gradient would weigh as much as the others'. Sizes are global, and the
    joined batches do not depend on `world_size`: rank r takes every world_size-th row of each.

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
        """Begin `epoch` at its first batch."""
        self.set_position(epoch, 0)

    def set_position(self, epoch: int, batch: int) -> None:
        """Begin at `batch` of `epoch`."""
        self.epoch, self.first = epoch, batch

    def __len__(self) -> int:
        return self.batches

    def __iter__(self) -> Iterator[list[int]]:
        generator = torch.Generator().manual_seed(mix(self.seed, self.epoch))
        order = torch.randperm(self.num_rows, generator=generator)
        for rows in order.tensor_split(self.batches)[self.first :]:
            yield rows[self.rank :: self.world_size].tolist()


class Seeded(Dataset[Any]):
    """A dataset whose items come with their row, and are drawn from generators seeded by (seed, epoch, row)."""

    def __init__(self, dataset: Any, *, seed: int, epoch: int) -> None:
        self.dataset, self.seed, self.epoch = dataset, seed, epoch
        self.by_batch = reads_batches(dataset)

    def __len__(self) -> int:
        return len(self.dataset)

    def __getitem__(self, row: int) -> tuple[int, Any]:
        seed_example(mix(self.seed, self.epoch, row))
        return row, self.dataset[row]

    def __getitems__(self, rows: list[int]) -> tuple[list[int], Any]:
        """Read a batch at once where the dataset can, item by item otherwise."""
        if self.by_batch:
            seed_example(mix(self.seed, self.epoch, rows[0]))
            return rows, self.dataset.__getitems__(rows)
        return rows, [self[row][1] for row in rows]


def reads_batches(dataset: Any) -> bool:
    """Tell whether the dataset fetches whole batches; a `Subset` does if what it is a view of does."""
    if isinstance(dataset, Subset):
        return reads_batches(dataset.dataset)
    return hasattr(dataset, "__getitems__")


@dataclass(frozen=True)
class Joined:
    """Collate that keeps the rows; a class and not a closure, for workers may be started by pickling."""

    collate: Callable[[Any], Any]

    def __call__(self, fetched: Any) -> tuple[Any, Tensor]:
        """Return the collated input of what `Seeded` fetched, and its rows."""
        rows, items = fetched
        return first(self.collate(items)), torch.tensor(rows)


def first(batch: Any) -> Any:
    """Return the model's input: the batch itself, or what it begins with."""
    return batch[0] if isinstance(batch, (tuple, list)) else batch


def reader(dataset: Any) -> Callable[[Tensor], Tensor] | None:
    """Return what reads the inputs of many rows at once from a `TensorDataset`, or a `Subset` of one; else None.

    It spares such data the way through single items and back, which costs more than a small network's step.
    """
    if isinstance(dataset, Subset):
        inner, indices = reader(dataset.dataset), torch.as_tensor(dataset.indices)
        return None if inner is None else lambda rows: inner(indices[rows])
    if isinstance(dataset, TensorDataset):
        return dataset.tensors[0].__getitem__
    return None


def batches(
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

    Workers are started anew for each call, so that they see the dataset as `set_epoch` left it.
    """
    tell_epoch(dataset, epoch)
    direct = reader(dataset) if workers == 0 and collate is None else None
    if direct is not None:
        for rows in sampler:
            index = torch.tensor(rows)
            yield direct(index), index
        return
    yield from DataLoader(
        Seeded(dataset, seed=seed, epoch=epoch),
        batch_sampler=sampler,
        num_workers=workers,
        collate_fn=Joined(collate or getattr(dataset, "collate", None) or default_collate),
        pin_memory=pin,
        generator=torch.Generator().manual_seed(mix(seed, epoch)),
    )


def tell_epoch(dataset: Any, epoch: int) -> None:
    """Call `set_epoch` of the dataset, or of the one it is a view of, if it has such a method."""
    if hasattr(dataset, "set_epoch"):
        dataset.set_epoch(epoch)
    elif hasattr(dataset, "dataset"):
        tell_epoch(dataset.dataset, epoch)
