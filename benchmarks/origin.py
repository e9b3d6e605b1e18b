"""The commit that a result of the benchmarks was made by."""

from __future__ import annotations

from pathlib import Path

from apmax.reproduce.origin import source_commit

ROOT = Path(__file__).parents[1]


def benchmark_commit() -> str:
    """Return the commit of the package and of the benchmarks, "-dirty" where either has changed, "?" without git."""
    return source_commit(ROOT / "src", ROOT / "benchmarks") or "?"
