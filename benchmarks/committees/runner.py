"""Resumable runner: one line of JSON for every table, resplit and method that is finished."""

from __future__ import annotations

import datetime
import platform
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

from apmax.data.parallel import available_cores
from apmax.metrics import auprc, auroc, average_precision
from apmax.reproduce.results import append_line, read_lines
from benchmarks.committees.methods import Scored, cpu_seconds
from benchmarks.origin import benchmark_commit

PACKAGES = ("lightgbm", "scikit-learn", "numpy", "torch")


@dataclass(frozen=True)
class RunOptions:
    """What to run: tables, resplits and methods, the file of the lines, and the Python that has AutoGluon.

    `keep` is called with table, resplit, split, method and test scores before the line of the method is written.
    """

    tables: Sequence[str]
    resplits: Sequence[int]
    methods: Sequence[str]
    path: Path
    autogluon: str | None = None
    keep: Callable[[str, int, Any, str, Any], None] | None = None


Fit = Callable[[Any, str, int, float | None, str | None], Scored]
"""From a split, a method, a seed, the seconds that it may take and the Python that has AutoGluon to scores."""


@dataclass(frozen=True)
class Suite:
    """Methods in the order in which they run, the splits by name and number, and how a method is fitted.

    `packages` are those whose versions are recorded; methods of `same_time` get the wall-clock time that `standard`
    took on the same split.
    """

    methods: Sequence[str]
    load: Callable[[str, int], Any]
    fit: Fit
    packages: Sequence[str] = PACKAGES
    same_time: Sequence[str] = ()


def run(options: RunOptions, suite: Suite) -> None:
    """Run what is not in the file yet."""
    lines = read_lines(options.path)
    common = {
        "cores": available_cores(),
        "commit": benchmark_commit(),
        "versions": package_versions(options.autogluon, suite.packages),
    }
    for resplit in options.resplits:
        for table in options.tables:
            own = {line["method"]: line for line in lines if line["table"] == table and line["resplit"] == resplit}
            missing = [method for method in suite.methods if method in options.methods and method not in own]
            if not missing:
                continue
            split = suite.load(table, resplit)
            place = {"table": table, "resplit": resplit} | split_facts(split)
            for method in missing:
                limit = own["standard"]["seconds"] if method in suite.same_time and "standard" in own else None
                if method in suite.same_time and limit is None:
                    raise SystemExit(f"{method} runs as long as standard, which {table} has no line of")
                for line, scores in measure(split, method, resplit, limit, options.autogluon, suite.fit):
                    if options.keep is not None and scores is not None:
                        options.keep(table, resplit, split, line["method"], scores)
                    entry = place | line | common | {"finished": f"{datetime.datetime.now():%Y-%m-%d %H:%M}"}
                    own[entry["method"]] = entry
                    append_line(options.path, entry)
                done = own[method]
                found = f"AP {done['ap']:.4f}" if "ap" in done else done["error"]
                print(f"{table} {resplit} {method}: {found}, {done['seconds']:.0f} s", flush=True)


def measure(
    split: Any, method: str, seed: int, limit: float | None, autogluon: str | None, fit: Fit
) -> Iterator[tuple[dict[str, Any], Any]]:
    """Yield line and test scores of each member of a method and of itself; a failure gets a line with its error."""
    cpu, started = cpu_seconds(), time.monotonic()
    try:
        scored = fit(split, method, seed, limit, autogluon)
    except RuntimeError as error:
        seconds = time.monotonic() - started
        yield {"method": method, "error": str(error)[-300:], "limit": limit, "seconds": seconds}, None
        return
    seconds, cpu = time.monotonic() - started, cpu_seconds() - cpu
    labels = split.test_labels
    for name, scores, facts in [
        *((f"member {name}", *found) for name, found in scored.members.items()),
        (method, scored.scores, {"seconds": seconds, "cpu_seconds": cpu} | dict(scored.facts)),
    ]:
        line = {
            "method": name,
            "ap": float(average_precision(scores, labels)),
            "auprc": float(auprc(scores, labels)),
            "auroc": float(auroc(scores, labels)),
            **({"limit": limit} if limit is not None else {}),
            **{key: round(value, 6) if isinstance(value, float) else value for key, value in facts.items()},
        }
        yield line, scores


def split_facts(split: Any) -> dict[str, int]:
    """Return the sizes of a split."""
    return {
        "columns": split.train.shape[1],
        "train_rows": len(split.train_labels),
        "train_positives": int(split.train_labels.sum()),
        "test_rows": len(split.test_labels),
        "test_positives": int(split.test_labels.sum()),
    }


def package_versions(autogluon: str | None, packages: Sequence[str] = PACKAGES) -> dict[str, str]:
    """Return the versions of what was compared."""
    found = {"python": platform.python_version()} | {name: version(name) for name in packages}
    if autogluon is not None:
        code = "from importlib.metadata import version; print(version('autogluon.tabular'))"
        done = subprocess.run([autogluon, "-c", code], capture_output=True, text=True, check=True)
        found["autogluon.tabular"] = done.stdout.strip()
    print(" ".join(f"{name} {each}" for name, each in found.items()), file=sys.stderr)
    return found
