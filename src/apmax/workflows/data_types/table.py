"""Tables: rows of numbers, categories and dates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from apmax.data import Labels
from apmax.data.images.decoding import ENDINGS
from apmax.data.tables import TableEncoder, leaks
from apmax.models.tables import MODELS
from apmax.train import Stage, sized_recipe
from apmax.workflows.data_types.base import DataConfig, DataType

INSPECTED_ROWS = 32
"""Rows of a column that are inspected for names of image files."""


@dataclass(frozen=True)
class TableData(DataConfig):
    """Configuration of a table.

    Args:
        columns: The types of some columns by name: number, category, date or drop. The others are inferred.
    """

    columns: Mapping[str, str] = field(default_factory=dict)

    kind: ClassVar[str] = "table"


class TableType(DataType[TableData]):
    """Rows of numbers, categories and dates, with networks on their encoded columns."""

    title = "rows of numbers, categories and dates"
    config_class = TableData
    models = MODELS
    threads = 1

    def fit_encoder(self, table: Any, excluded: Sequence[str]) -> TableEncoder:
        """Return the encoder fitted to training rows."""
        return TableEncoder.fit(table, roles=self.config.columns, without=excluded)

    @classmethod
    def restore_encoder(cls, table: Mapping[str, Any]) -> TableEncoder:
        """Return the encoder that `TableEncoder.to_table` described."""
        return TableEncoder.from_table(table)

    def model_input(self, encoder: TableEncoder) -> list[int]:
        """Return the sizes of the encoded columns."""
        return encoder.sizes

    def default_stages(self, rows: int, positives: int, model: str) -> Sequence[Stage]:
        """Return the default recipe: about 4,000 steps of cross-entropy, then about 1,000 of AP + CE.

        >>> stages = TableType(TableData("a.csv", "y")).default_stages(10_000, 200, "mlp")
        >>> [(stage.name, stage.epochs, stage.sampler.num_pos) for stage in stages]
        [('ce', 51, 4), ('ap + ce', 13, 16)]
        """
        return sized_recipe(
            rows,
            positives,
            steps=4000,
            joint_steps=1000,
            least_epochs=5,
            batch_size=128 if rows >= 2048 else 64,
            lr=1e-2 if model == "linear" else 1e-3,
            patience=5,
        )

    def suspicions(self, encoder: TableEncoder, table: Any, labels: Labels) -> list[str]:
        """Return a warning for each column that names image files, or that alone separates the classes."""
        candidates = [name for name in encoder.left_out if name in table.column_names]
        return [
            *(
                f"column {name!r} names images, which a table does not read: path={name} does"
                for name in candidates
                if _names_images(table.column(name))
            ),
            *(
                f"possible leakage: column {leak.name!r} alone separates the classes "
                f"(AUROC {leak.auroc:.4f} by its {leak.by}); if it is written after the outcome, leave it out: "
                f"columns={{{leak.name!r}: 'drop'}}"
                for leak in leaks(encoder, table, labels)
            ),
        ]


def _names_images(column: Any) -> bool:
    texts = [value for value in column.slice(0, INSPECTED_ROWS).to_pylist() if value]
    return bool(texts) and all(str(text).strip().lower().endswith(ENDINGS) for text in texts)
