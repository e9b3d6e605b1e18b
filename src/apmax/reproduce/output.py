"""An item's files: the tables in three formats and the figure, in a folder of the item's name."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from apmax.reproduce.claims import waiting
from apmax.reproduce.figures import draw
from apmax.reproduce.rendering import latex, markdown, page
from apmax.reproduce.summary import Summary
from apmax.reproduce.tables import document
from apmax.train import write_atomic


def stem(summary: Summary) -> str:
    """Return the name of an item's files: other budgets and numbers of seeds than the usual have their own."""
    parts = [summary.item.name]
    if summary.budget != next(iter(summary.grid.budgets)):
        parts.append(summary.budget)
    if summary.seeds is not None:
        parts.append(f"{summary.seeds}-seeds")
    return "-".join(parts)


def write(summary: Summary, folder: Path, histories: Mapping[str, Mapping[str, Any]]) -> list[Path]:
    """Write an item's tables and its figure, and return their paths.

    Args:
        summary: What the results say; of a whole item, as its files are one.
        folder: The results' folder.
        histories: How the epochs of runs went, by key.
    """
    place = folder / summary.item.name
    place.mkdir(parents=True, exist_ok=True)
    name, shown = stem(summary), document(summary)
    written = [place / f"{name}.{ending}" for ending in ("md", "tex", "html")]
    with waiting(folder / ".tables.lock"):
        pictures = draw(summary, place / name, histories)
        texts = (markdown(shown), latex(shown), page(shown, tuple(path.name for path in pictures)))
        for path, text in zip(written, texts, strict=True):
            write_atomic(path, text.encode())
    return [*written, *pictures]
