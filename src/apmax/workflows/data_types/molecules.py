"""Molecules: a column of SMILES."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt
from torch import nn

from apmax import validation
from apmax.committee import MEMBERS_BY_KIND, MoleculeFeatures
from apmax.data import ON_ERROR, RowSource, Targets, UnreadableRow, is_molecule_file, open_table
from apmax.data.molecules import (
    DUPLICATES,
    FEATURISER_VERSION,
    MoleculeDataset,
    Store,
    build_chunks,
    molecule_dataset,
    scaffolds,
)
from apmax.data.molecules.building import MOLECULES_PER_CHUNK
from apmax.data.molecules.descriptors import DESCRIPTOR_COUNT
from apmax.data.molecules.fingerprints import MORGAN_SIZE, NO_SCAFFOLD, PROPERTY_NAMES
from apmax.data.parallel import worker_processes
from apmax.models.graphs import GRAPH_MODELS
from apmax.train import Stage, sized_recipe
from apmax.workflows.data_types.base import DataConfig, DataType
from apmax.workflows.data_types.rows import EncodedRows, LabelledRows, RowReport, column_texts, target_columns

SMILES = "smiles"
MULTI_LEVEL = ("ml-mpnn",)
"""Models that read cliques and descriptors beside the atoms."""


@dataclass(frozen=True)
class MoleculeData(DataConfig):
    """Configuration of a table of molecules.

    Args:
        smiles: The column of SMILES.
        on_error: "skip" molecules that cannot be read, or "raise".
        levels: Compute cliques and descriptors too, for multi-level networks.
        fingerprints: Compute Morgan counts and properties too, for committees.
        graphs: Compute atoms and bonds, for networks.
        duplicates: What to do with rows of the same molecule in each file: "keep", "join" or "drop", as in
            `read_molecules`. All rows are scored in predictions.
        largest_fragment: Keep only the largest fragment of each molecule, in predictions too.
    """

    smiles: str = SMILES
    on_error: str = "skip"
    levels: bool = False
    fingerprints: bool = False
    graphs: bool = True
    duplicates: str = "keep"
    largest_fragment: bool = False

    kind: ClassVar[str] = "molecules"
    fixed_on_resume: ClassVar[tuple[str, ...]] = ("largest_fragment",)
    several_targets: ClassVar[bool] = True
    groupings: ClassVar[tuple[str, ...]] = ("scaffold",)

    def check(self) -> None:
        """Raise for an unknown `on_error` or `duplicates`."""
        super().check()
        validation.choice("on_error", self.on_error, ON_ERROR)
        validation.choice("duplicates", self.duplicates, DUPLICATES)


@dataclass(frozen=True)
class MoleculeEncoder:
    """Molecular graphs of a column of SMILES; nothing is fitted.

    Args:
        smiles: The column.
        tasks: Number of targets.
        levels: Cliques and descriptors too.
        largest_fragment: Of the largest fragment only.
        fingerprints: Morgan counts and properties too.
        graphs: Atoms and bonds, which only networks read.

    >>> import pyarrow as pa
    >>> report = RowReport()
    >>> encoded = list(MoleculeEncoder().encode(pa.table({"smiles": ["CCO", "C(C", "C"]}), report))
    >>> encoded[0].rows.tolist(), report.unreadable_rows[0].row, report.unreadable_rows[0].reason
    ([0, 2], 1, 'SMILES Parse Error: extra open parentheses')
    """

    smiles: str = SMILES
    tasks: int = 1
    levels: bool = False
    largest_fragment: bool = False
    fingerprints: bool = False
    graphs: bool = True
    left_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """The column that is read."""
        return [self.smiles]

    def encode(self, table: Any, report: RowReport) -> Iterator[EncodedRows]:
        """Yield the molecules that RDKit can read; the others are added to `report`.

        Raises:
            ValueError: There is no such column.
        """
        smiles = column_texts(table, self.smiles, SMILES)
        workers = worker_processes() if len(smiles) > 2 * MOLECULES_PER_CHUNK else 1
        # Canonical SMILES, which find duplicates, cost a sixth of the time and are not needed for scoring.
        chunks = list(
            build_chunks(
                smiles,
                levels=self.levels,
                fingerprints=self.fingerprints,
                graphs=self.graphs,
                identify=False,
                fragment=self.largest_fragment,
                workers=workers,
            )
        )
        unreadable = [item for chunk in chunks for item in chunk.unreadable]
        first = report.rows
        report.rows += len(smiles)
        report.reduced += sum(chunk.reduced for chunk in chunks)
        report.add_unreadable_rows([UnreadableRow(first + item.row, item.value, item.reason) for item in unreadable])
        stores = [chunk.store for chunk in chunks if len(chunk.store)]
        if stores:
            dataset = MoleculeDataset(Store.join(stores))
            yield EncodedRows(dataset, dataset.table_rows)

    def to_table(self) -> dict[str, Any]:
        """Return the encoder as plain values, with the version of the features."""
        return {
            "smiles": self.smiles,
            "tasks": self.tasks,
            "levels": self.levels,
            "largest_fragment": self.largest_fragment,
            "fingerprints": self.fingerprints,
            "featuriser": FEATURISER_VERSION,
        }

    def summary(self) -> dict[str, list[str]]:
        """Return nothing: there is one column, whose type is known."""
        return {}


def _network(name: str) -> Callable[..., nn.Module]:
    def build(tasks: int, *, hidden: int = 64, dropout: float = 0.0) -> nn.Module:
        return GRAPH_MODELS[name](hidden, tasks, dropout=dropout)

    return build


class MoleculeType(DataType[MoleculeData]):
    """Molecules as SMILES, with graph networks and committees of them and of trees on fingerprints."""

    title = "molecules, as SMILES"
    config_class = MoleculeData
    models: ClassVar[Mapping[str, Callable[..., nn.Module]]] = {name: _network(name) for name in GRAPH_MODELS}
    reading_options = (SMILES,)
    learns_from_rows = False
    threads = 1

    def fit_encoder(self, table: Any, excluded: Sequence[str]) -> MoleculeEncoder:  # noqa: ARG002 - nothing is fitted
        """Return the encoder."""
        config = self.config
        return MoleculeEncoder(
            config.smiles,
            len(config.targets),
            levels=config.levels,
            largest_fragment=config.largest_fragment,
            fingerprints=config.fingerprints,
        )

    @classmethod
    def restore_encoder(cls, table: Mapping[str, Any]) -> MoleculeEncoder:
        """Return the encoder that `MoleculeEncoder.to_table` described.

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

    def model_input(self, encoder: MoleculeEncoder) -> int:
        """Return the number of targets."""
        return encoder.tasks

    def default_stages(self, rows: int, positives: int, model: str, *, pretrained: bool = False) -> Sequence[Stage]:  # noqa: ARG002
        """Return the default recipe in batches of 64: 100 epochs of a few thousand molecules, 20 of many.

        >>> stages = MoleculeType(MoleculeData("a.csv", "y")).default_stages(1_694, 38, "gine")
        >>> [(stage.name, stage.epochs, stage.sampler.num_pos) for stage in stages]
        [('ce', 100, 4), ('ap + ce', 20, 8)]
        """
        return sized_recipe(rows, positives, steps=20_000, joint_steps=2000, least_epochs=20)

    def for_model(self, model: str) -> MoleculeType:
        """Return the data type with the levels that the model needs."""
        graphs = self.with_fields(graphs=True)
        return graphs.with_fields(levels=True) if model in MULTI_LEVEL else graphs

    def for_committee(self, effort: str, members: Sequence[str]) -> MoleculeType:
        """Return the data type with fingerprints, and with whole scaffolds in folds unless another way is named.

        The descriptors, several milliseconds a molecule, are for the effort "best" only, graphs for committees with a
        network.
        """
        config = self.config
        named = (config.split, config.group, config.time, config.valid)
        split = "scaffold" if all(way is None for way in named) else config.split
        table = MEMBERS_BY_KIND[config.kind]
        planned = members or list(table)[: 1 if effort == "quick" else None]
        graphs = any(table[name].raw for name in planned)
        return self.with_fields(fingerprints=True, levels=effort == "best", graphs=graphs, split=split)

    def committee_features(self, rows: LabelledRows, encoder: Any) -> MoleculeFeatures:  # noqa: ARG002 - nothing is fitted
        """Return the molecules, without labels: each member is given its own."""
        return MoleculeFeatures(MoleculeDataset(rows.dataset.store, places=rows.dataset.places))

    def committee_columns(self, encoder: MoleculeEncoder) -> int:
        """Return the number of columns of the fingerprints, and of the descriptors if they are read."""
        return MORGAN_SIZE + len(PROPERTY_NAMES) + encoder.levels * DESCRIPTOR_COUNT

    def committee_encoder(self, encoder: MoleculeEncoder, *, raw: bool) -> MoleculeEncoder:
        """Return the encoder with graphs only where a network scores: they take half of the time."""
        return replace(encoder, graphs=raw)

    def committee_rows(self, encoded: EncodedRows, table: Any) -> MoleculeDataset:  # noqa: ARG002 - encoded is enough
        """Return the molecules."""
        dataset: MoleculeDataset = encoded.dataset
        return dataset

    def open_source(self, path: str | Path) -> RowSource:
        """Return the rows of a table or of a list of SMILES."""
        if is_molecule_file(path):
            return open_table(path, smiles_column=self.config.smiles)
        source = super().open_source(path)
        source.check_column(self.config.smiles, SMILES)
        return source

    def read_rows(self, source: RowSource, targets: Targets, table: Any) -> LabelledRows:  # noqa: ARG002 - all in table
        """Return the labelled molecules of a file, read through the cache."""
        labels = targets.labels(table)
        dataset, report = molecule_dataset(
            column_texts(table, self.config.smiles, SMILES),
            target_columns(labels),
            duplicates=self.config.duplicates,
            largest_fragment=self.config.largest_fragment,
            levels=self.config.levels,
            fingerprints=self.config.fingerprints,
            graphs=self.config.graphs,
            on_error=self.config.on_error,
            workers=worker_processes(),
        )
        # The labels of joined molecules are not those of their row.
        joined = labels if dataset.labels is None else dataset.labels.numpy().astype(labels.dtype)
        rows = dataset.table_rows
        unreadable = tuple(report.unreadable)
        return LabelledRows(table.take(rows), joined, dataset, tuple(report.lines()), unreadable, rows)

    def groups(self, rows: LabelledRows) -> npt.NDArray[Any]:
        """Return the Bemis–Murcko scaffold of every molecule, or its number if the molecules have fingerprints.

        A molecule without rings has no scaffold: it is a group of its own, with its duplicates.
        """
        store, places, identity = rows.dataset.store, rows.dataset.places, self.identities(rows)
        if store.fingerprints is not None:
            found = store.fingerprints.scaffolds[places]
            return np.where(found == NO_SCAFFOLD, identity, found)
        texts = column_texts(rows.table, self.config.smiles, SMILES)
        names = scaffolds(texts, fragment=self.config.largest_fragment, workers=worker_processes())
        return np.asarray([name or f"molecule {number}" for name, number in zip(names, identity, strict=True)])

    def identities(self, rows: LabelledRows) -> npt.NDArray[Any]:
        """Return the hash of the canonical SMILES of each molecule."""
        found: npt.NDArray[Any] = rows.dataset.store.identity[rows.dataset.places]
        return found

    def encoder_for(
        self,
        encoder: MoleculeEncoder,
        source: RowSource | None,  # noqa: ARG002 - the same for all files
        options: Mapping[str, Any],
    ) -> MoleculeEncoder:
        """Return the encoder for a file whose column may have another name."""
        return replace(encoder, smiles=options.get(SMILES, encoder.smiles))

    def nothing_readable(self, encoder: MoleculeEncoder, rows: Sequence[UnreadableRow]) -> str:
        """Return the error message for a column without any molecule."""
        first = rows[0]
        return (
            f"no molecule could be read in column {encoder.smiles!r}, which begins with {first.short_value!r} "
            f"({first.reason}): name the column of SMILES (smiles=COLUMN)"
        )

    @property
    def scoring_batch_size(self) -> int:
        """Number of molecules that are scored at a time."""
        return 1024
