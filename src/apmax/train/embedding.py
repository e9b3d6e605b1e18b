"""Embeddings: what the last linear layer of a network reads, kept in the cache so that heads cost seconds."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from apmax.data.caching import cached_folder
from apmax.train.errors import NonFiniteScoresError
from apmax.train.scoring import nonfinite_rows, score_rows, squeeze_single_task, unchanged_model
from apmax.train.weights import last_linear

_FILE = "embeddings.npy"


def embed(
    model: nn.Module,
    dataset: Any,
    *,
    batch_size: int = 1024,
    workers: int = 0,
    collate: Callable[[list[Any]], Any] | None = None,
    cache: bool | str | os.PathLike[str] = False,
) -> Tensor:
    """Return the inputs of the model's last linear layer for every example, (n, d) on the CPU; the model is unchanged.

    Examples are as in scoring: not augmented.

    Args:
        model: A network whose scores are the output of its last linear layer.
        dataset: The examples.
        batch_size: Examples per batch.
        workers: Processes that load examples.
        collate: Joins examples to a batch.
        cache: Keep the embeddings in the cache folder (True) or in this one. They are read again for the same pixels
            and the same weights below the head; the network is not run.

    Raises:
        ValueError: Another kind of network, an empty dataset, or `cache` for a dataset without `content_hash()`.

    >>> from torch.utils.data import TensorDataset
    >>> network = nn.Sequential(nn.Linear(2, 3), nn.ReLU(), nn.Linear(3, 1))
    >>> embed(network, TensorDataset(torch.ones(5, 2))).shape
    torch.Size([5, 3])
    """
    with unchanged_model(model) as device:

        def compute() -> Tensor:
            return head_inputs(
                model,
                last_linear(model),
                dataset,
                batch_size=batch_size,
                seed=0,
                device=device,
                workers=workers,
                collate=collate,
            )

        if cache is False:
            return compute().cpu()
        return cached_embeddings(model, dataset, compute, None if cache is True else cache)


@torch.no_grad()
def head_inputs(module: nn.Module, head: nn.Linear, dataset: Any, **loading: Any) -> Tensor:
    """Return the inputs of `head` for every row of `dataset`, (n, d) on the device of the scores.

    Args:
        module: The network, perhaps wrapped for several processes.
        head: Its last linear layer.
        dataset: The rows.
        **loading: As in `score_rows`.

    Raises:
        ValueError: The scores are something else than the output of `head`, or not finite.
    """
    captured: list[Tensor] = []
    hook = head.register_forward_pre_hook(lambda _, inputs: captured.append(inputs[0].detach()))
    try:
        scores = score_rows(module, dataset, list(range(len(dataset))), **loading)
    finally:
        hook.remove()
    features = torch.cat(captured)
    if features.ndim != 2 or len(features) != len(scores):
        raise ValueError("embeddings need a model that calls its last linear layer once, with one row per example")
    # Before the comparison, which NaN would fail with another reason.
    bad = nonfinite_rows(scores)
    if bad:
        raise NonFiniteScoresError(bad)
    bias = 0.0 if head.bias is None else head.bias.double()
    recomputed = squeeze_single_task(features.double() @ head.weight.double().T + bias)
    if recomputed.shape != scores.shape or not torch.allclose(recomputed, scores.double(), rtol=1e-3, atol=1e-3):
        raise ValueError("embeddings need a model whose scores are the output of its last linear layer")
    return features


def cached_embeddings(
    model: nn.Module, dataset: Any, compute: Callable[[], Tensor], cache: str | os.PathLike[str] | None = None
) -> Tensor:
    """Return the embeddings of a dataset from the cache, on the CPU; compute and write them if they are not there.

    Args:
        model: The network.
        dataset: The examples, with a method `content_hash()`.
        compute: Returns the embeddings.
        cache: The folder of caches; by default `cache_directory()`.

    Raises:
        ValueError: The dataset has no `content_hash()`.
    """
    if not hasattr(dataset, "content_hash"):
        raise ValueError(f"cache: {type(dataset).__name__} has no method content_hash(): leave out cache")
    digest = hashlib.blake2b(dataset.content_hash().encode(), digest_size=16)
    _hash_body(model, digest)

    def write(folder: Path) -> list[Any]:
        np.save(folder / _FILE, compute().float().cpu().numpy(), allow_pickle=False)
        return []

    folder, _ = cached_folder(f"embeddings-{digest.hexdigest()}", write, cache)
    return torch.from_numpy(np.load(folder / _FILE, allow_pickle=False))


def _hash_body(model: nn.Module, digest: hashlib.blake2b) -> None:
    """Add the structure of a model and all of its weights except those of the head."""
    head = last_linear(model)
    digest.update(f"{type(model).__module__}.{type(model).__qualname__} {model!r}".encode())
    for name, value in model.state_dict(keep_vars=True).items():
        if isinstance(value, Tensor) and not any(value is own for own in head.parameters()):
            digest.update(f"{name} {value.dtype} {tuple(value.shape)}".encode())
            digest.update(value.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes())
