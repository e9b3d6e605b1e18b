"""Data types: tables, molecules and images, each with its configuration, encoder and models."""

from typing import Any

from apmax.workflows.data_types.base import DataConfig, DataType
from apmax.workflows.data_types.frozen_images import FrozenImageType
from apmax.workflows.data_types.images import ImageData, ImageType, ignored_files_warning
from apmax.workflows.data_types.molecules import MoleculeData, MoleculeType
from apmax.workflows.data_types.networks import is_import_path
from apmax.workflows.data_types.rows import EncodedRows, Encoder, LabelledRows, RowReport, encode_rows
from apmax.workflows.data_types.table import TableData, TableType

DATA_TYPES: dict[str, type[DataType[Any]]] = {
    data_type.config_class.kind: data_type for data_type in (TableType, MoleculeType, ImageType)
}
"""The data types by the name that [data] kind gives them; the first is the default."""


def data_type_of(config: DataConfig) -> DataType[Any]:
    """Return the data type of a configuration."""
    return DATA_TYPES[config.kind](config)


__all__ = [
    "DATA_TYPES",
    "DataConfig",
    "DataType",
    "EncodedRows",
    "Encoder",
    "FrozenImageType",
    "ImageData",
    "ImageType",
    "LabelledRows",
    "MoleculeData",
    "MoleculeType",
    "RowReport",
    "TableData",
    "TableType",
    "data_type_of",
    "encode_rows",
    "ignored_files_warning",
    "is_import_path",
]
