"""Compare committees with other methods on images.

    APMAX_DATA=... python -m benchmarks.imaging run
    python -m benchmarks.imaging report

APMAX_DATA names the folder of the sets. Both commands can be stopped and started again: finished lines stay.
"""

from __future__ import annotations

from benchmarks.imaging.methods import IMAGE_SUITE
from benchmarks.imaging.page import IMAGE_PAGE
from benchmarks.suite_command import run_suite_command

if __name__ == "__main__":
    run_suite_command(__doc__, IMAGE_SUITE, IMAGE_PAGE)
