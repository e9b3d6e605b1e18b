"""What commands read: tables, lists of SMILES, folders of images."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from apmax.data import RowSource, is_molecule_file, open_table
from apmax.data.images import ImageFolder, describe_ignored
from apmax.workflows.data_types import KINDS


def open_source(
    path: str | os.PathLike[str], *, kind: str, smiles: str | None = None, targets: Sequence[str] = ()
) -> RowSource:
    """Return the rows of a file, or of a folder of images.

    Args:
        path: The file or folder.
        kind: An entry of `KINDS`.
        smiles: What the only column of a .smi file is to be called.
        targets: The classes that become columns of a folder.

    Raises:
        FileNotFoundError: There is no such file.
        ValueError: That kind of data is not read from such.
    """
    if Path(path).is_dir():
        if not KINDS[kind].folders:
            raise ValueError(
                f"{path} is a folder, and data of kind {kind} are read from a file: csv, csv.gz or parquet"
            )
        return ImageFolder(path, targets)
    molecules = "smiles" in KINDS[kind].takes
    if is_molecule_file(path) and not molecules:
        raise ValueError(f"{path} is a list of molecules, and these data are of kind {kind}")
    source = open_table(path, smiles_column=smiles or "smiles")
    if molecules:
        source.check_column(smiles or "smiles", "smiles")
    return source


def remarks(source: RowSource) -> list[str]:
    """Return lines about what a folder holds and is passed over."""
    ignored = source.ignored if isinstance(source, ImageFolder) else []
    return [describe_ignored(ignored)] if ignored else []


def find(path: str, places: Sequence[Path]) -> Path:
    """Return the file or folder in the current folder, or else in the first of `places` that has it.

    Raises:
        FileNotFoundError: None has it.
    """
    for place in (Path(), *places):
        if (place / path).exists():
            return (place / path).resolve()
    also = f", nor in {', '.join(map(str, places))}" if places else ""
    raise FileNotFoundError(f"no such file: {path}{also}")
