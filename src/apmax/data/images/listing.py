"""The images of a folder: which files they are, and of which class."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

from apmax.data.images.decoding import ENDINGS


@dataclass(frozen=True)
class Listing:
    """What a folder holds, in the order of names.

    Attributes:
        root: The folder.
        classes: The folders in it, each of which is a class.
        files: All images at any depth, those of the folder itself first.
        class_of: The class of each, None for those of the folder itself.
        ignored: Files that are no images by their name.
    """

    root: Path
    classes: list[str]
    files: list[str]
    class_of: list[str | None]
    ignored: list[str]

    def check(self) -> None:
        """Raise if there are no images."""
        if not self.files:
            others = f"none of its {len(self.ignored)} files ends in" if self.ignored else "no file in it ends in"
            raise ValueError(f"{self.root} has no images: {others} {', '.join(ENDINGS)}")


def list_images(path: str | os.PathLike[str]) -> Listing:
    """Return the images below a folder; what begins with a dot is passed over.

    Raises:
        FileNotFoundError: No such folder.
    """
    root = Path(path)
    if not root.is_dir():
        raise FileNotFoundError(f"no folder at {root}")
    listing = Listing(root, sorted(e.name for e in root.iterdir() if e.is_dir() and e.name[0] != "."), [], [], [])
    own = sorted(entry.name for entry in root.iterdir() if entry.is_file())
    _add(listing, str(root), own, None)
    for name in listing.classes:
        for folder, folders, names in os.walk(root / name):
            folders[:] = sorted(each for each in folders if each[0] != ".")
            _add(listing, folder, sorted(names), name)
    return listing


def _add(listing: Listing, folder: str, names: list[str], own_class: str | None) -> None:
    for name in names:
        if name[0] == ".":
            continue
        file = str(Path(folder, name))
        if name.lower().endswith(ENDINGS):
            listing.files.append(file)
            listing.class_of.append(own_class)
        else:
            listing.ignored.append(file)
