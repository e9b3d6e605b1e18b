"""Data sets, their readers and splits. Readers are imported on first use: they need pyarrow."""

from __future__ import annotations

from typing import TYPE_CHECKING

from apmax.data.indexed import Indexed
from apmax.lazy import lazy_attributes

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
    from apmax.data.scaling import RobustScale
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
    from apmax.data.writing import check_writable, open_writer

_EXPORTS = {
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
    "scaling": ("RobustScale",),
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
    "writing": ("check_writable", "open_writer"),
}
__all__ = [
    "ON_ERROR",
    "Indexed",
    "LabelledTable",
    "Labels",
    "RobustScale",
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
    "check_writable",
    "describe_unreadable",
    "images",
    "is_molecule_file",
    "k_fold",
    "load_split",
    "molecules",
    "one_column",
    "open_table",
    "open_writer",
    "read_labelled",
    "split_by_group",
    "split_by_time",
    "split_random",
    "split_stratified",
    "splits",
    "strata",
    "tables",
    "timestamps",
]

__getattr__, __dir__ = lazy_attributes(__name__, __all__, _EXPORTS)
