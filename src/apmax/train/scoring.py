"""Scores of a model over a dataset."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from apmax.train.data import load_batches
from apmax.train.randomness import preserved_generators

EVALUATION_EPOCH = -1
"""The epoch in the seeds of examples outside training: a random dataset then gives the same items every time."""


@torch.no_grad()
def score_rows(
    module: nn.Module,
    dataset: Any,
    rows: list[int],
    *,
    batch_size: int,
    seed: int,
    device: torch.device,
    workers: int = 0,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Tensor:
    """Return the scores of these rows in evaluation mode, (len(rows),) or (len(rows), tasks), on `device`.

    Raises:
        ValueError: There are no rows: the number of tasks is known from scores alone.
    """
    if not rows:
        raise ValueError("dataset must hold at least one example, got none")
    chunks = [rows[start : start + batch_size] for start in range(0, len(rows), batch_size)]
    module.eval()
    loader = load_batches(dataset, chunks, seed=seed, epoch=EVALUATION_EPOCH, workers=workers, collate=collate)
    return torch.cat([forward_scores(module, move_to_device(inputs, device)) for inputs, _ in loader])


def predict(
    model: nn.Module,
    dataset: Any,
    *,
    batch_size: int = 1024,
    workers: int = 0,
    collate: Callable[[list[Any]], Any] | None = None,
) -> Tensor:
    """Return the model's scores of every example of `dataset`, on the CPU; the model's mode does not change.

    Raises:
        ValueError: The dataset is empty, or the model does not return one row of scores per example.

    >>> from torch.utils.data import TensorDataset
    >>> model = nn.Linear(2, 1, bias=False)
    >>> _ = nn.init.ones_(model.weight)
    >>> predict(model, TensorDataset(torch.tensor([[1.0, 2.0], [0.0, 1.0]])))
    tensor([3., 1.])
    """
    rows = list(range(len(dataset)))
    with unchanged_model(model) as device:
        return score_rows(
            model, dataset, rows, batch_size=batch_size, seed=0, device=device, workers=workers, collate=collate
        ).cpu()


@contextmanager
def unchanged_model(model: nn.Module) -> Iterator[torch.device]:
    """Give the device of a model; at the end restore its modes and the global generators."""
    device = next((parameter.device for parameter in model.parameters()), torch.device("cpu"))
    modes = {module: module.training for module in model.modules()}
    try:
        with preserved_generators(device):
            yield device
    finally:
        for module, training in modes.items():
            module.training = training


def forward_scores(module: nn.Module, inputs: Any) -> Tensor:
    """Return the model's scores of a batch, (B,) or (B, tasks), in the model's precision.

    Raises:
        ValueError: Not one row of scores per example.
    """
    double = next((parameter.dtype for parameter in module.parameters()), None) == torch.float64
    before = torch.get_default_dtype()
    if double:
        # Fabric returns scores in torch's default dtype, which would round them to float32.
        torch.set_default_dtype(torch.float64)
    try:
        scores = module(inputs)
    finally:
        if double:
            torch.set_default_dtype(before)
    if not isinstance(scores, Tensor) or scores.ndim not in (1, 2):
        shape = tuple(scores.shape) if isinstance(scores, Tensor) else type(scores).__name__
        raise ValueError(f"the model must return scores of shape (B,), (B, 1) or (B, tasks), got {shape}")
    return squeeze_single_task(scores)


def squeeze_single_task(scores: Tensor) -> Tensor:
    """Return scores of one task, (n,) or (n, 1), as (n,); those of several as they are."""
    return scores[:, 0] if scores.ndim == 2 and scores.shape[1] == 1 else scores


def move_to_device(value: Any, device: torch.device) -> Any:
    """Return `value` with its tensors on `device`: a tensor, a collection of them, or anything with `.to`."""
    if isinstance(value, Tensor):
        return value.to(device, non_blocking=True)
    if hasattr(value, "to"):
        return value.to(device)
    if isinstance(value, dict):
        return {key: move_to_device(part, device) for key, part in value.items()}
    if isinstance(value, (list, tuple)):
        parts = [move_to_device(part, device) for part in value]
        return type(value)(*parts) if hasattr(value, "_fields") else type(value)(parts)
    return value


def nonfinite_rows(scores: Tensor) -> list[int]:
    """Return the rows of scores (n,) or (n, tasks) that are NaN or infinite.

    >>> nonfinite_rows(torch.tensor([[0.0, float("nan")], [0.0, 1.0]]))
    [0]
    """
    bad = ~scores.detach().isfinite()
    rows: list[int] = (bad if bad.ndim == 1 else bad.any(1)).nonzero()[:, 0].tolist()
    return rows


def padded_rows(rows: int, *, rank: int, world_size: int) -> list[int]:
    """Return every world_size-th row, for one process; rows are repeated so that all processes get equally many.

    >>> padded_rows(5, rank=1, world_size=2)
    [1, 3, 0]
    """
    return [(rank + k * world_size) % rows for k in range(-(-rows // world_size))]


def restore_row_order(parts: Tensor, rows: int) -> Tensor:
    """Return scores of `padded_rows` of all processes, (world_size, share, ...), as (rows, ...) in row order."""
    return parts.transpose(0, 1).flatten(0, 1)[:rows]
