"""Copies of model folders for tests that change their files."""

from __future__ import annotations

import shutil
from pathlib import Path

from apmax.folders import Manifest, read_manifest, write_manifest


def copy_model(source: Path, folder: Path) -> Manifest:
    """Copy the files from which a model is loaded, and return their manifest."""
    manifest = read_manifest(source, kind="model")
    for name in ("manifest.json", *manifest.files):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(source / name, folder / name)
    return read_manifest(folder, kind="model")


def renew_manifest(folder: Path) -> None:
    """Write the manifest anew, as somebody would who changed the files on purpose."""
    write_manifest(folder, read_manifest(folder, kind="model").files, kind="model")
