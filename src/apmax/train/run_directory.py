"""The run directory: configuration, versions, records, checkpoints and selected weights.

config.toml              the resolved configuration, every default written out
run.json                 versions, seed, data fingerprint, SHA-256 of pretrained weights; at the end the selected epoch
records.jsonl            one record per epoch
log.txt                  a line per epoch; of an ensemble in the folder above
checkpoint.pt            the complete state for resuming; checkpoint.previous.pt is the one before
model.pt                 the selected weights, a plain state_dict
"""

from __future__ import annotations

import hashlib
import importlib.metadata
import io
import json
import os
import platform
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import Subset, TensorDataset

from apmax import __version__
from apmax.folders import write_atomic, write_json
from apmax.train.config import Run
from apmax.train.data import Data
from apmax.train.records import Record, parse_records
from apmax.train.toml import run_to_toml

LOG_NAME = "log.txt"
_HASHED_BYTES = 2**26


class RunDirectory:
    """Writer of the files of a run; only the first process has one."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self.checkpoint = self.path / "checkpoint.pt"
        self.log = self.path / LOG_NAME

    def create(self) -> None:
        """Create the folder."""
        self.path.mkdir(parents=True, exist_ok=True)

    def start(self, run: Run, fingerprint: str, lines: list[str]) -> None:
        """Write the configuration, the facts known so far and the records as JSON `lines`.

        After a resume `lines` are the checkpoint's records: later ones are trained and written again.
        """
        write_atomic(self.path / "config.toml", run_to_toml(run).encode())
        self.add_facts({**_environment(), "seed": run.seed, "data": fingerprint})
        write_atomic(self.path / "records.jsonl", "".join(line + "\n" for line in lines).encode())

    def add_facts(self, facts: dict[str, Any]) -> None:
        """Add facts to run.json."""
        write_json(self.path / "run.json", {**self.read_facts(), **facts}, indent=2)

    def read_facts(self) -> dict[str, Any]:
        """Return the facts in run.json; none if it is missing or damaged, since a run can be resumed without."""
        with suppress(FileNotFoundError, ValueError, TypeError):
            return dict(json.loads((self.path / "run.json").read_bytes()))
        return {}

    def add_record(self, line: str) -> None:
        """Append a record, given as its line of JSON."""
        with (self.path / "records.jsonl").open("a", encoding="utf-8") as file:
            file.write(line + "\n")

    def finish(self, weights: dict[str, Tensor], chosen: dict[str, Any]) -> None:
        """Write the selected weights, and the stage and epoch they come from."""
        buffer = io.BytesIO()
        torch.save({name: value.detach().cpu() for name, value in weights.items()}, buffer)
        write_atomic(self.path / "model.pt", buffer.getvalue())
        self.add_facts({"chosen": chosen})


def read_records(path: str | os.PathLike[str]) -> list[Record]:
    """Return the records in a run directory."""
    return parse_records((Path(path) / "records.jsonl").read_text(encoding="utf-8"))


def _environment() -> dict[str, Any]:
    """Return the versions and the number of threads, on which the last bits of a run depend."""
    # torch's own version names its build, too.
    versions = {"apmax": __version__, "python": platform.python_version(), "torch": str(torch.__version__)}
    for package in ("numpy", "lightning-fabric"):
        versions[package] = importlib.metadata.version(package)
    return {"versions": versions, "threads": torch.get_num_threads()}


def data_fingerprint(data: Data, labels: Sequence[Tensor | None], weights: Sequence[Tensor | None]) -> str:
    """Return a SHA-256 of the labels of both splits, their weights if any and, where they are tensors, the inputs.

    A dataset may identify itself by an attribute `fingerprint`. Of tensors beyond 64 MB evenly spaced rows are hashed.
    """
    digest = hashlib.sha256()
    for dataset, table, weight in zip((data.train, data.valid), labels, weights, strict=True):
        if table is not None:
            _hash_tensor(digest, table)
            digest.update(_dataset_identity(dataset).encode())
        if weight is not None:
            digest.update(b"sample_weight")
            _hash_tensor(digest, weight)
    return digest.hexdigest()


def labels_fingerprint(tables: Sequence[Tensor | None]) -> str:
    """Return a SHA-256 of labels and weights alone: inputs encoded on two machines may differ in their last bits."""
    digest = hashlib.sha256()
    for table in tables:
        if table is None:
            digest.update(b"none")
        else:
            _hash_tensor(digest, table)
    return digest.hexdigest()


def _dataset_identity(dataset: Any) -> str:
    """Return a text that differs between datasets of the same class and length, as far as that is cheap to know."""
    if isinstance(dataset, Subset):
        digest = hashlib.sha256()
        _hash_tensor(digest, torch.as_tensor(dataset.indices))
        return f"{_dataset_identity(dataset.dataset)}[{digest.hexdigest()}]"
    if isinstance(dataset, TensorDataset):
        digest = hashlib.sha256()
        for tensor in dataset.tensors:
            _hash_tensor(digest, tensor)
        return digest.hexdigest()
    return f"{type(dataset).__name__}({len(dataset)}) {getattr(dataset, 'fingerprint', '')}"


def _hash_tensor(digest: Any, tensor: Tensor) -> None:
    values = tensor.detach()
    stride = max(1, -(-values.numel() * values.element_size() // _HASHED_BYTES))
    values = values[::stride].cpu().contiguous()
    digest.update(f"{tuple(tensor.shape)} {tensor.dtype}".encode())
    digest.update(values.view(torch.uint8).numpy() if values.ndim else bytes(str(values.item()), "ascii"))
