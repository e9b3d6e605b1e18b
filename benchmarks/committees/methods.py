"""Scores of a method with their facts, and what methods of all problems share: cores, times, `apmax train`."""

from __future__ import annotations

import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

_Array = NDArray[np.float64]

EFFORTS = ("quick", "standard")
"""Efforts of `apmax train`."""


@dataclass(frozen=True)
class Scored:
    """Test scores of a method, those of its members, and facts to record beside each."""

    scores: _Array
    facts: Mapping[str, Any] = field(default_factory=dict)
    members: Mapping[str, tuple[_Array, Mapping[str, Any]]] = field(default_factory=dict)


def cpu_seconds() -> float:
    """Return the CPU time of this process and of its finished children."""
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)


def use_cores(count: int) -> None:
    """Keep this process and its children to so many cores, with as many threads.

    Raises:
        SystemExit: There are not so many.
    """
    available = sorted(os.sched_getaffinity(0))
    if not 1 <= count <= len(available):
        raise SystemExit(f"--cores must be from 1 to the {len(available)} that there are, got {count}")
    os.sched_setaffinity(0, available[-count:])
    torch.set_num_threads(count)
    os.environ["OMP_NUM_THREADS"] = str(count)


def train_rows_by_command(
    train: Any, labels: _Array, test: Any, effort: str | None, seed: int, arguments: Sequence[str] = ()
) -> Scored:
    """Run `apmax train` on a file of the rows of a `pyarrow.Table`, and score other rows by the model in its folder.

    Args:
        train: The training rows.
        labels: Their labels.
        test: The rows to score.
        effort: The effort of the committee; None where `arguments` ask for one network.
        seed: The seed.
        arguments: Further arguments of the command.
    """
    from apmax.workflows import load_model

    with tempfile.TemporaryDirectory() as folder:
        options = [] if effort is None else ["--effort", effort]
        out, facts = _run_train(Path(folder), train, labels, [*options, *arguments, "--seed", str(seed)])
        model = load_model(out)
        results = json.loads((out / "results.json").read_text(encoding="utf-8"))
        if effort is None:
            return Scored(np.ravel(model.score_table(test)), facts | {"valid_ap": results["valid"]["ap"]["estimate"]})
        *rows, blend = results["leaderboard"]
        facts |= {"crossfit_ap": blend["ap"]["estimate"]}
        members = {}
        for row in rows if effort != "quick" else ():
            own = {"crossfit_ap": row["ap"]["estimate"], "weight": row["weight"], "fit_seconds": row["seconds"]}
            members[row["name"]] = (np.ravel(model.with_member(row["name"]).score_table(test)), own)
        return Scored(np.ravel(model.score_table(test)), facts, members)


def _run_train(folder: Path, train: Any, labels: _Array, arguments: Sequence[str]) -> tuple[Path, dict[str, Any]]:
    """Run `apmax train` on rows and labels; return the folder of the model and the time of the command."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file, out = folder / "train.parquet", folder / "model"
    pq.write_table(train.append_column("label", pa.array(labels.astype(int))), file)
    command = [sys.executable, "-m", "apmax", "train", str(file), "--target", "label", *arguments]
    return out, run_command([*command, "--quiet", "--out", str(out)], "apmax train")


def run_command(command: Sequence[str], name: str) -> dict[str, float]:
    """Run a command and return its seconds and CPU seconds.

    Raises:
        RuntimeError: The command failed.
    """
    used, started = cpu_seconds(), time.monotonic()
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{name} ended with code {done.returncode}: {done.stderr[-2000:]}")
    return {"seconds": time.monotonic() - started, "cpu_seconds": cpu_seconds() - used}
