"""Compare committees with other methods on images.

    APMAX_DATA=... python -m benchmarks.committees.images run
    python -m benchmarks.committees.images report

APMAX_DATA names the folder of the sets. Both commands can be stopped and started again: finished lines stay.
"""

from __future__ import annotations

from benchmarks.committees.images.methods import IMAGE_SUITE
from benchmarks.committees.images.page import IMAGE_PAGE
from benchmarks.committees.suite_command import run_suite_command

if __name__ == "__main__":
    run_suite_command(__doc__, IMAGE_SUITE, IMAGE_PAGE)
