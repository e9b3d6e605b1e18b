"""Tables: rows of numbers, categories and dates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from apmax.data.images.decoding import ENDINGS
from apmax.data.tables import TableEncoder, leaks
from apmax.models.tables import MODELS
from apmax.train import Stage, sized_recipe
from apmax.workflows.data_types.base import Kind, Labels

LOOKED_AT = 32
"""Rows of a column that are looked at for names of images."""


def stages(rows: int, positives: int, model: str) -> Sequence[Stage]:
    """Return the default recipe, as long as a table of that size needs: some thousand steps, then an AP stage.

    >>> [(stage.name, stage.epochs, stage.sampler.num_pos) for stage in stages(10_000, 200, "mlp")]
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


def suspects(encoder: Any, table: Any, labels: Labels) -> list[str]:
    """Return a line for each column that alone separates the classes, or names images."""
    images = [name for name in encoder.left_out if name in table.column_names and names_images(table.column(name))]
    return [
        *(f"column {name!r} names images, which a table does not look into: --path {name} does" for name in images),
        *leaking(encoder, table, labels),
    ]


def names_images(column: Any) -> bool:
    """Tell whether the first texts of a column end as files of images do."""
    texts = [value for value in column.slice(0, LOOKED_AT).to_pylist() if value]
    return bool(texts) and all(str(text).strip().lower().endswith(ENDINGS) for text in texts)


def leaking(encoder: Any, table: Any, labels: Labels) -> list[str]:
    """Return a line for each column that alone separates the classes."""
    return [
        f"possible leakage: column {leak.name!r} alone separates the classes (AUROC {leak.auroc:.4f} by its {leak.by})"
        f"; if it is written after the outcome, leave it out: --column {leak.name}=drop"
        for leak in leaks(encoder, table, labels)
    ]


def fit(table: Any, data: Any, without: Sequence[str]) -> TableEncoder:
    """Return the encoder of these training rows."""
    return TableEncoder.fit(table, roles=data.columns, without=without)


TABLE = Kind(
    title="rows of numbers, categories and dates",
    fit=fit,
    restore=TableEncoder.from_table,
    shape=lambda encoder: encoder.sizes,
    models=MODELS,
    stages=stages,
    takes=frozenset({"columns"}),
    suspects=suspects,
    threads=1,
)
