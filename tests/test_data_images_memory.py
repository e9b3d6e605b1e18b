"""Images of 384×384 need memory for a batch, not for the set."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("PIL")

SCRIPT = """
import sys
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from apmax.data.images.augmentation import LARGE_IMAGES
from apmax.data.images.reading import image_dataset

torch.set_num_threads(1)


def megabytes(entry):
    status = Path("/proc/self/status").read_text()
    return int(status.split(entry + ":")[1].split()[0]) / 1024


folder, rows = Path(sys.argv[1]), int(sys.argv[2])
files = []
for number in range(20):
    pixels = np.random.default_rng(number).integers(0, 256, (24, 24, 3), dtype=np.uint8)
    files.append(str(folder / f"{number}.jpg"))
    Image.fromarray(pixels).resize((400, 300)).save(files[-1])
before = megabytes("RssAnon")
data, _ = image_dataset((files * rows)[:rows], np.zeros((rows, 1)), size=384, cache=folder / "cache", workers=1)
train = data.subset(range(rows), augment=LARGE_IMAGES)
peak = megabytes("RssAnon")
for first in range(0, rows, 32):
    batch = train.read(range(first, min(first + 32, rows)))
    peak = max(peak, megabytes("RssAnon"))
# Not getrusage: a child inherits its parent's peak there.
whole = megabytes("VmHWM")
print(round(data.store.pixels.nbytes / 2**20), round(peak - before), round(whole))
"""


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="needs Linux's account of memory")
def test_memory_does_not_grow_with_the_number_of_images(tmp_path):
    command = [sys.executable, "-c", SCRIPT, str(tmp_path), "2000"]
    stored, growth, whole = map(int, subprocess.run(command, check=True, capture_output=True, text=True).stdout.split())
    assert stored > 800
    assert growth < 250
    # With what is mapped of the cache.
    assert whole < 800
