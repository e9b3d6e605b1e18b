"""Location and download of published data sets: a folder (`APMAX_DATA`), or a public address."""

from __future__ import annotations

import os
import shutil
import urllib.request
from collections.abc import Callable
from pathlib import Path

from apmax.data.caching import folder_beside

VARIABLE = "APMAX_DATA"
_SECONDS = 60


def data_directory(data_dir: str | os.PathLike[str] | None = None) -> Path | None:
    """Return the folder of data sets: the one given, else that of the environment variable `APMAX_DATA`."""
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    return Path(given) if given else None


def locate(
    name: str,
    data_dir: str | os.PathLike[str] | None = None,
    *,
    url: str | None = None,
    verify: Callable[[Path], None] | None = None,
    download: bool = False,
) -> Path:
    """Return the path of the file `name` below the folder of data sets; fetch it there from `url` if allowed.

    Args:
        name: Path below the folder, such as "hiv/hiv.csv.gz".
        data_dir: The folder; by default `APMAX_DATA`.
        url: Its public address.
        verify: Raises if the content of a download is wrong, which is then discarded.
        download: Whether the network may be used.

    Raises:
        FileNotFoundError: It is not there, and may not or cannot be downloaded.
    """
    folder = data_directory(data_dir)
    if folder is None:
        raise FileNotFoundError(f"{name}: set {VARIABLE}, or data_dir, to the folder of data sets")
    path = folder / name
    if path.exists():
        return path
    if not (download and url):
        reason = f"; download=True fetches it from {url}" if url else "; it has no public address: place it there"
        raise FileNotFoundError(f"there is no {path}{reason}")
    fetch(url, path, verify=verify)
    return path


def fetch(url: str, path: Path, *, verify: Callable[[Path], None] | None = None) -> None:
    """Download `url` to `path`, complete and verified or not at all.

    Raises:
        FileNotFoundError: The download failed.
    """
    with folder_beside(path) as beside:
        # The same name, since its ending gives the format.
        part = beside / path.name
        try:
            with urllib.request.urlopen(url, timeout=_SECONDS) as answer, part.open("wb") as file:
                shutil.copyfileobj(answer, file)
        except OSError as error:
            raise FileNotFoundError(f"there is no {path}, and {url} could not be fetched: {error}") from None
        if verify is not None:
            verify(part)
        part.replace(path)
