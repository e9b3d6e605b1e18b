"""Stores on disk: built once per content and featuriser, whole or not at all, by however many processes at a time."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from apmax import extras, validation
from apmax.data.caching import cache_directory, filled_beside, with_progress
from apmax.data.molecules.building import CHUNK, Chunk, build_chunks
from apmax.data.molecules.store import Store
from apmax.data.molecules.vocabulary import FEATURISER_VERSION
from apmax.data.reading import ON_ERROR, UnreadableRow, describe_unreadable

_UNREADABLE = "unreadable.json"


@dataclass(frozen=True)
class Featurised:
    """The molecules that could be read, and those that could not."""

    store: Store
    unreadable: list[UnreadableRow]


def content_key(smiles: Sequence[str], *, levels: bool = False) -> str:
    """Return the name of the cache of these SMILES: other texts, featuriser or RDKit, another name.

    >>> content_key(["C", "CC"]) == content_key(["CC", "C"])
    False
    """
    rdkit = extras.load("rdkit", "molecules").__version__
    digest = blake2b(f"{FEATURISER_VERSION} {rdkit} {levels}".encode(), digest_size=16)
    for text in smiles:
        digest.update(b"\n")
        digest.update(text.encode())
    return digest.hexdigest()


def featurise_all(
    smiles: Sequence[str],
    cache: str | os.PathLike[str] | None = None,
    *,
    levels: bool = False,
    on_error: str = "skip",
    workers: int = 2,
    progress: bool | None = None,
) -> Featurised:
    """Return the molecules of these SMILES, from the cache if they were read before.

    The first to finish puts its directory in place by one rename; another that built the same discards its own.

    Args:
        smiles: One text per row.
        cache: The folder of caches; by default `cache_directory()`.
        levels: Cliques and descriptors as well, for ML-MPNN. (Descriptors take 25 times as long as all else.)
        on_error: "skip" leaves unreadable molecules out and reports them; "raise" refuses.
        workers: Processes that read; small lists are read by this one.
        progress: Show a progress bar; by default where the error stream is a terminal.

    Raises:
        ValueError: No molecule could be read, or any could not with `on_error="raise"`; with rows and reasons.
    """
    validation.choice("on_error", on_error, ON_ERROR)
    validation.whole("workers", workers, 1)
    if len(smiles) == 0:
        raise ValueError("smiles must hold at least one molecule, got none")
    folder = Path(cache) if cache is not None else cache_directory()
    place = folder / f"molecules-{content_key(smiles, levels=levels)}"
    if not place.exists():
        _write(place, smiles, levels=levels, workers=workers if len(smiles) > 2 * CHUNK else 1, progress=progress)
    entries = json.loads((place / _UNREADABLE).read_text(encoding="utf-8"))
    unreadable = [UnreadableRow(*entry.values()) for entry in entries]
    message = describe_unreadable(unreadable, len(smiles), "molecules")
    if unreadable and on_error == "raise":
        raise ValueError(message)
    store = Store.open(place)
    if len(store) == 0:
        raise ValueError(f"smiles: no molecule could be read. {message}")
    return Featurised(store, unreadable)


def _write(place: Path, smiles: Sequence[str], *, levels: bool, workers: int, progress: bool | None) -> None:
    def size(chunk: Chunk) -> int:
        return len(chunk.store) + len(chunk.unreadable)

    built = build_chunks(smiles, levels=levels, workers=workers)
    with filled_beside(place) as beside:
        chunks = list(
            with_progress(
                built, len(smiles), label="reading molecules", size=size, progress=progress, extra="molecules"
            )
        )
        Store.join([chunk.store for chunk in chunks]).save(beside)
        unreadable = [asdict(item) for chunk in chunks for item in chunk.unreadable]
        (beside / _UNREADABLE).write_text(json.dumps(unreadable), encoding="utf-8")
