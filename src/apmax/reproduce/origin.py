"""Version and commit of the code that a result was made by."""

from __future__ import annotations

import subprocess
from pathlib import Path

from apmax import __version__


def code_origin() -> dict[str, str]:
    """Return the version of the package and, in a git checkout, the commit."""
    commit = source_commit(Path(__file__).parents[1])
    return {"version": __version__, **({"commit": commit} if commit else {})}


def source_commit(*folders: Path) -> str | None:
    """Return the commit of folders of a git checkout, followed by "-dirty" if a file in them has changed since.

    Results that a run adds elsewhere in the checkout do not count. None outside a checkout, or without git.
    """

    def git(*words: str) -> str:
        command = ["git", "-C", str(folders[0]), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()

    try:
        commit = git("rev-parse", "--short", "HEAD")
        changed = git("status", "--porcelain", "--", *map(str, folders))
    except (OSError, subprocess.CalledProcessError):
        return None
    return f"{commit}-dirty" if changed else commit
