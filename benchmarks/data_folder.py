"""Folder of the data sets of the benchmarks."""

from __future__ import annotations

import os
from pathlib import Path


def data_folder() -> Path:
    """Return the folder that APMAX_DATA names.

    Raises:
        SystemExit: APMAX_DATA is not set.
    """
    if "APMAX_DATA" not in os.environ:
        raise SystemExit("set APMAX_DATA to the folder of the data sets")
    return Path(os.environ["APMAX_DATA"])
