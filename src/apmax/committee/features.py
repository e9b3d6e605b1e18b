"""Features of a committee: a matrix for each fold, encoded by what is learnt from that fold's training rows only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any, ClassVar, Protocol

import numpy as np
from numpy.typing import NDArray
from scipy import sparse  # type: ignore[import-untyped]

from apmax import extras
from apmax.data import RobustScale
from apmax.data.scaling import relative_weights
from apmax.data.splits import RowNumbers

Matrix = NDArray[np.float32]
"""Encoded rows, (n, d); of molecules a `scipy.sparse.csr_matrix` of the same type."""
ENCODED_ROWS = 8192
"""Rows of a table that are encoded at a time."""


class FittedFeatures(Protocol):
    """Encoding of rows that was fitted to a fold's training rows."""

    kind: ClassVar[str]
    """The kind of data, a key of `MEMBERS_BY_KIND`."""

    @property
    def sizes(self) -> Sequence[int]:
        """Per column of the matrix, 0 for numbers, else the number of codes."""

    def matrix(self, rows: Any) -> Matrix:
        """Return rows of the same form as the training rows as a matrix, (n, len(sizes))."""

    def to_table(self) -> dict[str, Any]:
        """Return the encoding as plain lists, strings and numbers."""


class Features(Protocol):
    """Rows before they are encoded."""

    def __len__(self) -> int:
        """Return the number of rows."""

    def take(self, rows: RowNumbers) -> Any:
        """Return some of the rows in their original form."""

    def fit(self, rows: RowNumbers, sample_weight: NDArray[np.float64]) -> FittedFeatures:
        """Return the encoding fitted to these rows."""

    def encode(self, rows: RowNumbers, encoding: FittedFeatures) -> Matrix:
        """Return some of the rows as a matrix, by an encoding that was fitted to these or to others of them."""


def _encode_parts(features: Features, rows: RowNumbers, encoding: FittedFeatures) -> Matrix:
    """Return encoded rows of a table; in parts, as a copy in the original form can be twice as large."""
    matrix = np.empty((len(rows), len(encoding.sizes)), np.float32)
    for start in range(0, len(rows), ENCODED_ROWS):
        part = slice(start, start + ENCODED_ROWS)
        matrix[part] = encoding.matrix(features.take(rows[part]))
    return matrix


@dataclass(frozen=True)
class ScaledColumns:
    """Robustly scaled numeric columns."""

    scales: tuple[RobustScale, ...]

    kind: ClassVar[str] = "table"

    @property
    def sizes(self) -> Sequence[int]:
        """Zeros: all columns are numbers."""
        return [0] * len(self.scales)

    def matrix(self, rows: Any) -> Matrix:
        """Return the scaled columns of an array (n, d)."""
        columns = np.asarray(rows, np.float64).T
        matrix = np.empty((columns.shape[1], len(self.scales)), np.float32)
        # Column by column: all of them in double precision would be twice as large as the result.
        for place, (scale, column) in enumerate(zip(self.scales, columns, strict=True)):
            matrix[:, place] = scale(column)
        return matrix

    def to_table(self) -> dict[str, Any]:
        """Return medians and scales."""
        return {"median": [scale.median for scale in self.scales], "scale": [scale.scale for scale in self.scales]}

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> ScaledColumns:
        """Return the scales that `to_table` described."""
        return ScaledColumns(tuple(map(RobustScale, table["median"], table["scale"])))


@dataclass(frozen=True)
class ArrayFeatures:
    """Numeric features, (n, d)."""

    array: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.array)

    def take(self, rows: RowNumbers) -> Any:
        """Return these rows of the array."""
        return self.array[rows]

    def fit(self, rows: RowNumbers, sample_weight: NDArray[np.float64]) -> ScaledColumns:
        """Return the scales of the columns over these rows."""
        relative = relative_weights(sample_weight[rows])
        return ScaledColumns(tuple(RobustScale.fit(column[rows], relative) for column in self.array.T))

    def encode(self, rows: RowNumbers, encoding: FittedFeatures) -> Matrix:
        """Return these rows as a matrix."""
        return _encode_parts(self, rows, encoding)


