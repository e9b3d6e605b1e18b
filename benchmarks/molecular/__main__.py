"""Compare committees with other methods on molecules.

    APMAX_DATA=... python -m benchmarks.molecular run
    python -m benchmarks.molecular report

APMAX_DATA names the folder of the sets. Both commands can be stopped and started again: finished lines stay.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from benchmarks.molecular.methods import MOLECULE_SUITE
from benchmarks.molecular.problems import PROBLEMS, MoleculeSplit
from benchmarks.molecular.ranks import save_ranks
from benchmarks.molecular.report import ranks_path, write_molecule_report
from benchmarks.suite_command import run_suite_command


def _keep(
    folder: Path, problem: str, resplit: int, split: MoleculeSplit, method: str, scores: NDArray[np.float64]
) -> None:
    save_ranks(ranks_path(folder, problem, resplit), split, method, scores)


if __name__ == "__main__":
    resplits = {name: problem.resplits for name, problem in PROBLEMS.items()}
    run_suite_command(__doc__, "molecules", MOLECULE_SUITE, resplits, report=write_molecule_report, keep=_keep)
