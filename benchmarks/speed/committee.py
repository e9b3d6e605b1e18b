"""Cost of committees: fit, predict and memory against LightGBM as installed, on the same table and cores, one run.

Every measurement has a process of its own, in which LightGBM and the committee take turns; `python -m
benchmarks.speed.committee ROWS COLUMNS EFFORT` is one of them and prints JSON.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Sequence
from importlib.abc import MetaPathFinder
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.timing import Row, Timed, timed

SIZES = ((7_000, 20), (100_000, 30))
TARGETS = {"quick": 10.0, "standard": 100.0}
PREDICT_TARGET = 30.0
MEGABYTE = 2**20
ALLOWANCE = 500 * MEGABYTE


def table(rows: int, columns: int) -> tuple[Any, Any]:
    """Return a generated table with about 3 % positives."""
    from sklearn.datasets import make_classification

    X, y = make_classification(
        rows,
        columns,
        n_informative=columns // 2,
        n_redundant=2,
        weights=[0.975],
        flip_y=0.01,
        class_sep=0.7,
        random_state=0,
    )
    return X, y.astype(float)


class HiddenPandas(MetaPathFinder):
    """A finder that says that pandas is not installed.

    scikit-learn and LightGBM import it wherever it is, some 95 MB with pyarrow. It comes with none of our extras, but
    with the tools of contributors: without it the memory is what users have.
    """

    def find_spec(self, fullname: str, *_: object) -> None:
        """Raise for pandas; leave other modules to other finders."""
        if fullname.split(".")[0] == "pandas":
            raise ModuleNotFoundError("pandas is hidden from this benchmark", name=fullname)


class PeakMemory:
    """The largest memory of this process and its children while it runs, read every 20 ms.

    Of pages that several processes share each counts its part (PSS), so that the sum is what the machine needs; a
    process alone has all of its resident pages (RSS).
    """

    def __init__(self) -> None:
        self.peak = 0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> PeakMemory:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def _watch(self) -> None:
        while not self._stop.wait(0.02):
            self.peak = max(self.peak, tree_memory(os.getpid()))


def tree_memory(process: int) -> int:
    """Return the bytes of a process and its descendants: resident pages, shared ones of children by their part."""
    total, pending = resident_bytes(process, "Rss"), children(process)
    while pending:
        child = pending.pop()
        total += resident_bytes(child, "Pss")
        pending += children(child)
    return total


def resident_bytes(process: int, kind: str) -> int:
    """Return Rss or Pss of a process; 0 if it has ended."""
    try:
        if kind == "Rss":
            return int(Path(f"/proc/{process}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
        lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
    except (OSError, IndexError):
        return 0
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{kind}:"))


def children(process: int) -> list[int]:
    """Return the child processes of a process."""
    try:
        return [
            int(number)
            for path in Path(f"/proc/{process}/task").glob("*/children")
            for number in path.read_text().split()
        ]
    except OSError:
        return []


def measure(rows: int, columns: int, effort: str) -> dict[str, float]:
    """Return times of LightGBM and of a committee in seconds, and the memory of the latter."""
    from lightgbm import LGBMClassifier

    from apmax.committee import ArrayFeatures, TrainingRows, find_members, fit_committee, plan_committee
    from apmax.committee.storage import save_committee
    from apmax.data.parallel import available_cores
    from apmax.folders import folder_bytes

    X, y = table(rows, columns)
    jobs = available_cores()
    plan = plan_committee(
        rows=rows, positives=int(y.sum()), columns=columns, possible_folds=5, effort=effort, n_jobs=jobs
    )
    base = [timed(lambda: LGBMClassifier(verbose=-1).fit(X, y)) for _ in range(3)]
    with PeakMemory() as memory:
        fit = timed(
            lambda: fit_committee(
                TrainingRows(ArrayFeatures(X), y, np.ones(rows)),
                find_members(plan.members, effort=effort),
                folds=plan.folds,
                n_jobs=jobs,
            )
        )
    committee = fit.result
    base += [timed(lambda: LGBMClassifier(verbose=-1).fit(X, y)) for _ in range(3)]
    model = LGBMClassifier(verbose=-1).fit(X, y)
    scored = [(timed(lambda: committee.score(X)), timed(lambda: model.predict_proba(X))) for _ in range(3)]
    (own, own_processor), (other, other_processor) = (shortest(times) for times in zip(*scored, strict=True))
    base_fit, base_processor = shortest(base)
    with tempfile.TemporaryDirectory() as folder:
        save_committee(folder, committee)
        size = folder_bytes(folder)
    return {
        "jobs": jobs,
        "fit": fit.wall,
        "lightgbm_fit": base_fit,
        "predict": own,
        "lightgbm_predict": other,
        # On a busy machine the ratios of processor time say more.
        "processor": fit.processor / base_processor,
        "predict_processor": own_processor / other_processor,
        "processor_seconds": fit.processor,
        "planned": plan.seconds,
        "memory": memory.peak,
        "table": X.nbytes,
        "size": size,
        **{f"seconds {row.name}": row.seconds for row in committee.leaderboard.rows},
        **{f"weight {row.name}": row.weight for row in committee.leaderboard.rows},
        **{f"ap {row.name}": row.ap.estimate for row in (*committee.leaderboard.rows, committee.leaderboard.blend)},
    }


def shortest(times: Sequence[Timed]) -> tuple[float, float]:
    """Return the shortest wall-clock time, and the shortest processor time."""
    return min(each.wall for each in times), min(each.processor for each in times)


def measured_apart(rows: int, columns: int, effort: str) -> dict[str, float]:
    """Return `measure` of a new process, whose memory is its own and whose threads are those of the machine."""
    environment = {name: value for name, value in os.environ.items() if name != "OMP_NUM_THREADS"}
    command = [sys.executable, "-m", "benchmarks.speed.committee", str(rows), str(columns), effort]
    output = subprocess.run(command, env=environment, check=True, stdout=subprocess.PIPE).stdout
    found: dict[str, float] = json.loads(output)
    return found


def run() -> list[Row]:
    """Return (what, ratio, target) of every claim."""
    lines = []
    for rows, columns in SIZES:
        for effort, target in TARGETS.items():
            found = measured_apart(rows, columns, effort)
            what = f"committee, {effort}, {rows:,} × {columns}"
            limit = 3 * found["table"] + ALLOWANCE
            lines += [
                (f"{what}: fit / LGBMClassifier().fit", found["fit"] / found["lightgbm_fit"], target),
                (f"{what}: predict / LightGBM's", found["predict"] / found["lightgbm_predict"], PREDICT_TARGET),
                (f"{what}: peak memory / (3 tables + 500 MB)", found["memory"] / limit, 1.0),
            ]
    return lines


if __name__ == "__main__":
    sys.meta_path.insert(0, HiddenPandas())
    print(json.dumps(measure(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3])))
