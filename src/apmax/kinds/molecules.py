"""Molecules: a column of SMILES."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from torch import nn

from apmax import extras
from apmax.config import RECIPES, Stage
from apmax.data.molecules import FEATURISER_VERSION, MoleculeDataset, build_chunks
from apmax.data.molecules.building import CHUNK
from apmax.data.molecules.reading import from_table
from apmax.data.molecules.scaffolds import scaffolds
from apmax.data.molecules.store import Store
from apmax.data.molecules.table import Table
from apmax.kinds.base import Gathered, Kind, Labels
from apmax.kinds.encoded import Encoded, Refused, RowReport
from apmax.models.graphs import GRAPH_MODELS

SMILES = "smiles"


@dataclass(frozen=True)
class MoleculeEncoder:
    """Molecular graphs of a column of SMILES; nothing is learnt from the rows.

    Args:
        smiles: The column.
        tasks: How many columns are predicted.
        levels: Cliques and descriptors as well.

    >>> import pyarrow as pa
    >>> report = RowReport()
    >>> encoded = MoleculeEncoder().encode(pa.table({"smiles": ["CCO", "C(C", "C"]}), report)
    >>> encoded.rows.tolist(), report.refused[0].row, report.refused[0].reason
    ([0, 2], 1, 'SMILES Parse Error: extra open parentheses')
    """

    smiles: str = SMILES
    tasks: int = 1
    levels: bool = False
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The column that is read."""
        return [self.smiles]

    def encode(self, table: Any, report: RowReport | None = None) -> Encoded:
        """Return the molecules that RDKit can read; the others are added to `report`.

        Raises:
            ValueError: There is no such column, or no molecule in it from the file's beginning on.
        """
        report = RowReport() if report is None else report
        smiles = texts(table, self.smiles)
        workers = processes() if len(smiles) > 2 * CHUNK else 1
        chunks = list(build_chunks(smiles, levels=self.levels, workers=workers))
        unreadable = [item for chunk in chunks for item in chunk.unreadable]
        report.refuse([Refused(report.rows + item.row, item.smiles, item.reason) for item in unreadable])
        report.rows += len(smiles)
        stores = [chunk.store for chunk in chunks if len(chunk.store)]
        if not stores:
            if report.refused and report.rows == len(smiles):
                first = report.refused[0]
                raise ValueError(
                    f"no molecule could be read in column {self.smiles!r}, which begins with {first.value!r} "
                    f"({first.reason}): name the column of SMILES (--smiles COLUMN)"
                )
            return Encoded([], np.empty(0, np.int64))
        dataset = MoleculeDataset(Store.join(stores))
        return Encoded(dataset, dataset.table_rows)

    def to_table(self) -> dict[str, Any]:
        """Return the encoder as plain values, with the version of the features."""
        return {"smiles": self.smiles, "tasks": self.tasks, "levels": self.levels, "featuriser": FEATURISER_VERSION}

    def summary(self) -> dict[str, list[str]]:
        """Return nothing: there is one column, and everyone knows what it is."""
        return {}


def restore(table: Mapping[str, Any]) -> MoleculeEncoder:
    """Return the encoder that `to_table` wrote.

    Raises:
        ValueError: Its features are of another version.
    """
    fields = dict(table)
    version = fields.pop("featuriser")
    if version != FEATURISER_VERSION:
        raise ValueError(
            f"this model was trained with version {version} of the featuriser, this apmax has version "
            f"{FEATURISER_VERSION}: train it again, or use the apmax that trained it"
        )
    return MoleculeEncoder(**fields)


def fit(table: Any, data: Any, without: Sequence[str]) -> MoleculeEncoder:  # noqa: ARG001 - as every kind is asked
    """Return the encoder of a job's molecules."""
    return MoleculeEncoder(data.smiles or SMILES, len(data.targets), bool(data.levels))


def gather(table: Any, labels: Labels, data: Any) -> Gathered:
    """Return the labelled molecules of a file, read through the cache."""
    tasks = labels[:, None] if labels.ndim == 1 else labels
    given = Table(texts(table, data.smiles or SMILES), tasks, data.targets)
    dataset, report = from_table(given, levels=bool(data.levels), on_error=data.on_error or "skip", workers=processes())
    return Gathered(dataset, dataset.table_rows, report.lines())


def by_scaffold(table: Any, data: Any) -> list[str]:
    """Return the Bemis–Murcko scaffold of every row."""
    return scaffolds(texts(table, data.smiles or SMILES), workers=processes())


def texts(table: Any, column: str) -> list[str]:
    """Return a column of SMILES, "" where a cell is empty.

    Raises:
        ValueError: There is no such column.
    """
    if column not in table.column_names:
        names = ", ".join(map(repr, table.column_names[:12]))
        raise ValueError(f"smiles: there is no column {column!r}; the columns are {names} (--smiles COLUMN)")
    text = table.column(column).cast(extras.load("pyarrow", "tables").string())
    return [(cell or "").strip() for cell in text.to_pylist()]


def processes() -> int:
    """Return how many processes read molecules at a time."""
    return min(os.cpu_count() or 1, 8)


def stages(rows: int, positives: int, model: str) -> Sequence[Stage]:  # noqa: ARG001 - the same for all networks
    """Return the default recipe, in batches of 64 as the paper's: 100 epochs of a few thousand molecules, 20 of many.

    >>> [(stage.name, stage.epochs, stage.sampler.num_pos) for stage in stages(1_694, 38, "gine")]
    [('ce', 100, 4), ('ap + ce', 20, 8)]
    """
    batch_size = 64
    steps = math.ceil(rows / batch_size)
    epochs = min(max(math.ceil(20_000 / steps), 20), 100)
    return RECIPES["default"](
        epochs=epochs,
        joint_epochs=min(max(math.ceil(2000 / steps), 3), 20),
        batch_size=batch_size,
        num_pos=max(1, min(batch_size // 8, positives)),
        ema=0.999 if steps * epochs >= 4000 else 0.99,
        patience=max(10, epochs // 3),
    )


def network(name: str) -> Callable[..., nn.Module]:
    """Return what builds the network for a number of tasks."""

    def build(tasks: int, *, hidden: int = 64, dropout: float = 0.0) -> nn.Module:
        return GRAPH_MODELS[name](hidden, tasks, dropout=dropout)

    return build


MOLECULES = Kind(
    title="molecules, as SMILES",
    fit=fit,
    restore=restore,
    shape=lambda encoder: encoder.tasks,
    models={name: network(name) for name in GRAPH_MODELS},
    stages=stages,
    takes=frozenset({"smiles", "on_error", "levels"}),
    gather=gather,
    groupings={"scaffold": by_scaffold},
    needs={"ml-mpnn": {"levels": True}},
    several_targets=True,
    batch_rows=1024,
    threads=1,
)
