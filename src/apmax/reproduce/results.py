"""What is known: one line of JSON per finished run, written by any number of processes."""

from __future__ import annotations

import json
import os
from os import PathLike
from pathlib import Path
from typing import Any

from apmax.reproduce.claims import waiting

LINES, HISTORIES = "results.jsonl", "histories.jsonl"


class Results:
    """The results of a folder, by the keys of their trials; `refresh` reads what others have added."""

    def __init__(self, folder: str | PathLike[str]) -> None:
        self.folder = Path(folder)
        self.lines: dict[str, dict[str, Any]] = {}
        self.read_to = 0
        self.refresh()

    def refresh(self) -> None:
        """Read the lines that were added since, by whichever process; a line cut short is left for later."""
        path = self.folder / LINES
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(self.read_to)
            for raw in file:
                if not raw.endswith(b"\n"):
                    break
                self.read_to += len(raw)
                if raw.strip():
                    line = json.loads(raw)
                    self.lines[line["key"]] = line

    def get(self, key: str) -> dict[str, Any] | None:
        """Return a run's result, or None."""
        return self.lines.get(key)

    def add(self, line: dict[str, Any], history: dict[str, Any] | None = None) -> None:
        """Append a result, and how its epochs went where that is wanted; on the disk when this returns."""
        self.folder.mkdir(parents=True, exist_ok=True)
        if history is not None:
            append(self.folder / HISTORIES, history)
        append(self.folder / LINES, line)
        self.refresh()

    def histories(self) -> dict[str, dict[str, Any]]:
        """Return how the epochs of those runs went of which that was kept, by key; a line cut short is left out."""
        path = self.folder / HISTORIES
        if not path.exists():
            return {}
        with path.open("rb") as file:
            lines = [json.loads(raw) for raw in file if raw.endswith(b"\n") and raw.strip()]
        return {line["key"]: line for line in lines}


def append(path: Path, line: dict[str, Any]) -> None:
    """Append one line of JSON; two processes never write into each other's, and a torn last line is ended first."""
    with waiting(path.with_name(f".{path.name}.lock")), path.open("ab+") as file:
        if file.tell():
            file.seek(-1, os.SEEK_END)
            if file.read(1) != b"\n":
                file.seek(0)
                whole = file.read()
                file.truncate(whole.rfind(b"\n") + 1)
        file.write((json.dumps(line) + "\n").encode())
        file.flush()
        os.fsync(file.fileno())
