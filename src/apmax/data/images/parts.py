"""What reading images gives: the three parts of a set, and a report of what became of the files."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from apmax.data.images.dataset import ImageDataset
from apmax.data.reading import UnreadableRow, describe_unreadable
from apmax.data.targets import Targets


@dataclass(frozen=True)
class ImageReport:
    """What became of the files.

    Attributes:
        total: Images that were asked for.
        unreadable: Those that could not be decoded.
        unmeasured: Rows of a table that have no label and are left out.
        ignored: Files of a folder that are no images by their name.
        targets: The meaning of the labels, where they were read from a file.
    """

    total: int
    unreadable: list[UnreadableRow] = field(default_factory=list)
    unmeasured: int = 0
    ignored: list[str] = field(default_factory=list)
    targets: Targets | None = None

    def lines(self) -> list[str]:
        """Return what a person should know, a line each; nothing if all is well."""
        lines = [describe_unreadable(self.unreadable, self.total, "images")] if self.unreadable else []
        if self.unmeasured:
            lines.append(
                f"{self.unmeasured} {'image has' if self.unmeasured == 1 else 'images have'} no label: left out"
            )
        if self.ignored:
            lines.append(describe_ignored(self.ignored))
        return lines


def describe_ignored(files: Sequence[str]) -> str:
    """Return how many files of a folder are passed over, and how their names end.

    >>> describe_ignored(["a/1.dcm", "a/2.dcm", "a/README"])
    '3 files are no images by their name (.dcm, README) and are passed over, such as a/1.dcm'
    """
    kinds = list(dict.fromkeys(Path(file).suffix.lower() or Path(file).name for file in files))
    shown = ", ".join(kinds[:5]) + (", …" if len(kinds) > 5 else "")
    what = "file is no image by its" if len(files) == 1 else "files are no images by their"
    verb = "is" if len(files) == 1 else "are"
    return f"{len(files):,} {what} name ({shown}) and {verb} passed over, such as {files[0]}"


@dataclass(frozen=True)
class ImageParts:
    """The three parts of a set of images; only the training part is augmented.

    Attributes:
        report: What became of the files, where images were decoded.
    """

    train: ImageDataset
    valid: ImageDataset
    test: ImageDataset
    report: ImageReport | None = None
