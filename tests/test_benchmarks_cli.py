"""The benchmark of the command line: peak memory of other processes."""

from __future__ import annotations

import numpy as np
from benchmarks.speed.cli import peak_bytes


def test_peak_of_a_process_is_not_that_of_the_one_that_measures_it():
    held = np.ones(300 * 2**20 // 8)
    assert peak_bytes("-c", "pass") < held.nbytes / 2


def test_peak_counts_what_the_process_takes():
    assert peak_bytes("-c", f"held = bytearray({300 * 2**20})") > 300 * 2**20
