"""What reading images gives: the three parts of a set, and a report of what became of the files."""

from __future__ import annotations

from dataclasses import dataclass, field

from apmax.data.images.cache import describe_unreadable
from apmax.data.images.dataset import ImageDataset
from apmax.data.images.decoding import Unreadable


@dataclass(frozen=True)
class Report:
    """What became of the files.

    Attributes:
        total: Images that were asked for.
        unreadable: Those that could not be decoded.
        unmeasured: Rows of a table that have no label and are left out.
        ignored: Files of a folder that are no images by their name.
    """

    total: int
    unreadable: list[Unreadable] = field(default_factory=list)
    unmeasured: int = 0
    ignored: list[str] = field(default_factory=list)

    def lines(self) -> list[str]:
        """Return what a person should know, a line each; nothing if all is well."""
        lines = [describe_unreadable(self.unreadable, self.total)] if self.unreadable else []
        if self.unmeasured:
            lines.append(f"{self.unmeasured} rows have no label and are left out")
        if self.ignored:
            lines.append(f"{len(self.ignored)} files are no images by their name, such as {self.ignored[0]}")
        return lines


@dataclass(frozen=True)
class ImageParts:
    """The three parts of a set of images; only the training part is augmented.

    Attributes:
        report: What became of the files, where images were decoded.
    """

    train: ImageDataset
    valid: ImageDataset
    test: ImageDataset
    report: Report | None = None
