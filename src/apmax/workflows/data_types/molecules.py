"""Molecules: a column of SMILES."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from torch import nn

from apmax.data.molecules import FEATURISER_VERSION, MoleculeDataset, build_chunks
from apmax.data.molecules.building import CHUNK
from apmax.data.molecules.reading import from_table
from apmax.data.molecules.scaffolds import scaffolds
from apmax.data.molecules.store import Store
from apmax.data.molecules.table import Table
from apmax.models.graphs import GRAPH_MODELS
from apmax.train import Stage, sized_recipe
from apmax.workflows.data_types.base import Gathered, Kind, Labels
from apmax.workflows.data_types.encoded import Encoded, Refused, RowReport, texts

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
        smiles = texts(table, self.smiles, SMILES)
        workers = processes() if len(smiles) > 2 * CHUNK else 1
        # Nobody asks whether a molecule that is scored was there before: that costs a sixth of the time.
        chunks = list(build_chunks(smiles, levels=self.levels, identify=False, workers=workers))
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


def gather(table: Any, labels: Labels, data: Any, source: Any) -> Gathered:  # noqa: ARG001 - as every kind is asked
    """Return the labelled molecules of a file, read through the cache."""
    tasks = labels[:, None] if labels.ndim == 1 else labels
    given = Table(texts(table, data.smiles or SMILES, SMILES), tasks, data.targets)
    dataset, report = from_table(given, levels=bool(data.levels), on_error=data.on_error or "skip", workers=processes())
    refused = [Refused(item.row, item.smiles, item.reason) for item in report.unreadable]
    return Gathered(dataset, dataset.table_rows, report.lines(), refused)


def reading(encoder: MoleculeEncoder, source: Any, given: Mapping[str, Any]) -> MoleculeEncoder:  # noqa: ARG001
    """Return the encoder for a file whose column may have another name."""
    return replace(encoder, smiles=given.get(SMILES, encoder.smiles))


def by_scaffold(table: Any, data: Any) -> list[str]:
    """Return the Bemis–Murcko scaffold of every row."""
    return scaffolds(texts(table, data.smiles or SMILES, SMILES), workers=processes())


def processes() -> int:
    """Return how many processes read molecules at a time."""
    return min(os.cpu_count() or 1, 8)


def stages(rows: int, positives: int, model: str) -> Sequence[Stage]:  # noqa: ARG001 - the same for all networks
    """Return the default recipe, in batches of 64 as the paper's: 100 epochs of a few thousand molecules, 20 of many.

    >>> [(stage.name, stage.epochs, stage.sampler.num_pos) for stage in stages(1_694, 38, "gine")]
    [('ce', 100, 4), ('ap + ce', 20, 8)]
    """
    return sized_recipe(rows, positives, steps=20_000, joint_steps=2000, least_epochs=20)


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
    reading=reading,
    groupings={"scaffold": by_scaffold},
    needs={"ml-mpnn": {"levels": True}},
    several_targets=True,
    batch_rows=lambda _data: 1024,
    threads=1,
)
