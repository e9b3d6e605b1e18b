"""Data sets, their readers and splits. Readers are imported on first use: they need pyarrow."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from apmax.data.indexed import Indexed

if TYPE_CHECKING:
    from apmax.data.parsing import timestamps
    from apmax.data.reading import (
        ON_ERROR,
        RowSource,
        SdfFile,
        SmilesFile,
        TableFile,
        UnreadableRow,
        describe_unreadable,
        is_molecule_file,
        open_table,
    )
    from apmax.data.splits import (
        Labels,
        Split,
        any_known,
        any_positive,
        k_fold,
        load_split,
        one_column,
        split_by_group,
        split_by_time,
        split_random,
        split_stratified,
        strata,
    )
    from apmax.data.targets import LabelledTable, Target, Targets, read_labelled
    from apmax.data.writing import open_writer

_HOMES = {
    "parsing": ("timestamps",),
    "reading": (
        "ON_ERROR",
        "RowSource",
        "SdfFile",
        "SmilesFile",
        "TableFile",
        "UnreadableRow",
        "describe_unreadable",
        "is_molecule_file",
        "open_table",
    ),
    "splits": (
        "Labels",
        "Split",
        "any_known",
        "any_positive",
        "k_fold",
        "load_split",
        "one_column",
        "split_by_group",
        "split_by_time",
        "split_random",
        "split_stratified",
        "strata",
    ),
    "targets": ("LabelledTable", "Target", "Targets", "read_labelled"),
    "writing": ("open_writer",),
}
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}

__all__ = [
    "ON_ERROR",
    "Indexed",
    "LabelledTable",
    "Labels",
    "RowSource",
    "SdfFile",
    "SmilesFile",
    "Split",
    "TableFile",
    "Target",
    "Targets",
    "UnreadableRow",
    "any_known",
    "any_positive",
    "describe_unreadable",
    "is_molecule_file",
    "k_fold",
    "load_split",
    "one_column",
    "open_table",
    "open_writer",
    "read_labelled",
    "split_by_group",
    "split_by_time",
    "split_random",
    "split_stratified",
    "strata",
    "timestamps",
]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'apmax.data' has no attribute {name!r}")
    value = getattr(importlib.import_module(f"apmax.data.{_HOME_OF[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