@dataclass(frozen=True)
class EncodedColumns:
    """The columns of a table, encoded by a `TableEncoder`."""

    encoder: Any

    kind: ClassVar[str] = "table"

    @property
    def sizes(self) -> Sequence[int]:
        """Per column 0 for numbers, else the number of codes."""
        sizes: list[int] = self.encoder.sizes
        return sizes

    def matrix(self, rows: Any) -> Matrix:
        """Return the encoded rows of a `pyarrow.Table` or a data frame."""
        matrix: Matrix = self.encoder.encode(arrow_rows(rows)).numpy()
        return matrix

    def to_table(self) -> dict[str, Any]:
        """Return the encoder as plain values."""
        table: dict[str, Any] = self.encoder.to_table()
        return table

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> EncodedColumns:
        """Return the encoding that `to_table` described."""
        from apmax.data.tables import TableEncoder

        return EncodedColumns(TableEncoder.from_table(table))


@dataclass(frozen=True)
class TableFeatures:
    """The columns of a `pyarrow.Table`: numbers, categories and dates.

    What a column is, is decided once for all rows: in a fold ids may look like numbers, and dates like those of another
    format. What is learnt from its values is that of a fold.

    Args:
        table: The rows.
        encoder: A `TableEncoder` of these rows, or of more; None to fit one.
    """

    table: Any
    encoder: Any = None

    def __len__(self) -> int:
        return int(self.table.num_rows)

    def take(self, rows: RowNumbers) -> Any:
        """Return these rows of the table."""
        return self.table.take(rows)

    def fit(self, rows: RowNumbers, sample_weight: NDArray[np.float64]) -> EncodedColumns:  # noqa: ARG002 - unweighted
        """Return the encoder fitted to these rows."""
        return EncodedColumns(self._whole.refit(self.take(rows)))

    def encode(self, rows: RowNumbers, encoding: FittedFeatures) -> Matrix:
        """Return these rows as a matrix."""
        return _encode_parts(self, rows, encoding)

    @cached_property
    def _whole(self) -> Any:
        from apmax.data.tables import TableEncoder

        return TableEncoder.fit(self.table) if self.encoder is None else self.encoder


def arrow_rows(rows: Any) -> Any:
    """Return a data frame of pandas or polars, or a `pyarrow.Table`, as a `pyarrow.Table`."""
    pa = extras.load("pyarrow", "tables")
    if isinstance(rows, pa.Table):
        return rows
    if hasattr(rows, "iloc"):
        return pa.Table.from_pandas(rows, preserve_index=False)
    # Texts of polars are views otherwise, whose rows pyarrow cannot take.
    return rows.to_arrow(compat_level=import_module("polars").CompatLevel.oldest())


@dataclass(frozen=True)
class FrameFeatures:
    """The rows of a data frame of pandas or polars: a user's own estimators read the frame itself.

    Args:
        frame: The rows.
        columns: The same rows as numbers or as a `pyarrow.Table`, for the other members.
    """

    frame: Any
    columns: ArrayFeatures | TableFeatures

    def __len__(self) -> int:
        return len(self.columns)

    def take(self, rows: RowNumbers) -> Any:
        """Return these rows of the frame."""
        return take_frame(self.frame, rows)

    def fit(self, rows: RowNumbers, sample_weight: NDArray[np.float64]) -> ScaledColumns | EncodedColumns:
        """Return the encoding fitted to these rows."""
        return self.columns.fit(rows, sample_weight)

    def encode(self, rows: RowNumbers, encoding: FittedFeatures) -> Matrix:
        """Return these rows as a matrix."""
        # Not of the frame: a column of objects can be of another type in a part of its rows than in all of them.
        return self.columns.encode(rows, encoding)


def take_frame(frame: Any, rows: RowNumbers) -> Any:
    """Return some rows of a data frame of pandas or polars."""
    return frame.take(rows) if hasattr(frame, "iloc") else frame[rows]


