"""Command line: the time of `apmax --help`, and the peak memory of scoring a large file."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from benchmarks.timing import Row, ratio

HELP_TARGET = 4.0
ROWS, PIECE = 10_000_000, 1_000_000
LIMIT_BYTES = 2 * 2**30
_LAUNCHER = """
import os, subprocess, sys
process = subprocess.Popen([sys.executable, *sys.argv[1:]], stdout=subprocess.DEVNULL)
_, status, usage = os.wait4(process.pid, 0)
process.returncode = os.waitstatus_to_exitcode(status)
print(usage.ru_maxrss)
sys.exit(process.returncode)
"""


def call(*arguments: str) -> None:
    """Run Python with arguments in a new process."""
    subprocess.run([sys.executable, *arguments], check=True, stdout=subprocess.DEVNULL)


def peak_bytes(*arguments: str) -> int:
    """Return the peak memory of Python with arguments in a new process."""
    # On Linux a process inherits the peak of the one that starts it, here of all benchmarks before: a small one does.
    printed = subprocess.run(
        [sys.executable, "-c", _LAUNCHER, *arguments], check=True, stdout=subprocess.PIPE, text=True
    )
    return int(printed.stdout) * (1 if sys.platform == "darwin" else 1024)


def rows(count: int, seed: int) -> pa.Table:
    """Return random rows of five columns, and a target that depends on the first."""
    generator = np.random.default_rng(seed)
    a, b, c = generator.normal(size=(3, count))
    city = pa.array(generator.choice(["rome", "oslo", "bern", "ulm"], count))
    target = (a + generator.normal(size=count) > 2.5).astype(np.int8)
    return pa.table({"a": a, "b": b, "c": c, "city": city, "n": generator.integers(0, 100, count), "y": target})


def run() -> list[Row]:
    """Return (description, measured, target) of each comparison."""
    help_ratio = ratio(lambda: call("-m", "apmax", "--help"), lambda: call("-c", "import typer"))
    results = [("`apmax --help` / `python -c 'import typer'`", help_ratio, HELP_TARGET)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pq.write_table(rows(20_000, 0), folder / "train.parquet")
        with pq.ParquetWriter(folder / "large.parquet", rows(1, 0).schema) as writer:
            for seed in range(ROWS // PIECE):
                writer.write_table(rows(PIECE, seed))
        model, out = str(folder / "run"), str(folder / "out.parquet")
        common = ["-m", "apmax", "train", str(folder / "train.parquet"), "--target", "y", "--quiet", "--out", model]
        call(*common, "--epochs", "1", "--set", "stages.0.epochs=1")
        for option in ([], ["--sort"]):
            used = peak_bytes("-m", "apmax", "predict", model, str(folder / "large.parquet"), "--out", out, *option)
            description = f"peak memory of `apmax predict{' --sort' if option else ''}`, parquet of 1e7 rows / 2 GB"
            results.append((description, used / LIMIT_BYTES, 1.0))
    return results
