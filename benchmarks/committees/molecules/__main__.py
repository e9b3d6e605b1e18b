"""Compare committees with other methods on molecules.

    APMAX_DATA=... python -m benchmarks.committees.molecules run
    python -m benchmarks.committees.molecules report

APMAX_DATA names the folder of the sets. Both commands can be stopped and started again: finished lines stay.
"""

from __future__ import annotations

from benchmarks.committees.molecules.methods import MOLECULE_SUITE
from benchmarks.committees.molecules.page import MOLECULE_PAGE
from benchmarks.committees.suite_command import run_suite_command

if __name__ == "__main__":
    run_suite_command(__doc__, MOLECULE_SUITE, MOLECULE_PAGE)
