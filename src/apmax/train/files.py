"""The run's directory: what was trained, on what, by which versions, and how it went.

config.toml              the resolved configuration, every default written out
run.json                 versions, seed, data fingerprint, and at the end what was chosen
records.jsonl            one record per epoch
checkpoint.pt            everything needed to go on; checkpoint.previous.pt the one before
model.pt                 the chosen weights, a plain state_dict
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from apmax import __version__
from apmax.train import config
from apmax.train.checkpoints import write_atomic
from apmax.train.config import Run
from apmax.train.loading import Data
from apmax.train.records import Record, from_lines

HASHED_BYTES = 2**26


class RunDirectory:
    """Writes the files of a run; only the first process has one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.path.mkdir(parents=True, exist_ok=True)
        self.checkpoint = self.path / "checkpoint.pt"

    def begin(self, run: Run, fingerprint: str, lines: list[str]) -> None:
        """Write what is known before the first step; records that were not checkpointed will come again."""
        write_atomic(self.path / "config.toml", config.dumps(run).encode())
        self.describe({**environment(), "seed": run.seed, "data": fingerprint})
        write_atomic(self.path / "records.jsonl", "".join(line + "\n" for line in lines).encode())

    def describe(self, facts: dict[str, Any]) -> None:
        """Add facts to run.json."""
        file = self.path / "run.json"
        known = json.loads(file.read_text()) if file.exists() else {}
        write_atomic(file, (json.dumps({**known, **facts}, indent=2) + "\n").encode())

    def add(self, line: str) -> None:
        """Append a record, given as its line of JSON."""
        with (self.path / "records.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def finish(self, weights: dict[str, Tensor], chosen: dict[str, Any]) -> None:
        """Write the chosen weights and say where they come from."""
        buffer = io.BytesIO()
        torch.save({name: value.detach().cpu() for name, value in weights.items()}, buffer)
        write_atomic(self.path / "model.pt", buffer.getvalue())
        self.describe({"chosen": chosen})


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records of a run's directory."""
    return from_lines((Path(path) / "records.jsonl").read_text(encoding="utf-8"))


def environment() -> dict[str, Any]:
    """Return the versions and the number of threads, on which the last bits of a run depend."""
    versions = {"apmax": __version__, "python": platform.python_version()}
    for package in ("torch", "numpy", "lightning-fabric"):
        versions[package] = importlib.metadata.version(package)
    return {"versions": versions, "threads": torch.get_num_threads()}


def fingerprint_of(data: Data, labels: Sequence[Tensor | None], weights: Sequence[Tensor | None]) -> str:
    """Return a SHA-256 over the labels of both splits, their weights if any and, where they are tensors, the inputs.

    A dataset may give its own identity in an attribute `fingerprint`. Tensors beyond 64 MB are hashed by evenly
    spaced rows.
    """
    digest = hashlib.sha256()
    for dataset, table, weight in zip((data.train, data.valid), labels, weights, strict=True):
        if table is not None:
            _add(digest, table)
            digest.update(identity(dataset).encode())
        if weight is not None:
            digest.update(b"sample_weight")
            _add(digest, weight)
    return digest.hexdigest()


def identity(dataset: Any) -> str:
    """Return what tells a dataset from another of its kind and length, as far as that is cheap to know."""
    if isinstance(dataset, Subset):
        own = hashlib.sha256()
        _add(own, torch.as_tensor(dataset.indices))
        return f"{identity(dataset.dataset)}[{own.hexdigest()}]"
    if isinstance(dataset, TensorDataset):
        own = hashlib.sha256()
        for tensor in dataset.tensors:
            _add(own, tensor)
        return own.hexdigest()
    return f"{type(dataset).__name__}({len(dataset)}) {getattr(dataset, 'fingerprint', '')}"


def _add(digest: Any, tensor: Tensor) -> None:
    values = tensor.detach()
    stride = max(1, -(-values.numel() * values.element_size() // HASHED_BYTES))
    values = values[::stride].cpu().contiguous()
    digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    digest.update(values.view(torch.uint8).numpy() if values.ndim else bytes(str(values.item()), "ascii"))
