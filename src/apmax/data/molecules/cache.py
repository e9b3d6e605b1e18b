"""Stores on disk: built once per content and featuriser, whole or not at all, by however many processes at a time."""

from __future__ import annotations

import json
import os
import shutil
import sys
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from hashlib import blake2b
from pathlib import Path

from apmax import extras, validation
from apmax.data.molecules.building import CHUNK, Chunk, build_chunks
from apmax.data.molecules.featurise import Unreadable
from apmax.data.molecules.store import Store
from apmax.data.molecules.vocabulary import FEATURISER_VERSION

ON_ERROR = ("skip", "raise")
_UNREADABLE = "unreadable.json"


@dataclass(frozen=True)
class Featurised:
    """The molecules that could be read, and those that could not."""

    store: Store
    unreadable: list[Unreadable]


def cache_directory() -> Path:
    """Return where caches are kept: `APMAX_CACHE`, or the user's cache folder."""
    given = os.environ.get("APMAX_CACHE")
    if given:
        return Path(given)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "apmax"


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
        folder.mkdir(parents=True, exist_ok=True)
        _write(place, smiles, levels=levels, workers=workers if len(smiles) > 2 * CHUNK else 1, progress=progress)
    unreadable = [Unreadable(**entry) for entry in json.loads((place / _UNREADABLE).read_text(encoding="utf-8"))]
    if unreadable and on_error == "raise":
        raise ValueError(describe_unreadable(unreadable, len(smiles)))
    store = Store.open(place)
    if len(store) == 0:
        raise ValueError(f"smiles: no molecule could be read. {describe_unreadable(unreadable, len(smiles))}")
    return Featurised(store, unreadable)


def describe_unreadable(unreadable: Sequence[Unreadable], total: int, *, most: int = 5) -> str:
    """Return what could not be read, by row and with RDKit's reason; the first few.

    >>> describe_unreadable([Unreadable(7, "C(C", "extra open parentheses")], 10)
    "1 of 10 molecules cannot be read: row 7 'C(C' (extra open parentheses)"
    """
    shown = "; ".join(f"row {item.row} {item.smiles!r} ({item.reason})" for item in unreadable[:most])
    more = f"; and {len(unreadable) - most} more" if len(unreadable) > most else ""
    return f"{len(unreadable)} of {total} molecules cannot be read: {shown}{more}"


def _write(place: Path, smiles: Sequence[str], *, levels: bool, workers: int, progress: bool | None) -> None:
    beside = Path(tempfile.mkdtemp(prefix=f".{place.name}-", dir=place.parent))
    try:
        chunks = list(_shown(build_chunks(smiles, levels=levels, workers=workers), len(smiles), progress))
        Store.join([chunk.store for chunk in chunks]).save(beside)
        unreadable = [asdict(item) for chunk in chunks for item in chunk.unreadable]
        (beside / _UNREADABLE).write_text(json.dumps(unreadable), encoding="utf-8")
        try:
            beside.rename(place)
        except OSError:
            if not place.exists():
                raise
    finally:
        shutil.rmtree(beside, ignore_errors=True)


def _shown(chunks: Iterable[Chunk], total: int, progress: bool | None) -> Iterator[Chunk]:
    if not (sys.stderr.isatty() if progress is None else progress):
        yield from chunks
        return
    console = extras.load("rich.console", "molecules").Console(stderr=True)
    with extras.load("rich.progress", "molecules").Progress(console=console, transient=True) as bar:
        task = bar.add_task("reading molecules", total=total)
        for chunk in chunks:
            bar.advance(task, len(chunk.store) + len(chunk.unreadable))
            yield chunk
