"""Compare committees with other methods on molecules.

    APMAX_DATA=... python -m benchmarks.molecular run
    python -m benchmarks.molecular report

APMAX_DATA names the folder of the sets. Both commands can be stopped and started again: finished lines stay.
"""

from __future__ import annotations

from benchmarks.molecular.methods import MOLECULE_SUITE
from benchmarks.molecular.page import MOLECULE_PAGE
from benchmarks.suite_command import run_suite_command

if __name__ == "__main__":
    run_suite_command(__doc__, MOLECULE_SUITE, MOLECULE_PAGE)
