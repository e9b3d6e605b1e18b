"""Tables: rows of numbers, categories and dates."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np
from torch import nn

from apmax.committee import TableFeatures
from apmax.data import Labels, RowSource, parsing
from apmax.data.images import ENDINGS
from apmax.data.reading import list_names
from apmax.data.tables import TableEncoder, leaks
from apmax.data.tables.columns import MANY
from apmax.models.tables import TABLE_MODELS, build_table_model
from apmax.train import Stage, table_recipe
from apmax.workflows.data_types.base import DataConfig, DataType
from apmax.workflows.data_types.networks import limited_parameters
from apmax.workflows.data_types.rows import LabelledRows

if TYPE_CHECKING:
    from typing_extensions import Self

LEAST_REPEATED = 0.1
"""Share of the positive rows that have a copy from which on they are reported."""
INSPECTED_ROWS = 32
"""Rows of a column that are inspected for names of image files, SMILES and decimal commas."""
_SMILES = re.compile(r"(?:\[[^\]\s]+\]|Br|Cl|[BCNOPSFIbcnops]|[=#$:/\\.()%+-]|\d)+")
_SHORTEST_SMILES = 5
# The rest may be mistakes in the file, such as names.
_SHARE_OF_SMILES = 0.9


@dataclass(frozen=True)
class TableData(DataConfig):
    """Configuration of a table.

    Args:
        columns: The types of some columns by name: number, category, date or drop. The others are inferred.
        decimal_comma: Columns of numbers with a decimal comma. Others are found where the training file is a csv whose
            delimiter is not a comma.
    """

    columns: Mapping[str, str] = field(default_factory=dict)
    decimal_comma: tuple[str, ...] = ()

    kind: ClassVar[str] = "table"
    _tuples = ("decimal_comma",)


class TableType(DataType[TableData]):
    """Rows of numbers, categories and dates, with networks on their encoded columns."""

    title = "rows of numbers, categories and dates"
    config_class = TableData
    models = TABLE_MODELS
    builder_argument = "sizes"
    threads = 1

    def complete(self, table: Any, source: RowSource) -> Self:
        """Return the data type with the columns whose numbers have a decimal comma.

        Between commas, "1,234" may have a separator of thousands; between other delimiters it is a decimal comma.
        """
        config = self.config
        if source.delimiter == ",":
            return self
        # A declared number may have values that are none, which count as missing.
        kinds = {name: config.columns.get(name, "") for name in table.column_names if name not in config.not_features}
        found = [
            name
            for name, kind in kinds.items()
            if kind in ("", "number") and parsing.has_decimal_commas(table.column(name), every=not kind)
        ]
        return self.with_fields(decimal_comma=tuple(dict.fromkeys([*config.decimal_comma, *found])))

    def facts(self) -> list[str]:
        """Return a line about decimal commas, if there are any."""
        names = self.config.decimal_comma
        return [f"numbers with a decimal comma: {list_names(names)}"] if names else []

    def fit_encoder(self, table: Any, excluded: Sequence[str]) -> TableEncoder:
        """Return the encoder fitted to training rows."""
        config = self.config
        try:
            return TableEncoder.fit(table, roles=config.columns, without=excluded, decimal_comma=config.decimal_comma)
        except ValueError as error:
            names = [name for name in table.column_names if name not in (*excluded, *config.decimal_comma)]
            raise ValueError("; ".join([str(error), *_unread_columns(table, names)])) from None

    @classmethod
    def restore_encoder(cls, table: Mapping[str, Any]) -> TableEncoder:
        """Return the encoder that `TableEncoder.to_table` described."""
        return TableEncoder.from_table(table)

    def model_input(self, encoder: TableEncoder) -> list[int]:
        """Return the sizes of the encoded columns."""
        return encoder.sizes

    def default_stages(self, rows: int, positives: int, model: str, *, pretrained: bool = False) -> Sequence[Stage]:  # noqa: ARG002
        """Return the stages of `table_recipe`, which `APClassifier` has too."""
        return table_recipe(rows, positives, model=model)

    def build_model(
        self,
        encoder: TableEncoder,
        name: str,
        options: Mapping[str, Any],
        *,
        builder: Callable[..., nn.Module] | None = None,
        prior: float | None = None,
    ) -> nn.Module:
        """Return a new network; built-in ones begin at the log-odds of the prior, as those of `APClassifier`."""
        if name not in self.models:
            return super().build_model(encoder, name, options, builder=builder)
        self.check_options(name, options, self.models[name])
        with limited_parameters(name, options):
            return build_table_model(name, self.model_input(encoder), prior=prior, **options)

    def committee_features(self, rows: LabelledRows, encoder: TableEncoder) -> TableFeatures:
        """Return the columns of the table."""
        return TableFeatures(rows.table, encoder)

    def committee_columns(self, encoder: TableEncoder) -> int:
        """Return the number of columns, categories written out."""
        return max(sum(max(size, 1) for size in encoder.sizes), 1)

    def encoder_for(
        self,
        encoder: TableEncoder,
        source: RowSource | None,
        options: Mapping[str, Any],  # noqa: ARG002 - there are none
    ) -> TableEncoder:
        """Return the encoder.

        Raises:
            ValueError: A column of the source holds lists, structs, maps or bytes.
        """
        if source is not None:
            for name in set(encoder.names).intersection(source.columns):
                source.check_column(name, "data")
        return encoder

    def suspicions(self, encoder: TableEncoder, table: Any, labels: Labels) -> list[str]:
        """Return a warning for each column that a table does not read, or that alone separates the classes."""
        candidates = [
            name for name in (*encoder.left_out, *encoder.summary()["category"]) if name in table.column_names
        ]
        return [
            *_unread_columns(table, candidates),
            *(
                f"possible leakage: column {leak.name!r} alone separates the classes "
                f"(AUROC {leak.auroc:.4f} by its {leak.by}); if it is written after the outcome, leave it out: "
                f"columns={{{leak.name!r}: 'drop'}}"
                for leak in leaks(encoder, table, labels)
            ),
            *([] if self.config.group else _repeated_rows(encoder, table, labels)),
        ]


def _repeated_rows(encoder: TableEncoder, table: Any, labels: Labels) -> list[str]:
    """Return a warning if many positive rows have a copy, equal in all columns of which one has many values.

    Rows of few values repeat by chance.
    """
    # Not pc.count_distinct, which has no kernel for categories and empty columns.
    if all(len(parsing.flatten_column(table.column(name)).drop_null().unique()) <= MANY for name in encoder.names):
        return []
    rows = np.flatnonzero(labels == 1)
    positives, groups = len(rows), np.zeros(len(rows), np.int64)
    left_out = [name for name in encoder.left_out if name in table.column_names and _is_plain(table.column(name))]
    for name in (*encoder.names, *left_out):
        words = parsing.words(table.column(name).take(rows)).dictionary_encode(null_encoding="encode")
        _, groups, counts = np.unique(
            groups * max(len(words.dictionary), 1) + words.indices.to_numpy(), return_inverse=True, return_counts=True
        )
        # Of rows that differ no further columns are read, which would take many times as long and as much memory.
        repeated = counts[groups] > 1
        rows, groups = rows[repeated], groups[repeated]
    if len(rows) < LEAST_REPEATED * positives:
        return []
    return [
        f"{len(rows):,} of {positives:,} positive rows are repeated, equal in all columns: figures are too good where "
        "a row is held out and its copy is not; leave copies out, or keep them together by a column: group=COLUMN"
    ]


def _is_plain(column: Any) -> bool:
    return parsing.is_text(column) or parsing.is_number(column) or parsing.is_date(column)


def _unread_columns(table: Any, names: Sequence[str]) -> list[str]:
    """Return what a table does not read: names of image files, SMILES, numbers in a form of their own."""
    lines = []
    for name in names:
        column = table.column(name).slice(0, INSPECTED_ROWS)
        texts = [text for value in column.to_pylist() if value is not None and (text := str(value).strip())]
        if not texts:
            continue
        if all(text.lower().endswith(ENDINGS) for text in texts):
            lines.append(f"column {name!r} names images, which a table does not read: path={name!r} does")
        elif (
            sum(map(bool, map(_SMILES.fullmatch, texts))) >= _SHARE_OF_SMILES * len(texts)
            and sum(map(_like_a_molecule, texts)) > len(texts) / 2
        ):
            lines.append(f"column {name!r} looks like SMILES, which a table does not read: smiles={name!r} does")
        elif parsing.has_decimal_commas(column):
            lines.append(
                f"column {name!r} looks like numbers with a decimal comma, such as {texts[0]!r}, which are not read as "
                "numbers: write them with a point"
            )
        elif (formatted := parsing.formatted_number(column)) is not None:
            lines.append(
                f"column {name!r} looks like numbers such as {formatted!r}, which are not read as numbers: write them "
                "with a decimal point, and without separators of thousands, currency and percent sign"
            )
    return lines


def _like_a_molecule(text: str) -> bool:
    """Return whether a text of the characters of SMILES is more than an article number such as "C-100"."""
    return len(text) >= _SHORTEST_SMILES and 2 * sum(map(str.isalpha, text)) >= len(text)