@dataclass(frozen=True)
class FingerprintColumns:
    """Morgan counts and properties of molecules; nothing is fitted.

    Args:
        descriptors: Whether the 200 normalised descriptors of RDKit follow.
    """

    descriptors: bool = False

    kind: ClassVar[str] = "molecules"

    @property
    def sizes(self) -> Sequence[int]:
        """Zeros: all columns are numbers."""
        table = self.to_table()
        return [0] * (table["size"] + len(table["properties"]) + len(table["descriptors"]))

    def matrix(self, rows: Any) -> Any:
        """Return the fingerprints of a `MoleculeDataset` as a `scipy.sparse.csr_matrix`, counts first.

        Raises:
            ValueError: The molecules were read without fingerprints, or without descriptors.
        """
        from apmax.data.molecules.fingerprints import MORGAN_SIZE

        prints = rows.store.fingerprints
        if prints is None:
            raise ValueError("rows: the molecules were read without fingerprints; read them with fingerprints=True")
        taken = prints.counts.take(rows.places)
        pairs = taken.values
        counts = sparse.csr_matrix(
            (pairs[:, 1].astype(np.float32), pairs[:, 0].astype(np.int32), taken.starts), shape=(len(rows), MORGAN_SIZE)
        )
        parts = [counts, sparse.csr_matrix(prints.properties[rows.places])]
        if self.descriptors:
            if rows.store.levels is None:
                raise ValueError("rows: the molecules were read without descriptors; read them with levels=True")
            parts.append(sparse.csr_matrix(rows.store.levels.descriptors[rows.places]))
        return sparse.hstack(parts, format="csr")

    def to_table(self) -> dict[str, Any]:
        """Return the version and the columns of the fingerprints."""
        from apmax.data.molecules import fingerprints
        from apmax.data.molecules.descriptors import DESCRIPTOR_NAMES

        return {
            "version": fingerprints.FINGERPRINT_VERSION,
            "radius": fingerprints.MORGAN_RADIUS,
            "size": fingerprints.MORGAN_SIZE,
            "properties": list(fingerprints.PROPERTY_NAMES),
            "descriptors": list(DESCRIPTOR_NAMES) if self.descriptors else [],
        }

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> FingerprintColumns:
        """Return the encoding that `to_table` described.

        Raises:
            ValueError: The fingerprints of this apmax have other columns.
        """
        found = FingerprintColumns(bool(table["descriptors"]))
        if dict(table) != found.to_table():
            raise ValueError("its fingerprints are of another version: train it again, or use the apmax that did")
        return found


@dataclass(frozen=True)
class _DatasetFeatures:
    """Rows that are a data set with `subset`."""

    dataset: Any

    def __len__(self) -> int:
        return len(self.dataset)

    def take(self, rows: RowNumbers) -> Any:
        """Return the data set of these rows."""
        return self.dataset.subset(rows)

    def encode(self, rows: RowNumbers, encoding: FittedFeatures) -> Matrix:
        """Return these rows as a matrix."""
        return encoding.matrix(self.take(rows))


@dataclass(frozen=True)
class MoleculeFeatures(_DatasetFeatures):
    """Molecules with fingerprints, a `MoleculeDataset`; networks read its graphs, and trees its descriptors if any."""

    def fit(self, rows: RowNumbers, sample_weight: NDArray[np.float64]) -> FingerprintColumns:  # noqa: ARG002
        """Return the columns of the fingerprints, which are the same for all rows."""
        return FingerprintColumns(descriptors=self.dataset.store.levels is not None)


@dataclass(frozen=True)
class ImagePixels:
    """The pixels of images; nothing is fitted, and networks read the images themselves."""

    kind: ClassVar[str] = "images"

    @property
    def sizes(self) -> Sequence[int]:
        """Nothing: there are no columns."""
        return []

    def matrix(self, rows: Any) -> Matrix:
        """Return a matrix without columns."""
        return np.zeros((len(rows), 0), np.float32)

    def to_table(self) -> dict[str, Any]:
        """Return nothing."""
        return {}

    @staticmethod
    def from_table(table: Mapping[str, Any]) -> ImagePixels:  # noqa: ARG004 - there is nothing in it
        """Return the encoding that `to_table` described."""
        return ImagePixels()


@dataclass(frozen=True)
class ImageFeatures(_DatasetFeatures):
    """Images, an `ImageDataset` without augmentation and labels.

    >>> ImageFeatures([0, 0, 0]).fit([0, 1], None).kind
    'images'
    """

    def fit(self, rows: RowNumbers, sample_weight: NDArray[np.float64]) -> ImagePixels:  # noqa: ARG002
        """Return the encoding, which is the same for all rows."""
        return ImagePixels()


FEATURE_FORMATS: dict[str, type[ScaledColumns | EncodedColumns | FingerprintColumns | ImagePixels]] = {
    "array": ScaledColumns,
    "table": EncodedColumns,
    "molecules": FingerprintColumns,
    "images": ImagePixels,
}
"""How saved encodings are read, by name."""
